"""The store's derived tables against their definitions in docs/store.md, on journals made by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from running import ingested
from scipy import stats
from synthetic_results import write_rows

from harness.evaluation.metrics import EvaluationSample, MetricSpec, summarise_samples
from harness.session.cell.evaluate import journal_rows
from harness.store.finished import TableLine, make_lines
from harness.store.journal import write_columns
from harness.store.manifest import PolicyEntry
from harness.store.rows import CostRow, ExchangeRow, SampleRow, StepRow, to_arrow
from harness.store.tuning_table import read_trial_scores as trial_scores
from harness.verification.verdict import Verdict

POLICIES = (PolicyEntry("L", "micro/llama"), PolicyEntry("Q", "micro/qwen"))


def derived(results: Path, rows: list[Any], query: str) -> list[dict[str, Any]]:
    """What the store derives from the rows of one cell."""
    write_rows(results, rows, policies=POLICIES)
    with ingested(results) as snapshot:
        return snapshot.query(query).to_pylist()


DEFAULTS = msgspec.structs.asdict(StepRow(policy="", step=1))
COUNTS = [name for name, value in DEFAULTS.items() if type(value) is int and name not in {"step", "version"}]
MEANS = [
    name
    for name, value in DEFAULTS.items()
    if type(value) is float and name != "kl_base" and not name.endswith("_seconds")
]


def test_totals(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    steps = []
    for step in range(1, 6):
        counts = {name: int(rng.integers(1, 1000)) for name in COUNTS}
        known = {name: float("nan") if (step + i) % 4 == 0 else float(rng.random()) for i, name in enumerate(MEANS)}
        known |= {"own_gradient_norm": 0.0 if step == 2 else float(rng.random()), "peer_gradient_norm": rng.random()}
        steps.append(StepRow(policy="L", step=step, kl_base=float("nan") if step == 5 else 1 / step, **counts, **known))
    other = StepRow(policy="Q", step=1, rollouts=7, gradient_norm=2.0)
    rows = {r["policy"]: r for r in derived(tmp_path, [*steps, other], "SELECT * FROM totals")}
    totals = rows["L"]
    expected: dict[str, Any] = {"suite": "hand", "cell": "cell", "policy": "L", "steps": 5}
    expected |= {name: sum(getattr(s, name) for s in steps) for name in COUNTS}
    expected |= {name: np.nanmean([getattr(s, name) for s in steps]) for name in MEANS}
    expected["kl_base"] = steps[3].kl_base
    norms_known = [s.gradient_norm for s in steps if s.gradient_norm == s.gradient_norm]
    expected["gradient_norm_deviation"] = np.std(norms_known, ddof=1)
    ratios = [s.peer_gradient_norm / s.own_gradient_norm for s in steps if s.own_gradient_norm]
    expected["peer_gradient_ratio"] = np.mean(ratios)
    assert set(totals) == set(expected)
    for name, value in expected.items():
        assert totals[name] == (pytest.approx(value, rel=1e-12) if isinstance(value, float) else value), name
    assert (rows["Q"]["steps"], rows["Q"]["rollouts"], rows["Q"]["clipped_share"]) == (1, 7, None)


def test_flows(tmp_path: Path) -> None:
    edge: dict[str, Any] = {"author": "Q", "receiver": "L", "prompt_id": "p"}
    right = {"verdict": "right", "bytes": 10, "source_tokens": 4, "receiver_tokens": 5}
    rows = [
        ExchangeRow(step=1, kind="rollout", used=True, residual_boundary=0.5, residual_text=0.1, **edge, **right),
        ExchangeRow(step=2, kind="rollout", used=False, residual_boundary=0.25, residual_mass=2.0, **edge, **right),
        ExchangeRow(
            step=3, kind="rollout", used=False, verdict="wrong", residual_length=3.0, residual_canonical=0.75, **edge
        ),
        ExchangeRow(step=3, kind="rollout", used=True, author="L", receiver="Q", prompt_id="p", verdict="right"),
        ExchangeRow(step=3, kind="", accepted=False, reason="malformed", messages=7, bytes=70, **edge),
        ExchangeRow(step=4, kind="", accepted=False, reason="late", messages=0, **edge),
    ]
    flows = derived(tmp_path, rows, "SELECT * EXCLUDE (suite, cell) FROM flows WHERE receiver = 'L' ORDER BY reason")
    nothing = dict.fromkeys([f"residual_{n}" for n in ("text", "boundary", "mass", "length", "canonical")])
    counts = dict.fromkeys(("source_tokens", "receiver_tokens", "used", "peer_right"), 0)
    empty = {"author": "Q", "receiver": "L", "kind": "", "accepted": False, **counts, **nothing}
    assert flows == [
        {
            "author": "Q", "receiver": "L", "kind": "rollout", "accepted": True, "reason": "",
            "records": 3, "bytes": 20, "source_tokens": 8,
            "receiver_tokens": 10, "used": 1, "peer_right": 2, "residual_text": 0.1, "residual_boundary": 0.375,
            "residual_mass": 2.0, "residual_length": 3.0, "residual_canonical": 0.75,
        },
        {**empty, "reason": "late", "records": 0, "bytes": 0},
        {**empty, "reason": "malformed", "records": 7, "bytes": 70},
    ]  # fmt: skip


def test_spent(tmp_path: Path) -> None:
    rows = [
        CostRow(attempt=1, policy="L", phase="train", cpu_seconds=1.0, gpu_seconds=2.0, wall_seconds=3.0),
        CostRow(attempt=2, policy="L", phase="train", cpu_seconds=10.0, gpu_seconds=20.0, wall_seconds=30.0),
        CostRow(attempt=2, policy="L", phase="score", cpu_seconds=5.0),
    ]
    (row,) = derived(tmp_path, rows, "SELECT * FROM spent WHERE phase = 'train'")
    assert (row["policy"], row["cpu_seconds"], row["gpu_seconds"], row["wall_seconds"]) == ("L", 11.0, 22.0, 33.0)


def test_best_and_majority_are_those_of_the_evaluation(tmp_path: Path) -> None:
    said = {
        "spellings": ["7", "5", "7", "5.0", "5"],
        "tie": ["7", "5", "5", "7", "1"],
        "tie won": ["5", "7", "7", "5.0", "1"],
        "most are silent": ["", "", "", "5", "7"],
        "all silent": ["", "", "", "", ""],
        "invalid ones would decide": ["7", "?", "5", "?", "5"],
        "the first is invalid": ["?5", "7", "5", "5", "1"],
        "never right": ["1", "2", "3", "4", "6"],
        "nobody knows": ["?", "?", "?", "?", "?"],
    }
    samples = [
        EvaluationSample(
            task="t", mode="sampled", document=document, repeat=i, prompt=document, text=text, gold="5", tokens=1, finished=True,
            verdict=Verdict("invalid" if "?" in text else "right" if text in ("5", "5.0") else "wrong", "", text.lstrip("?")),
        )
        for document, texts in said.items() for i, text in enumerate(texts)
    ]  # fmt: skip
    older = journal_rows(samples[:5], "L", 2)
    write_rows(tmp_path, [*older, *journal_rows(samples, "L", 3)], policies=POLICIES)
    with ingested(tmp_path) as snapshot:
        rows = snapshot.query("SELECT * FROM scores WHERE task = 't'").to_pylist()
        values = snapshot.query("SELECT metric, doc_id, value FROM questions WHERE task = 't'").to_pylist()
    scores = {("avg@5" if r["metric"] == "sampled" else r["metric"]): r for r in rows}
    assert set(scores) == {"avg@5", "best@5", "maj@5"}
    for metric in summarise_samples("t", [MetricSpec.parse(name) for name in scores], samples):
        row = scores[metric.name]
        assert row["accuracy"] == pytest.approx(metric.value, abs=1e-12), metric.name
        assert (row["questions"], row["invalid"], row["checkpoint_step"]) == (metric.documents, metric.invalid, 3)
        assert (row["repeats"], row["answers"], row["right_answers"]) == (5, 37, 12)
        ours = [v["value"] for v in values if v["metric"] == row["metric"]]
        assert row["error"] == pytest.approx(stats.sem([v for v in ours if v is not None]))
    assert {v["doc_id"]: v["value"] for v in values if v["metric"] == "maj@5"} == {
        "spellings": 1, "tie": 0, "tie won": 1, "most are silent": 1, "all silent": 0, "invalid ones would decide": 1,
        "the first is invalid": 1,
        "never right": 0, "nobody knows": None,
    }  # fmt: skip


def test_without_votes_there_is_no_majority(tmp_path: Path) -> None:
    at = {"policy": "L", "checkpoint_step": 3, "task": "t", "metric": "sampled", "doc_id": "d", "verdict": "right"}
    rows, folder = [SampleRow(repeat=i, **at) for i in (0, 1)], write_rows(tmp_path, [], policies=POLICIES)
    table = to_arrow("samples", rows).drop_columns(["vote"])
    compact = folder / "journal" / "compact-000009"
    compact.mkdir(parents=True)
    write_columns(compact, "samples", table)
    with ingested(tmp_path) as snapshot:
        scores = snapshot.query("SELECT metric, accuracy FROM scores WHERE task = 't' ORDER BY 1").to_pylist()
    assert scores == [{"metric": "best@2", "accuracy": 1.0}, {"metric": "sampled", "accuracy": 1.0}]


def test_a_second_round_is_compared_with_the_budget_that_covers_it() -> None:
    """Beyond rollouts: the budget-matched baseline counts round B, where the suite has one that does."""

    def over(ours: TableLine, *budgets: str) -> str | None:
        baselines = [TableLine(f"independent-{b}", "independent", "{}", b, "independent-1x") for b in budgets]
        return make_lines([*baselines, ours], [], [])[ours.name].reference

    core = TableLine("core", "core", "{}", "1x", "independent-1x", sampled=1.2)
    assert over(core, "1x", "2x", "4x") == "independent-2x"
    assert over(replace(core, budget="2x"), "1x", "2x", "4x") == "independent-4x"
    assert over(core, "1x") == "independent-1x", "the suite has no other"
    assert over(replace(core, sampled=1.0), "1x", "2x") == "independent-1x"
    assert over(replace(core, sampled=1.0, budget="2x"), "1x", "4x") is None, "as before"


def test_prompts_that_are_shared_out_are_compared_with_as_few_rollouts_else_with_the_next_that_has_more() -> None:
    def over(budget: str, *budgets: str) -> str | None:
        baselines = [TableLine(f"independent-{b}", "independent", "{}", b, "independent-1x") for b in budgets]
        ours = TableLine("split", "ftis", "{}", budget, "independent-1x")
        return make_lines([*baselines, ours], [], [])["split"].reference

    assert over("0.5x", "1x", "0.5x", "2x") == "independent-0.5x"
    assert over("0.5x", "1x", "2x") == "independent-1x"
    assert over("0.333x", "1x", "0.5x") == "independent-0.5x"


def test_a_trial_that_failed_has_its_costs_and_no_score(tmp_path):
    step, cost = StepRow(policy="L", step=1, rollouts=8), CostRow(attempt=1, policy="L", phase="train", cpu_seconds=3.0)
    right = SampleRow(policy="L", checkpoint_step=1, task="t", metric="greedy", doc_id="q", verdict="right")
    for i, state in enumerate(("done", "failed")):
        rows = [step, msgspec.structs.replace(cost, gpu_seconds=i), right]
        write_rows(tmp_path, rows, f"cell-{i}", policies=POLICIES[:1], regime=f"sgt.{i}", seed=1, state=state)
    with ingested(tmp_path) as snapshot:
        found = trial_scores(snapshot, "hand", "t", 1)
    assert found.score == {"sgt.0": 1.0}
    assert found.rollouts == {"sgt.0": 8, "sgt.1": 8}
    assert (found.cpu, found.gpu) == ({"sgt.0": 3.0, "sgt.1": 3.0}, {"sgt.0": 0.0, "sgt.1": 1.0})
