"""Dynamic sampling: which prompts are replaced, by which, and that all rollouts count."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from running import cell, rows, run

from harness.experience.answers import Answer, Group, Prompt
from harness.session.cell import cell as cells
from harness.session.cell import dynamic
from harness.session.cell.dynamic import places_to_replace, prompts_not_asked
from harness.session.cell.questions import training_prompts
from harness.session.suite.demand import demand_of
from harness.session.suite.prepare import prepare_named
from harness.verification.verdict import Verdict

VALUES = {"1": "right", "0": "wrong", "?": "invalid"}
FEW = ["evaluation.limit=1", "evaluation.curve_every=0", "training.measure_every=0"]


def group(policy: str, place: int, outcomes: str) -> Group:
    tokens = np.array([1, 0], dtype=np.int32)
    answers = [Answer(tokens, np.zeros(2, np.float32), "t", True, Verdict(VALUES[o])) for o in outcomes]  # type: ignore[arg-type]
    return Group(Prompt(f"x{place}", "", ""), policy, 0, 1, tuple(answers))


def groups(**outcomes: list[str]) -> dict[str, list[Group]]:
    return {policy: [group(policy, i, said) for i, said in enumerate(own)] for policy, own in outcomes.items()}


def test_a_prompt_is_replaced_only_where_no_policys_group_has_a_signal() -> None:
    step = groups(a=["00", "11", "10", "00", "?1", "??"], b=["00", "00", "00", "01", "1?", "0?"])
    assert places_to_replace(step, "all") == {"a": [0, 1, 4, 5], "b": [0, 1, 4, 5]}
    assert places_to_replace(step, "own") == {"a": [0, 1, 3, 4, 5], "b": [0, 1, 2, 4, 5]}
    assert places_to_replace(groups(a=["10"], b=["00"]), "all") == {"a": [], "b": []}


def test_only_prompts_that_the_step_has_not_asked_are_offered() -> None:
    offered = [Prompt(name, "", "") for name in "abcd"]
    assert [prompt.id for prompt in prompts_not_asked(offered, ["c", "a"])] == ["b", "d"]


REGIMES = (
    "regimes=[independent, {regime: independent, name: dynamic, dynamic_sampling: true}, "
    "{regime: independent, name: own, dynamic_sampling: {decided_by: own, rounds: 2}}, "
    "{regime: sgt, name: sgt-dynamic, dynamic_sampling: true}]"
)


@pytest.mark.parametrize(("name", "rounds"), [("dynamic", 3), ("own", 2), ("sgt-dynamic", 3)])
def test_every_round_asks_new_prompts_where_the_last_one_taught_nothing(
    suite_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, rounds: int
) -> None:
    asked: dict[tuple[int, str], list[list[Group]]] = defaultdict(list)
    honest = cells.roll_out

    def rolled(learner, cell, step, prompts, verifier):  # type: ignore[no-untyped-def]
        answered = honest(learner, cell, step, prompts, verifier)
        assert [g.prompt.id for g in answered] == [p.id for p in prompts]
        asked[step, learner.name].append(list(answered))
        return answered

    monkeypatch.setattr(cells, "roll_out", rolled)
    done = run(suite_file, tmp_path / "r", [REGIMES, *FEW], only=f"*/{name}/*")
    steps = {(r["step"], r["policy"]): r for r in rows(done, done.cells[0], "steps")}
    assert set(steps) == set(asked)
    more = 0
    for (step, policy), sampled in asked.items():
        row, other = steps[step, policy], asked[step, "b" if policy == "a" else "a"]
        names = [g.prompt.id for answered in sampled for g in answered]
        assert len(set(names)) == len(names), "no prompt is asked twice in a step"
        assert len(sampled) <= 1 + rounds
        assert row["prompts"] == 6
        assert row["rollouts"] == 6 * len(names)
        assert row["answers"] == 36
        assert row["generated_tokens"] == sum(
            a.tokens.size for answered in sampled for g in answered for a in g.answers
        )
        if name != "own":
            assert [[g.prompt.id for g in one] for one in sampled] == [[g.prompt.id for g in one] for one in other]
        for i, answered in enumerate(sampled[1:]):
            still = [len({*g.rewards.tolist()}) <= 1 for g in sampled[i]]
            if name != "own":
                still = [mine and len({*g.rewards.tolist()}) <= 1 for mine, g in zip(still, other[i], strict=True)]
            assert len(answered) == sum(still)
        more += len(sampled) - 1
    assert more > 0


def test_without_equal_groups_nothing_changes(
    suite_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exact fact, row by row."""
    plain = run(suite_file, tmp_path / "r", [REGIMES], only="*/independent/*")
    monkeypatch.setattr(dynamic, "has_equal_rewards", lambda group: False)
    same = run(suite_file, tmp_path / "r", [REGIMES], only="*/dynamic/*")
    seconds = {"generate_seconds", "verify_seconds", "exchange_seconds", "score_seconds", "train_seconds"}
    for table in ("steps", "samples", "curves", "terms"):
        one, other = (
            [
                {k: v for k, v in row.items() if k not in seconds and v == v}
                for row in rows(done, cell(done, name), table)
            ]
            for done, name in ((plain, "independent"), (same, "dynamic"))
        )
        assert one == other
        assert one


def test_draws_differ_and_the_first_is_that_of_every_regime(suite_file: Path, tmp_path: Path) -> None:
    prepared = prepare_named(str(suite_file), tmp_path, overrides=[REGIMES])
    plain, chosen = prepared.cells[0], next(c for c in prepared.cells if c.variant.name == "dynamic")
    first, second, third = ([p.id for p in training_prompts(chosen, 1, draw)] for draw in (0, 1, 2))
    assert first == [p.id for p in training_prompts(plain, 1)]
    assert all({*one} != {*other} for one, other in ((first, second), (second, third), (first, third)))
    assert demand_of(chosen, prepared.resolved).workload.again > demand_of(plain, prepared.resolved).workload.again == 0
    assert demand_of(chosen, prepared.resolved).workload.trained == demand_of(plain, prepared.resolved).workload.trained


def test_cells_without_it_keep_their_keys(suite_file: Path, tmp_path: Path) -> None:
    (plain,) = prepare_named(str(suite_file), tmp_path, overrides=["regimes=[independent]"]).cells
    (off,) = prepare_named(
        str(suite_file), tmp_path, overrides=["regimes=[{regime: independent, dynamic_sampling: false}]"]
    ).cells
    assert off.key == plain.key
    assert "dynamic_sampling" not in plain.config()["variant"]
