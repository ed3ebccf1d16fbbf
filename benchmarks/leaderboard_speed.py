"""First paint of the first screen, of the largest reference suite and of an empty Streamlit page, and the time of a filter, in
headless Chromium: seconds by the page's clock, from the start of the navigation or from the click to the frame that shows it. Run
by `bench.py`."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path

from bench import NotHere, Row, Size, costs, takes

try:
    from playwright.sync_api import Page, sync_playwright
except ModuleNotFoundError:
    raise NotHere("playwright: pip install playwright") from None

from harness.store.ingest import ingest_journals
from leaderboard import APP
from tools.screenshot import CHROMIUM, FLAGS, served

LARGEST = "ranking?suite=map@reference"
EMPTY = "import streamlit as st\nst.write('hello')"
SHOWN = {"empty": "[data-testid=stMarkdownContainer] p", "screen": "table.standing", "suite": "figure.forest"}
PAINTED = "selector => document.querySelector(selector) && performance.now()"
CLICKED = "addEventListener('click', () => window.clicked = performance.now(), true)"
CHANGED = """metric => document.querySelector('figure.forest figcaption').textContent.endsWith(', ' + metric)
    && performance.now() - window.clicked"""


def seconds(page: Page, script: str, argument: str) -> float:
    """What the script returns, in milliseconds, in the first frame in which it is true."""
    return float(page.wait_for_function(script, arg=argument, polling="raf", timeout=120_000).json_value()) / 1000


def filter_change(page: Page, index: int) -> float:
    select = page.get_by_role("combobox", name="Metric")
    select.scroll_into_view_if_needed()
    page.wait_for_timeout(300)  # scrolling closes its menu
    select.click()
    choice = page.get_by_role("option").nth(index)
    choice.wait_for()
    option = choice.inner_text()
    choice.click()
    return seconds(page, CHANGED, option)


def bench(size: Size) -> list[Row]:
    if CHROMIUM is None:
        raise NotHere("chromium: not installed")
    paints: dict[str, list[float]] = {name: [] for name in SHOWN}
    changes = list[float]()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        results, empty = Path(folder), Path(folder) / "empty.py"
        empty.write_text(EMPTY)
        (results / "reference").symlink_to(Path(__file__).parents[1] / "results" / "reference")
        ingest_journals(results)
        board, floor = (stack.enter_context(served(results, app=app)) for app in (APP, empty))
        addresses = {"empty": floor, "screen": board, "suite": f"{board}/{LARGEST}"}
        browser = stack.enter_context(sync_playwright()).chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        context = browser.new_context()
        for _ in range(size.rounds + 1):
            for name, address in addresses.items():
                page = context.new_page()
                page.goto(address, wait_until="commit")
                paints[name].append(seconds(page, PAINTED, SHOWN[name]))
                if name == "suite":
                    page.wait_for_timeout(1500)
                    page.evaluate(CLICKED)
                    changes += [filter_change(page, index) for index in (1, 0)]
                page.close()
        browser.close()
    # The first round fills the caches. Seconds follow the machine; what is above an empty page, or a part of one, follows less.
    empty_page, clicks = paints["empty"][1:], changes[2:]
    above = {name: [own - page for own, page in zip(paints[name][1:], empty_page, strict=True)] for name in SHOWN}
    filters = [max(clicks[2 * number : 2 * number + 2]) for number in range(len(empty_page))]
    return [
        takes("leaderboard, first screen", above["screen"], 0.4, "s", "above an empty page"),
        takes("leaderboard, first paint of a suite", above["suite"], 0.4, "s", "above an empty page"),
        costs("leaderboard, filter", "an empty page", filters, empty_page, 0.3),
    ]
