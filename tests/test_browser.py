"""The leaderboard in a real headless Chromium. Skipped where Chromium or Playwright is absent.

HARNESS_BROWSER_RESULTS=results   use real results instead of synthetic ones
HARNESS_SCREENSHOTS=/tmp/shots    keep the screenshots
HARNESS_AXE=axe.min.js            the axe-core that checks accessibility; else `npm pack axe-core` is asked for it
"""

from __future__ import annotations

import importlib
import os
import shutil
import socket
import subprocess
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from synthetic_results import REGIMES, write_results, write_trials

from harness.store.ingest import ingest

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytest.importorskip("streamlit", reason="the leaderboard extra is not installed")
pytest.importorskip("vl_convert", reason="the leaderboard extra is not installed")
command = importlib.import_module("leaderboard").command
PAGES = importlib.import_module("leaderboard.views").PAGES

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(300)]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
if CHROMIUM is None:
    pytest.skip("no Chromium (apt-get install chromium)", allow_module_level=True)
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
ADDRESSES = {p.slug: "" if i == 0 else p.slug for i, p in enumerate(PAGES)}
TUNED = "synthetic-tuned"
STREAMLITS_OWN = ("404 (Not Found)", "ERR_NAME_NOT_RESOLVED", "ERR_INTERNET_DISCONNECTED", "ERR_CONNECTION")
"""On a page's own address Streamlit first asks for its health check below that address; and it calls home."""


@dataclass
class Site:
    url: str
    browser: Any
    suite: str
    errors: list[str] = field(default_factory=list)

    def open(self, address: str = "", width: int = 1280, scheme: str = "light") -> Any:
        context = self.browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, accept_downloads=True
        )
        context.set_default_timeout(60_000)
        page = context.new_page()
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda m: self.errors.append(m.text) if m.type == "error" else None)
        page.goto(f"{self.url}/{address}")
        settle(page)
        return page


def settle(page: Any) -> None:
    page.wait_for_selector("h1")
    page.wait_for_function(
        "document.querySelector('[data-testid=stApp]').getAttribute('data-test-script-state') === 'notRunning'"
    )
    # Until the figures are drawn, what stands below them moves.
    page.wait_for_function(
        "[...document.querySelectorAll('[data-testid=stVegaLiteChart]')].every(figure => figure.querySelector('canvas, svg'))"
    )
    page.wait_for_timeout(400)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    suite = "synthetic-small"
    if real := os.environ.get("HARNESS_BROWSER_RESULTS"):
        folder = Path(real).resolve()
        suite = next(p.parent.name for p in folder.glob("*/suite.json"))
    else:
        write_results(folder, steps=8, questions=12)
        write_results(
            folder, TUNED, groups={"duo": ("llama", "qwen")}, regimes=REGIMES[:3], seeds=(1, 2), steps=2, questions=6
        )
        write_trials(folder, TUNED)
    ingest(folder)
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    with open(folder / "server.log", "w") as log:
        server = subprocess.Popen(command(folder, port), env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        _wait(f"http://localhost:{port}/_stcore/health")
        with sync_api.sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
            yield Site(f"http://localhost:{port}", browser, suite)
            browser.close()
    finally:
        server.terminate()
        server.wait(20)
        log_text = (folder / "server.log").read_text()
        (folder / "server.log").unlink()
    assert "Traceback" not in log_text, log_text[-3000:]


def _wait(url: str) -> None:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(url, timeout=2).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise TimeoutError(url)


def own(errors: list[str]) -> list[str]:
    return [e for e in errors if not any(known in e for known in STREAMLITS_OWN)]


@pytest.mark.parametrize("slug", ADDRESSES)
def test_page_renders_in_both_themes_and_on_a_phone(site: Site, slug: str) -> None:
    site.errors.clear()
    looks = [(1280, "dark"), (375, "light")]
    if os.environ.get("HARNESS_SCREENSHOTS"):
        looks.append((1280, "light"))
    for width, scheme in looks:
        page = site.open(ADDRESSES[slug], width, scheme)
        assert page.locator("h1").inner_text() == next(p.title for p in PAGES if p.slug == slug)
        assert page.locator("[data-testid=stException]").count() == 0
        if next(p.figures for p in PAGES if p.slug == slug):
            page.wait_for_selector("[data-testid=stVegaLiteChart] svg, [data-testid=stVegaLiteChart] canvas")
        wide = page.evaluate(
            "[document.documentElement.scrollWidth, document.querySelector('[data-testid=stMain]').scrollWidth]"
        )
        assert max(wide) <= width, f"scrolls sideways at {width}"
        if shots := os.environ.get("HARNESS_SCREENSHOTS"):
            height = page.evaluate("document.querySelector('[data-testid=stMain]').scrollHeight")
            page.set_viewport_size({"width": width, "height": max(900, height + 20)})
            page.wait_for_timeout(500)
            Path(shots).mkdir(parents=True, exist_ok=True)
            page.screenshot(path=f"{shots}/{slug}-{scheme}-{width}.png")
        page.context.close()
    assert own(site.errors) == []


def test_a_filter_changes_the_page_and_the_address_restores_it(site: Site) -> None:
    page = site.open()
    page.get_by_text("accuracy", exact=True).first.click()
    page.get_by_role("combobox", name="Metric").click()
    page.get_by_role("option", name="greedy").click()
    settle(page)
    page.wait_for_function("location.search.includes('metric=greedy') && location.search.includes('show=accuracy')")
    page.wait_for_function("document.body.innerText.includes('accuracy') ")
    url = page.url
    page.context.close()
    again = site.open(url.removeprefix(f"{site.url}/"))
    assert again.get_by_role("combobox", name="Metric").input_value() == "greedy"
    assert again.locator("[data-testid=stVegaLiteChart]").first.evaluate("e => e.innerHTML").count("greedy") > 0
    again.context.close()


def test_downloads_download(site: Site) -> None:
    page = site.open()
    settle(page)  # on a busy machine figures are still coming, and the menu opens where its button has been
    page.get_by_test_id("stPopoverButton").click()
    for label, start in (("Table (CSV)", b"group,"), ("Figure (SVG)", b"<svg"), ("Figure (PNG)", b"\x89PNG")):
        with page.expect_download() as waiting:
            page.get_by_role("button", name=label).click()
        content = Path(waiting.value.path()).read_bytes()
        assert content.startswith(start)
        assert len(content) > 500
    page.context.close()


def test_the_keyboard_reaches_the_navigation_and_the_filters(site: Site) -> None:
    page = site.open()
    reached = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate(
                "(document.activeElement.getAttribute('aria-label') || document.activeElement.innerText || '').trim()"
            )
        )
    text = " | ".join(sorted(reached))
    assert "Head to head" in text
    assert "Metric" in text
    page.context.close()


def test_figures_have_a_text_for_those_who_cannot_see_them(site: Site) -> None:
    page = site.open()
    page.wait_for_selector("[data-testid=stVegaLiteChart] svg, [data-testid=stVegaLiteChart] canvas")
    script = "e => e.map(c => (c.querySelector('[aria-label]') || c).getAttribute('aria-label') || '')"
    labels = page.locator("[data-testid=stVegaLiteChart]").evaluate_all(script)
    assert labels
    assert all("points" in label for label in labels)
    page.context.close()


_PART_OF = """([selector, parts]) => {
    const element = document.querySelector(selector)
    return parts.find(part => element && element.closest(`[data-testid^=${part}]`)) || ''
}"""
SEVERE = ("serious", "critical")
STREAMLIT_PARTS = (
    "stSelectbox",
    "stMultiSelect",
    "stDataFrame",
    "stSidebar",
    "stHeader",
    "stToolbar",
    "stPopover",
    "stTabs",
    "stButtonGroup",
    "stExpander",
    "stMetric",
    "stCode",
    "stTooltip",
)


def test_the_trials_of_a_tuned_suite_are_drawn(site: Site, axe: str) -> None:
    if os.environ.get("HARNESS_BROWSER_RESULTS"):
        pytest.skip("real results, which need not hold a tuned suite")
    for width, scheme in LOOKS:
        page = site.open(f"sensitivity?suite={TUNED}", width, scheme)
        page.wait_for_selector("[data-testid=stVegaLiteChart] svg, [data-testid=stVegaLiteChart] canvas")
        settle(page)
        for box in page.locator("[data-testid=stVegaLiteChart]").all():
            assert 0 <= box.bounding_box()["x"] <= width - box.bounding_box()["width"]
        assert [v["id"] for v in violations(page, axe)] == []
        page.context.close()


LOOKS = [(width, scheme) for width in (1440, 390) for scheme in ("light", "dark")]


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The source of axe-core."""
    if given := os.environ.get("HARNESS_AXE"):
        return Path(given).read_text()
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no axe-core: HARNESS_AXE is not set and there is no npm")
    folder = tmp_path_factory.mktemp("axe")
    try:
        packed = subprocess.run([npm, "pack", "axe-core@4"], cwd=folder, capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        pytest.skip("no axe-core: npm had not fetched it within a minute")
    if packed.returncode:
        pytest.skip(f"no axe-core: {packed.stderr[-300:]}")
    with tarfile.open(next(folder.glob("*.tgz"))) as archive:
        source = archive.extractfile("package/axe.min.js")
        assert source is not None
        return source.read().decode()


def violations(page: Any, axe: str) -> list[dict[str, Any]]:
    """On the whole page: axe passes over the contrast of what is scrolled out of sight."""
    height = page.evaluate("(document.querySelector('[data-testid=stMain]') || document.documentElement).scrollHeight")
    page.set_viewport_size({"width": page.viewport_size["width"], "height": height + 50})
    page.wait_for_timeout(500)
    page.evaluate(axe)
    found = page.evaluate("async () => (await axe.run(document, {resultTypes: ['violations']})).violations")
    return list(found)


@pytest.mark.parametrize("slug", ADDRESSES)
def test_axe_finds_nothing_severe_in_what_is_ours(site: Site, axe: str, slug: str) -> None:
    for width, scheme in LOOKS:
        page = site.open(ADDRESSES[slug], width, scheme)
        ours, theirs = [], []
        for violation in violations(page, axe):
            for node in violation["nodes"]:
                selector = str(node["target"][0])
                inside = page.evaluate(_PART_OF, [selector, list(STREAMLIT_PARTS)])
                told = f"{width} {scheme} {violation['impact']} {violation['id']}: {inside} {node['html'][:160]}"
                if not inside:
                    ours.append(told)
                elif violation["impact"] in SEVERE:
                    theirs.append(told)
        print("Streamlit's own:", *sorted(set(theirs)), sep="\n  ")
        assert ours == []
        page.context.close()


def test_axe_finds_nothing_in_the_report(site: Site, axe: str, tmp_path: Path) -> None:
    write_results(tmp_path, "synthetic-other", groups={"trio": ("llama", "qwen", "gpt2")}, steps=2, questions=6)
    write_results(tmp_path, steps=2, questions=6)
    ingest(tmp_path)
    importlib.import_module("leaderboard.report").export_report(tmp_path, tmp_path / "report.html")
    for width, scheme in LOOKS:
        context = site.browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page = context.new_page()
        page.goto((tmp_path / "report.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        shown_within(page.locator("table.answers").nth(1), width)
        found = [(v["id"], node["html"][:160]) for v in violations(page, axe) for node in v["nodes"]]
        assert found == [], (width, scheme)
        context.close()


def shown_within(table: Any, width: int) -> None:
    """Whom it helps, how much, at what cost and whether that is real stands there without scrolling sideways."""
    for title in ("Regime", "Gain, points", "Whom", "Cost", "Is it real?"):
        box = table.locator("th", has_text=title).bounding_box()
        assert box["x"] >= 0, title
        assert box["x"] + box["width"] <= width, title


@pytest.mark.parametrize("width", [390, 1440])
def test_the_answer_is_on_the_screen(site: Site, width: int) -> None:
    page = site.open(f"ranking?suite={site.suite}", width)
    tables = page.locator("[data-testid=stTable] table")
    assert tables.first.bounding_box()["y"] < 900, "on the first screen"
    shown_within(tables.last, width)
    page.context.close()
