"""Scores under the weights that policies started from, and log-probabilities of shared tokens alone, in whole cells."""

from __future__ import annotations

from pathlib import Path

from running import cell, rows, run

from harness.session.suite.demand import demand_of

REGIMES = (
    "regimes=[independent, {regime: copd, name: kept, ratio: 0}, {regime: copd, name: removed, ratio: 0, offset: removed}, "
    "{regime: copd, name: strict, ratio: 0, sharing: {alignment: strict}}, {regime: prp, name: prp-strict, sharing: "
    "{alignment: strict}}]"
)
FEW = ["evaluation.limit=1", "evaluation.curve_every=0", "training.measure_every=0"]


def test_what_training_changed_is_nothing_at_the_first_step(suite_file: Path, tmp_path: Path) -> None:
    """Exact but for rounding; with the offset kept two families differ from the start."""
    done = run(suite_file, tmp_path / "r", [REGIMES, *FEW], only="*/[kr]e*/*")
    norms = {
        name: [[r["gradient_norm"] for r in rows(done, cell(done, name), "steps") if r["step"] == s] for s in (1, 2)]
        for name in ("kept", "removed")
    }
    assert min(norms["kept"][0]) > 0.01
    assert max(norms["removed"][0]) < 1e-4 < min(norms["removed"][1])
    kinds = {name: {r["kind"] for r in rows(done, cell(done, name), "exchanges")} for name in norms}
    assert kinds["kept"] == {"draft", "scores"}
    assert kinds["removed"] == {"draft", "changed_scores"}
    works = {c.variant.name: demand_of(c, done.resolved) for c in done.cells}
    assert works["removed"].workload.scored == works["kept"].workload.scored + 2
    assert [all(p.reference for p in works[name].policies) for name in ("kept", "removed")] == [False, True]


def test_strict_leaves_out_tokens_that_only_one_tokenizer_has(suite_file: Path, tmp_path: Path) -> None:
    done = run(suite_file, tmp_path / "r", [REGIMES, *FEW], only="*/*strict*/*")
    for name, term in (("strict", "distil"), ("prp-strict", "peer")):
        terms = [r for r in rows(done, cell(done, name), "terms") if r["name"] == term and r["step"] == 1]
        sent = [r for r in rows(done, cell(done, name), "exchanges") if r["step"] == 1 and r["kind"] != "draft"]
        assert 0 < sum(r["tokens"] for r in terms) < sum(r["receiver_tokens"] for r in sent if r["accepted"])


def test_peers_are_heard_in_the_first_part_of_a_run_alone(suite_file: Path, tmp_path: Path) -> None:
    """Two of four steps; afterwards own answers alone are learnt."""
    lines = ", ".join(f"{{regime: {name}, share: 0.5}}" for name in ("imitate-then-rl", "score-then-rl"))
    done = run(suite_file, tmp_path / "r", [f"regimes=[independent, {lines}]", *FEW], only="*/*-then-rl/*")
    for name, term in (("imitate-then-rl", "imitation"), ("score-then-rl", "distil")):
        sent = {r["step"] for r in rows(done, cell(done, name), "exchanges") if r["kind"]}
        assert sent <= {1, 2}
        learnt = rows(done, cell(done, name), "terms")
        assert {t["step"] for t in learnt if t["name"] == term and t["answers"]} <= {1, 2}
        assert {t["step"] for t in learnt if t["name"] == "own" and t["answers"]} >= {3, 4}
    assert sent == {1, 2}
