"""The ranking of a suite, and two regimes head to head."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pytest
from paced_results import Line, write_paced
from synthetic_results import REGIMES, write_results, write_trials

from harness.statistics.comparison import EQUIVALENT, INCONCLUSIVE
from harness.store.ingest import ingest_journals
from harness.store.manifest import read_manifest, read_suite, write_manifest
from harness.store.ranking import make_heading
from harness.store.read import Snapshot
from harness.store.sentences import verdict_mark
from harness.store.statistic import POINTS
from harness.store.table import show_rows
from harness.store.tuning import write_tuning

pytest.importorskip("streamlit", reason="the leaderboard extra is not installed")


from drawn_pages import SUITE, forest_of, html_of, html_tables, page, text_of_page, without_links, write_report
from drawn_stores import DUO

from leaderboard import looks
from leaderboard.data import open_store
from leaderboard.frames import INTERVALS, choose_opening, list_telling
from leaderboard.page import escape_markdown
from leaderboard.views import exchange, stability


@pytest.mark.slow
def test_sensitivity_shows_each_option_of_a_tuned_suite(stores: dict[str, Path], tmp_path: Path) -> None:
    results = shutil.copytree(stores["large"], tmp_path / "tuned")
    assert "not tuned" in text_of_page(page(results, "sensitivity"))
    tuning = write_trials(results, SUITE)
    ingest_journals(results)
    base, ours, tuned = (regime.name for regime in REGIMES[:3])
    app = page(results, "sensitivity")
    table, trials = (frame.value for frame in app.dataframe)
    assert list(trials["gain"]) == pytest.approx([5.0, 20.0])
    assert list(trials["kind"]) == ["defaults", "chosen"]
    line = table[table["variant"] == ours].iloc[0]
    assert (line["promised"], line["kept"], line["failed"]) == (pytest.approx(15), pytest.approx(5), 1)
    assert "Kept: on seeds" in text_of_page(app), "also without a transfer"
    assert len(app.get("arrow_vega_lite_chart") or app.get("vega_lite_chart")) == 2, "one for each option that changes"
    moved = [
        msgspec.structs.replace(v, on=on, final=final)
        for v, finals in zip(tuning.variants, ((base, base), (ours, tuned)), strict=True)
        for on, final in zip(("first pair", "second pair"), finals, strict=True)
    ]
    write_tuning(results, read_suite(results / SUITE), msgspec.structs.replace(tuning, variants=tuple(moved)))
    ingest_journals(results)
    app = page(results, "sensitivity")
    table, transfer, _ = (frame.value for frame in app.dataframe)
    assert f"{ours}, tuned on second pair" in app.selectbox(key="tuned").options
    accuracy = table[table["variant"] == ours].set_index(["group", "on"])["tuned"]
    for _, row in transfer[transfer["variant"] == ours].iterrows():
        first, second = (accuracy[row["group"], on] for on in ("first pair", "second pair"))
        assert (row["first"], row["second"]) == pytest.approx((first, second))
        assert row["apart"].startswith(f"{POINTS.text((first - second) / 100)} [")
    assert set(transfer[transfer["variant"] == base]["apart"]) == {"the same setting"}


@pytest.mark.slow
def test_what_numbers_lack_and_where_they_ran_is_said_above_them(several: Path, tmp_path: Path) -> None:
    """What is missing is said everywhere; 2: the board, too, remarks where a paired comparison mixes kinds of processors."""
    for slug in ("ranking", "head-to-head"):
        text = text_of_page(page(several, slug, "third"))
        assert "Its cells: 2 failed." in text
        assert "failed \\(the disk is full \\<b\\>\\)" in text
        assert escape_markdown("mixed processors: the regimes of duo/1 ran on") in text_of_page(
            page(several, slug, "second")
        )
    assert "<p>No cell has finished. Its cells: 2 failed.</p>" in write_report(several, tmp_path, "third")
    assert "<p>mixed processors: the regimes of duo/1" in write_report(several, tmp_path, "second")
    assert "mixed processors" not in write_report(several, tmp_path, "first")


def test_the_ranking_says_what_show_says_of_every_choice(stores: dict[str, Path]) -> None:
    with Snapshot(stores["large"]) as snapshot:
        head, rows = make_heading(snapshot, SUITE, 0.035), show_rows(snapshot, SUITE, 0.035)
    sentences = {(h.metric, h.policy, h.task): escape_markdown(h.summary, 2000) for h in head.sentences}
    app = page(stores["large"], "ranking", margin="3.5", policy="qwen", task="other")
    assert without_links(app.info[0].value) == sentences["avg@2", "qwen", "other"]
    app = page(stores["large"], "ranking", margin="3.5")
    assert without_links(app.info[0].value) == sentences["avg@2", "*", "*"]
    assert INTERVALS in text_of_page(app)
    app = page(stores["large"], "ranking", margin="3.5", part="table")
    ours = {
        (r.group, r.task, r.regime): (r.tie_group, verdict_mark(r.verdict, 0.035))
        for r in rows
        if (r.policy, r.metric) == ("*", "avg@2")
    }
    assert {(r.group, r.task, r.regime): (r.tie, r.verdict) for r in app.dataframe[0].value.itertuples()} == ours
    across = page(stores["large"], "ranking", part="across").dataframe[0].value
    assert set(across["regime"]) == {r.name for r in REGIMES}
    assert across["iqm"].is_monotonic_decreasing
    assert across.set_index("regime").loc["sgt", "better"] > 80
    assert "iqm interval" not in across, "three seeds"


def test_ranking_filters_and_address(stores: dict[str, Path]) -> None:
    app = page(stores["large"], "ranking", metric="greedy", group="pair-3", task="other", sort="name", part="table")
    assert (app.selectbox(key="metric").value, app.multiselect(key="group").value) == ("greedy", ["pair-3"])
    assert "On 1 group and 3 seeds" in text_of_page(app)
    table = app.dataframe[0].value
    assert set(table["group"]) == {"pair-3"}
    assert list(table["regime"]) == sorted(r.name for r in REGIMES)
    assert [tab.label for tab in app.tabs] == ["Figures", "Table", "Pace and end"], "one panel"
    app.multiselect(key="group").set_value(["pair-3", "pair-2"]).run()
    assert "On 2 groups and 3 seeds" in text_of_page(app)
    assert len(app.dataframe[0].value) == 14


def test_a_line_that_samples_more_names_the_baseline_of_its_gain_and_cost(tmp_path: Path) -> None:
    """Beside a regime that costs 1.7 times independent training, one that costs as much as twice the rollouts is not `1.0×`."""
    twice = Line("independent-2x", pace=1.1, budget="2x", trained=2000)
    split = Line("ftis-split", "ftis", budget="2x", trained=2000)
    lines = [Line("independent"), twice, split, Line("sgt", "sgt"), Line("naive", "naive")]
    write_paced(tmp_path, lines)
    ingest_journals(tmp_path)
    store = open_store(tmp_path)
    said = store.answer_choice("paced", choose_opening(store.show_table("paced"))).lines.set_index("Regime")
    assert said.loc["ftis-split", "Cost"] == "1.0× independent-2x"
    assert said.loc["ftis-split", "Gain, points"].endswith(" over independent-2x")
    assert said.loc["sgt", "Cost"] == "1.0×"
    assert "over" not in said.loc["sgt", "Gain, points"]


def test_the_page_says_whom_sharing_helps_and_what_it_costs(stores: dict[str, Path]) -> None:
    """The interval is the one that the verdict is made from: `cannot tell` stood beside +4.0 [1.7, 6.3]."""
    app = page(stores["large"], "ranking", group="pair-1", task="other", metric="greedy")
    with Snapshot(stores["large"]) as snapshot:
        place = ("pair-1", "other", "greedy")
        rows = [r for r in show_rows(snapshot, SUITE) if (r.group, r.task, r.metric) == place]
    known = {(r.regime, r.policy): r for r in rows}
    answers, panel = html_tables(app)
    lines = pd.DataFrame(answers[1:], columns=answers[0]).set_index("Regime")
    assert set(lines.index) == {r for r, p in known if p == "*" and known[r, p].gain is not None}
    drawn = {row[0]: row[2] for row in panel}
    for regime, policy in (("sgt", "llama"), ("sgt", "qwen"), ("prp", "qwen")):
        row, mean = known[regime, policy], known[regime, "*"]
        interval = mean.gain_interval if mean.verdict == EQUIVALENT else mean.gain_corrected_interval
        gain = f"{POINTS.text(mean.gain)} {POINTS.interval(interval)}"
        assert lines.loc[regime, "Gain, points"] == gain
        assert drawn[regime] == f"{gain} {verdict_mark(mean.verdict, 0.02)}"
        assert f"{policy} {POINTS.text(row.gain)}" in lines.loc[regime, "Whom"]
        assert lines.loc[regime, "Cost"] == f"{mean.cost:.1f}×"
        assert verdict_mark(mean.verdict, 0.02) in lines.loc[regime, "Is it real?"]
    assert INCONCLUSIVE in {row.verdict for row in rows}
    assert known["sgt", "*"].cost == pytest.approx(
        known["sgt", "*"].cpu_seconds / known["independent", "*"].cpu_seconds
    )
    twice = known["independent-2x", "*"]
    assert twice.cost is None or twice.baseline != "independent", "a larger budget is not measured by the smaller one"


def test_zeros_that_say_something_keep_their_column() -> None:
    """A column of zeros was dropped, as if no peer answer used (used 0 %) were nothing; only costs of nothing are."""
    table = pd.DataFrame(
        {"regime": ["a", "b"], "group": "g", "task": "t", "best": True, "used": 0.0, "gain": 0.0, "GPU-s": 0.0}
    )
    assert list_telling(table.assign(tie="", needed=np.nan)) == ["regime", "used", "gain"]


def test_what_stands_across_panels_is_computed_from_their_seeds(stores: dict[str, Path]) -> None:
    store = open_store(stores["large"])
    table = store.show_table(SUITE)
    with Snapshot(stores["large"]) as snapshot:
        assert {
            m: store.summarise_panels(SUITE, choose_opening(table, m)) for m in set(table["metric"])
        } == make_heading(snapshot, SUITE).across
    some = replace(choose_opening(table), groups=("pair-1", "pair-2"))
    assert {a.tasks for a in store.summarise_panels(SUITE, some)} == {4}


@pytest.mark.slow
def test_head_to_head_judges_a_pair_as_its_panel_does(tmp_path: Path) -> None:
    """Its correction was over one benchmark, the table's is over all."""
    regimes, place = [REGIMES[0], replace(REGIMES[2], effect=0.15)], ("prp", "t", "maj@2")
    write_results(tmp_path, "s", DUO, regimes, (1, 2, 3), steps=1, questions=60, tasks=tuple("tuvwxy"))
    ingest_journals(tmp_path)
    with Snapshot(tmp_path) as snapshot:
        rows = [r for r in show_rows(snapshot, "s") if (r.regime, r.task, r.metric) == place]
    app = page(tmp_path, "head-to-head", "s", task="t", metric="maj@2")
    figure = forest_of(html_of(app), "prp minus independent: t, maj@2")
    drawn = {tr.findtext("th"): tr.findtext("td/b") for tr in figure.findall("table/tbody/tr")[:-1]}
    assert drawn == {f"duo, {r.policy.replace('*', 'mean')}": looks.SIGNS[r.verdict] for r in rows}


def test_head_to_head_opens_with_two_regimes(tmp_path: Path) -> None:
    """Not the baseline, last and best, with itself, nor what had twice the rollouts with it."""
    regimes = [replace(REGIMES[2], effect=-0.4), replace(REGIMES[1], effect=0.4), REGIMES[0]]
    write_results(tmp_path, SUITE, DUO, regimes, (1,), steps=1, questions=20)
    ingest_journals(tmp_path)
    app = page(tmp_path, "head-to-head")
    assert app.selectbox(key="a").value == "prp"
    assert "1 seed\\)" in text_of_page(app)
    assert "at most one has a false finding" in text_of_page(app)


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two groups; on the second only the baseline has finished, and a manifest is damaged."""
    folder = tmp_path_factory.mktemp("half")
    write_results(folder, SUITE, {"one": DUO["duo"], "two": DUO["duo"]}, [REGIMES[0], REGIMES[2]], (1, 2, 3), 2, 6)
    for place in sorted(folder.glob("*/*/manifest.json")):
        manifest = read_manifest(place.parent)
        if (manifest.group, manifest.regime) == ("two", "prp"):
            write_manifest(place.parent, msgspec.structs.replace(manifest, state="failed", reason="![x](https://x.y)"))
            last = place
    last.write_text("{")
    ingest_journals(folder)
    return folder


def test_means_are_over_what_has_finished_and_been_compared(half: Path) -> None:
    store = open_store(half)
    for sql in (
        stability._CELLS.format(x="1.0", y="1.0"),
        stability._STEPS.format(value="1.0"),
        exchange._FLOWS,
        exchange._TOTALS,
    ):
        frame = store.query_frame(sql, SUITE)
        assert ("one", "prp") in {*zip(frame["group"], frame["regime"], strict=True)}
        assert ("two", "prp") not in {*zip(frame["group"], frame["regime"], strict=True)}
    assert "Mean of 1 of the 2 panels (which are left out is said in full above), avg@2</figcaption>" in html_of(
        page(half, "ranking")
    )


@pytest.mark.slow
def test_a_cell_is_found_beside_a_damaged_one_and_its_reason_is_text(half: Path) -> None:
    app = page(half, "cell", group="two", regime="prp", seed="2")
    assert app.selectbox(key="seed").value == "2"
    assert app.metric[0].help == escape_markdown("![x](https://x.y)")
    with Snapshot(half) as snapshot:
        (nameless,) = snapshot.query("SELECT reason FROM current_cells WHERE group_name = ''")["reason"].to_pylist()
    for slug, words in (("cell", escape_markdown(nameless)), ("answers", "No cell of this group")):
        app = page(half, slug).selectbox(key="group").select("").run()
        assert not app.exception
        assert words in text_of_page(app)
