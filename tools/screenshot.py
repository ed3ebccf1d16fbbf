"""A page of the leaderboard as a PNG of at most 200 kB, for README.

pip install -e '.[leaderboard,browser]' -c constraints.txt      and a Chromium (apt-get install chromium)
python tools/screenshot.py --results results --suite quickstart@reference --page "" --out docs/leaderboard.png
"""

from __future__ import annotations

import argparse
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

# Bytes of a picture
MOST = 200_000
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
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
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


def picture(address: str, width: int, height: int, scheme: str) -> Any:
    """The page, width x height pixels. scheme: `light` or `dark`."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
        page.goto(address)
        settle(page)
        page.wait_for_timeout(600)  # until the figures have come to rest
        return Image.open(io.BytesIO(page.screenshot())).convert("RGB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--suite", required=True)
    parser.add_argument("--page", default="ranking", help="as in the page's address")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--width", type=int, default=1440)
    parser.add_argument("--height", type=int, default=900)
    parser.add_argument("--dark", action="store_true")
    asked = parser.parse_args()
    with served(asked.results) as url:
        address = f"{url}/{asked.page}?suite={asked.suite}"
        drawn = picture(address, asked.width, asked.height, "dark" if asked.dark else "light")
    drawn.quantize(128).save(asked.out, "PNG", optimize=True)
    if (size := asked.out.stat().st_size) > MOST:
        sys.exit(f"{asked.out}: {size:,} bytes; ask for a smaller --width or --height")
    print(f"{asked.out}: {size:,} bytes")


if __name__ == "__main__":
    main()
