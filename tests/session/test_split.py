"""`sampling: split`: each policy answers its share of a step's prompts, all learn from all; and `budget: 0.5x` beside it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from running import cell, rows, run

from harness.errors import SuiteError
from harness.session.suite.demand import demand_of
from harness.session.suite.prepare import prepare_named

FEW = ["evaluation.limit=1", "evaluation.curve_every=0", "training.measure_every=0"]
REGIMES = (
    "regimes=[independent, {regime: independent, name: half, budget: 0.5x}, {regime: independent, name: independent-split, "
    "sampling: split}, {regime: ftis, name: ftis-split, sampling: split}, {regime: naive, name: naive-dynamic, sampling: "
    "split, dynamic_sampling: true}]"
)
SECONDS = {"generate_seconds", "verify_seconds", "exchange_seconds", "score_seconds", "train_seconds"}


def test_each_answers_its_places_and_learns_the_others_groups(suite_file: Path, tmp_path: Path) -> None:
    done = run(suite_file, tmp_path / "r", [REGIMES, *FEW, "training.prompts=5"], only="*/ftis-split/*")
    chosen = cell(done, "ftis-split")
    steps, terms = rows(done, chosen, "steps"), rows(done, chosen, "terms")
    shares = {"a": 3, "b": 2}  # of five prompts
    for row in steps:
        own = shares[row["policy"]]
        assert (row["prompts"], row["answers"], row["rollouts"]) == (own, 6 * own, 6 * own)
    learnt = {(t["step"], t["policy"], t["name"]): t["answers"] for t in terms}
    other = {"a": "b", "b": "a"}
    assert all(learnt[1, policy, "own"] == 6 * shares[policy] for policy in shares)
    sent = [r for r in rows(done, chosen, "exchanges") if r["step"] == 1 and r["accepted"]]
    for policy in shares:
        heard = [r for r in sent if r["receiver"] == policy]
        assert learnt[1, policy, "peer"] == len(heard)
        assert 0 < len(heard) <= 6 * shares[other[policy]]
    by_author = {author: {r["prompt_id"] for r in sent if r["author"] == author} for author in shares}
    assert not by_author["a"] & by_author["b"], "one policy answers a prompt"


def test_with_one_policy_it_is_independent(suite_file: Path, tmp_path: Path) -> None:
    """Exact fact, row by row."""
    line = next(one for one in suite_file.read_text().splitlines() if "name: b" in one)
    suite_file.write_text(suite_file.read_text().replace(line + "\n", ""))
    done = run(
        suite_file, tmp_path / "r",
        ["regimes=[independent, {regime: independent, name: split, sampling: split}]", *FEW], only="*",
    )  # fmt: skip
    for table in ("steps", "samples", "terms"):
        one, other = (
            [
                {k: v for k, v in row.items() if k not in SECONDS and v == v}
                for row in rows(done, cell(done, name), table)
            ]
            for name in ("independent", "split")
        )
        assert one == other
        assert one


def test_dynamic_sampling_replaces_what_its_own_policy_found_equal(suite_file: Path, tmp_path: Path) -> None:
    done = run(suite_file, tmp_path / "r", [REGIMES, *FEW], only="*/naive-dynamic/*")
    steps = rows(done, cell(done, "naive-dynamic"), "steps")
    assert all(row["prompts"] == 3 and row["answers"] == 18 for row in steps)
    assert any(row["rollouts"] > 18 for row in steps)
    assert all(row["rollouts"] % 6 == 0 for row in steps)


def test_budget_plan_and_keys_follow(suite_file: Path, tmp_path: Path) -> None:
    prepared = prepare_named(str(suite_file), tmp_path, overrides=[REGIMES])
    by_name = {c.variant.name: c for c in prepared.cells}
    half, split = by_name["half"], by_name["ftis-split"]
    assert [half.rollouts(policy) for policy in half.group.policies] == [3, 3]
    assert [split.rollouts(policy) for policy in split.group.policies] == [6, 6]
    assert (
        demand_of(split, prepared.resolved).workload.prompts,
        demand_of(half, prepared.resolved).workload.prompts,
    ) == (3, 6)
    assert split.variant.spent(2) == half.variant.spent(2) == "0.5x"
    assert (split.variant.spent(3), by_name["independent"].variant.spent(3)) == ("0.333x", "1x")
    assert Counter("sampling" in c.config()["variant"] for c in prepared.cells) == {True: 3, False: 2}
    with pytest.raises(SuiteError, match=r"budget: 0.5x of 5 rollouts is no whole number"):
        prepare_named(str(suite_file), tmp_path, overrides=[REGIMES, "training.rollouts=5"])
