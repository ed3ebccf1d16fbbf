"""Pages of the leaderboard as Streamlit's AppTest draws them, and what stands on them."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("streamlit", reason="the leaderboard extra is not installed")

from streamlit.testing.v1 import AppTest

from leaderboard import RESULTS_VARIABLE
from leaderboard.report import export_report
from leaderboard.views import PAGES

APP = str(Path(__file__).parents[1] / "leaderboard" / "app.py")
SUITE = "synthetic-small"
SLUGS = [p.slug for p in PAGES]


def draw(results: str, slug: str, suite: str) -> None:
    """One page as the app draws it (AppTest cannot follow pages that are functions)."""
    from pathlib import Path

    from leaderboard.data import open_store
    from leaderboard.page import draw_page
    from leaderboard.views import PAGES

    page = next(p for p in PAGES if p.slug == slug)
    draw_page(page, open_store(Path(results)) if suite else None, suite or None)


def page(results: Path, slug: str, suite: str = SUITE, state: dict[str, str] | None = None, **query: str) -> AppTest:
    return run_app(AppTest.from_function(draw, args=(str(results), slug, suite), default_timeout=60), state, query)


def app_on(results: Path, monkeypatch: pytest.MonkeyPatch, **query: str) -> AppTest:
    monkeypatch.setenv(RESULTS_VARIABLE, str(results))
    return run_app(AppTest.from_file(APP, default_timeout=60), None, query)


def run_app(app: AppTest, state: dict[str, str] | None, query: dict[str, str]) -> AppTest:
    for name, value in query.items():
        app.query_params[name] = value
    for name, value in (state or {}).items():
        app.session_state[name] = value
    app.run()
    assert not app.exception, app.exception[0].stack_trace
    return app


def text_of_page(app: AppTest) -> str:
    return without_links(
        "\n".join(e.value for kind in ("markdown", "info", "caption", "warning") for e in getattr(app, kind))
    )


def without_links(markdown: str) -> str:
    """The text with regimes' names in the place of links to their pages."""
    return re.sub(r"(?<!\\)\[((?:[^\]\\]|\\.)*)\]\(regimes\?name=[^)]*\)", r"\1", markdown)


def html_of(app: AppTest) -> str:
    return "\n".join(e.proto.body for e in app.get("html"))


def write_report(results: Path, place: Path, suite: str | None = None) -> str:
    export_report(results, place / "r.html", suite)
    return (place / "r.html").read_text()


def html_tables(app: AppTest) -> list[list[list[str]]]:
    """The text of each cell of the page's own tables, by row."""
    parts = re.findall("<table.*?</table>", html_of(app), re.S)
    rows = ([*ElementTree.fromstring(part).iter("tr")] for part in parts)
    return [[["".join(cell.itertext()) for cell in row] for row in table] for table in rows]


def forest_of(html: str, title: str) -> ElementTree.Element:
    """One figure of a page, by its caption."""
    figures = [ElementTree.fromstring(part) for part in re.findall('<figure class="forest">.*?</figure>', html, re.S)]
    (forest,) = (figure for figure in figures if figure.findtext("figcaption") == title)
    return forest
