"""First paint of the ranking page and the time of a filter change, in headless Chromium, and readers beside a writer.

    python benchmarks/leaderboard_speed.py RESULTS [--rounds 7] [--readers 0] [--seconds 60]

With `--readers 20` that many sessions reload pages for `--seconds`; start `harness run` on the same folder meanwhile. The
last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from leaderboard import command
from leaderboard.views import PAGES

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
DRAWN = "[data-testid=stVegaLiteChart] svg, [data-testid=stVegaLiteChart] canvas"


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


def filter_change(page: Page, option: str) -> float:
    """Seconds from the click on another metric to figures that show it."""
    page.get_by_role("combobox", name="Metric").click()
    choice = page.get_by_role("option", name=option)
    choice.wait_for()
    script = (
        "o => [...document.querySelectorAll('[data-testid=stVegaLiteChart]')].some(e => e.outerHTML.includes(', ' + o))"
    )
    started = time.perf_counter()
    choice.click()
    page.wait_for_function(script, arg=option, timeout=60_000, polling=5)
    return time.perf_counter() - started


def reader(url: str, seconds: float, failures: list[str], counts: list[int]) -> None:
    """One reader: loads page after page."""
    loads = 0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        page = browser.new_page()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            slug = PAGES[loads % len(PAGES)].slug if loads % len(PAGES) else ""
            try:
                page.goto(f"{url}/{slug}")
                page.wait_for_selector("h1", timeout=60_000)
                if page.locator("[data-testid=stException]").count():
                    failures.append(page.locator("[data-testid=stException]").first.inner_text()[:300])
            except Exception as error:  # whatever a reader sees is counted
                failures.append(str(error)[:300])
            loads += 1
        browser.close()
    counts.append(loads)


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
            failures: list[str] = []
            counts: list[int] = []
            threads = [
                threading.Thread(target=reader, args=(url, arguments.seconds, failures, counts))
                for _ in range(arguments.readers)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            figures |= {
                "readers": arguments.readers,
                "loads": sum(counts),
                "failures": failures[:5],
                "failed": len(failures),
            }
        else:
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
                browser.new_context()
                paints, changes = [], []
                for i in range(arguments.rounds + 1):
                    seconds, page = first_paint(browser, url)
                    page.wait_for_timeout(1500)
                    taken = [filter_change(page, option) for option in ("greedy", "avg@2")]
                    if i:  # the first round fills the caches
                        paints.append(seconds)
                        changes += taken
                    page.close()
                browser.close()
            figures |= {"first_paint_seconds": statistics.median(paints), "filter_seconds": statistics.median(changes)}
            figures |= {"first_paint_all": paints, "filter_all": changes}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
