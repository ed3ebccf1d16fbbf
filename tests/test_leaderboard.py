"""Every page of the leaderboard through Streamlit's AppTest, the report, and the pure parts by themselves."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

import duckdb
import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from paced_results import Line, write_paced
from synthetic_results import REGIMES, write_cell, write_results, write_rows, write_trials

from harness.engines.embedded.presets import shares_by_steps
from harness.errors import StoreError
from harness.statistics import mean_interval
from harness.statistics.comparison import EQUIVALENT, GAINS, INCONCLUSIVE, LOSES
from harness.store import standing
from harness.store.ingest import ingest_journals
from harness.store.journal import read_columns, read_journal, write_columns
from harness.store.kind_answers import QUESTIONS, answer_by_kind, list_harmed
from harness.store.manifest import PolicyEntry, read_manifest, read_suite, write_manifest, write_suite
from harness.store.ranking import make_heading, rank_regimes
from harness.store.read import Snapshot
from harness.store.results_folder import write_results_folder
from harness.store.roles import RoleRow
from harness.store.rows import ExchangeRow, Row, SampleRow, StepRow
from harness.store.sentences import verdict_mark
from harness.store.standing import KINDS, Section, Standing, make_board
from harness.store.statistic import PERCENT, POINTS
from harness.store.table import seed_rows, show_rows
from harness.store.tuning import write_tuning
from harness.submission.bundle import choose_readable

pytest.importorskip("streamlit", reason="the leaderboard extra is not installed")

import streamlit as st
from streamlit.components.v2 import manifest_scanner
from streamlit.testing.v1 import AppTest

from leaderboard import RESULTS_VARIABLE, charts
from leaderboard.data import open_store
from leaderboard.frames import BEST, INTERVALS, SPREAD, choose_opening, list_telling, over_seeds
from leaderboard.page import csv_text, escape_markdown, write_linked
from leaderboard.report import export_report
from leaderboard.views import PAGES, answers, exchange, stability
from leaderboard.views.answers import LOST, SOLVED, token_view
from leaderboard.views.curves import _measure_areas
from leaderboard.views.standing import _sort_standings

APP = str(Path(__file__).parents[1] / "leaderboard" / "app.py")
EVIL = "<script>alert(1)</script><b>bold</b> **md** [link](http://x) $x^2$ :red[r] \x1b[31m\x07 \u202e"
SUITE, DUO = "synthetic-small", {"duo": ("llama", "qwen")}
SLUGS = [p.slug for p in PAGES]


@pytest.fixture(scope="module", autouse=True)
def scanned() -> Iterator[None]:
    """Every AppTest looks for components in the metadata of all packages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest_scanner, "scan_component_manifests", cache(manifest_scanner.scan_component_manifests))
        yield


def draw(results: str, slug: str, suite: str) -> None:
    """One page as the app draws it (AppTest cannot follow pages that are functions)."""
    from pathlib import Path

    from leaderboard.data import open_store
    from leaderboard.page import draw_page
    from leaderboard.views import PAGES

    page = next(p for p in PAGES if p.slug == slug)
    draw_page(page, open_store(Path(results)) if suite else None, suite or None)


def page(results: Path, slug: str, suite: str = SUITE, state: dict[str, str] | None = None, **query: str) -> AppTest:
    return ran(AppTest.from_function(draw, args=(str(results), slug, suite), default_timeout=60), state, query)


def app_on(results: Path, monkeypatch: pytest.MonkeyPatch, **query: str) -> AppTest:
    monkeypatch.setenv(RESULTS_VARIABLE, str(results))
    return ran(AppTest.from_file(APP, default_timeout=60), None, query)


def ran(app: AppTest, state: dict[str, str] | None, query: dict[str, str]) -> AppTest:
    for name, value in query.items():
        app.query_params[name] = value
    for name, value in (state or {}).items():
        app.session_state[name] = value
    app.run()
    assert not app.exception, app.exception[0].stack_trace
    return app


def said(app: AppTest) -> str:
    return unlinked(
        "\n".join(e.value for kind in ("markdown", "info", "caption", "warning") for e in getattr(app, kind))
    )


def unlinked(markdown: str) -> str:
    """The text with regimes' names in the place of links to their pages."""
    return re.sub(r"(?<!\\)\[((?:[^\]\\]|\\.)*)\]\(regimes\?name=[^)]*\)", r"\1", markdown)


def html_of(app: AppTest) -> str:
    return "\n".join(e.proto.body for e in app.get("html"))


def reported(results: Path, place: Path, suite: str | None = None) -> str:
    export_report(results, place / "r.html", suite)
    return (place / "r.html").read_text()


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("stores")
    (root / "empty").mkdir()
    write_results(root / "one", groups=DUO, regimes=REGIMES[:1], seeds=(1,), steps=3, questions=5)
    groups = {f"pair-{i}": ("llama", "qwen") for i in range(4)}
    write_results(root / "large", groups=groups, seeds=range(3), steps=8, questions=10, tasks=("micro", "other"))
    write_results(root / "evil", groups=DUO, regimes=REGIMES[2:5], seeds=(1, 2), steps=3, questions=4, text=EVIL)
    for name in ("one", "large", "evil"):
        ingest_journals(root / name)
    return {path.name: path for path in root.iterdir()}


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three suites; all cells of one have failed, pairs of another ran on unlike processors."""
    folder = tmp_path_factory.mktemp("several")
    for name in ("first", "second", "third"):
        write_results(folder, name, groups=DUO, regimes=REGIMES[:2], seeds=(1,), steps=2, questions=4)
    for place in sorted(folder.glob("*/*/manifest.json")):
        manifest = read_manifest(place.parent)
        if manifest.kind == "cell" and manifest.suite == "third":
            changed = msgspec.structs.replace(manifest, state="failed", reason="the disk is full <b>")
            write_manifest(place.parent, changed)
        elif manifest.kind == "cell" and manifest.suite == "second":
            machine = {"processor": f"made for {manifest.regime}"}
            provenance = msgspec.structs.replace(manifest.provenance, machine=machine)
            write_manifest(place.parent, msgspec.structs.replace(manifest, provenance=provenance))
    ingest_journals(folder)
    return folder


@pytest.mark.slow_but("large")
@pytest.mark.parametrize("slug", SLUGS)
@pytest.mark.parametrize("name", ["empty", "one", "large", "evil"])
def test_every_page_draws_with_any_store(stores: dict[str, Path], name: str, slug: str) -> None:
    app = page(stores[name], slug, "" if name == "empty" else SUITE)
    declared = next(p for p in PAGES if p.slug == slug)
    assert app.title[0].value == declared.title
    if name == "empty" and declared.needs_results:
        assert "harness run" in app.code[0].value
    if name == "large" and declared.figures:
        drawn = [*app.get("arrow_vega_lite_chart"), *app.get("vega_lite_chart")]
        assert drawn or 'class="forest"' in html_of(app), "a figure"
        assert app.get("popover"), "a download menu"
    if slug in ("stability", "curves") and name == "large":
        assert SPREAD in said(app).replace("\\", ""), "14: bars unlabelled where the same marks mean 95 % elsewhere"


@pytest.mark.slow
def test_sensitivity_shows_each_option_of_a_tuned_suite(stores: dict[str, Path], tmp_path: Path) -> None:
    results = shutil.copytree(stores["large"], tmp_path / "tuned")
    assert "not tuned" in said(page(results, "sensitivity"))
    tuning = write_trials(results, SUITE)
    ingest_journals(results)
    base, ours, tuned = (regime.name for regime in REGIMES[:3])
    app = page(results, "sensitivity")
    table, trials = (frame.value for frame in app.dataframe)
    assert list(trials["gain"]) == pytest.approx([5.0, 20.0])
    assert list(trials["kind"]) == ["defaults", "chosen"]
    line = table[table["variant"] == ours].iloc[0]
    assert (line["promised"], line["kept"], line["failed"]) == (pytest.approx(15), pytest.approx(5), 1)
    assert "Kept: on seeds" in said(app), "also without a transfer"
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


def test_the_app_starts_and_its_address_says_what_is_shown(
    stores: dict[str, Path], several: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[list[object]] = []
    navigation = st.navigation
    monkeypatch.setattr(st, "navigation", lambda pages: (given.append(pages), navigation(pages))[1])
    app = app_on(stores["empty"], monkeypatch)
    assert "There are no results yet" in said(app)
    assert app.code[0].value == f"harness run quickstart --results {stores['empty']}", "where this page looks"
    addresses = [page.url_path for page in given[0]]  # type: ignore[attr-defined]
    assert addresses == ["", *SLUGS[1:], SLUGS[0]], "the first page has its own address too"
    app = app_on(several, monkeypatch)
    assert app.title[0].value == "Which regime?"
    shown = app.selectbox(key="suite").value
    assert shown in app.query_params["suite"], "even where nobody chose one"
    other = next(name for name in ("first", "second") if name != shown)
    app.selectbox(key="suite").set_value(other).run()
    assert other in app.query_params["suite"]
    for suite, words in ((other, "Cells: 2 done"), ("third", "Cells: 2 failed")):
        app = app_on(several, monkeypatch, suite=suite)
        assert app.selectbox(key="suite").value == suite
        assert [c.value for c in app.sidebar.caption if c.value.startswith("Cells")] == [words]
    app = app_on(several, monkeypatch, suite="ninth <b>")
    assert "There is no suite “ninth \\<b\\>” here. Shown is" in said(app)
    app.selectbox(key="suite").set_value("second").run()
    assert "There is no suite" not in said(app)


def test_an_address_without_the_mark_finds_reference_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for suite in ("mine", "theirs"):
        write_results(tmp_path, suite, DUO, REGIMES[:2], (1,), steps=1, questions=4)
    cells = [file.parent for file in tmp_path.glob("theirs/*/manifest.json")]
    manifests = {cell.name: read_manifest(cell) for cell in cells}
    tables = {cell.name: read_journal(cell).tables for cell in cells}
    write_results_folder(
        tmp_path / "reference" / "theirs", read_suite(tmp_path / "theirs"), "a test", manifests, tables
    )
    shutil.rmtree(tmp_path / "theirs")
    ingest_journals(tmp_path)
    app = app_on(tmp_path, monkeypatch, suite="theirs")
    assert app.selectbox(key="suite").value == "theirs@reference"
    assert "There is no suite" not in said(app)


def test_an_engine_in_the_address_leaves_its_suites_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for suite in ("here", "there"):
        write_results(tmp_path, suite, DUO, REGIMES[:2], (1,), steps=1, questions=4)
    for file in tmp_path.glob("there/*/manifest.json"):
        write_manifest(file.parent, msgspec.structs.replace(read_manifest(file.parent), engine="openrlhf"))
    ingest_journals(tmp_path)
    app = app_on(tmp_path, monkeypatch, engine="openrlhf", suite="here")
    assert app.selectbox(key="suite").options == ["there"]
    assert "there" in app.query_params["suite"]
    assert "There is no suite" not in said(app), "it is another engine's"
    app.selectbox(key="engine").set_value("all").run()
    assert sorted(app.selectbox(key="suite").options) == ["here", "there"]


@pytest.mark.slow
def test_the_first_screen_links_every_suite_and_the_report_says_what_each_gave(
    several: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The table of all suites shows the best of many with an interval that knows nothing of the choice, and says so."""
    shown = html_of(app_on(several, monkeypatch))
    assert all(
        f'<a href="ranking?suite={name}" target="_self">{name}</a>' in shown for name in ("first", "second", "third")
    )
    assert "not corrected for the choice" in BEST
    text = reported(several, tmp_path)
    links = re.findall('<a href="#(.*?)"', text)
    assert len(links) == 3
    assert all(text.count(f'<h2 id="{link}">') == 1 for link in links)
    assert BEST in text


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A control, two pairs with the statistics of real ones in which sgt gains, and one in which nothing does."""
    folder = tmp_path_factory.mktemp("settings")
    useless = [replace(r, effect=0.0) for r in REGIMES]
    write_results(folder, "built", DUO, seeds=(1, 2, 3), steps=3, questions=20, preset="strong-in")
    for name, pair, regimes in (
        ("alike", ("qwen", "gpt2"), REGIMES),
        ("other", ("neox", "gpt2"), REGIMES),
        ("unlike", ("llama", "neox"), useless),
    ):
        write_results(folder, name, {name: pair}, regimes, (1, 2, 3, 4), steps=3, questions=400, preset="matched")
    ingest_journals(folder)
    return folder


def by_kind(app: AppTest) -> dict[str, list[list[str]]]:
    """The first screen's tables by the kind of their settings, each from its row of columns' names on."""
    kinds = re.findall("<caption>(.*?): gain in points</caption>", html_of(app))
    return {kind: table[1:] for kind, table in zip(kinds, html_tables(app)[-len(kinds) :], strict=True)}


def test_the_first_screen_has_each_setting_by_itself_and_no_rank_over_them(
    settings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody who has read nothing reads this from its text: an answer in a sentence, a row a regime, a column a setting."""
    app = app_on(settings, monkeypatch)
    answer = said(app).replace("\\", "")
    assert answer.startswith("**It depends on the pair and the settings.**")
    assert "Where each policy was taught what the other lacks," in answer
    assert "On tiny models with the statistics of real pairs, sgt gains (published)" in answer
    tables = by_kind(app)
    assert list(tables) == [KINDS["alike"], KINDS["built"]]
    heads, *rows = tables[KINDS["alike"]]
    assert heads == ["regime", "cost", "other4 seeds", "alike4 seeds", "unlike4 seeds"]
    assert [row[0].partition("Where")[0] for row in rows] == sorted(row[0].partition("Where")[0] for row in rows)
    sgt = next(row for row in rows if row[0].startswith("sgt"))
    assert "▲" in sgt[3]
    assert "▲" not in sgt[4]
    assert re.fullmatch(r"\d\.\d(–\d\.\d)?×", sgt[1].strip())
    assert "mean" not in "".join(heads)
    assert not any(row[0].startswith("hacpo-wide") for row in rows), "not with its defaults"
    app.get("button_group")[0].set_value("all").run()
    assert any(row[0].startswith("hacpo-wide") for row in by_kind(app)[KINDS["alike"]])
    app.selectbox(key="by").set_value("gain on qwen × gpt2, alike").run()
    gains = [float(re.search(r"[+−][\d.]+", row[3])[0].replace("−", "-")) for row in by_kind(app)[KINDS["alike"]][1:]]  # type: ignore[index]
    assert gains == sorted(gains, reverse=True)


def test_the_first_screen_answers_four_questions_by_kind_of_pair(
    settings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order of KINDS, from the same rows as the tables below it; regimes lead to their pages."""
    html = html_of(app_on(settings, monkeypatch))
    (table,) = re.findall('<table class="kinds">.*?</table>', html, re.S)
    rows = ElementTree.fromstring(table).findall("tbody/tr")
    with Snapshot(settings) as snapshot:
        board = make_board(snapshot, "defaults", taught=shares_by_steps)
    answers = answer_by_kind(board, "2 points")
    assert [row.findtext("th") for row in rows] == [KINDS[kind.kind] for kind in answers]
    for row, kind in zip(rows, answers, strict=True):
        texts = ["".join(cell.itertext()) for cell in row.findall("td")]
        assert len(texts) == len(QUESTIONS)
        for text, answer in zip(texts, kind.answers, strict=True):
            assert answer.question in text
            assert answer.said in text
    gains = [row for _, _, row in board.list_gains("alike") if row.verdict in (GAINS, LOSES)]
    found = answers[0].answers[0].found
    assert len(gains) == len(found) > 0
    assert {one.number for one in found} == {POINTS.with_interval(r.gain, r.gain_corrected_interval) for r in gains}
    assert f'<a href="regimes?name={found[0].regime}" target="_self">' in table


def test_a_member_is_harmed_where_its_whole_interval_lies_below_0() -> None:
    def role(stronger: tuple[float, float], weaker: tuple[float, float]) -> RoleRow:
        ends = {"stronger_interval": stronger, "weaker_interval": weaker, "apart": None, "apart_interval": None}
        place = {"group": "g", "task": "t", "metric": "m", "regime": "r", "seeds": 3}
        return RoleRow(**place, **ends, stronger=sum(stronger) / 2, weaker=sum(weaker) / 2)

    assert list_harmed(role((-0.03, -0.01), (-0.02, 0.01))) == [("stronger", "−2.0 [−3.0, −1.0]")]
    assert [whom for whom, _ in list_harmed(role((-0.03, -0.01), (-0.02, -0.01)))] == ["stronger", "weaker"]
    assert list_harmed(role((0.01, 0.02), (-0.02, 0.01))) == list_harmed(None) == []


def test_a_regimes_page_says_whose_it_is_and_where_it_ran(settings: Path) -> None:
    """By its name in the address, or that of a variant; what is unknown is said."""
    app = page(settings, "regimes", "alike", name="sgt")
    text = said(app)
    assert "[arXiv 2605.07244](https://arxiv.org/abs/2605.07244)" in text
    assert "**Status:** published" in text
    assert "Success\\-Gated Transfer" in text or "Success-Gated Transfer" in text, "the formula of docs/formulas.md"
    with Snapshot(settings) as snapshot:
        ran = [
            row for name, _, row in make_board(snapshot, "all", taught=shares_by_steps).list_gains() if name == "sgt"
        ]
    html = html_of(app)
    assert html.count('<a href="ranking?suite=') == len(ran) == 4
    assert all(POINTS.text(row.gain) in html for row in ran)
    assert list(app.dataframe[0].value["option"]) == ["lambda"]
    assert page(settings, "regimes", "alike", name="hacpo-wide").selectbox(key="regime-page").value == "hacpo"
    assert "There is no regime “nobody” here" in said(page(settings, "regimes", "alike", name="nobody"))


def test_a_run_is_opened_by_its_key(stores: dict[str, Path]) -> None:
    with Snapshot(stores["large"]) as snapshot:
        query = (
            "SELECT cell, group_name, regime, seed FROM current_cells WHERE suite = ? AND kind = 'cell' ORDER BY cell"
        )
        cell = snapshot.query(query, [SUITE]).to_pylist()[-1]
    app = page(stores["large"], "cell", cell=cell["cell"])
    assert [app.selectbox(key=key).value for key in ("group", "regime", "seed")] == [
        cell["group_name"],
        cell["regime"],
        str(cell["seed"]),
    ]
    other = next(name for name in app.selectbox(key="regime").options if name != cell["regime"])
    app.selectbox(key="regime").set_value(other).run()
    assert app.selectbox(key="regime").value == other, "the address does not hold a reader who chooses"
    assert app.query_params["cell"] != [cell["cell"]]


# What a newcomer asks, and what of the first screen's text answers it
ASKED = {
    "on which pair": r"settings: on (.*?) the gain of",
    "which regime": r"the gain of (\w+) is",
    "by how much": r"is (\+[\d.]+) \[.*?\] points at learning rate 1e-4",
    "at twice the rate": r"and ([+−][\d.]+) \[.*?\] points at learning rate 2e-4 in fast",
    "what it has without sharing": r"at learning rate 2e-4 .*?; independent training ends at ([\d.]+) %",
    "where it does not help": r"in (\d+) of \d+ comparisons no effect",
}


def read(text: str) -> dict[str, str]:
    matches = {question: re.search(pattern, text) for question, pattern in ASKED.items()}
    lacking = [question for question, match in matches.items() if match is None]
    assert not lacking, lacking
    return {question: match[1] for question, match in matches.items() if match}


@pytest.fixture(scope="module")
def rates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pair at two learning rates: sgt and hacpo-wide gain at the smaller one, and nothing does at the other. The suite `again`
    has the cells of `slow` and one regime more; `three` holds the pair and another policy."""
    folder = tmp_path_factory.mktemp("rates")
    useless = [replace(r, effect=0.0) for r in REGIMES]
    few, wide = [r for r in REGIMES if r.name != "hacpo-wide"], REGIMES[-1]
    pair, seeds = {"pair": ("neox", "qwen")}, (1, 2, 3, 4)
    for name, groups, regimes, rate in (
        ("slow", pair, few, 1e-4),
        ("fast", pair, useless[:5], 2e-4),
        ("three", {"three": ("neox", "qwen", "gpt2")}, few, 1e-4),
    ):
        write_results(folder, name, groups, regimes, seeds, steps=3, questions=400, preset="matched", rate=rate)
    shutil.copytree(folder / "slow", folder / "again")
    for cell in [file.parent for file in folder.glob("again/*/manifest.json")]:
        write_manifest(cell, msgspec.structs.replace(read_manifest(cell), suite="again"))
    more = [write_cell(folder, "again", "pair", pair["pair"], wide, s, 3, 400, 2, ("micro",), 0) for s in seeds]
    suite = read_suite(folder / "again")
    variants = (*suite.variants, msgspec.structs.replace(suite.variants[0], name=wide.name, regime_type=wide.kind))
    lines = [*suite.config["regimes"], {"name": wide.name, "regime": wide.kind, "options": dict(wide.options)}]
    write_suite(
        folder / "again",
        msgspec.structs.replace(
            suite,
            name="again",
            variants=variants,
            cells=(*suite.cells, *more),
            config={**suite.config, "regimes": lines},
        ),
    )
    ingest_journals(folder)
    return folder


def test_a_newcomer_reads_a_pair_at_both_learning_rates_from_the_first_sentence(
    rates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = app_on(rates, monkeypatch)
    text = said(app).replace("\\", "")
    first = text.partition("\n")[0]
    facts = read(text)
    assert all(re.search(pattern, first) for question, pattern in ASKED.items() if "help" not in question)
    heads, *rows = by_kind(app)[KINDS["alike"]]
    row = next(row for row in rows if row[0].startswith(facts["which regime"]))
    assert (facts["on which pair"], facts["which regime"]) == ("neox × qwen", "sgt")
    for rate, fact in (("1e-4", "by how much"), ("2e-4", "at twice the rate")):
        place = next(i for i, head in enumerate(heads) if f"rate {rate}" in head)
        assert facts[fact] in row[place]
    assert "At one learning rate alone ran 3 families" in text
    for pattern in ASKED.values():
        match = re.search(pattern, text)
        assert match
        with pytest.raises(AssertionError):
            read(re.sub(pattern, "", text))


def test_settings_of_a_pair_stand_side_by_side_with_the_same_numbers_in_every_view(rates: Path) -> None:
    with Snapshot(rates) as snapshot:
        published, every = (make_board(snapshot, which) for which in ("defaults", "all"))
    for shown in (published, every):
        (section,) = shown.sections
        assert [(s.title, s.rate, s.names) for s in section.settings] == [
            ("neox × qwen", 1e-4, "again and slow"),
            ("neox × qwen", 2e-4, "fast"),
            ("3 families", 1e-4, "three"),
        ], "the same cells are one column"
    lines = {line.regime: line.cells for line in every.sections[0].standings}
    for line in published.sections[0].standings:
        assert line.cells == lines[line.regime]
    assert lines["hacpo-wide"][1:] == ("not run", "not run")
    assert not any(isinstance(cell, str) for cell in lines["sgt"][:2])


def test_a_group_that_holds_another_is_in_no_mean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pair, with a third and with a fourth, made one effect look like three."""
    groups = {"pair": ("neox", "qwen"), "three": ("neox", "qwen", "gpt2"), "other": ("llama", "gpt2")}
    write_results(tmp_path, "nested", groups, REGIMES[:4], (1, 2, 3), steps=1, questions=40, preset="matched")
    ingest_journals(tmp_path)
    with Snapshot(tmp_path) as snapshot:
        rows = [r for r in seed_rows(snapshot, "nested", "*") if r.metric == "avg@2"]
        head = make_heading(snapshot, "nested")
    first = head.sentences[0].sentence
    assert first.startswith("On 2 groups and 3 seeds")
    assert first.endswith("Left out: three (it holds pair).")
    assert {a.tasks for a in head.across["avg@2"]} == {2}
    kept = [r for r in rows if r.group != "three"]
    assert rank_regimes(rows, among=rows).ranks[0].accuracy == rank_regimes(kept, among=kept).ranks[0].accuracy
    assert rank_regimes([r for r in rows if r.group == "three"], among=rows).groups == 1, "by itself it has its verdict"
    assert "Mean of 2 of the 3 panels" in html_of(page(tmp_path, "ranking", "nested"))


def test_not_run_is_said_where_nothing_ran_alone(tmp_path: Path) -> None:
    """Of what ran under other settings, is not finished, was not tuned or is not paired, the column says that."""
    regimes = [REGIMES[0], REGIMES[2], REGIMES[4], replace(REGIMES[5], name="hacpo-a")]
    write_results(tmp_path, "one", DUO, regimes, (1, 2), steps=1, questions=4, preset="matched")
    write_results(tmp_path, "two", {"duo": ("neox", "gpt2")}, REGIMES, (1, 2), steps=1, questions=4, preset="matched")
    for file in tmp_path.glob("one/*/manifest.json"):
        manifest = read_manifest(file.parent)
        if manifest.regime == "sgt":
            write_manifest(file.parent, msgspec.structs.replace(manifest, state="failed"))
        if manifest.regime in ("independent", "prp"):
            start = ("a" if manifest.regime == "prp" else "b") * 32
            entries = tuple(msgspec.structs.replace(p, start=start) for p in manifest.policies)
            write_manifest(file.parent, msgspec.structs.replace(manifest, policies=entries))
    ingest_journals(tmp_path)
    with Snapshot(tmp_path) as snapshot:
        (section,) = make_board(snapshot, "all").sections
    place = next(i for i, setting in enumerate(section.settings) if setting.names == "one")
    said = {line.regime: line.cells[place] for line in section.standings}
    assert {name: why for name, why in said.items() if isinstance(why, str)} == {
        "prp": "not paired", "sgt": "not finished", "hacpo": "only as hacpo-a", "hacpo-wide": "not run", "xgrpo": "not run",
    }  # fmt: skip
    shutil.rmtree(tmp_path / "two")
    write_results(
        tmp_path, "three", {"duo": ("neox", "gpt2")}, REGIMES[:4:3], (1, 2), steps=1, questions=4, preset="matched"
    )
    ingest_journals(tmp_path)
    with Snapshot(tmp_path) as snapshot:
        (section,) = make_board(snapshot, "all").sections
    assert {line.regime: set(line.cells) for line in section.standings}["prp"] == {"not run", "not paired"}, (
        "it is named"
    )


def test_real_models_that_were_taught_unlike_things_are_a_positive_control() -> None:
    def kind(*starts: dict[str, object], models: str = "org/{}") -> str | None:
        policies = [
            {"name": f"p{i}", "model": models.format(i), "stage0": start or None} for i, start in enumerate(starts)
        ]
        shape = standing._make_setting({"name": "g", "policies": policies}, {}, shares_by_steps)
        return shape and shape.kind

    form = {"preset": "format", "task": "ladder.add1"}
    assert kind(form, form) == kind({}, {}) == "real"
    assert kind(form, {**form, "task": "ladder.spell"}) == kind(form, {**form, "preset": "trap"}) == "built"
    assert kind({"preset": "matched"}, {"preset": "matched"}, models="micro/{}") == "alike"
    trap = [{"preset": "trap", "strong": strong} for strong in ("add", "mul")]
    assert kind(*trap, models="micro/{}") == "built"
    assert kind(trap[0], trap[0], models="micro/{}") == "alike", "both lack the same"
    told = [{**start, "weak_cot": 0.7} for start in trap]
    assert kind(*told, models="micro/{}") == "alike", "by what was taught, not by the preset's name"
    assert kind({"preset": "of a later version"}, trap[0], models="micro/{}") == "built", "nobody can say"


@pytest.mark.slow
def test_the_first_screen_says_where_a_gain_is_of_one_base_checkpoint_alone(
    settings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """README's first table has a gain that no column has: there all seeds share one base a family."""
    write_results(tmp_path, "quick", DUO, seeds=(1, 2, 3, 4), steps=3, questions=400, preset="trap")
    useless = [replace(r, effect=0.0) for r in REGIMES]
    write_results(tmp_path, "fresh", DUO, useless, (1, 2, 3, 4), steps=3, questions=400, preset="trap", per_seed=True)
    ingest_journals(tmp_path)
    with Snapshot(tmp_path) as snapshot:
        quick, fresh = (
            next(r for r in show_rows(snapshot, suite) if (r.regime, r.policy, r.metric) == ("sgt", "*", "avg@2"))
            for suite in ("quick", "fresh")
        )
    text = said(app_on(tmp_path, monkeypatch)).replace("\\", "")
    assert f"sgt gains {POINTS.with_interval(quick.gain, quick.gain_interval)} points on llama × qwen in quick" in text
    assert (
        "all seeds start from one base checkpoint a family. Over 4 base checkpoints a family, in fresh, it is" in text
    )
    assert f"it is {POINTS.with_interval(fresh.gain, fresh.gain_interval)}: no gain is shown there." in text
    assert "base checkpoint" not in said(app_on(settings, monkeypatch)), "nothing differs"


def test_the_first_screens_sentences_have_the_margin_that_was_chosen(
    settings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = re.findall(r"in (\d+) of \d+ comparisons", said(app_on(settings, monkeypatch, margin="100")))
    assert len(counts) == 2
    assert "0" not in counts, "within 100 points nothing has an effect but what is shown to"


def test_variants_under_names_of_their_own_are_on_the_first_screen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = [REGIMES[0], replace(REGIMES[4], name="sgt-a")]
    write_results(tmp_path, "named", DUO, named, (1, 2), steps=1, questions=4, preset="matched")
    ingest_journals(tmp_path)
    app = app_on(tmp_path, monkeypatch)
    assert "No suite compares regimes with their defaults" in said(app)
    assert "shown to gain" not in said(app), "nothing was compared with its defaults"
    app.get("button_group")[0].set_value("all").run()
    assert [row[0] for row in by_kind(app)[KINDS["alike"]][1:]] == ["sgt-a"]


def test_a_tuning_group_of_any_name_chooses_for_pairs_of_its_kind(tmp_path: Path) -> None:
    regimes = [REGIMES[0], *REGIMES[4:6]]
    write_results(tmp_path, "own", DUO, regimes, (1, 2), steps=1, questions=4, preset="matched")
    file, tuning = read_suite(tmp_path / "own"), write_trials(tmp_path, "own")
    config = {**file.config, "tune": {"groups": [{**file.config["groups"][0], "name": "mine"}]}}
    write_suite(tmp_path / "own", msgspec.structs.replace(file, config=config))
    chosen = zip(tuning.variants, ("independent", "sgt"), ("independent", "hacpo"), strict=True)
    variants = tuple(msgspec.structs.replace(v, variant=name, final=final, on="mine") for v, name, final in chosen)
    write_tuning(tmp_path, file, msgspec.structs.replace(tuning, variants=variants))
    ingest_journals(tmp_path)
    with Snapshot(tmp_path) as snapshot:
        assert [line.regime for line in make_board(snapshot, "tuned").sections[0].standings] == ["sgt"]


def test_by_cost_what_is_not_known_is_last() -> None:
    rows = tuple(Standing(regime=n, cells=(), costs=c) for n, c in (("a", None), ("b", (1.0, 1.5))))
    assert [row.regime for row in _sort_standings(Section("real", (), rows), "cost")] == ["b", "a"]


def html_tables(app: AppTest) -> list[list[list[str]]]:
    """The text of each cell of the page's own tables, by row."""
    parts = re.findall("<table.*?</table>", html_of(app), re.S)
    rows = ([*ElementTree.fromstring(part).iter("tr")] for part in parts)
    return [[["".join(cell.itertext()) for cell in row] for row in table] for table in rows]


@pytest.mark.slow
def test_what_numbers_lack_and_where_they_ran_is_said_above_them(several: Path, tmp_path: Path) -> None:
    """What is missing is said everywhere; 2: the board, too, remarks where a paired comparison mixes kinds of processors."""
    for slug in ("ranking", "head-to-head"):
        text = said(page(several, slug, "third"))
        assert "Its cells: 2 failed." in text
        assert "failed \\(the disk is full \\<b\\>\\)" in text
        assert escape_markdown("mixed processors: the regimes of duo/1 ran on") in said(page(several, slug, "second"))
    assert "<p>No cell has finished. Its cells: 2 failed.</p>" in reported(several, tmp_path, "third")
    assert "<p>mixed processors: the regimes of duo/1" in reported(several, tmp_path, "second")
    assert "mixed processors" not in reported(several, tmp_path, "first")


def test_the_ranking_says_what_show_says_of_every_choice(stores: dict[str, Path]) -> None:
    with Snapshot(stores["large"]) as snapshot:
        head, rows = make_heading(snapshot, SUITE, 0.035), show_rows(snapshot, SUITE, 0.035)
    sentences = {(h.metric, h.policy, h.task): escape_markdown(h.summary, 2000) for h in head.sentences}
    app = page(stores["large"], "ranking", margin="3.5", policy="qwen", task="other")
    assert unlinked(app.info[0].value) == sentences["avg@2", "qwen", "other"]
    app = page(stores["large"], "ranking", margin="3.5")
    assert unlinked(app.info[0].value) == sentences["avg@2", "*", "*"]
    assert INTERVALS in said(app)
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
    assert "On 1 group and 3 seeds" in said(app)
    table = app.dataframe[0].value
    assert set(table["group"]) == {"pair-3"}
    assert list(table["regime"]) == sorted(r.name for r in REGIMES)
    assert [tab.label for tab in app.tabs] == ["Figures", "Table", "Pace and end"], "one panel"
    app.multiselect(key="group").set_value(["pair-3", "pair-2"]).run()
    assert "On 2 groups and 3 seeds" in said(app)
    assert len(app.dataframe[0].value) == 14


NAMED = [slug for slug in SLUGS if slug not in ("standing", "regimes", "about")]
"""Pages whose figures and tables name regimes; the first screen's names are in tables of links, as are those of a regime's page."""


@pytest.mark.slow
@pytest.mark.parametrize("slug", NAMED)
def test_the_names_of_regimes_lead_to_their_pages(stores: dict[str, Path], slug: str) -> None:
    html = html_of(page(stores["large"], slug, regime="sgt", a="sgt"))
    if slug == "sensitivity":
        return  # of a suite that is not tuned it names none
    for link in re.findall(r'href="(regimes\?name=[^"]*)"', html):
        name = unquote(link.partition("=")[2])
        app = page(stores["large"], "regimes", name=name)
        assert not app.warning, name
    assert 'href="regimes?name=sgt"' in html


def test_a_name_in_a_sentence_leads_to_its_page_where_it_stands_alone() -> None:
    links = {"sgt": "regimes?name=sgt", "sgt-wide": "regimes?name=sgt-wide"}
    text = write_linked("sgt-wide (sgt) beats sgtx, x-sgt and sgt-y; [sgt](http://evil)", links)
    shown = (
        r"[sgt\-wide](regimes?name=sgt-wide) \([sgt](regimes?name=sgt)\) beats sgtx, x\-sgt and sgt\-y; "
        r"\[[sgt](regimes?name=sgt)\]"
    )
    assert text.startswith(shown)
    assert unlinked(text) == escape_markdown("sgt-wide (sgt) beats sgtx, x-sgt and sgt-y; [sgt](http://evil)")


KEPT = {"ranking": ("sort", "cheapest first", "cost"), "answers": ("show", "lost by sharing", "lost"),
        "curves": ("curve", "training reward", "reward"), "stability": ("x", "entropy", "entropy")}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("slug", KEPT)
def test_a_choice_is_in_the_address_by_its_key(stores: dict[str, Path], slug: str) -> None:
    """Labels may be written better; an address that somebody cites stays."""
    choice, label, key = KEPT[slug]
    app = page(stores["large"], slug)
    assert choice not in app.query_params, "the default is left out"
    app.selectbox(key=choice).select(label if label in app.selectbox(key=choice).options else key).run()
    assert app.query_params[choice] in (key, [key])
    for asked in (key, label):  # older addresses have the label
        assert page(stores["large"], slug, **{choice: asked}).selectbox(key=choice).value == key


@pytest.mark.slow
def test_of_results_that_kept_some_answers_in_words_those_are_shown_first(
    stores: dict[str, Path], tmp_path: Path
) -> None:
    write_results(tmp_path, "few", groups=DUO, regimes=REGIMES[:2], seeds=(1,), steps=1, questions=12)
    write_results(tmp_path, "none", groups=DUO, regimes=REGIMES[:2], seeds=(1,), steps=1, questions=12)
    for file in [*tmp_path.glob("*/*/journal/*/samples-*.arrow")]:
        name, table = read_columns(file)
        kept = choose_readable(table, 10 if "few" in file.parts else 0)
        for column in ("prompt", "text"):
            emptied = pc.if_else(kept, table[column], pa.scalar("", pa.string()))
            table = table.set_column(table.schema.get_field_index(column), column, emptied)
        file.unlink()
        write_columns(file.parent, name, table)
    ingest_journals(tmp_path)
    app = page(tmp_path, "answers", "few")
    assert "the answers to 5 questions were kept in words" in said(app)
    html = html_of(app)
    assert "so it is \\boxed{" in html
    assert "not kept" not in html
    app = page(tmp_path, "answers", "few", show="all")
    assert "text not kept with these results" in html_of(app)
    app = page(tmp_path, "answers", "none")
    assert "The answers' texts were not kept with these results; those of [few](answers?suite=few) were." in said(app)


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


def test_questions_are_counted_once_with_one_measure_of_chance(stores: dict[str, Path]) -> None:
    """17: a sign test stood beside the interval. Ten questions, each asked of two policies in four groups, twice: not 80 or 160."""
    app = page(stores["large"], "head-to-head", a="sgt", b="independent")
    assert "Of 10 questions, each asked of 8 policies \\(80 comparisons\\), it does better on" in said(app)
    assert not [c for frame in app.dataframe for c in frame.value.columns if "test" in c]
    assert "by however little" in said(app)


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
    assert drawn == {f"duo, {r.policy.replace('*', 'mean')}": charts.SIGNS[r.verdict] for r in rows}


def test_head_to_head_opens_with_two_regimes(tmp_path: Path) -> None:
    """Not the baseline, last and best, with itself, nor what had twice the rollouts with it."""
    regimes = [replace(REGIMES[2], effect=-0.4), replace(REGIMES[1], effect=0.4), REGIMES[0]]
    write_results(tmp_path, SUITE, DUO, regimes, (1,), steps=1, questions=20)
    ingest_journals(tmp_path)
    app = page(tmp_path, "head-to-head")
    assert app.selectbox(key="a").value == "prp"
    assert "1 seed\\)" in said(app)
    assert "at most one has a false finding" in said(app)


def test_a_file_that_cannot_be_read_is_named_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They ended with tracebacks. The store may be deleted at any time."""
    write_results(tmp_path, "s@lab", DUO, REGIMES[:2], (1,), steps=1, questions=2)
    ingest_journals(tmp_path)
    for name in ("tuning", "submission"):
        (tmp_path / "s@lab" / f"{name}.json").write_text("{")
    assert "not a tuning" in page(tmp_path, "sensitivity", "s@lab").error[0].value
    opened = [open_store(tmp_path)]

    def gone(_: Path) -> object:
        if not opened:
            raise StoreError("no results yet")
        return opened.pop()

    monkeypatch.setattr("leaderboard.data.open_store", gone)
    submission, store = app_on(tmp_path, monkeypatch).sidebar.error
    assert "not a submission" in submission.value
    assert store.value == "no results yet"


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
        assert words in said(app)


def test_verdicts_that_are_all_invalid_end_no_page(tmp_path: Path) -> None:
    sample = SampleRow(
        policy="L", checkpoint_step=1, task="t", metric="greedy", doc_id="1", verdict="invalid", prompt="Q", text=""
    )
    policies = (PolicyEntry("L", "micro/L"),)
    write_rows(
        tmp_path, [sample, StepRow(policy="L", step=1)], regime="prp", regime_type="prp", seed=1, policies=policies
    )
    ingest_journals(tmp_path)
    assert "(empty)" in html_of(page(tmp_path, "answers", "hand")), "not: text not kept"
    assert page(tmp_path, "cell", "hand").metric[1].value == "– %"


def test_what_was_all_refused_is_not_shown_as_nothing_refused() -> None:
    steps = "(VALUES (0, 1.0), (0, NULL)) t(peer_received, refused_share)"
    value = stability._write_sql("refused")
    assert duckdb.sql(f"SELECT {value} FROM {steps}").fetchall() == [(1.0,)]
    assert duckdb.sql(f"SELECT {value} FROM {steps} WHERE refused_share IS NULL").fetchall() == [(0.0,)]


def test_the_authors_of_a_replay_are_in_the_picture() -> None:
    totals = pd.DataFrame({"regime": ["r"], "policy": ["llama"], "received": [3.0], "used": [3.0]})
    flows = pd.DataFrame({"regime": ["r"], "author": ["old"], "receiver": ["llama"], "records": [4.0], "used": [3.0]})
    gains = pd.DataFrame(columns=["variant", "policy", "gain", "verdict"])
    assert "old to llama: 4 sent, 3 used" in exchange._chart_network("r", flows, totals, gains)["description"]


@pytest.mark.slow
def test_residuals_are_means_over_the_records_that_have_them(tmp_path: Path) -> None:
    """One of texts alone counted as 0 in the others' means, and by itself as no text."""
    policies = tuple(PolicyEntry(name, f"micro/{name}") for name in "ab")
    sent: dict[str, dict[str, float]] = {
        "hacpo": {"residual_boundary": 0.2, "residual_canonical": 0.5},
        "copd": {"residual_boundary": 0.4},
        "sgt": {},
    }
    for regime, residuals in sent.items():
        row = ExchangeRow(step=1, author="a", receiver="b", kind=regime, residual_text=0.1, **residuals)
        step = StepRow(policy="b", step=1, peer_received=1)
        write_rows(tmp_path, [row, step], regime, regime=regime, regime_type=regime, seed=1, policies=policies)
    ingest_journals(tmp_path)
    residuals = page(tmp_path, "exchange", "hand", regime="all").dataframe[0].value.iloc[0]
    assert [residuals[name] for name in ("text", "boundary", "canonical", "records")] == pytest.approx(
        [0.1, 0.3, 0.5, 3]
    )
    assert page(tmp_path, "exchange", "hand", regime="sgt").dataframe[0].value["text"].tolist() == [0.1]


@pytest.mark.slow
@pytest.mark.parametrize("slug", SLUGS)
def test_bad_values_in_the_address_do_no_harm(stores: dict[str, Path], slug: str) -> None:
    bad = {
        "metric": "<script>",
        "group": "nowhere",
        "task": "x" * 3000,
        "regime": "'; DROP TABLE cells",
        "seed": "-1",
        "page": "0",
    }
    page(stores["large"], slug, **bad)


@pytest.mark.parametrize(
    ("slug", "part"),
    [("answers", "side"), ("answers", "sent"), ("head-to-head", ""), ("exchange", "")],
)
def test_hostile_texts_are_shown_as_text(stores: dict[str, Path], slug: str, part: str) -> None:
    app = page(stores["evil"], slug, part=part, regime="prp")
    bodies = [str(e.value if hasattr(e, "value") else e.proto.body) for e in app.get("html")]
    assert any("&lt;script&gt;" in body for body in bodies) == bool(part)
    for text in [*bodies, said(app)]:
        assert not [evil for evil in ("<script>", "<b>bold", "\x1b", "\u202e") if evil in text]


@pytest.mark.slow
def test_a_megabyte_of_hostile_text_is_cut_and_shown_as_text(tmp_path: Path) -> None:
    text = EVIL + "<img src=x onerror=alert(1)>" * 40_000
    write_results(tmp_path, groups=DUO, regimes=REGIMES[2:3], seeds=(1,), steps=1, questions=2, text=text)
    ingest_journals(tmp_path)
    for part in ("side", "sent"):
        bodies = "".join(str(e.proto.body) for e in page(tmp_path, "answers", part=part).get("html"))
        sizes = [int(n.replace(",", "")) for n in re.findall(r"([0-9,]+) characters in all", bodies)]
        assert max(sizes, default=0) >= len(text), f"{part}: cut, and says so"
        assert len(bodies) < 2_000_000
        assert not [evil for evil in ("<script>", "<img", "\x1b") if evil in bodies]


def test_answers_under_two_regimes_stand_side_by_side(stores: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each policy's verdicts as the journals have them; what is solved by both is neither solved after sharing nor lost."""
    place = {"group": "pair-1", "regime": "sgt", "b": "independent", "seed": "1", "decoding": "greedy"}
    with Snapshot(stores["large"]) as snapshot:
        rows = snapshot.query(
            "SELECT regime, policy, task, doc_id, verdict FROM current_cells c JOIN samples USING (suite, cell) "
            "WHERE c.suite = ? AND group_name = 'pair-1' AND seed = 1 AND metric = 'greedy'",
            [SUITE],
        ).to_pylist()
    right: dict[str, set[tuple[str, str, str]]] = {}
    for row in rows:
        if row["verdict"] == "right":
            right.setdefault(row["regime"], set()).add((row["task"], row["doc_id"], row["policy"]))
    gained, lost = right["sgt"] - right["independent"], right["independent"] - right["sgt"]
    assert gained
    for show, expected in ((SOLVED, gained), (LOST, lost)):
        app = page(stores["large"], "answers", **place, show=show)
        assert f"{len({q[:2] for q in expected})} of 20 questions" in said(app)
        views = [str(e.proto.body) for e in app.get("html")]
        assert len(views) == min(5, len({q[:2] for q in expected}))
        for view in views:
            left, ours = view.partition('<p class="side"><a href="regimes?name=sgt" target="_self">sgt</a></p>')[::2]
            marks = ("✗ wrong", "✓ right") if show == SOLVED else ("✓ right", "✗ wrong")
            assert marks[0] in left
            assert marks[1] in ours
            assert "so it is \\boxed{" in ours
    assert "The download" not in said(app)
    monkeypatch.setattr(answers, "_DOWNLOAD", 15)
    assert "The download has the first 15 questions." in said(page(stores["large"], "answers", **place))


def test_answers_open_on_a_regime_that_shares(tmp_path: Path) -> None:
    better = replace(REGIMES[1], effect=0.4)
    write_results(tmp_path, groups=DUO, regimes=[REGIMES[0], better, REGIMES[4]], seeds=(1,), steps=1, questions=10)
    ingest_journals(tmp_path)
    assert page(tmp_path, "answers").selectbox(key="regime").value == "sgt"


@pytest.mark.slow
def test_what_was_claimed_before_the_runs_is_answered_on_the_first_screen_and_by_its_suite(tmp_path: Path) -> None:
    own = {"group": "pair", "relation": "above", "over": None, "against": None, "seeds": None}
    claims = [
        {**own, "name": "faster", "regime": "hacpo", "statistic": "kappa", "bound": 1.0},
        {**own, "name": "gains", "regime": "sgt", "statistic": "gain", "bound": 20.0},
        {**own, "name": "much-faster", "regime": "hacpo", "statistic": "kappa", "bound": 1.25},
    ]
    lines = [Line("independent"), Line("hacpo", "hacpo", pace=1.25), Line("sgt", "sgt", end=0.08)]
    write_paced(tmp_path / "with", lines, claims=claims, noise=0.004)
    write_paced(tmp_path / "without", lines, noise=0.004)
    for results in (tmp_path / "with", tmp_path / "without"):
        ingest_journals(results)
    first = said(page(tmp_path / "with", "standing", "paced")).replace("\\", "")
    assert (
        "Claimed before the runs of [paced](ranking?suite=paced). Supported: kappa of hacpo on pair is above 1 (1.2"
        in first
    )
    assert "Refuted: gain of sgt on pair is above 20 points (+" in first
    assert "Undecided: 1 more." in first
    (table,) = [
        table
        for table in html_tables(page(tmp_path / "with", "ranking", "paced"))
        if table[0][0] == "Claimed before it ran"
    ]
    assert [line[1] for line in table[1:]] == ["supported", "refuted", "undecided"]
    assert table[1][0] == "kappa of hacpo on pair is above 1"
    assert "Claimed" not in said(page(tmp_path / "without", "standing", "paced"))
    assert "Claimed" not in html_of(page(tmp_path / "without", "ranking", "paced"))


def test_who_helps_whom_is_a_picture_of_any_group(tmp_path: Path) -> None:
    """With the sender of each answer where the results kept it; of reference results from what each policy received."""
    groups = {"duo": ("llama", "qwen"), "trio": ("llama", "qwen", "gpt2")}
    write_results(tmp_path, groups=groups, regimes=[REGIMES[0], REGIMES[2]], seeds=(1, 2), steps=3, questions=10)
    write_results(tmp_path, "kept", groups, [REGIMES[0], REGIMES[2]], (1, 2), steps=3, questions=10, exchanges=0)
    ingest_journals(tmp_path)
    pictures = {}
    for suite in (SUITE, "kept"):
        for group in groups:
            app = page(tmp_path, "exchange", suite, group=group)
            pictures[suite, group] = json.loads(
                (app.get("arrow_vega_lite_chart") or app.get("vega_lite_chart"))[0].proto.spec
            )["description"]
            if suite == "kept":
                shown = open_store(tmp_path).show_table(suite)
                here = shown.query("group == @group and regime == 'prp' and metric == @shown.metric[0]")
                gains = dict(zip(here["policy"], here["gain"], strict=True))
                assert all(f"{p}: {POINTS.text(gains[p])}" in pictures[suite, group] for p in groups[group])
    assert re.search(r"llama to qwen: \d+ sent, \d+ used; qwen to llama: \d+ sent", pictures[SUITE, "duo"])
    with Snapshot(tmp_path) as snapshot:
        ((received, used),) = (row.values() for row in snapshot.query(_RECEIVED).to_pylist())
    assert f"llama to qwen: {received:,.0f} received, {used:,.0f} used" in pictures["kept", "duo"]
    assert "gpt2 to llama: not kept; gpt2 to qwen: not kept" in pictures["kept", "trio"]


_RECEIVED = """
SELECT sum(peer_received) AS received, sum(peer_used) AS used FROM current_cells JOIN totals USING (suite, cell)
WHERE suite = 'kept' AND group_name = 'duo' AND policy = 'qwen'
"""


@pytest.mark.slow
def test_what_a_page_lacks_is_said_truly(tmp_path: Path) -> None:
    """One of three policies receives nothing; each regime has finished on another group."""
    policies = tuple(PolicyEntry(name, f"micro/{name}") for name in "abc")
    for regime, received in (("independent", 0), ("prp", 10)):
        rows: list[Row] = []
        for policy in "abc":
            sent = 0 if policy == "c" else received
            rows.append(StepRow(policy=policy, step=1, entropy=0.5, peer_received=sent, peer_used=sent // 2))
            rows.append(
                SampleRow(policy=policy, checkpoint_step=1, task="t", metric="greedy", doc_id="1", verdict="right")
            )
        write_rows(tmp_path, rows, regime, regime=regime, regime_type=regime, seed=1, policies=policies)
    for i, regime in enumerate(REGIMES[:4]):
        write_cell(tmp_path, "apart", f"g{i}", "ab"[: 1 + (i < 3)], regime, 1, 1, 4, 0, ("t",), 0)
    ingest_journals(tmp_path)
    app = page(tmp_path, "exchange", "hand")
    (picture,) = app.get("arrow_vega_lite_chart") or app.get("vega_lite_chart")
    told = json.loads(picture.proto.spec)["description"]
    assert [word in told for word in ("10 received, 5 used", "\nnothing received", "nan")] == [True, True, False]
    assert "No policy has both" in said(page(tmp_path, "stability", "hand", x="entropy", y="kl-base"))
    assert page(tmp_path, "curves", "hand").code[0].value == "harness status hand", "its cells have run"
    assert "Nothing to draw" in said(page(tmp_path, "ranking", "apart")), "no regime beside a baseline: no empty axis"
    app = page(tmp_path, "ranking", "apart")
    app.multiselect(key="group").select("g3").run()
    assert "choose its policy" in said(app)


def test_escaped_and_csv() -> None:
    assert "<" not in escape_markdown(EVIL).replace("\\<", "")
    assert "\x1b" not in escape_markdown(EVIL)
    links = r"(?i)(https?://|www(?=\.))[-.\w]+|[-.\w+]+@[-\w]+(?:\.[-\w]+)+"  # Streamlit's, of the text without escapes
    for address in ("https://x.yz", "WWW.x.yz", "a@b-c.yz"):
        assert re.search(links, address)
        assert not re.search(links, escape_markdown(f"at {address}").replace("\\", ""))
    assert escape_markdown("avg@4 of s@lab") == "avg@4 of s@lab"
    text = csv_text(pd.DataFrame({"a": ["=1+1", "+x", "fine"], "b": [1.5, -2.0, 3.0]})).decode()
    assert text.splitlines()[1:] == ["'=1+1,1.5", "'+x,-2.0", "fine,3.0"]


def test_token_view_marks_common_edges_and_escapes() -> None:
    trace = {
        "peer_text": "ab<c>d", "source_pieces": [2, 3, 1], "source_logprobs": [-0.1, -2.0, -0.5], "receiver_pieces": [1, 1, 4],
        "aligned": [-0.05, -0.05, -2.5], "receiver_logprobs": [-1.0, -1.0, -1.0],
    }  # fmt: skip
    view = token_view(trace)
    assert "<c>" not in view
    assert "&lt;c&gt;" in view
    assert view.count('class="edge"') == 4, "after byte 2 and at the end, in both lines"
    assert "-2.50 (-1.00)" in view


def test_an_area_under_a_curve_lies_within_0_and_100_percent() -> None:
    curves = pd.DataFrame({"seed": [1, 1, 2, 2], "steps": [0, 9, 0, 9], "y": [1.0, 1.0, 0.9, 0.9]})
    (area,) = _measure_areas(curves.assign(group="pair", regime="sgt")).itertuples()
    assert area.interval == "31.5 to 100.0"


def test_bars_over_steps_are_95_percent_intervals_over_seeds() -> None:
    """They were one standard deviation over policies and seeds (14)."""
    values = [(seed, 1, v, "r") for seed, pair in enumerate(([1.0, 3.0], [2.0, 6.0], [3.0, 3.0])) for v in pair]
    table = pd.DataFrame(values, columns=["seed", "steps", "y", "regime"])
    (row,) = over_seeds(table, [], "steps").itertuples()
    seeds = mean_interval([2.0, 4.0, 3.0])
    assert (row.x, row.y, row.low, row.high) == pytest.approx((1, 3.0, seeds.low, seeds.high))
    (row,) = over_seeds(table[table["seed"] == 0], [], "steps").itertuples()
    assert row.low == row.y == row.high == 2.0


def forest_of(html: str, title: str) -> ElementTree.Element:
    """One figure of a page, by its caption."""
    figures = [ElementTree.fromstring(part) for part in re.findall('<figure class="forest">.*?</figure>', html, re.S)]
    (forest,) = (figure for figure in figures if figure.findtext("figcaption") == title)
    return forest


def styled(element: ElementTree.Element | None) -> dict[str, str]:
    assert element is not None
    return dict(part.split(":") for part in element.attrib["style"].split(";"))


@pytest.mark.parametrize("measure", ["gain", "accuracy"])
def test_bars_marks_and_words_of_a_figure_are_those_of_the_store(stores: dict[str, Path], measure: str) -> None:
    app = page(stores["large"], "ranking", metric="greedy", group="pair-1", task="other", show=measure)
    with Snapshot(stores["large"]) as snapshot:
        place = ("pair-1", "other", "greedy", "*")
        rows = [r for r in show_rows(snapshot, SUITE) if (r.group, r.task, r.metric, r.policy) == place]
    if measure == "gain":
        rows = [r for r in rows if r.gain is not None or r.verdict == "baseline"]
    figure = forest_of(html_of(app), "pair-1: other, greedy")
    *drawn, axis = figure.findall("table/tbody/tr")
    marks = axis.findall("td/small")
    least, most = ((100 * f(float(m.text.replace("\u2212", "-")) for m in marks if m.text)) for f in (min, max))
    ends = [float(styled(mark)["left"].rstrip("%")) for mark in (marks[0], marks[-1])]

    def at(value: float) -> float:
        """Where the labels of the axis say that a share stands."""
        return ends[0] + (1e4 * value - least) / (most - least) * (ends[1] - ends[0])

    assert [th.text for th in figure.findall("table/thead/tr/th")][2] == axis.findall("td")[1].text
    assert axis.findall("td")[1].text == {"gain": "gain, points", "accuracy": "accuracy, %"}[measure]
    assert {tr.findtext("th/a") for tr in drawn} == {r.regime for r in rows}
    for tr in drawn:
        (row,) = (r for r in rows if r.regime == tr.findtext("th/a"))
        bar, mark = (tr.find(f"td/{tag}") for tag in "ib")
        judged = row.gain_interval if row.verdict == EQUIVALENT else row.gain_corrected_interval or row.gain_interval
        value, interval = (row.gain or 0.0, judged or (0.0, 0.0)) if measure == "gain" else (row.accuracy, row.interval)
        low, wide = (float(styled(bar)[side].rstrip("%")) for side in ("left", "width"))
        shown = (low, low + wide, float(styled(mark)["left"].rstrip("%")))
        assert shown == pytest.approx((at(interval[0]), at(interval[1]), at(value)), abs=0.3)
        assert mark is not None
        assert mark.text == charts.SIGNS[row.verdict]
        assert styled(tr.find("td"))["--c"] == charts.COLOURS[row.verdict]
        words = verdict_mark(row.verdict, 0.02)
        spent = f"{row.rollouts:,.0f} rollouts, {row.cpu_seconds:,.0f} CPU-s"
        assert tr.attrib["title"] == f"{words}; {spent}"
        assert tr.findtext("td/span") == words, "for those who hear it"
        unit = POINTS if measure == "gain" else PERCENT
        assert (
            tr.findall("td")[1].text
            == unit.with_interval(value, interval if row.verdict != "baseline" or measure == "accuracy" else None) + " "
        )
    assert float(styled(figure.find("table"))["--zero"].rstrip("%")) == pytest.approx(
        at(0) if measure == "gain" else -9, abs=0.3
    )
    caption = said(app).replace("\\", "")
    assert INTERVALS in caption
    assert charts.LEGEND in caption


def test_the_report_is_one_file_without_scripts_that_follows_light_and_dark(
    stores: dict[str, Path], tmp_path: Path
) -> None:
    text = reported(stores["one"], tmp_path)
    assert text.count('class="forest"') == 4, "avg@2, best@2, maj@2 and greedy"
    assert not [
        word for word in ("<script", "http://", "src=", "@import", "url(", "background: #ffffff") if word in text
    ]
    assert "color: var(--ink); background: var(--page)" in text
    assert re.search(r"\.forest th, \.forest td \{[^}]*color: inherit", text)
    figures = re.findall('<figure class="forest">.*?</figure>', reported(stores["large"], tmp_path), re.S)
    assert len(figures) == 4 * (4 * 2 + 1), "each group and benchmark by each metric, and their mean"
    for figure in figures:
        drawn = ElementTree.fromstring(figure)
        colours = [part for e in drawn.iter() for part in e.attrib.get("style", "").split(";") if "#" in part]
        assert {*colours} <= {f"--c:{colour}" for colour in charts.COLOURS.values()}
        assert len(colours) == len(drawn.findall("table/tbody/tr")) - 1 > 1


@pytest.mark.slow
def test_the_report_has_groups_of_one_policy_too(tmp_path: Path) -> None:
    groups = {"duo": DUO["duo"], "one": ("llama",), "other": ("qwen",), "same": ("llama",)}
    write_results(tmp_path, "s", groups, REGIMES[:3], (1, 2), steps=2, questions=6)
    ingest_journals(tmp_path)
    text = reported(tmp_path, tmp_path)
    parts = re.findall(r"<h3>greedy(.*?)</h3>(.*?)(?=<h3>|<p class=soft>)", text, re.S)
    assert [heading for heading, _ in parts] == ["", ", llama", ", qwen"]
    drawn = [set(re.findall("<figcaption>(.*?): micro, greedy", body)) for _, body in parts]
    assert drawn == [{"duo"}, {"one", "same"}, {"other"}]


def test_no_character_of_a_name_ends_the_export(tmp_path: Path) -> None:
    evil = "\x07\u202e\u2028\uffff"
    regime, groups = replace(REGIMES[0], name=f"own{evil}"), {f"pair{evil}": ("llama", "qwen")}
    write_results(tmp_path, "s", groups, [regime], (1,), steps=1, questions=2, tasks=(f"task{evil}",))
    ingest_journals(tmp_path)
    text = reported(tmp_path, tmp_path)
    assert not set(evil) & set(text)
    assert "pair\\x07\\x202e\\x2028\\xffff" in text


@pytest.mark.slow
def test_commands_on_the_about_page_run_as_printed(stores: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(stores["one"], tmp_path / "runs")
    shutil.copytree(stores["evil"], tmp_path / "their_results")
    about = page(stores["one"], "about", state={"at": " --results runs"})
    lines = [line for code in about.code for line in code.value.splitlines() if line.startswith("harness ")]
    for line in lines:
        words = [sys.executable, "-m", *shlex.split(line)]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"{line}: {done.stderr}"
    assert len(lines) == 5
    assert (tmp_path / "report.html").is_file()
