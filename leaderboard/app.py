"""Entry point of the Streamlit app: results folder, suite, navigation."""

from __future__ import annotations

import argparse
import os
from functools import partial
from pathlib import Path
from typing import Any

import streamlit as st

from harness.errors import StoreError
from harness.store.submission import read_submission
from leaderboard import RESULTS_VARIABLE
from leaderboard.data import Store, open_store
from leaderboard.live import live_status, refresher
from leaderboard.parts import draw_page, escaped
from leaderboard.view import Page, View
from leaderboard.views import PAGES

# Streamlit's captions are too faint for the contrast that the accessibility guidelines ask for
_STYLE = """<style>[data-testid=stCaptionContainer], [data-testid=stCaptionContainer] * {
    color: inherit !important; opacity: .95 !important}</style>"""


def results_folder() -> Path:
    """From `--results`, else the environment, else `results`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--results", type=Path, default=Path(os.environ.get(RESULTS_VARIABLE, "results")))
    return Path(parser.parse_known_args()[0].results)


def choose_suite(store: Store) -> str | None:
    """The sidebar's engine and suite selectors, kept in the address."""
    suites = store.suites()
    engines = sorted({s.engine for s in suites if s.engine})
    with st.sidebar:
        if len(engines) > 1:
            engine = st.selectbox("Engine", ["all", *engines], key="engine", bind="query-params")
            suites = [s for s in suites if engine in ("all", s.engine)]
        names = [s.name for s in suites]
        if not names:
            return None
        chosen = st.selectbox("Suite", names, key="suite", bind="query-params")
        title = next((s.title for s in suites if s.name == chosen), "")
        if title:
            st.caption(escaped(title))
        if (taken := read_submission(results_folder() / chosen)) is not None:
            st.caption(escaped(taken.describe()))
        return chosen


def main() -> None:
    """Draw the page that the address names."""
    st.set_page_config(page_title="Experience-sharing leaderboard", page_icon=":material/leaderboard:", layout="wide")
    st.html(_STYLE)
    results = results_folder()
    store = newest(results)
    links: dict[str, Any] = {}

    def body(page: Page) -> None:
        draw_page(page, View(store, suite, links))

    for i, page in enumerate(PAGES):
        links[page.slug] = st.Page(
            partial(body, page), title=page.title, icon=page.icon, url_path=page.slug, default=i == 0
        )
    chosen = st.navigation(list(links.values()))
    suite = choose_suite(store) if store else None
    if store:
        with st.sidebar:
            live_status(results, store)
    chosen.run()


def newest(results: Path) -> Store | None:
    """The newest store; built first where only journals are there."""
    try:
        return open_store(results)
    except StoreError:
        refresher(str(results)).work()
    try:
        return open_store(results)
    except StoreError:
        return None


main()
