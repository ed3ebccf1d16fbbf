"""First paint of the first screen and of the largest reference suite, and the time of a filter change there, in headless Chromium,
by the clock. Run by `bench.py`."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from bench import NotHere, Row, Size, takes

try:
    from playwright.sync_api import Browser, Page, sync_playwright
except ModuleNotFoundError:
    raise NotHere("playwright: pip install playwright") from None

from harness.store.ingest import ingest
from tools.screenshot import CHROMIUM, FLAGS, served

LARGEST = "ranking?suite=reference@reference"

DRAWN = "figure.forest"
SHOWS = "metric => document.querySelector('figure.forest figcaption').textContent.endsWith(', ' + metric)"


def first_paint(browser: Browser, url: str, shown: str) -> tuple[float, Page]:
    page = browser.contexts[0].new_page()
    started = time.perf_counter()
    page.goto(url, wait_until="commit")
    page.wait_for_selector(shown, timeout=120_000)
    return time.perf_counter() - started, page


def filter_change(page: Page, index: int) -> float:
    select = page.get_by_role("combobox", name="Metric")
    select.scroll_into_view_if_needed()
    page.wait_for_timeout(300)  # scrolling closes its menu
    select.click()
    choice = page.get_by_role("option").nth(index)
    choice.wait_for()
    option = choice.inner_text()
    started = time.perf_counter()
    choice.click()
    page.wait_for_function(SHOWS, arg=option, timeout=60_000, polling=5)
    return time.perf_counter() - started


def bench(size: Size) -> list[Row]:
    if CHROMIUM is None:
        raise NotHere("chromium: not installed")
    screens, paints, changes = list[float](), list[float](), list[float]()
    with tempfile.TemporaryDirectory() as results, sync_playwright() as playwright:
        (Path(results) / "reference").symlink_to(Path(__file__).parents[1] / "results" / "reference")
        ingest(Path(results))
        with served(Path(results)) as url:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
            browser.new_context()
            for i in range(size.rounds + 1):
                first, screen = first_paint(browser, url, "table.standing")
                screen.close()
                seconds, page = first_paint(browser, f"{url}/{LARGEST}", DRAWN)
                page.wait_for_timeout(1500)
                taken = [filter_change(page, index) for index in (1, 0)]
                if i:  # the first round fills the caches
                    screens.append(first)
                    paints.append(seconds)
                    changes += taken
                page.close()
            browser.close()
    return [
        takes("leaderboard, first screen", screens, 1.0, "s"),
        takes("leaderboard, first paint of a suite", paints, 1.0, "s"),
        takes("leaderboard, filter", changes, 0.25, "s"),
    ]
