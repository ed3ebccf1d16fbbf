"""Every page of the leaderboard through Streamlit's AppTest, and the pure parts by themselves."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import numpy as np
import pandas as pd
import pytest
from synthetic_results import REGIMES, write_results, write_trials

from harness.statistics import mean_interval
from harness.store.ingest import ingest
from harness.store.manifest import read_manifest, read_suite, write_manifest
from harness.store.ranking import aggregates, heading, rank
from harness.store.read import Snapshot
from harness.store.sentences import doubt, sentence, verdict_mark
from harness.store.table import SeedRow, show_rows
from harness.store.tuning import write_tuning

pytest.importorskip("streamlit", reason="the leaderboard extra is not installed")

import streamlit as st
from streamlit.testing.v1 import AppTest

from leaderboard import RESULTS_VARIABLE, charts, command
from leaderboard.data import open_store
from leaderboard.frames import BEST, SPREAD, Choice, over_seeds
from leaderboard.page import INK, csv_text, escaped
from leaderboard.report import export_report
from leaderboard.views import PAGES
from leaderboard.views.cell import token_view

APP = str(Path(__file__).parents[1] / "leaderboard" / "app.py")
EVIL = "<script>alert(1)</script><b>bold</b> **md** [link](http://x) $x^2$ :red[r] \x1b[31m\x07 \u202e"


def draw(results: str, slug: str, suite: str) -> None:
    """One page as the app draws it (AppTest cannot follow pages that are functions)."""
    from pathlib import Path

    from leaderboard.data import open_store
    from leaderboard.page import draw_page
    from leaderboard.views import PAGES

    page = next(p for p in PAGES if p.slug == slug)
    draw_page(page, open_store(Path(results)) if suite else None, suite or None)


def page(results: Path, slug: str, suite: str = "synthetic-small", **query: str) -> AppTest:
    app = AppTest.from_function(draw, args=(str(results), slug, suite), default_timeout=60)
    for name, value in query.items():
        app.query_params[name] = value
    app.run()
    assert not app.exception, app.exception[0].stack_trace
    return app


def said(app: AppTest) -> str:
    """All that Streamlit takes for Markdown."""
    return "\n".join(e.value for kind in ("markdown", "info", "caption", "warning") for e in getattr(app, kind))


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("stores")
    for name in ("empty", "one", "large", "evil"):
        (root / name).mkdir()
    write_results(
        root / "one", groups={"solo": ("llama", "qwen")}, regimes=REGIMES[:1], seeds=(1,), steps=3, questions=5
    )
    groups = {f"pair-{i}": ("llama", "qwen") for i in range(4)}
    write_results(root / "large", groups=groups, seeds=range(3), steps=8, questions=10, tasks=("micro", "other"))
    write_results(
        root / "evil",
        groups={"pair": ("llama", "qwen")},
        regimes=REGIMES[2:5],
        seeds=(1, 2),
        steps=3,
        questions=4,
        text=EVIL,
    )
    for name in ("one", "large", "evil"):
        ingest(root / name)
    return {path.name: path for path in root.iterdir()}


SLUGS = [p.slug for p in PAGES]


def test_pages_without_figures_are_few() -> None:
    assert {p.slug for p in PAGES if not p.figures} == {"about", "sensitivity"}
    assert {p.slug for p in PAGES if not p.needs_results} == {"published", "about"}


@pytest.mark.slow_but("large")
@pytest.mark.parametrize("slug", SLUGS)
@pytest.mark.parametrize("name", ["empty", "one", "large", "evil"])
def test_every_page_draws_with_any_store(stores: dict[str, Path], name: str, slug: str) -> None:
    app = page(stores[name], slug, "" if name == "empty" else "synthetic-small")
    declared = next(p for p in PAGES if p.slug == slug)
    assert app.title[0].value == declared.title
    if name == "empty" and declared.needs_results:
        assert "harness run" in app.code[0].value
    if name == "large" and declared.figures:
        assert app.get("arrow_vega_lite_chart") or app.get("vega_lite_chart"), "a figure"
        assert app.get("popover"), "a download menu"


def test_sensitivity_shows_each_option_of_a_tuned_suite(stores: dict[str, Path], tmp_path: Path) -> None:
    results, suite = shutil.copytree(stores["large"], tmp_path / "tuned"), "synthetic-small"
    assert "not tuned" in said(page(results, "sensitivity", suite))

    tuning = write_trials(results, suite)
    ingest(results)
    base, ours, tuned = (regime.name for regime in REGIMES[:3])
    app = page(results, "sensitivity", suite)
    assert not app.exception
    table, trials = (frame.value for frame in app.dataframe)
    assert list(trials["gain"]) == pytest.approx([5.0, 20.0])
    assert list(trials["kind"]) == ["as published", "chosen"]
    line = table[table["variant"] == ours].iloc[0]
    assert (line["promised"], line["kept"], line["failed"]) == (pytest.approx(15), pytest.approx(5), 1)
    figures = app.get("arrow_vega_lite_chart") or app.get("vega_lite_chart")
    assert len(figures) == 2, "an option that never changes has no panel"
    moved = [
        msgspec.structs.replace(v, on=on, final=final)
        for v, finals in zip(tuning.variants, ((base, base), (ours, tuned)), strict=True)
        for on, final in zip(("first pair", "second pair"), finals, strict=True)
    ]
    write_tuning(results, read_suite(results / suite), msgspec.structs.replace(tuning, variants=tuple(moved)))
    ingest(results)
    app = page(results, "sensitivity", suite)
    assert not app.exception
    table, transfer, _ = (frame.value for frame in app.dataframe)
    assert f"{ours}, tuned on second pair" in app.selectbox(key="tuned").options
    accuracy = table[table["variant"] == ours].set_index(["group", "on"])["tuned"]
    for _, row in transfer[transfer["variant"] == ours].iterrows():
        first, second = (accuracy[row["group"], on] for on in ("first pair", "second pair"))
        assert (row["first"], row["second"]) == pytest.approx((first, second))
        assert row["apart"].startswith(f"{first - second:+.1f} [".replace("-", "−"))
    assert set(transfer[transfer["variant"] == base]["apart"]) == {"the same setting"}


def test_the_app_starts_with_and_without_results(stores: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, expected in (("empty", "There are no results yet"), ("large", "On 4 pairs, 2 benchmarks and 3 seeds")):
        monkeypatch.setenv(RESULTS_VARIABLE, str(stores[name]))
        app = AppTest.from_file(APP, default_timeout=60).run()
        assert not app.exception
        assert app.title[0].value == "Ranking"
        assert expected in said(app)
    assert any("84 done" in caption.value for caption in app.sidebar.caption)


def test_ranking_filters_and_address(stores: dict[str, Path]) -> None:
    app = page(stores["large"], "ranking", metric="greedy", group="pair-3", task="other", sort="name")
    assert app.selectbox(key="metric").value == "greedy"
    assert app.multiselect(key="group").value == ["pair-3"]
    assert "On 1 pair and 3 seeds" in said(app)
    table = app.dataframe[0].value
    assert set(table["group"]) == {"pair-3"}
    assert list(table["regime"]) == sorted(r.name for r in REGIMES)
    app.multiselect(key="group").set_value(["pair-3", "pair-2"]).run()
    assert "On 2 pairs and 3 seeds" in said(app)
    app.selectbox(key="policy").set_value("qwen").run()
    assert not app.exception
    assert len(app.dataframe[0].value) == 14


@pytest.mark.slow
def test_bad_values_in_the_address_do_no_harm(stores: dict[str, Path]) -> None:
    for slug in SLUGS:
        page(
            stores["large"],
            slug,
            metric="<script>",
            group="nowhere",
            task="x" * 3000,
            regime="'; DROP TABLE cells",
            seed="-1",
            page="0",
        )


@pytest.mark.parametrize("slug", ["cell", "head-to-head", "exchange"])
def test_hostile_texts_are_shown_as_text(stores: dict[str, Path], slug: str) -> None:
    parts = {"Peers' answers", "Answers"} if slug == "cell" else {""}
    for part in parts:
        app = AppTest.from_function(draw, args=(str(stores["evil"]), slug, "synthetic-small"), default_timeout=60)
        app.query_params["regime"] = "prp"
        app.session_state["part"] = part
        app.run()
        assert not app.exception
        bodies = [str(e.value if hasattr(e, "value") else e.proto.body) for e in app.get("html")]
        if slug == "cell":
            assert any("&lt;script&gt;" in body for body in bodies)
        for text in [*bodies, said(app)]:
            assert "<script>" not in text
            assert "<b>bold" not in text
            assert "\x1b" not in text
            assert "\u202e" not in text


@pytest.mark.slow
def test_a_megabyte_of_hostile_text_is_cut_and_shown_as_text(tmp_path: Path) -> None:
    text = EVIL + "<img src=x onerror=alert(1)>" * 40_000
    write_results(
        tmp_path, groups={"pair": ("llama", "qwen")}, regimes=REGIMES[2:3], seeds=(1,), steps=1, questions=2, text=text
    )
    ingest(tmp_path)
    for part in ("Peers' answers", "Answers"):
        app = page(tmp_path, "cell", part=part)
        bodies = [str(e.proto.body) for e in app.get("html")]
        said_sizes = [int(n.replace(",", "")) for n in re.findall(r"([0-9,]+) characters in all", "".join(bodies))]
        assert max(said_sizes, default=0) >= len(text), f"{part}: cut, and says so"
        assert sum(map(len, bodies)) < 2_000_000
        for body in bodies:
            assert "<script>" not in body
            assert "<img" not in body
            assert "\x1b" not in body


def test_escaped_and_csv() -> None:
    assert "<" not in escaped(EVIL).replace("\\<", "")
    assert "\x1b" not in escaped(EVIL)
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


def rows(effects: dict[str, float], seeds: int, noise: float = 0.002, groups: int = 2) -> list[SeedRow]:
    rng = np.random.default_rng(0)
    found = []
    for group in range(groups):
        base = {seed: 0.5 + rng.normal(0, 0.02) for seed in range(seeds)}
        for regime, effect in effects.items():
            for seed in range(seeds):
                accuracy = base[seed] + effect + (rng.normal(0, noise) if regime != "independent" else 0)
                found.append(
                    SeedRow(
                        group=f"g{group}",
                        policy="*",
                        regime=regime,
                        variant=regime,
                        task="micro",
                        metric="greedy",
                        seed=seed,
                        accuracy=accuracy,
                        noise=noise**2,
                        base=0.4,
                        gain=None if regime == "independent" else accuracy - base[seed],
                        baseline=None if regime == "independent" else "independent",
                    )
                )
    return found


def test_the_sentence() -> None:
    effects = {"independent": 0.0, "sgt": 0.1, "hacpo": 0.1, "xgrpo": 0.0, "naive": -0.1}
    text = sentence(rank(rows(effects, 5), pairs=True))
    assert text.startswith("On 2 pairs and 5 seeds, ")
    assert "gain over independent at the same rollout budget and cannot be told apart" in text
    assert "naive loses against it" in text
    assert "xgrpo shows no effect larger than 2 points" in text
    assert "could have seen" not in text, "nothing is left open (11)"
    unsettled = sentence(rank(rows(effects, 5), pairs=True, margin=0.0001))
    assert "for xgrpo one cannot tell" in unsettled
    assert re.search(r"With 80 % power you could have seen a gain of \d\.\d points \(xgrpo\)\.$", unsettled)
    assert "a second seed is needed" in sentence(rank(rows(effects, 1), pairs=True))
    assert "nothing yet to compare" in sentence(rank(rows({"independent": 0.0}, 3), pairs=False))
    assert "On 2 groups" in sentence(rank(rows(effects, 3), pairs=False))
    assert "No regime has finished" in sentence(rank([], pairs=True))


def test_how_many_seeds_would_settle_it() -> None:
    few = rank(rows({"independent": 0.0, "sgt": 0.1, "prp": 0.01}, 4, noise=0.04), pairs=True)
    needed = {r.regime: r.seeds_needed for r in few.ranks}
    assert doubt(few).endswith(f" about {needed['prp']} for prp.")
    assert "as those that are there" in doubt(few)
    assert "sgt" not in doubt(few), "its gain is shown already"
    assert doubt(rank(rows({"independent": 0.0, "sgt": 0.1}, 5), pairs=True)) == ""
    assert doubt(rank(rows({"independent": 0.0, "sgt": 0.1}, 1), pairs=True)) == ""
    wild = rank(rows({"independent": 0.0, "prp": 0.0}, 3, noise=2.0), pairs=True)
    assert "more than 1,000 for prp" in doubt(wild)


def test_the_page_says_whom_sharing_helps_and_what_it_costs(stores: dict[str, Path]) -> None:
    app = page(stores["large"], "ranking", group="pair-1", task="other", metric="greedy")
    with Snapshot(stores["large"]) as snapshot:
        known = {
            (r.regime, r.policy): r
            for r in show_rows(snapshot, "synthetic-small")
            if (r.group, r.task, r.metric) == ("pair-1", "other", "greedy")
        }
    lines = app.table[0].value.set_index("Regime")
    assert set(lines.index) == {escaped(r) for r, p in known if p == "*" and known[r, p].gain is not None}
    for regime, policy in (("sgt", "llama"), ("sgt", "qwen"), ("prp", "qwen")):
        row, mean = known[regime, policy], known[regime, "*"]
        assert escaped(f"{policy} {100 * row.gain:+.1f}".replace("-", "−")) in lines.loc[regime, "Whom"]
        assert lines.loc[regime, "Cost"] == escaped(f"{mean.cost:.1f}×")
        assert verdict_mark(mean.verdict, 0.02) in lines.loc[regime, "Is it real?"].replace("\\", "")
    baseline = known["independent", "*"].cpu_seconds
    assert known["sgt", "*"].cost == pytest.approx(known["sgt", "*"].cpu_seconds / baseline)
    twice = known["independent-2x", "*"]
    assert twice.cost is None or twice.baseline != "independent", "a larger budget is not measured by the smaller one"


def test_who_gains_most() -> None:
    effects = {"independent": 0.0, "sgt": 0.2, "hacpo": 0.2, "prp": 0.1}
    text = sentence(rank(rows(effects, 8), pairs=True))
    assert re.search("(sgt and hacpo|hacpo and sgt) and prp gain|hacpo, sgt and prp gain|sgt, hacpo and prp gain", text)
    assert "sgt and hacpo most" in text or "hacpo and sgt most" in text


def test_the_noisiest_regime_does_not_rule_the_power() -> None:
    found = rows({"independent": 0.0, "a": 0.0, "b": 0.0, "c": 0.0}, 4)
    rng = np.random.default_rng(1)
    wild = [msgspec.structs.replace(r, accuracy=0.5 + rng.normal(0, 0.08)) if r.regime == "c" else r for r in found]
    said = re.findall(r"([0-9.]+) points \(([abc])\)", sentence(rank(wild, pairs=True, margin=0.0001)))
    assert len(said) == 3, "the sharpest, the middle and the most blurred one"
    assert float(said[1][0]) < 5 < 20 < float(said[2][0])
    assert said[2][1] == "c"


@pytest.mark.parametrize("choice", [{}, {"metric": "greedy"}, {"policy": "qwen", "task": "other"}, {"margin": "40"}])
def test_show_prints_the_sentence_of_the_page(stores: dict[str, Path], choice: dict[str, str]) -> None:
    app = page(stores["large"], "ranking", **choice)
    with Snapshot(stores["large"]) as snapshot:
        head = heading(snapshot, "synthetic-small", float(choice.get("margin", 2)) / 100)
    wanted = ("avg@2", "*", "*") if "metric" not in choice else ("greedy", "*", "*")
    wanted = (wanted[0], choice.get("policy", "*"), choice.get("task", "*"))
    (ours,) = [h.sentence for h in head.sentences if (h.metric, h.policy, h.task) == wanted]
    assert app.info[0].value == escaped(ours, 2000)
    assert ("no effect larger than 40 points" in ours) == ("margin" in choice)


def test_a_panel_of_the_page_says_what_show_says(stores: dict[str, Path]) -> None:
    app = page(stores["large"], "ranking", group="pair-2", task="micro", margin="3.5")
    with Snapshot(stores["large"]) as snapshot:
        rows = [r for r in show_rows(snapshot, "synthetic-small", 0.035) if (r.group, r.task) == ("pair-2", "micro")]
    ours = {
        r.regime: (r.tie_group, verdict_mark(r.verdict, 0.035)) for r in rows if (r.policy, r.metric) == ("*", "avg@2")
    }
    table = app.dataframe[0].value
    assert {r.regime: (r.tie, r.verdict) for r in table.itertuples()} == ours


def test_across_all_panels_where_there_are_several(stores: dict[str, Path]) -> None:
    app = page(stores["large"], "ranking")
    across = next(d.value for d in app.dataframe if "iqm" in d.value)
    assert set(across["regime"]) == {r.name for r in REGIMES}
    assert across["iqm"].is_monotonic_decreasing
    best = across.set_index("regime").loc["sgt"]
    assert best["better"] > 80
    assert "iqm interval" not in across, "three seeds"
    alone = page(stores["large"], "ranking", group="pair-2", task="micro")
    assert not [d for d in alone.dataframe if "iqm" in d.value]


def test_what_stands_across_panels_is_computed_from_their_seeds(stores: dict[str, Path]) -> None:
    """Of all of them it is what `harness show` opens with."""
    store, suite = open_store(stores["large"]), "synthetic-small"
    seeds = store.seeds(suite)
    groups, tasks = (tuple(dict.fromkeys(getattr(r, of) for r in seeds)) for of in ("group", "task"))
    found = {}
    for metric in dict.fromkeys(r.metric for r in seeds):
        for policy in dict.fromkeys(r.policy for r in seeds):
            for some in (groups, groups[1:]):
                choice = Choice(metric, policy, some, tasks)
                found[choice] = store.across(suite, choice)
                assert found[choice] == aggregates([r for r in choice.seeds(seeds) if r.policy == policy]), choice
    assert len({repr(each) for each in found.values()}) == len(found)


def test_questions_are_counted_once(stores: dict[str, Path]) -> None:
    """Ten questions, each asked of two policies in four groups, twice: not 80, not 160."""
    text = said(page(stores["large"], "head-to-head", a="sgt", b="independent"))
    assert "Of 10 questions, each asked of 8 policies \\(80 comparisons\\), it does better on" in text


def spans(figure: dict) -> list[list[float]]:  # type: ignore[type-arg]
    """All domains that the figure sets for its axes."""
    text = json.dumps(figure)
    return [json.loads(found) for found in sorted(set(re.findall(r'"domain": (\[-?[0-9][^\]]*\])', text)))]


def test_an_axis_does_not_magnify_rounding() -> None:
    table = pd.DataFrame({"regime": ["a", "a", "b"], "x": [0.0, 1.0, 1.0], "y": [0.9999999, 1.00000002, 1.0]})
    table = table.assign(low=table["y"], high=table["y"], kind="mean", group="g")
    for figure in (
        charts.lines(table, "t", "step", "value", ["a", "b"]),
        charts.plane(table, "t", "x", "y", ["a", "b"], False),
    ):
        assert [s for s in spans(figure) if s[0] < 1 < s[1] and s[1] - s[0] >= 9e-4], "flat"
    wide = table.assign(y=[0.9, 1.0, 1.1], low=[0.9, 1.0, 1.1], high=[0.9, 1.0, 1.1])
    assert not spans(charts.lines(wide, "t", "step", "value", ["a", "b"]))
    mark = charts.Mark("a", 50.0, 49.999, 50.001, "baseline", "", "", "")
    (span,) = spans(charts.forest([mark], "t", "accuracy, %", ["a"], zero=False))
    assert span == [49.5, 50.5]
    (around,) = spans(charts.forest([replace(mark, value=0.0, low=-1e-4, high=1e-4)], "t", "gain, points", ["a"]))
    assert around == [-0.5, 0.5]
    assert not spans(charts.forest([replace(mark, low=40.0)], "t", "accuracy, %", ["a"], zero=False))


def test_the_report_is_one_file_without_scripts_and_escapes(stores: dict[str, Path], tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    assert export_report(stores["one"], target) == 1
    text = target.read_text()
    assert text.count("<svg") == 4, "avg@2, best@2, maj@2 and greedy"
    for forbidden in ("<script", "http://", "src=", "@import", "url("):
        assert forbidden not in text.replace('xmlns="http://www.w3.org/2000/svg"', "").replace(
            "http://www.w3.org/1999/xlink", ""
        )


@pytest.mark.slow_but("u2028")
@pytest.mark.parametrize("character", ["\x07", "\u202e", "\u2028", "\uffff"], ids=ascii)
def test_no_character_of_a_name_ends_the_export(tmp_path: Path, character: str) -> None:
    regime = replace(REGIMES[0], name=f"own{character}")
    groups = {f"pair{character}": ("llama", "qwen")}
    write_results(tmp_path, "s", groups, [regime], (1,), steps=1, questions=2, tasks=(f"task{character}",))
    ingest(tmp_path)
    command = [Path(sys.executable).with_name("harness"), "export", "--results", tmp_path, "--out", tmp_path / "r.html"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-1000:]
    text = (tmp_path / "r.html").read_text()
    assert character not in text
    assert f"pair\\x{ord(character):02x}" in text


def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys; import leaderboard.views, leaderboard.report, harness.store.table, harness.store.foreign; "
        "bad = {m.split('.')[0] for m in sys.modules} & {'torch', 'transformers', 'ray', 'vllm'}; "
        "upper = ('harness.engines', 'harness.session', 'harness.learning', 'harness.exchange'); "
        "bad |= {m for m in sys.modules if m.startswith(upper)}; "
        "sys.exit(str(bad) if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_nothing_but_pages_is_written(stores: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Streamlit shows a bare string in its main script: a docstring in the wrong place would stand on every page."""
    monkeypatch.setenv(RESULTS_VARIABLE, str(stores["one"]))
    app = AppTest.from_file(APP, default_timeout=60).run()
    assert app.main.markdown[0].value == PAGES[0].lead


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three suites; all cells of one have failed."""
    folder = tmp_path_factory.mktemp("several")
    for name in ("first", "second", "third"):
        write_results(
            folder, name, groups={"duo": ("llama", "qwen")}, regimes=REGIMES[:2], seeds=(1,), steps=2, questions=4
        )
    for place in sorted((folder / "third").glob("*/manifest.json")):
        manifest = read_manifest(place.parent)
        if manifest.kind == "cell":
            write_manifest(
                place.parent, msgspec.structs.replace(manifest, state="failed", reason="the disk is full <b>")
            )
    ingest(folder)
    return folder


def app_on(results: Path, monkeypatch: pytest.MonkeyPatch, **query: str) -> AppTest:
    monkeypatch.setenv(RESULTS_VARIABLE, str(results))
    app = AppTest.from_file(APP, default_timeout=60)
    for name, value in query.items():
        app.query_params[name] = value
    app.run()
    assert not app.exception, app.exception[0].stack_trace
    return app


def asked(app: AppTest) -> str:
    found = app.query_params["suite"]
    return found if isinstance(found, str) else found[-1]


def test_the_address_names_the_suite_even_where_nobody_chose_one(
    several: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = app_on(several, monkeypatch)
    shown = app.selectbox(key="suite").value
    assert asked(app) == shown
    other = next(name for name in ("first", "second") if name != shown)
    app.selectbox(key="suite").set_value(other).run()
    assert asked(app) == other
    linked = app_on(several, monkeypatch, suite=other)
    assert linked.selectbox(key="suite").value == other
    assert "There is no suite" not in said(linked)


def test_the_first_page_has_its_own_address_too(several: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[list[object]] = []
    navigation = st.navigation
    monkeypatch.setattr(st, "navigation", lambda pages: (given.append(pages), navigation(pages))[1])
    app_on(several, monkeypatch)
    addresses = [page.url_path for page in given[0]]  # type: ignore[attr-defined]
    assert addresses == ["", *(p.slug for p in PAGES[1:]), PAGES[0].slug]


def test_the_first_screen_answers_for_every_suite(
    several: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = app_on(several, monkeypatch, suite="second").table[0].value.set_index("Suite")
    assert set(found.index) == {f"[{name}](?suite={name}#suite)" for name in ("first", "second", "third")}
    assert found.loc["[third](?suite=third#suite)", "Most gain, points"] == "no cell has finished"
    assert list(found["Cells"].sort_index()) == ["2 done", "2 done", "2 failed"]
    assert found.loc["[first](?suite=first#suite)", "Most gain, points"] == "nothing to compare yet"
    export_report(several, tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text()
    for link in re.findall("<a href=#(.*?)>", text):
        assert text.count(f"<h2 id={link}>") == 1
    assert text.count("<a href=") == 3


def test_the_best_of_several_is_said_to_be_that(several: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """15: "All suites" showed the best of many with an interval that knows nothing of the choice, without a word."""
    assert BEST in [caption.value for caption in app_on(several, monkeypatch).caption]
    assert "not corrected for the choice" in BEST
    export_report(several, tmp_path / "r.html")
    assert BEST in (tmp_path / "r.html").read_text()


def test_an_unknown_suite_in_the_address_is_said(several: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = app_on(several, monkeypatch, suite="ninth <b>")
    assert "There is no suite “ninth \\<b\\>” here. Shown is" in said(app)
    app.selectbox(key="suite").set_value("second").run()
    assert "There is no suite" not in said(app)


def test_the_sidebar_counts_the_suite_that_is_shown(several: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for suite, words in (("first", "Cells: 2 done"), ("third", "Cells: 2 failed")):
        app = app_on(several, monkeypatch, suite=suite)
        assert [c.value for c in app.sidebar.caption if c.value.startswith("Cells")] == [words]


def test_a_failed_suite_says_so_and_why(several: Path, tmp_path: Path) -> None:
    for slug in ("ranking", "head-to-head"):
        text = said(page(several, slug, "third"))
        assert "Its cells: 2 failed." in text
        assert "failed \\(the disk is full \\<b\\>\\)" in text
    export_report(several, tmp_path / "r.html", "third")
    assert "<p>No cell has finished. Its cells: 2 failed.</p>" in (tmp_path / "r.html").read_text()


def test_a_label_stands_at_its_own_mark_alone() -> None:
    """On the Stability page a label of three regimes stood at the mark of two."""
    places = {
        "independent": (0.0, 1.0),
        "xgrpo": (0.0, 1.0),
        "sgt": (0.031, 1.0),
        "hacpo": (0.0015, 0.4),
        "prp": (0.09, 8e4),
    }
    means = pd.DataFrame(
        [(r, x, y, "mean", "all") for r, (x, y) in places.items()], columns=["regime", "x", "y", "kind", "group"]
    )
    layers = charts.plane(means, "t", "x", "y", list(places), log_y=True)
    labels = [
        row | {"dy": layer["mark"]["dy"]}
        for layer in layers["layer"]
        if layer["mark"]["type"] == "text"
        for row in layer["data"]["values"]
    ]
    assert {row["label"]: (row["x"], row["y"]) for row in labels} == {
        "independent, xgrpo": (0.0, 1.0), **{name: places[name] for name in ("sgt", "hacpo", "prp")}
    }  # fmt: skip
    at = {row["label"]: row["dy"] for row in labels}
    assert at["hacpo"] > 0 > at["independent, xgrpo"], "no label covers another mark"


def test_bars_over_steps_are_95_percent_intervals_over_seeds() -> None:
    """They were one standard deviation over policies and seeds (14)."""
    table = pd.DataFrame(
        [
            (s, p, 1, v)
            for s, pair in enumerate(([1.0, 3.0], [2.0, 6.0], [3.0, 3.0]))
            for p, v in zip("ab", pair, strict=True)
        ],
        columns=["seed", "policy", "steps", "y"],
    )
    (row,) = over_seeds(table.assign(regime="r"), [], "steps").itertuples()
    seeds = mean_interval([2.0, 4.0, 3.0])
    assert (row.x, row.y, row.low, row.high) == pytest.approx((1, 3.0, seeds.low, seeds.high))
    (row,) = over_seeds(table[table["seed"] == 0].assign(regime="r"), [], "steps").itertuples()
    assert row.low == row.y == row.high == 2.0


@pytest.mark.parametrize("slug", ["stability", "curves"])
def test_pages_with_bars_say_what_they_are(stores: dict[str, Path], slug: str) -> None:
    """14: unlabelled where the same marks mean 95 % elsewhere."""
    assert SPREAD in said(page(stores["large"], slug)).replace("\\", "")


def test_question_by_question_has_one_measure_of_chance(stores: dict[str, Path]) -> None:
    """17: a sign test stood beside the interval without a word on what each asks."""
    app = page(stores["large"], "head-to-head")
    assert not [c for frame in app.dataframe for c in frame.value.columns if "test" in c]
    assert "by however little" in said(app)


def test_a_regime_has_one_colour_whatever_stands_beside_it() -> None:
    table = pd.DataFrame({"regime": ["a", "sgt", "b"], "x": [0.0, 1.0, 1.0], "y": [0.1, 0.2, 0.3]})
    table = table.assign(low=table["y"], high=table["y"], kind="mean", group="g")

    def colours(figure: dict, order: list[str]) -> dict[str, str]:  # type: ignore[type-arg]
        (found,) = set(re.findall(r'"color": \{"field": "regime".*?"range": (\[.*?\])', json.dumps(figure)))
        return dict(zip(order, json.loads(found), strict=True))

    seen = []
    for order in (["a", "sgt", "b"], ["b", "a", "sgt", "c"], ["sgt", "b", "a"]):
        seen.append(colours(charts.lines(table, "t", "step", "value", order), order))
        seen.append(colours(charts.plane(table, "t", "x", "y", order, False), order))
    for name in ("a", "b", "sgt"):
        assert len({found[name] for found in seen}) == 1
    assert len({charts.colour_of(name) for name in charts.KNOWN}) == len(charts.KNOWN)


def contrast(one: str, other: str) -> float:
    """WCAG 2.2."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_words_marks_and_chips_stand_out() -> None:
    light, dark = "#ffffff", "#0e1117"  # Streamlit's own
    assert contrast(INK["light"], light) >= 4.5
    assert contrast(INK["dark"], dark) >= 4.5
    for colour in {*charts.PALETTE, *charts.COLOURS.values()}:
        for page_colour in (light, dark, "#171614"):
            assert contrast(colour, page_colour) >= 3, f"{colour} on {page_colour}"
    options = dict(word.removeprefix("--").split("=", 1) for word in command(Path("r")) if word.startswith("--theme"))
    for theme, page_colour in (("light", light), ("dark", dark)):
        chip = options[f"theme.{theme}.primaryColor"]
        assert contrast(chip, "#ffffff") >= 4.5, "its words"
        assert contrast(chip, page_colour) >= 3
    mark = charts.Mark("a", 50.0, 40.0, 60.0, "gains", "", "", "")
    figure = charts.forest([mark], "t", "gain, points", ["a"])
    assert [layer["mark"].get("opacity", 1) for layer in figure["layer"]] == [1] * 5
    said_in = charts.inked(figure, "#123456", "#654321")["config"]
    assert said_in["axis"]["labelColor"] == said_in["legend"]["titleColor"] == said_in["title"]["color"] == "#123456"


@pytest.mark.slow
def test_the_report_follows_light_and_dark(stores: dict[str, Path], tmp_path: Path) -> None:
    export_report(stores["large"], tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert "background: #ffffff" not in text
    for drawing in re.findall(r"<svg.*?</svg>", text, re.S):
        ElementTree.fromstring(drawing)
        fills = set(re.findall(r'(?:fill|stroke)="(.*?)"', drawing))
        own = {*charts.COLOURS.values(), "#8b949e", "currentColor", "none", "transparent"}
        assert fills <= own, fills - own
    assert "figure {margin: 0; color: var(--ink)" in text


@pytest.mark.slow
def test_commands_on_the_about_page_run_as_printed(stores: dict[str, Path], tmp_path: Path) -> None:
    """All but `pip install`, which asks the package index; `their_results/` is another lab's folder."""
    lines = [line for code in page(stores["one"], "about").code for line in code.value.splitlines()]
    shutil.copytree(stores["one"], tmp_path / "results")
    shutil.copytree(stores["evil"], tmp_path / "their_results")
    ran = 0
    for line in lines:
        if line.startswith("pip "):
            continue
        words = [sys.executable, "-m", *shlex.split(line)]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"{line}: {done.stderr}"
        ran += 1
    assert ran == 5
    assert (tmp_path / "report.html").is_file()


def test_figures_of_many_regimes_keep_their_panel_and_their_labels_apart() -> None:
    names = [f"r{i}" for i in range(23)]
    table = pd.DataFrame(
        {"regime": names, "x": [0.0] * 22 + [1.0], "y": [1.0] * 22 + [1000.0], "low": 1.0, "high": 1.0}
    )
    few = charts.lines(table.head(2), "t", "step", "value", names[:2])
    many = charts.lines(table, "t", "step", "value", names)
    assert many["height"] - few["height"] >= 20 * 11, "a legend of 23 stands under the panel, not in its place"
    points = table.assign(kind="mean", group="g")
    labels = json.dumps(charts.plane(points, "t", "x", "y", names, True))
    assert "r0, r1, r2, 20 more" not in labels
    assert "r0, r1, r2, 19 more" in labels
    assert '"label": "r22"' in labels
