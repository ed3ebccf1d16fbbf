"""Pace, reach, worth and equal cost of a made-up suite, whose numbers are known; and of rows that were added up by hand."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from paced_results import SAMPLED, Line, write_paced
from running import ingested

from harness.statistics.acceleration import Acceleration
from harness.statistics.policies import MemberScores, find_policy_differences
from harness.statistics.worth import estimate_worth
from harness.store.counted_cost import SCORED_TOKEN, TRAINED_TOKEN
from harness.store.finished import ShowRow, TableLine, make_lines
from harness.store.line_remarks import IDLE_CLIP, remark_on
from harness.store.pace import CHOSEN_PROMPTS, NO_CLOCK, NOT_IDENTIFIED, TOO_FEW
from harness.store.pace_table import make_pace_line, write_kappa, write_pace_words, write_reach, write_worth
from harness.store.ranking import make_heading
from harness.store.render import render_rows
from harness.store.table import MEAN, show_rows

LADDER = (
    Line("independent"),
    Line("independent-2x", pace=1.1, budget="2x", trained=2000),
    Line("independent-4x", pace=1.3, budget="4x", trained=4000),
)


def rows_of(results: Path, **chosen: str) -> dict[str, ShowRow]:
    """The rows of avg@4 by regime, of the policies' mean unless said."""
    wanted = {"group": "pair", "policy": MEAN, "metric": "avg@4", **chosen}
    with ingested(results) as snapshot:
        rows = show_rows(snapshot, "paced")
    return {row.regime: row for row in rows if all(getattr(row, name) == value for name, value in wanted.items())}


@pytest.mark.parametrize("curves", [True, False], ids=["held-out", "rewards"])
def test_pace_and_reach_of_a_suite_are_those_that_made_it(tmp_path: Path, curves: bool) -> None:
    write_paced(tmp_path, [*LADDER, Line("sgt", "sgt", pace=1.2, end=0.04)], curves=curves)
    rows = rows_of(tmp_path)
    sgt = rows["sgt"]
    assert sgt.pace_curve == ("held-out" if curves else "training reward")
    assert sgt.pace_clock == "independent"
    assert sgt.kappa == pytest.approx(1.2, abs=0.015)
    assert sgt.kappa_interval[0] < sgt.kappa < sgt.kappa_interval[1]
    assert sgt.reach == pytest.approx(0.04, abs=0.004)
    assert sgt.pace_status == ""
    assert rows["independent"].kappa is None, "the clock itself has no pace"
    assert rows["independent-2x"].kappa == pytest.approx(1.1, abs=0.015)
    assert rows_of(tmp_path, policy="a")["sgt"].kappa == pytest.approx(1.2, abs=0.02)
    # Half of the way from 2x to 4x on logarithmic scales is 1.1 * sqrt(1.3 / 1.1)
    assert rows_of(tmp_path)["sgt"].worth == pytest.approx(2 * 2 ** (0.0870 / 0.1671), abs=0.15)


def test_a_line_is_measured_on_the_clock_of_its_own_rate(tmp_path: Path) -> None:
    lines = [
        *LADDER[:2],
        Line("slow", rate=5e-5, pace=0.7),
        Line("hacpo", "hacpo", pace=1.2),
        Line("hacpo-slow", "hacpo", rate=5e-5, pace=0.7 * 1.2),
        Line("hacpo-fast", "hacpo", rate=5e-4, pace=1.3),
    ]
    write_paced(tmp_path, lines)
    rows = rows_of(tmp_path)
    assert rows["hacpo-slow"].pace_clock == "slow"
    assert rows["hacpo-slow"].kappa == pytest.approx(1.2, abs=0.02)
    assert rows["hacpo-slow"].baseline == "slow"
    assert rows["hacpo"].baseline == "independent"
    assert rows["slow"].baseline == "independent", "what a rate is worth"
    assert rows["hacpo-fast"].pace_status == NO_CLOCK
    assert rows["hacpo"].best_rate_baseline == "independent"
    assert rows["hacpo-slow"].best_rate_baseline == "independent"
    assert rows["hacpo-slow"].best_rate_gain == pytest.approx(
        rows["hacpo-slow"].accuracy - rows["independent"].accuracy, abs=1e-9
    )
    assert rows["hacpo"].baseline_rates == 2


def test_runs_on_the_slope_few_seeds_and_chosen_prompts_are_refused(tmp_path: Path) -> None:
    write_paced(tmp_path / "few", [Line("independent"), Line("sgt", "sgt", pace=1.2)], seeds=[1, 2])
    assert rows_of(tmp_path / "few")["sgt"].pace_status == TOO_FEW
    kept = [Line("independent"), Line("dynamic", pace=1.2, dynamic=True)]
    write_paced(tmp_path / "kept", kept, curves=False)
    refused = rows_of(tmp_path / "kept")["dynamic"]
    assert (refused.pace_status, refused.kappa) == (CHOSEN_PROMPTS, None)
    write_paced(tmp_path / "held-out", kept)
    assert rows_of(tmp_path / "held-out")["dynamic"].kappa == pytest.approx(1.2, abs=0.02)
    write_paced(tmp_path / "noisy", [Line("independent"), Line("sgt", "sgt", pace=1.2)], noise=0.2)
    assert rows_of(tmp_path / "noisy")["sgt"].pace_status == NOT_IDENTIFIED


def test_costs_are_counted_in_tokens_and_the_nearest_baseline_is_found(tmp_path: Path) -> None:
    lines = [
        *LADDER,
        Line("hacpo", "hacpo", pace=1.1, end=0.1, trained=3000),
        Line("naive", "naive", trained=2000, scored=1000, end=0.02),
        Line("aa", stream=1),
    ]
    write_paced(tmp_path, lines, noise=0.0005)
    rows = rows_of(tmp_path)
    base = SAMPLED + TRAINED_TOKEN * 1000
    assert rows["hacpo"].counted_cost == pytest.approx((SAMPLED + TRAINED_TOKEN * 3000) / base)
    assert rows["naive"].counted_cost == pytest.approx((SAMPLED + SCORED_TOKEN * 1000 + TRAINED_TOKEN * 2000) / base)
    assert rows["hacpo"].equal_cost_baseline == "independent-2x"
    assert rows["hacpo"].equal_cost_ratio == pytest.approx(
        (2 * SAMPLED + 2 * TRAINED_TOKEN * 1000) / (SAMPLED + TRAINED_TOKEN * 3000)
    )
    assert rows["hacpo"].equal_cost_gain == pytest.approx(
        rows["hacpo"].accuracy - rows["independent-2x"].accuracy, abs=1e-9
    )
    assert rows["hacpo"].found == "found"
    assert rows["hacpo"].baseline_rates == 1
    assert rows["aa"].equal_cost_gain is None
    assert rows["independent-4x"].equal_cost_gain is None


def test_a_baseline_that_is_much_cheaper_is_passed_over_for_a_dearer_one(tmp_path: Path) -> None:
    """1.3 is nearer to 1 than to 2, as a ratio; a gain over what costs a quarter less says nothing of equal cost."""
    trained = round(1000 + 0.3 * (SAMPLED / TRAINED_TOKEN + 1000))
    sgt = Line("sgt", "sgt", end=0.1, trained=trained)
    write_paced(tmp_path / "both", [*LADDER[:2], sgt], noise=0.0005)
    row = rows_of(tmp_path / "both")["sgt"]
    assert row.counted_cost == pytest.approx(1.3, rel=1e-3)
    assert (row.equal_cost_baseline, row.found) == ("independent-2x", "found")
    write_paced(tmp_path / "one", [LADDER[0], sgt], noise=0.0005)
    row = rows_of(tmp_path / "one")["sgt"]
    assert (row.equal_cost_baseline, row.found) == ("independent", "no baseline of equal cost")


def test_what_samples_more_than_any_baseline_is_compared_with_the_largest() -> None:
    once = TableLine("independent", "independent", "{}", "1x", "independent", "independent")
    twice = replace(once, name="independent-2x", budget="2x", cells="independent-2x")
    core = replace(once, name="core", kind="core", options="{of core}", cells="core")
    lines = [once, twice, replace(core, sampled=1.5), replace(core, name="more", cells="more", sampled=2.5)]
    made = make_lines(lines, [line.name for line in lines], [])
    assert (made["core"].reference, made["more"].reference) == ("independent-2x", "independent-2x")
    alone = make_lines([once, lines[-1]], ["independent", "more"], [])
    assert alone["more"].reference == "independent"


def test_a_cost_beside_a_pace_is_over_the_clocks_own(tmp_path: Path) -> None:
    """A line at another budget has its gain over the baseline at that budget, and its pace on the clock of the suite's own."""
    split = Line("ftis-split", "ftis", pace=1.1, budget="2x", trained=2000)
    write_paced(tmp_path, [*LADDER, split])
    row = rows_of(tmp_path)["ftis-split"]
    assert row.counted_cost == pytest.approx(1.0), "as much as independent training at twice the budget"
    assert row.cost_on_clock == pytest.approx(2.0)
    assert row.kappa_per_cost == pytest.approx(row.kappa / 2)
    assert rows_of(tmp_path)["independent-4x"].cost_on_clock == pytest.approx(4.0)
    assert make_pace_line(row).cost == "2.00"


def test_a_gain_that_does_not_hold_at_equal_cost_is_not_found(tmp_path: Path) -> None:
    twice = Line("independent-2x", end=0.10, budget="2x", trained=2000)
    write_paced(tmp_path, [Line("independent"), twice, Line("hacpo", "hacpo", end=0.08, trained=3000)], noise=0.0005)
    hacpo = rows_of(tmp_path)["hacpo"]
    assert hacpo.verdict == "gains"
    assert hacpo.found == "not at equal cost"
    assert hacpo.equal_cost_gain < 0


def test_a_gain_that_only_the_rate_explains_is_not_found(tmp_path: Path) -> None:
    lines = [Line("independent"), Line("faster", rate=2e-4, end=0.12), Line("sgt", "sgt", end=0.08)]
    write_paced(tmp_path, lines, noise=0.0005)
    sgt = rows_of(tmp_path)["sgt"]
    assert (sgt.verdict, sgt.best_rate_baseline) == ("gains", "faster")
    assert sgt.found in ("not at equal cost", "not at the baseline's best rate")


def test_every_format_has_pace_and_cost(tmp_path: Path) -> None:
    write_paced(tmp_path, [*LADDER, Line("sgt", "sgt", pace=1.2, end=0.04)])
    with ingested(tmp_path) as snapshot:
        rows = show_rows(snapshot, "paced")
    sgt = next(row for row in rows if (row.regime, row.policy, row.metric) == ("sgt", MEAN, "avg@4"))
    shown = f"{sgt.kappa:.2f} [{sgt.kappa_interval[0]:.2f}, {sgt.kappa_interval[1]:.2f}]"
    assert shown in render_rows("paced", rows, "markdown")
    table = list(csv.DictReader(io.StringIO(render_rows("paced", rows, "csv"))))
    line = next(row for row in table if (row["regime"], row["policy"], row["metric"]) == ("sgt", "*", "avg@4"))
    assert float(line["kappa"]) == sgt.kappa
    assert float(line["kappa_interval_low"]) == sgt.kappa_interval[0]
    document = json.loads(render_rows("paced", rows, "json"))
    assert sgt.kappa in [row["kappa"] for row in document["rows"]]


def fit(pace: float, *paces: float, problem: str = "") -> Acceleration:
    return Acceleration(pace, 0, 2, 0, 0, 0, len(paces), problem, paces=paces, ends=(0.0,) * len(paces))


def test_worth_lies_between_the_rungs_of_the_ladder() -> None:
    ladder = {2.0: fit(1.2, 1.2, 1.2, 1.2), 4.0: fit(1.44, 1.44, 1.44, 1.44)}
    found = estimate_worth(fit(1.2**0.5, 1.05, 1.1, 1.15), ladder)
    assert found is not None
    assert found.rollouts == pytest.approx(2**0.5)
    assert found.low < found.rollouts < found.high
    above = estimate_worth(fit(1.5, 1.5, 1.5, 1.5), ladder)
    assert above is not None
    assert (above.rollouts, above.beyond) == (4.0, ">")
    below = estimate_worth(fit(0.9, 0.9, 0.9, 0.9), ladder)
    assert below is not None
    assert (below.rollouts, below.beyond) == (1.0, "<")
    assert estimate_worth(fit(1.1, 1, 1, 1), {2.0: fit(0.95, 1, 1, 1)}) is None, "more rollouts are not faster"
    assert estimate_worth(fit(1.1, 1, 1, 1, problem="no"), ladder) is None
    assert estimate_worth(fit(1.1, 1, 1, 1), {2.0: fit(1.2, 1, 1, 1, problem="no")}) is None


def test_policies_that_differ_are_a_verdict_and_have_roles(tmp_path: Path) -> None:
    split = Line("naive", "naive", by_policy={"a": 0.15, "b": -0.12})
    write_paced(
        tmp_path, [Line("independent"), split, Line("sgt", "sgt", end=0.001)], noise=0.0005, bases={"a": 0.5, "b": 0.3}
    )
    with ingested(tmp_path) as snapshot:
        rows = show_rows(snapshot, "paced")
        head = make_heading(snapshot, "paced")
    naive = next(row for row in rows if (row.regime, row.policy, row.metric) == ("naive", MEAN, "avg@4"))
    assert naive.verdict == "differs between policies"
    gains = {row.policy: row.gain for row in rows if (row.regime, row.metric) == ("naive", "avg@4")}
    said = head.sentences[0].sentence
    low, high = (f"{100 * gains[policy]:+.1f}".replace("-", "−") for policy in "ba")
    assert f"naive ({low} for b to {high} for a) differs between policies" in said
    role = next(role for role in head.roles if role.regime == "naive")
    assert (role.stronger, role.weaker) == (pytest.approx(gains["a"]), pytest.approx(gains["b"]))
    assert "by role at the start" in render_rows("paced", rows, head=head)


def test_policies_are_said_to_differ_in_one_table_of_twenty_at_most() -> None:
    rng = np.random.default_rng(1)
    tables, false = 400, 0
    for _ in range(tables):
        accuracy = 0.5 + 0.02 * rng.standard_normal((2, 2, 6, 5)) * np.geomspace(0.2, 2, 6)[:, None]
        groups = [MemberScores(own, np.full(own.shape, 1e-6)) for own in accuracy]
        false += any(differ.any() for differ in find_policy_differences(groups, [None, 0, 0, 0, 0, 0], 0.0))
    assert false / tables <= 0.05 + 2 * (0.05 * 0.95 / tables) ** 0.5


def test_ties_are_shown_from_five_seeds_on(tmp_path: Path) -> None:
    lines = [Line("independent"), Line("sgt", "sgt", end=0.1)]
    write_paced(tmp_path / "four", lines, seeds=range(4))
    write_paced(tmp_path / "five", lines, seeds=range(5))
    few, enough = rows_of(tmp_path / "four"), rows_of(tmp_path / "five")
    assert {row.tie_group for row in few.values()} == {"–"}
    assert not any(row.best for row in few.values())
    assert {regime: row.tie_group for regime, row in enough.items()} == {"sgt": "a", "independent": "b"}
    assert enough["sgt"].best


def test_a_suite_with_one_learning_rate_says_so(tmp_path: Path) -> None:
    lines = [Line("independent"), Line("sgt", "sgt", end=0.1)]
    write_paced(tmp_path / "one", lines)
    write_paced(tmp_path / "two", [*lines, Line("fast", rate=2e-4)])
    with ingested(tmp_path / "one") as snapshot:
        assert make_heading(snapshot, "paced").sentences[0].sentence.endswith(" One learning rate was run: 1e-4.")
    with ingested(tmp_path / "two") as snapshot:
        assert "One learning rate" not in make_heading(snapshot, "paced").sentences[0].sentence


def test_hacpo_with_one_update_says_that_its_stepwise_clip_is_idle() -> None:
    assert remark_on("hacpo", {}, 1) == IDLE_CLIP
    assert not any(
        (remark_on("hacpo", {}, 4), remark_on("hacpo", {"stepwise_clip": False}, 1), remark_on("sgt", {}, 1))
    )
    assert remark_on("hacpo", {}, None) == ""


def test_the_board_shows_the_pace_of_the_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("streamlit", reason="the leaderboard extra is not installed")
    from drawn_pages import app_on, html_of

    write_paced(tmp_path, [*LADDER, Line("sgt", "sgt", pace=1.2, end=0.04)])
    sgt = rows_of(tmp_path)["sgt"]
    shown = html_of(app_on(tmp_path, monkeypatch))
    assert f"<small>kappa {sgt.kappa:.2f}</small>" in shown
    assert write_pace_words(sgt) in shown
    assert f"kappa {sgt.kappa:.2f} [{sgt.kappa_interval[0]:.2f}, {sgt.kappa_interval[1]:.2f}]" in write_pace_words(sgt)
    assert f"reach +{100 * sgt.reach:.1f}" in write_pace_words(sgt)
    assert "published" in shown


@pytest.mark.parametrize("policies", [("a", "b"), ("a",)])
def test_a_brief_page_is_the_same_from_its_own_rows_alone(tmp_path: Path, policies: tuple[str, ...]) -> None:
    alone = ("alone", [*LADDER, Line("hacpo", "hacpo", pace=1.1)])
    write_paced(tmp_path, [*LADDER, Line("hacpo", "hacpo", pace=1.2)], policies=policies, groups=[alone])
    with ingested(tmp_path) as snapshot:
        whole = make_heading(snapshot, "paced", said="opening")
        first = make_heading(snapshot, "paced", said="first")
        every = show_rows(snapshot, "paced")
        own = show_rows(snapshot, "paced", opening=(whole.sentences[0].policy, whole.sentences[0].metric))
    assert len(own) < len(every)
    assert not first.across
    assert first.sentences == whole.sentences[:1]
    of_all, of_own = (
        render_rows("paced", rows, head=head, brief=True) for rows, head in ((every, whole), (own, first))
    )
    assert of_own == of_all
    assert "hacpo" in of_own


def test_pace_and_end_stand_below_the_gains(tmp_path: Path) -> None:
    write_paced(tmp_path, [*LADDER, Line("hacpo", "hacpo", pace=1.2, end=0.1, trained=3000)], noise=0.0005)
    with ingested(tmp_path) as snapshot:
        rows, head = show_rows(snapshot, "paced"), make_heading(snapshot, "paced")
    hacpo = next(row for row in rows if (row.regime, row.policy, row.metric) == ("hacpo", MEAN, "avg@4"))
    text = render_rows("paced", rows, width=200, head=head, brief=True)
    line = next(line for line in text.partition("pace and end")[2].splitlines() if line.startswith(" hacpo"))
    for part in (write_kappa(hacpo), write_reach(hacpo), hacpo.equal_cost_baseline, write_worth(hacpo)):
        assert part in line
    assert f"{100 * hacpo.greedy_gain:+.1f}" in line
    assert "Found, at equal cost and at the one learning rate of the suite: hacpo on pair." in text
