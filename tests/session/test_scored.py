"""Rewards are the training task's scorer's, the learning curve is its own task's."""

from __future__ import annotations

import json
from pathlib import Path

from harness.session.cell.learners import verdicts
from harness.session.cell.questions import pool_entry, scored_as, training_prompts
from harness.session.suite.prepare import prepare
from harness.verification.verifier import Verifier

SUITE = """
groups: [{name: one, policies: [{name: a, model: micro/llama}]}]
regimes: [independent]
seeds: [1]
training: {steps: 1, prompts: 4, task: {file: halves.jsonl, scorer: exact}}
evaluation: {tasks: [micro], k: 1}
"""


def test_each_task_is_judged_by_its_own_scorer(tmp_path: Path) -> None:
    rows = [{"question": f"{n} halves are", "answer": f"{n}/2"} for n in range(1, 9)]
    (tmp_path / "halves.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "s.yaml").write_text(SUITE)
    cell = prepare(str(tmp_path / "s.yaml"), tmp_path / "r").cells[0]
    with Verifier(workers=1) as verifier:
        trained = scored_as(cell.training.task, verifier)
        asked = trained, ["1/2", "1/2", "1/2"], [r"\boxed{1/2}", r"\boxed{0.5}", r"\boxed{1/2}"], [True, True, False]
        assert [v.value for v in verdicts(*asked)] == ["right", "wrong", "wrong"]
        assert scored_as(cell.evaluation.tasks[0], trained).verify([("1/2", r"\boxed{0.5}")])[0].value == "right"
    prompts = training_prompts(cell, 1)
    assert {p.gold for p in prompts} <= {row["answer"] for row in rows}
    assert all(p.text.endswith(r"Put your final answer within \boxed{}.") for p in prompts)
    pool = pool_entry(cell.training)
    assert pool is not None
    assert (pool.describe().split()[0], cell.identity.pool) == ("halves:", cell.training.task.sha256)  # type: ignore[union-attr]
