"""Every page of the leaderboard through Streamlit's AppTest, and the pure parts by themselves."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from synthetic_results import REGIMES, write_results

from harness.store.ingest import ingest

pytest.importorskip("streamlit", reason="the leaderboard extra is not installed")

from streamlit.testing.v1 import AppTest

from leaderboard import RESULTS_VARIABLE
from leaderboard.frames import seeds_frame
from leaderboard.parts import csv_text, escaped
from leaderboard.report import export_report
from leaderboard.tokens import token_view
from leaderboard.views import PAGES
from leaderboard.words import overall, sentence, verdict

APP = str(Path(__file__).parents[1] / "leaderboard" / "app.py")
EVIL = "<script>alert(1)</script><b>bold</b> **md** [link](http://x) $x^2$ :red[r] \x1b[31m\x07 \u202e"


def draw(results: str, slug: str, suite: str) -> None:
    """One page as the app draws it (AppTest cannot follow pages that are functions)."""
    from pathlib import Path

    from leaderboard.data import open_store
    from leaderboard.parts import draw_page
    from leaderboard.view import View
    from leaderboard.views import PAGES

    page = next(p for p in PAGES if p.slug == slug)
    draw_page(page, View(open_store(Path(results)), suite) if suite else View(None, None))


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


@pytest.mark.parametrize("slug", SLUGS)
@pytest.mark.parametrize("name", ["empty", "one", "large", "evil"])
def test_every_page_draws_with_any_store(stores: dict[str, Path], name: str, slug: str) -> None:
    app = page(stores[name], slug, "" if name == "empty" else "synthetic-small")
    assert app.title[0].value == next(p.title for p in PAGES if p.slug == slug)
    if name == "empty" and slug not in ("published", "about"):
        assert "harness run" in app.code[0].value
    if name == "large" and slug != "about":
        assert app.get("arrow_vega_lite_chart") or app.get("vega_lite_chart"), "a figure"
        assert app.get("popover"), "a download menu"


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


def rows(effects: dict[str, float], seeds: int, noise: float = 0.004, groups: int = 2) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    found = []
    for group in range(groups):
        base = {seed: 0.5 + rng.normal(0, 0.02) for seed in range(seeds)}
        for regime, effect in effects.items():
            for seed in range(seeds):
                accuracy = base[seed] + effect + (rng.normal(0, noise) if regime != "independent" else 0)
                gain = accuracy - base[seed] if regime != "independent" else None
                found.append(
                    (
                        f"g{group}",
                        "*",
                        regime,
                        "micro",
                        "greedy",
                        seed,
                        accuracy,
                        0.4,
                        gain,
                        "independent" if gain is not None else None,
                    )
                )
    columns = ["group", "policy", "regime", "task", "metric", "seed", "accuracy", "base", "gain", "baseline"]
    return pd.DataFrame(found, columns=columns)


def test_the_sentence() -> None:
    effects = {"independent": 0.0, "sgt": 0.1, "hacpo": 0.1, "xgrpo": 0.0, "naive": -0.1}
    order = list(effects)
    text = sentence(overall(rows(effects, 5), order, [2]), "independent")
    assert text.startswith("On 2 pairs and 5 seeds, ")
    assert "and cannot be told apart" in text
    assert "naive loses against it" in text
    assert "xgrpo shows no effect" in text
    assert "With 5 seeds you could have seen" in text
    assert "a second seed is needed" in sentence(overall(rows(effects, 1), order, [2]), "independent")
    assert "nothing yet to compare" in sentence(overall(rows({"independent": 0.0}, 3), order, [3]), "independent")
    assert "On 2 groups" in sentence(overall(rows(effects, 3), order, [3]), "independent")
    assert "No regime has finished" in sentence(overall(seeds_frame([]), order, []), "independent")


def test_verdicts() -> None:
    assert verdict(0.1, 0.05, 0.15, 0.01, True) == "gains"
    assert verdict(-0.1, -0.15, -0.05, 0.01, True) == "loses"
    assert verdict(0.1, 0.01, 0.19, 0.2, True) == "unclear"
    assert verdict(0.1, -0.01, 0.21, 0.2, True) == "no effect seen"
    assert verdict(float("nan"), float("nan"), float("nan"), float("nan"), False) == "baseline"


def test_the_report_is_one_file_without_scripts_and_escapes(stores: dict[str, Path], tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    assert export_report(stores["one"], target) == 1
    text = target.read_text()
    assert text.count("<svg") == 2
    for forbidden in ("<script", "http://", "src=", "@import", "url("):
        assert forbidden not in text.replace('xmlns="http://www.w3.org/2000/svg"', "").replace(
            "http://www.w3.org/1999/xlink", ""
        )


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
