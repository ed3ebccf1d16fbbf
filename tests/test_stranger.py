"""A stranger's ten questions, answered from the first screen of the shipped results in at most two clicks.

HARNESS_SCREENSHOTS=/tmp/shots    keep a screenshot of every answer, at two widths, light and dark
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.store.ingest import ingest_journals

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytest.importorskip("streamlit", reason="the leaderboard extra is not installed")
screenshot = importlib.import_module("screenshot")

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]
if screenshot.CHROMIUM is None:
    pytest.skip("no Chromium (apt-get install chromium)", allow_module_level=True)
ROOT = Path(__file__).parents[1]
SHOTS = os.environ.get("HARNESS_SCREENSHOTS")
LOOKS = [(width, scheme) for width in (1440, 390) for scheme in ("light", "dark")]
NUMBER = r"[+−]?\d+\.\d+ \[[^\]]+\]"
"""A number with its interval."""


@dataclass(frozen=True)
class Question:
    """clicks: links in their order, by their text or, as a selector, from the first screen on. facts: patterns that the main part
    of the last page must have."""

    name: str
    facts: tuple[str, ...]
    clicks: tuple[str, ...] = ()


QUESTIONS = (
    Question("which regime on pairs like mine", (r"Kind of pair", r"shown in \d+ comparisons?", rf"\w+ {NUMBER}")),
    Question("does it harm", (r"Whom does it harm\?", r"gains? by role lies? below 0|Not known: no group")),
    Question("how sure", (rf"\w+ {NUMBER}", r"cannot tell", r"(about|fewer than) \d+ would by chance")),
    Question("at which rate", (r"rate \de-\d", r"learning rate \de-\d")),
    Question("at what cost", (r"Cost", r"\d\.\d\d×"), (".kinds tbody a",)),
    Question("is it published", (r"Paper", r"arXiv \d{4}\.\d{5}", r"Status", r"published|ours"), (".kinds tbody a",)),
    Question("show me an answer", (r"✓ right|✗ wrong", r"Read as: \S"), ("Read an answer",)),
    Question("how do I add mine", (r"harness new-regime \S+",), ("Add mine",)),
    Question("how do I cite", (r"@software\{", r"title = "), ("Cite",)),
    Question("where are weights", (r"from_pretrained", r"vllm serve", r"checkpoint"), ("Trained weights",)),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder that has the reference results alone."""
    folder = tmp_path_factory.mktemp("stranger")
    (folder / "reference").symlink_to(ROOT / "results" / "reference")
    ingest_journals(folder)
    return folder


@pytest.fixture(scope="module")
def opened(folder: Path) -> Iterator[tuple[str, Any]]:
    """The board's address, and a browser."""
    with screenshot.served(folder) as url, sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=screenshot.CHROMIUM, args=screenshot.FLAGS)
        yield url, browser
        browser.close()


def click(page: Any, what: str) -> None:
    link = page.locator(what) if what.startswith(".") else page.get_by_role("link", name=what, exact=True)
    before = page.url
    link.first.click()
    page.wait_for_function(f"location.href !== {before!r}")
    screenshot.settle(page)


def read(page: Any) -> str:
    return str(page.locator("[data-testid=stMain]").inner_text())


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda q: q.name.replace(" ", "-"))
def test_it_is_answered_from_the_first_screen_in_at_most_two_clicks(
    opened: tuple[str, Any], question: Question
) -> None:
    url, browser = opened
    assert len(question.clicks) <= 2
    for width, scheme in LOOKS if SHOTS else LOOKS[:1]:
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page.set_default_timeout(90_000)
        page.goto(url)
        screenshot.settle(page)
        for what in question.clicks:
            click(page, what)
        text = read(page)
        missing = [fact for fact in question.facts if not re.search(fact, text)]
        assert not missing, text[:3000]
        if SHOTS:
            Path(SHOTS).mkdir(parents=True, exist_ok=True)
            page.screenshot(path=f"{SHOTS}/{question.name.replace(' ', '-')}-{scheme}-{width}.png")
        page.close()


def test_the_first_screen_says_what_the_store_says(opened: tuple[str, Any], folder: Path) -> None:
    """Every answer by kind of pair, word for word; the table begins on the first screen."""
    url, browser = opened
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.set_default_timeout(90_000)
    page.goto(url)
    screenshot.settle(page)
    assert page.locator("table.kinds").bounding_box()["y"] < 450
    rows = page.locator("table.kinds tbody tr").all_inner_texts()
    answers = importlib.import_module("leaderboard.data").open_store(folder).list_answers()
    assert len(rows) == len(answers)
    for row, kind in zip(rows, answers, strict=True):
        for answer in kind.answers:
            assert answer.said in row
            assert all(one.number in row for one in answer.found[:1])
    page.close()
