"""A page of the leaderboard as a PNG of at most 200 kB, for README.

pip install -e '.[leaderboard,browser]' -c constraints.txt      and a Chromium (apt-get install chromium)
python tools/screenshot.py --results results/reference --suite quickstart --out docs/leaderboard.png
"""

from __future__ import annotations

import argparse
import io
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from leaderboard import command

MOST = 200_000
"""Bytes of a picture."""
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
READY = """document.querySelector('h1')
    && document.querySelector('[data-testid=stApp]').getAttribute('data-test-script-state') === 'notRunning'
    && [...document.querySelectorAll('[data-testid=stVegaLiteChart]')].every(figure => figure.querySelector('canvas, svg'))"""


@contextmanager
def served(results: Path, deadline: float = 90.0) -> Iterator[str]:
    """The address of a leaderboard on `results`, which ends with the block. Raises TimeoutError after `deadline` seconds."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(command(results, port), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + deadline
        while not _healthy(port):
            if time.monotonic() > until or server.poll() is not None:
                raise TimeoutError(f"{results}: the leaderboard did not start; `harness leaderboard` says why")
            time.sleep(0.2)
        yield f"http://localhost:{port}"
    finally:
        server.terminate()
        server.wait(20)


def _healthy(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://localhost:{port}/_stcore/health", timeout=2).close()
    except (urllib.error.URLError, OSError):
        return False
    return True


def picture(address: str, width: int, height: int, scheme: str) -> bytes:
    """The page as a PNG of width x height pixels. scheme: `light` or `dark`."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
        page.goto(address)
        page.wait_for_function(READY, timeout=60_000)
        page.wait_for_timeout(1000)  # until the figures have come to rest
        return bytes(page.screenshot())


def compressed(png: bytes, most: int = MOST) -> bytes:
    """The same with as many colours as fit into `most` bytes. Raises ValueError where 16 are too many."""
    from PIL import Image

    image = Image.open(io.BytesIO(png)).convert("RGB")
    for colours in (None, 256, 128, 64, 32, 16):
        out = io.BytesIO()
        drawn = image if colours is None else image.quantize(colours, Image.Quantize.MAXCOVERAGE)
        drawn.save(out, "PNG", optimize=True)
        if len(out.getvalue()) <= most:
            return out.getvalue()
    raise ValueError(f"{len(out.getvalue()):,} bytes with 16 colours; ask for a smaller --width or --height")


def main() -> None:
    """Write the picture."""
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
        png = compressed(picture(address, asked.width, asked.height, "dark" if asked.dark else "light"))
    asked.out.write_bytes(png)
    print(f"{asked.out}: {len(png):,} bytes")


if __name__ == "__main__":
    main()
