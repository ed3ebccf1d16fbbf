"""Collected only where OpenRLHF is installed (`make install-openrlhf`); run by `make test-openrlhf`."""

from __future__ import annotations

import importlib.util
import os
from random import Random

import pytest

if importlib.util.find_spec("openrlhf") is None:
    collect_ignore_glob = ["test_*.py", "*_fixtures.py"]
else:
    # Before torch and DeepSpeed are imported anywhere.
    os.environ.update(OMP_NUM_THREADS="1", OMP_WAIT_POLICY="passive", GOMP_SPINCOUNT="0", TORCHDYNAMO_DISABLE="1")
    import torch

    if not torch.cuda.is_available():
        os.environ["DS_ACCELERATOR"] = "cpu"


def pytest_collection_modifyitems(items):
    """What has moved in another version is said first, before anything here has adapted it."""
    items.sort(key=lambda item: "test_versions" not in item.nodeid)


def draw(count, seed):
    from harness.tasks.micro import LEVELS, SKILLS

    rng, skills = Random(seed), list(SKILLS.values())
    return [skills[i % len(skills)].draw(rng, rng.choice(LEVELS), held_out=False) for i in range(count)]


@pytest.fixture(scope="session")
def prompts():
    from harness.experience.answers import Prompt

    return tuple(Prompt(f"p{i}", p.prompt, "0") for i, p in enumerate(draw(12, seed=5)))


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """Folders of a Llama-, a Qwen- and a NeoX-type policy, trained for a second each so that they end their answers."""
    from harness.engines.embedded.families import build_model, build_tokenizer

    found = {}
    for family in ("llama", "qwen", "neox"):
        tokenizer = build_tokenizer(family)
        model = build_model(family, seed=0, tokenizer=tokenizer)
        optimiser = torch.optim.AdamW(model.parameters(), lr=4e-3)
        texts = [p.prompt + p.direct for p in draw(60 * 16, seed=1)]
        for step in range(60):
            ids = [[*tokenizer.encode(t), tokenizer.eos_token_id] for t in texts[step * 16 : (step + 1) * 16]]
            width = max(map(len, ids))
            labels = torch.tensor([row + [-100] * (width - len(row)) for row in ids])
            loss = model(input_ids=labels.clamp(min=0), labels=labels).loss
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        found[family] = tmp_path_factory.mktemp("policies") / family
        model.save_pretrained(found[family])
        tokenizer.save_pretrained(found[family])
    return found


@pytest.fixture(scope="session")
def ray_cluster():
    """Ray on this machine with four logical devices."""
    import ray

    from harness.engines.openrlhf.cluster import connect

    connect(devices=4)
    yield
    ray.shutdown()


_LINES = []


@pytest.fixture(scope="session")
def report_line():
    """Keep a measured figure for the end of the run."""
    return _LINES.append


def pytest_terminal_summary(terminalreporter):
    for line in _LINES:
        terminalreporter.write_line(line)
