"""The leaderboard in a real headless Chromium. Skipped where Chromium or Playwright is absent.

HARNESS_BROWSER_RESULTS=results   use real results instead of synthetic ones
HARNESS_SCREENSHOTS=/tmp/shots    keep the screenshots
HARNESS_AXE=axe.min.js            the axe-core that checks accessibility; else `npm pack axe-core` is asked for it
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from synthetic_results import REGIMES, write_results, write_trials

from harness.store.ingest import ingest_journals

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytest.importorskip("streamlit", reason="the leaderboard extra is not installed")
pytest.importorskip("vl_convert", reason="the leaderboard extra is not installed")
screenshot = importlib.import_module("screenshot")
PAGES = {p.slug: p for p in importlib.import_module("leaderboard.views").PAGES}

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(300)]
if screenshot.CHROMIUM is None:
    pytest.skip("no Chromium (apt-get install chromium)", allow_module_level=True)
REAL = os.environ.get("HARNESS_BROWSER_RESULTS")
SHOTS = os.environ.get("HARNESS_SCREENSHOTS")
TUNED = "synthetic-tuned"
LOOKS = [(width, scheme) for width in (1440, 390) for scheme in ("light", "dark")]
FIGURES = "[data-testid=stVegaLiteChart]"
FORESTS = "figure.forest"
SCROLLS = "Math.max(document.documentElement.scrollWidth, document.querySelector('[data-testid=stMain]').scrollWidth)"
HEIGHT = "(document.querySelector('[data-testid=stMain]') || document.documentElement).scrollHeight"
STREAMLITS_OWN = "404 (Not Found)"
"""On a page's own address Streamlit first asks for its health check below that address."""
PART_OF = """([selector, parts]) => {
    const element = document.querySelector(selector)
    return parts.find(part => element && element.closest(`[data-testid^=${part}]`)) || ''
}"""
STREAMLIT_PARTS = ["stSelectbox", "stMultiSelect", "stDataFrame", "stSidebar", "stHeader", "stToolbar", "stPopover", "stTabs",
                   "stButtonGroup", "stExpander", "stMetric", "stCode", "stTooltip"]  # fmt: skip


@dataclass
class Site:
    url: str
    browser: Any
    suite: str
    errors: list[str] = field(default_factory=list)
    asked: set[str] = field(default_factory=set)

    def open(self, address: str = "", width: int = 1280, scheme: str = "light") -> Any:
        context = self.browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, accept_downloads=True
        )
        context.set_default_timeout(60_000)
        page = context.new_page()
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self.asked.add(request.url.split("?")[0]))
        page.on("console", lambda m: self.errors.append(m.text) if m.type == "error" else None)
        page.goto(address if "://" in address else f"{self.url}/{address}")
        if "://" not in address:
            screenshot.settle(page)
        return page


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = Path(REAL).resolve() if REAL else tmp_path_factory.mktemp("site")
    if not REAL:
        write_results(folder, steps=8, questions=12, preset="matched")
        duo = {"groups": {"duo": ("llama", "qwen")}, "regimes": REGIMES[:3], "seeds": (1, 2)}
        write_results(folder, TUNED, **duo, steps=2, questions=6)
        write_trials(folder, TUNED)
    ingest_journals(folder)
    suite = "synthetic-small" if not REAL else next(p.parent.name for p in folder.glob("*/suite.json"))
    log = tmp_path_factory.mktemp("log") / "server.log"
    with log.open("w") as file, screenshot.served(folder, file) as url, sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=screenshot.CHROMIUM, args=screenshot.FLAGS)
        yield Site(url, browser, suite)
        browser.close()
    assert "Traceback" not in log.read_text(), log.read_text()[-3000:]


def address(slug: str) -> str:
    return "" if slug == next(iter(PAGES)) else slug


@pytest.mark.parametrize("slug", PAGES)
def test_page_renders_in_both_themes_and_on_a_phone(site: Site, slug: str) -> None:
    site.errors.clear()
    for width, scheme in [(1280, "dark"), (375, "light"), *([(1280, "light")] if SHOTS else [])]:
        page = site.open(address(slug), width, scheme)
        assert page.locator("h1").inner_text() == PAGES[slug].title
        assert page.locator("[data-testid=stException]").count() == 0
        if PAGES[slug].figures:
            page.wait_for_selector(f"{screenshot.DRAWN}, {FORESTS}")
        assert page.evaluate(SCROLLS) <= width, f"scrolls sideways at {width}"
        if SHOTS:
            page.set_viewport_size({"width": width, "height": max(900, page.evaluate(HEIGHT) + 20)})
            page.wait_for_timeout(500)
            Path(SHOTS).mkdir(parents=True, exist_ok=True)
            page.screenshot(path=f"{SHOTS}/{slug}-{scheme}-{width}.png")
        page.context.close()
    assert [e for e in site.errors if STREAMLITS_OWN not in e] == []
    assert [a for a in site.asked if not a.startswith((site.url, "data:", "blob:"))] == [], "no other server is asked"


def test_a_filter_changes_the_page_and_the_address_restores_it(site: Site) -> None:
    page = site.open("ranking")
    page.get_by_text("accuracy", exact=True).first.click()
    page.get_by_role("combobox", name="Metric").click()
    page.get_by_role("option", name="greedy").click()
    page.wait_for_function("location.search.includes('metric=greedy') && location.search.includes('show=accuracy')")
    screenshot.settle(page)
    again = site.open(page.url.removeprefix(f"{site.url}/"))
    assert again.get_by_role("combobox", name="Metric").input_value() == "greedy"
    assert "greedy" in again.locator(FORESTS).first.inner_text()
    for one in (page, again):
        one.context.close()


def test_downloads_download(site: Site) -> None:
    page = site.open("ranking")
    page.wait_for_selector(FORESTS)
    page.get_by_test_id("stPopoverButton").click()
    for label, start in (("Table (CSV)", b"group,"), ("Figure (SVG)", b"<svg"), ("Figure (PNG)", b"\x89PNG")):
        with page.expect_download() as waiting:
            page.get_by_role("button", name=label).click()
        content = Path(waiting.value.path()).read_bytes()
        assert content.startswith(start)
        assert len(content) > 500
    page.context.close()


def test_the_keyboard_reaches_all_and_figures_have_a_text(site: Site) -> None:
    page = site.open("ranking")
    reached = ""
    for _ in range(40):
        page.keyboard.press("Tab")
        reached += page.evaluate(
            "document.activeElement.getAttribute('aria-label') || document.activeElement.innerText || ''"
        )
    assert "Head to head" in reached
    assert "Metric" in reached
    page.context.close()
    page = site.open("head-to-head")
    assert all("points" in text for text in page.locator(FORESTS).all_inner_texts())
    page.wait_for_selector(screenshot.DRAWN)
    script = "e => e.map(c => (c.querySelector('[aria-label]') || c).getAttribute('aria-label') || '')"
    labels = page.locator(FIGURES).evaluate_all(script)
    assert labels
    assert all("points" in label for label in labels)
    page.context.close()


def test_the_trials_of_a_tuned_suite_are_drawn(site: Site, axe: str) -> None:
    if REAL:
        pytest.skip("real results, which need not hold a tuned suite")
    for width, scheme in LOOKS:
        page = site.open(f"sensitivity?suite={TUNED}", width, scheme)
        page.wait_for_selector(screenshot.DRAWN)
        boxes = [figure.bounding_box() for figure in page.locator(FIGURES).all()]
        assert boxes
        assert all(0 <= box["x"] <= width - box["width"] for box in boxes)
        assert [v["id"] for v in violations(page, axe)] == []
        page.context.close()


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    if given := os.environ.get("HARNESS_AXE"):
        return Path(given).read_text()
    npm, folder = shutil.which("npm"), tmp_path_factory.mktemp("axe")
    if npm is None:
        pytest.skip("no axe-core: HARNESS_AXE is not set and there is no npm")
    try:
        subprocess.run([npm, "pack", "axe-core@4"], cwd=folder, capture_output=True, timeout=60, check=True)
    except subprocess.SubprocessError as error:
        pytest.skip(f"no axe-core: {error}")
    with tarfile.open(next(folder.glob("*.tgz"))) as archive:
        source = archive.extractfile("package/axe.min.js")
        assert source is not None
        return source.read().decode()


def violations(page: Any, axe: str) -> list[dict[str, Any]]:
    """On the whole page: axe passes over the contrast of what is scrolled out of sight."""
    page.set_viewport_size({"width": page.viewport_size["width"], "height": page.evaluate(HEIGHT) + 50})
    page.wait_for_timeout(500)
    page.evaluate(axe)
    faults = page.evaluate("async () => (await axe.run(document, {resultTypes: ['violations']})).violations")
    return list(faults)


@pytest.mark.parametrize("slug", PAGES)
def test_axe_finds_nothing_in_what_is_ours(site: Site, axe: str, slug: str) -> None:
    for width, scheme in LOOKS:
        page = site.open(address(slug), width, scheme)
        nodes = [(v["id"], node) for v in violations(page, axe) for node in v["nodes"]]
        ours = [
            (width, scheme, kind, node["html"][:160])
            for kind, node in nodes
            if not page.evaluate(PART_OF, [str(node["target"][0]), STREAMLIT_PARTS])
        ]
        assert ours == []
        page.context.close()


def test_axe_finds_nothing_in_the_report(site: Site, axe: str, tmp_path: Path) -> None:
    write_results(tmp_path, "synthetic-other", groups={"trio": ("llama", "qwen", "gpt2")}, steps=2, questions=6)
    write_results(tmp_path, steps=2, questions=6)
    ingest_journals(tmp_path)
    importlib.import_module("leaderboard.report").export_report(tmp_path, tmp_path / "report.html")
    for width, scheme in LOOKS:
        page = site.open((tmp_path / "report.html").as_uri(), width, scheme)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        shown_within(page.locator("table.answers").nth(1), width)
        assert [(v["id"], node["html"][:160]) for v in violations(page, axe) for node in v["nodes"]] == [], (
            width,
            scheme,
        )
        page.context.close()


def shown_within(table: Any, width: int) -> None:
    """Whom it helps, how much, at what cost and whether that is real stands there without scrolling sideways."""
    for title in ("Regime", "Gain, points", "Whom", "Cost", "Is it real?"):
        box = table.locator("th", has_text=title).bounding_box()
        assert 0 <= box["x"] <= width - box["width"], title


@pytest.mark.parametrize("width", [390, 1440])
def test_the_answer_is_on_the_screen(site: Site, width: int) -> None:
    page = site.open(f"ranking?suite={site.suite}", width)
    tables = page.locator("table.answers")
    assert tables.first.bounding_box()["y"] < 900, "on the first screen"
    shown_within(tables.last, width)
    page.context.close()
