"""Write README's picture of the leaderboard, docs/leaderboard.png.

pip install -e '.[leaderboard,browser]' -c constraints.txt      and a Chromium (apt-get install chromium)
python tools/screenshot.py
"""

from __future__ import annotations

import io
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from leaderboard import APP, command

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "leaderboard.png"
MOST = 200_000  # bytes
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
DRAWN = "[data-testid=stVegaLiteChart] svg, [data-testid=stVegaLiteChart] canvas"
IDLE = """document.querySelector('[data-testid=stApp]').getAttribute('data-test-script-state') === 'notRunning'
    && !document.querySelector('[data-stale=true]')"""
FIGURES = "[...document.querySelectorAll('[data-testid=stVegaLiteChart]')].every(figure => figure.querySelector('canvas, svg'))"


@contextmanager
def served(
    results: Path, log: IO[str] | int = subprocess.DEVNULL, deadline: float = 90.0, app: Path = APP
) -> Iterator[str]:
    """The address of a leaderboard on `results`, which ends with the block. app: instead of it, a Streamlit script. Raises
    TimeoutError after `deadline` seconds."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    server = subprocess.Popen(command(results, port, app=app), env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        until = time.monotonic() + deadline
        while True:
            with suppress(OSError):
                urllib.request.urlopen(f"http://localhost:{port}/_stcore/health", timeout=2).close()
                break
            if time.monotonic() > until or server.poll() is not None:
                raise TimeoutError(f"{results}: the leaderboard did not start; `harness leaderboard` says why")
            time.sleep(0.1)
        yield f"http://localhost:{port}"
    finally:
        server.terminate()
        server.wait(20)


def settle(page: Any) -> None:
    page.wait_for_selector("h1", timeout=60_000)
    for _ in range(2):  # a page that is opened may be run twice
        for drawn in (IDLE, FIGURES):
            page.wait_for_function(drawn, timeout=60_000)
        page.wait_for_timeout(400)


def main() -> None:
    from PIL import Image
    from playwright.sync_api import sync_playwright

    with served(ROOT / "results") as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1440, "height": 900}, color_scheme="light")
        page.goto(f"{url}/?suite=quickstart@reference")
        settle(page)
        page.wait_for_timeout(600)  # until the figures have come to rest
        drawn = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    drawn.quantize(128).save(PICTURE, "PNG", optimize=True)
    size = PICTURE.stat().st_size
    print(f"{PICTURE}: {size:,} bytes")
    if size > MOST:
        sys.exit(f"more than {MOST:,}")


if __name__ == "__main__":
    main()
