"""Two tiny policies that guess right now and then."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
import torch
from running import run

from harness.engines.embedded.families import build_model, build_tokenizer
from harness.session.suite.prepare import prepare_named
from harness.session.suite.prepared import Prepared
from harness.tasks.micro import SKILLS

SUITE = """
name: tiny
groups:
  - name: pair
    policies:
      - {{name: a, model: {llama}}}
      - {{name: b, model: {qwen}}}
regimes: [independent, prp, xgrpo, sgt, hacpo, naive, graft, sapo, ftis]
seeds: [3]
training: {{steps: 4, prompts: 6, rollouts: 6, max_new_tokens: 12, learning_rate: 0.001, checkpoint_every: 2, measure_every: 2}}
evaluation: {{k: 2, limit: 6, curve_every: 2, curve_prompts: 4}}
"""


def _train(family: str, folder: Path, steps: int) -> None:
    torch.set_num_threads(1)
    tokenizer = build_tokenizer(family)
    model = build_model(family, 0, tokenizer=tokenizer)
    optimiser = torch.optim.AdamW(model.parameters(), lr=4e-3)
    rng, skills = Random(0), list(SKILLS.values())
    for _ in range(steps):
        problems = [skill.draw(rng, 1, held_out=False) for skill in skills * 6]
        ids = [[*tokenizer.encode(p.prompt + p.direct), tokenizer.eos_token_id] for p in problems]
        width = max(map(len, ids))
        labels = torch.tensor([row + [-100] * (width - len(row)) for row in ids])
        loss = model(input_ids=labels.clamp(min=0), labels=labels).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@pytest.fixture(scope="session")
def trained(shared: Callable[[str, Callable[[Path], object]], Path]) -> Callable[[str, int], Path]:
    """A family's policy after so many supervised steps."""
    return lambda family, steps: shared(
        f"session-policy-{family}-{steps}", lambda folder: _train(family, folder, steps)
    )


@pytest.fixture(scope="session")
def folders(trained: Callable[[str, int], Path]) -> dict[str, Path]:
    return {family: trained(family, 60) for family in ("llama", "qwen")}


@pytest.fixture(scope="session")
def suite_text(folders: dict[str, Path]) -> str:
    return SUITE.format(**folders)


@pytest.fixture(scope="session")
def finished(suite_text: str, shared: Callable[[str, Callable[[Path], object]], Path]) -> Prepared:
    """The tiny suite with three of its regimes."""
    few = ["regimes=[independent, sgt, hacpo]"]

    def make(root: Path) -> None:
        (root / "tiny.yaml").write_text(suite_text)
        run(root / "tiny.yaml", root / "results", few)

    root = shared("finished", make)
    return prepare_named(str(root / "tiny.yaml"), root / "results", overrides=few)


@pytest.fixture
def suite_file(tmp_path: Path, suite_text: str) -> Path:
    file = tmp_path / "tiny.yaml"
    file.write_text(suite_text)
    return file
