"""First paint of the ranking page and the time of a filter change, in headless Chromium, and readers beside a writer.

    python benchmarks/leaderboard_speed.py RESULTS [--rounds 7] [--readers 0] [--seconds 60]

With `--readers 20` that many sessions reload pages for `--seconds`; start `harness run` on the same folder meanwhile. The
last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import NotHere, Row, Size, takes

try:
    from playwright.async_api import Browser as AsyncBrowser
    from playwright.async_api import Error as PlaywrightError
    from playwright.async_api import async_playwright
    from playwright.sync_api import Browser, Page, sync_playwright
except ModuleNotFoundError:
    raise NotHere("playwright: pip install playwright") from None

from leaderboard import command
from leaderboard.views import PAGES

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
DRAWN = "[data-testid=stVegaLiteChart] svg, [data-testid=stVegaLiteChart] canvas"
IDLE = "document.querySelector('[data-testid=stApp]').getAttribute('data-test-script-state') === 'notRunning'"


@contextmanager
def served(results: Path) -> Iterator[str]:
    """The app's address."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(command(results, port), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                urllib.request.urlopen(f"http://localhost:{port}/_stcore/health", timeout=2).close()
                break
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)
        yield f"http://localhost:{port}"
    finally:
        server.terminate()
        server.wait(20)


def first_paint(browser: Browser, url: str) -> tuple[float, Page]:
    """Seconds from asking for the page to its first figure, in a fresh session with a warm cache of the browser's code."""
    page = browser.contexts[0].new_page()
    started = time.perf_counter()
    page.goto(url, wait_until="commit")
    page.wait_for_selector(DRAWN, timeout=120_000)
    return time.perf_counter() - started, page


def filter_change(page: Page, index: int) -> float:
    """Seconds from the click on another of the suite's metrics to figures that show it."""
    select = page.get_by_role("combobox", name="Metric")
    select.scroll_into_view_if_needed()
    page.wait_for_timeout(300)  # scrolling closes its menu
    select.click()
    choice = page.get_by_role("option").nth(index)
    choice.wait_for()
    option = choice.inner_text()
    script = (
        "o => [...document.querySelectorAll('[data-testid=stVegaLiteChart]')].some(e => e.outerHTML.includes(', ' + o))"
    )
    started = time.perf_counter()
    choice.click()
    page.wait_for_function(script, arg=option, timeout=60_000, polling=5)
    return time.perf_counter() - started


async def reader(browser: AsyncBrowser, url: str, first: int, end: float, failures: list[str]) -> int:
    """One reader with a session of its own: loads page after page until it is drawn. Returns how many."""
    context = await browser.new_context()
    page = await context.new_page()
    page.on("pageerror", lambda error: failures.append(f"page error: {error}"[:300]))
    loads = 0
    while time.monotonic() < end:
        slug = PAGES[(first + loads) % len(PAGES)].slug
        try:
            await page.goto(f"{url}/{slug}", timeout=60_000)
            await page.wait_for_selector("h1", timeout=60_000)
            await page.wait_for_function(IDLE, timeout=60_000)
        except PlaywrightError as error:
            failures.append(f"{slug}: {error}"[:300])
        failures += [
            f"{slug}: {text}"[:300] for text in await page.locator("[data-testid=stException]").all_inner_texts()
        ]
        loads += 1
    await context.close()
    return loads


async def readers(url: str, number: int, seconds: float) -> dict[str, object]:
    """That many readers in one Chromium, each with its own websocket session."""
    failures: list[str] = []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        end = time.monotonic() + seconds
        loads = await asyncio.gather(*(reader(browser, url, i, end, failures) for i in range(number)))
        await browser.close()
    return {
        "readers": number,
        "loads": sum(loads),
        "fewest": min(loads),
        "failed": len(failures),
        "failures": failures[:5],
    }


def alone(url: str, rounds: int) -> tuple[list[float], list[float]]:
    """First paints and filter changes, seconds."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        browser.new_context()
        paints, changes = [], []
        for i in range(rounds + 1):
            seconds, page = first_paint(browser, url)
            page.wait_for_timeout(1500)
            taken = [filter_change(page, index) for index in (1, 0)]
            if i:  # the first round fills the caches
                paints.append(seconds)
                changes += taken
            page.close()
        browser.close()
    return paints, changes


def bench(size: Size) -> list[Row]:
    """On the reference results, by the clock; then twenty readers of them while the quickstart runs into the same folder."""
    if shutil.which("chromium") is None:
        raise NotHere("chromium: not installed")
    with tempfile.TemporaryDirectory() as name:
        results = Path(name) / "results"
        results.mkdir()
        (results / "reference").symlink_to(Path(__file__).parents[1] / "results" / "reference")
        with served(results) as url:
            paints, changes = alone(url, size.rounds)
            command = [sys.executable, "-m", "harness", "run", "quickstart", "--results", str(results)]
            run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                found = asyncio.run(readers(url, *((2, 5.0) if size.smoke else (20, 60.0))))
                assert run.poll() is None, "the run ended before the readers"
            finally:
                run.terminate()
                run.wait(60)
    print(json.dumps(found), file=sys.stderr)
    failed, beside = float(str(found["failed"])), f"{found['loads']} pages, beside a run"
    return [
        takes("leaderboard, first paint", paints, 1.0, "s"),
        takes("leaderboard, filter", changes, 0.25, "s"),
        takes(f"leaderboard, errors of {found['readers']} readers", [failed], 0.0, "errors", beside),
    ]


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--readers", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60)
    arguments = parser.parse_args()
    figures: dict[str, object] = {"load": os.getloadavg()[0]}
    with served(arguments.results.resolve()) as url:
        if arguments.readers:
            figures |= asyncio.run(readers(url, arguments.readers, arguments.seconds))
        else:
            paints, changes = alone(url, arguments.rounds)
            figures |= {"first_paint_seconds": statistics.median(paints), "filter_seconds": statistics.median(changes)}
            figures |= {"first_paint_all": paints, "filter_all": changes}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
