"""Pages and their addresses: any store, any value, hostile text."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
import pytest
from synthetic_results import REGIMES, write_results, write_rows

from harness.errors import StoreError
from harness.store.ingest import ingest_journals
from harness.store.journal import read_journal
from harness.store.manifest import PolicyEntry, read_manifest, read_suite, write_manifest
from harness.store.read import Snapshot
from harness.store.results_folder import write_results_folder
from harness.store.rows import SampleRow, StepRow

pytest.importorskip("streamlit", reason="the leaderboard extra is not installed")

import streamlit as st
from drawn_pages import SLUGS, SUITE, app_on, html_of, page, text_of_page, without_links
from drawn_stores import DUO, EVIL

from leaderboard.data import open_store
from leaderboard.frames import SPREAD
from leaderboard.page import escape_markdown, write_linked
from leaderboard.views import PAGES


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
        assert SPREAD in text_of_page(app).replace("\\", ""), (
            "14: bars unlabelled where the same marks mean 95 % elsewhere"
        )


def test_the_app_starts_and_its_address_says_what_is_shown(
    stores: dict[str, Path], several: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[list[Any]] = []
    navigation = st.navigation
    monkeypatch.setattr(st, "navigation", lambda pages: (given.append(pages), navigation(pages))[1])
    app = app_on(stores["empty"], monkeypatch)
    assert "There are no results yet" in text_of_page(app)
    assert app.code[0].value == f"harness run quickstart --results {stores['empty']}", "where this page looks"
    addresses = [page.url_path for page in given[0]]
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
    assert "There is no suite “ninth \\<b\\>” here. Shown is" in text_of_page(app)
    app.selectbox(key="suite").set_value("second").run()
    assert "There is no suite" not in text_of_page(app)


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
    assert "There is no suite" not in text_of_page(app)


def test_an_engine_in_the_address_leaves_its_suites_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for suite in ("here", "there"):
        write_results(tmp_path, suite, DUO, REGIMES[:2], (1,), steps=1, questions=4)
    for file in tmp_path.glob("there/*/manifest.json"):
        write_manifest(file.parent, msgspec.structs.replace(read_manifest(file.parent), engine="openrlhf"))
    ingest_journals(tmp_path)
    app = app_on(tmp_path, monkeypatch, engine="openrlhf", suite="here")
    assert app.selectbox(key="suite").options == ["there"]
    assert "there" in app.query_params["suite"]
    assert "There is no suite" not in text_of_page(app), "it is another engine's"
    app.selectbox(key="engine").set_value("all").run()
    assert sorted(app.selectbox(key="suite").options) == ["here", "there"]


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
    assert 'href="regimes?name=sgt"' in html, (
        f"{slug} links no regime to its page; one that names none is left out of NAMED"
    )


def test_a_name_in_a_sentence_leads_to_its_page_where_it_stands_alone() -> None:
    links = {"sgt": "regimes?name=sgt", "sgt-wide": "regimes?name=sgt-wide"}
    text = write_linked("sgt-wide (sgt) beats sgtx, x-sgt and sgt-y; [sgt](http://evil)", links)
    shown = (
        r"[sgt\-wide](regimes?name=sgt-wide) \([sgt](regimes?name=sgt)\) beats sgtx, x\-sgt and sgt\-y; "
        r"\[[sgt](regimes?name=sgt)\]"
    )
    assert text.startswith(shown)
    assert without_links(text) == escape_markdown("sgt-wide (sgt) beats sgtx, x-sgt and sgt-y; [sgt](http://evil)")


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
    for text in [*bodies, text_of_page(app)]:
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
