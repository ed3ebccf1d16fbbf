"""Policies with several ends in whole cells: `sharing.ends`, and what peers are told of an end."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "engines"))

from models import SUMS, TURNS, byte_level, write

from harness.engines.embedded.engine import EmbeddedEngine
from harness.experience.answers import Answer, Group, Prompt
from harness.experience.records import Rollout
from harness.learning import registry
from harness.session.cell.cell import run_cell
from harness.session.cell.learners import Learner
from harness.session.suite.prepare import prepare_named
from harness.store.journal import read_journal
from harness.suite.cells import Cell
from harness.suite.schema import Policy, Sharing
from harness.tokenization.retokenise import retokenise_answers
from harness.verification.verdict import Verdict


def two_ends(place: Path) -> Path:
    return write(place, byte_level(), TURNS, ends=["<|done|>", "<|eos|>"], eos_token="<|eos|>")


@pytest.fixture
def cells(tmp_path) -> tuple[Path, dict[str, Cell]]:
    """Of two policies with two ends each: as one action, and told apart. By the variant's name, and the folder of results."""
    for name in ("one", "two"):
        two_ends(tmp_path / name)
    rows = [{"question": q, "answer": a, "split": "test" if i % 4 else "train"} for i, (q, a) in enumerate(SUMS)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sums = {"file": "sums.jsonl"}
    policies = [{"name": name, "model": f"./{name}", "chat": True, "style": "raw"} for name in ("one", "two")]
    suite = {
        "groups": [{"name": "pair", "policies": policies}], "baseline": "naive", "seeds": [1],
        "regimes": ["naive", {"regime": "naive", "name": "apart", "sharing": {"ends": "as_sampled"}}],
        "training": {"task": sums, "steps": 1, "prompts": 4, "rollouts": 8, "max_new_tokens": 64, "measure_every": 0},
        "evaluation": {"tasks": [sums], "k": 0, "limit": 1, "max_new_tokens": 8, "curve_every": 0},
        "engine_options": {"numerics": "fast"},
    }  # fmt: skip
    (tmp_path / "x.yaml").write_text(json.dumps(suite))
    prepared = prepare_named(str(tmp_path / "x.yaml"), tmp_path / "results")
    return prepared.folder, {cell.variant.name: cell for cell in prepared.cells}


def test_ends_are_told_apart_where_a_variant_asks_for_it(cells, verifier):
    """Answers are the same, as both cells begin alike; what they cost is more where each end counts for itself."""
    folder, by_name = cells
    surprise, generated = {}, {}
    for name, cell in by_name.items():
        run_cell(cell, folder / cell.key, verifier, lambda *_: None, lambda: False)
        rows = read_journal(folder / cell.key).tables["steps"].to_pylist()
        surprise[name] = {row["policy"]: row["entropy"] for row in rows}
        generated[name] = {row["policy"]: row["generated_tokens"] for row in rows}
    assert generated["naive"] == generated["apart"]
    for policy in ("one", "two"):
        assert surprise["apart"][policy] > surprise["naive"][policy] + 1e-4


def test_only_another_setting_than_the_default_is_in_a_key(cells):
    _, by_name = cells
    assert "ends" not in by_name["naive"].config()["sharing"]
    assert by_name["apart"].config()["sharing"]["ends"] == "as_sampled"
    assert by_name["naive"].key != by_name["apart"].key
    assert "ends" not in Sharing(ends="one_action").model_dump(mode="json")


def test_peers_are_told_the_same_of_each_end(tmp_path):
    """In a record, and on the tokens of its receiver."""
    folder = two_ends(tmp_path)
    engine = EmbeddedEngine("p", folder, chat=True, device="cpu", dtype="fp32")
    learner = Learner(Policy(name="p", model=str(folder), chat=True), engine, registry.build("naive", {}), 4, folder)
    prompt, text = Prompt("q0", SUMS[0][0], SUMS[0][1]), "\\boxed{4}"
    ids = engine.tokenizer.encode(text, add_special_tokens=False)
    answers = []
    for end in engine.stop:
        tokens = np.array([*ids, end], np.int32)
        (logprobs,) = engine.score([prompt], [tokens])
        answers.append(Answer(tokens, logprobs, text, True, Verdict("right"), ending=learner.ending(tokens)))
    group = Group(prompt, "p", 0, 1, tuple(answers))
    one, other = Rollout.of(group, learner.pieces([group]))
    assert one.eos_logprob == other.eos_logprob
    first, second = retokenise_answers([one, other], learner.codec)
    assert first.tokens.tolist() == second.tokens.tolist()
    assert first.aligned.tolist() == second.aligned.tolist()
