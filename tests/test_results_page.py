"""README, docs and the reference results agree to the digit."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import results_page as page
from synthetic_results import Regime, write_results

from harness.errors import UsageError
from harness.store.journal import read_journal
from harness.store.manifest import read_manifest, read_suite
from harness.store.results_folder import write_results_folder
from harness.suite.load import load_suite, shipped_suites

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
BARE = ["What was not shown", "How to read the tables", "Smaller suites"]
"""Sections that stand without results."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Reference results of the shape of the suites `beyond` and `elicit`, with numbers of our making."""
    root = tmp_path_factory.mktemp("made")
    suite = load_suite("beyond")
    effects = {"luffy": 0.2, "sapo": -0.25, "chord": 0.1}
    streams = [{"stream": v.sampling_stream} if v.sampling_stream else {} for v in suite.regimes]
    regimes = [
        Regime(v.name, v.regime, effects.get(v.name, 0.0), v.budget, options=options)
        for v, options in zip(suite.regimes, streams, strict=True)
    ]
    groups = {g.name: tuple(p.name for p in g.policies) for g in suite.groups}
    write_results(root, "beyond", groups, regimes, suite.seeds, steps=4, questions=60, repeats=4)
    pair = {"llama-qwen": ("llama", "qwen")}
    write_results(root, "elicit", pair, regimes[:1], (1, 2, 3), steps=4, questions=40, repeats=4)
    for name in ("beyond", "elicit"):
        cells = sorted(f.parent for f in (root / name).glob("*/manifest.json"))
        manifests = {c.name: read_manifest(c) for c in cells}
        tables = {c.name: {t: rows for t, rows in read_journal(c).tables.items() if t != "exchanges"} for c in cells}
        write_results_folder(root / "out" / "reference" / name, read_suite(root / name), "test", manifests, tables)
    return root / "out"


@pytest.fixture(scope="module")
def store(folder: Path) -> Iterator[page.Store]:
    with page.opened(folder) as opened:
        yield opened


@pytest.fixture(scope="module")
def text(store: page.Store) -> str:
    return page.written(store, page.TEMPLATE.read_text("utf-8"))


def test_the_committed_pages_are_what_the_committed_results_give() -> None:
    with page.opened(ROOT / "results") as store:
        for path, text in page.pages(store).items():
            assert path.read_text("utf-8") == text, f"{path.name}: run python tools/results_page.py"


def test_without_results_nothing_is_claimed(tmp_path: Path) -> None:
    with page.opened(tmp_path) as store:
        text = page.written(store, page.TEMPLATE.read_text("utf-8"))
        readme = (ROOT / "README.md").read_text("utf-8")
        assert page.marked(store, readme) == readme
    assert not re.search(r"[{}]|<!--|\d\.\d", text)
    assert re.findall("(?m)^## (.*)", text) == BARE


def test_findings_stand_where_they_belong_each_with_its_interval(text: str) -> None:
    sections = dict(part.split("\n", 1) for part in text.split("\n## ")[1:])
    assert list(sections) == [
        "Found, excluded, unseen",
        *BARE[:2],
        "All other regimes: `beyond`",
        "Who is harmed",
        BARE[2],
        "Where these come from",
    ]
    assert not re.search(r"[{}]|<!--|nan|None\b(?!\.)", text)
    table = cells(next(t for t in text.split("\n\n") if t.startswith("| regime | weak-0")))
    assert re.fullmatch(r"\*\*\+\S+ \[.*\]\*\*", table["luffy"][0])
    assert re.fullmatch(r"\*\d+\.\d \[.*\]\*", table["independent"][0])
    harms = re.findall(r"(?m)^\| beyond \| \S+ \| (\S+) \| \S+ \| (\S)", sections["Who is harmed"])
    assert set(harms) == {("sapo", "−")}


def cells(table: str) -> dict[str, list[str]]:
    return {first: rest for first, *rest in (line.strip("| ").split(" | ") for line in table.strip().splitlines())}


def test_figures_are_those_of_harness_show(store: page.Store) -> None:
    row = store.row("beyond", "luffy", "avg@4", "weak-0")
    low, high = row.gain_interval
    expected = f"{100 * row.gain:+.1f} [{100 * low:.1f}, {100 * high:.1f}]".replace("-", "−")
    assert page.gain(store, "beyond", "luffy", "avg@4", "weak-0") == expected
    assert page.used(store, "beyond", "luffy", "avg@4", "weak-0") == f"{100 * row.peer_used:.0f}%"
    regimes = cells(page.regimes(store, "beyond", "weak-0", "avg@4"))
    assert regimes["luffy"][regimes["regime"].index("used")] == f"{100 * row.peer_used:.0f}%"
    table = cells(page.over(store, "beyond", "independent", "avg@4"))
    assert table["luffy"][table["over independent"].index("weak-0")] == expected
    assert cells(page.over(store, "beyond", "luffy", "avg@4"))["independent"][0].startswith("−")


def test_harm_is_the_same_in_its_sentence_and_its_table(store: page.Store) -> None:
    table = [line.strip("| ").split(" | ") for line in page.harmed(store).strip().splitlines()[2:]]
    means = {(suite, group, regime): gain for suite, group, regime, policy, gain, _ in table if policy == "mean"}
    told = re.findall(r"(\S+) (\S+ \[.*?\])(?: for `(\w+)`)? on `(\S+)` of `(\S+)`", page.harms(store))
    assert {(suite, group, regime): gain for regime, gain, policy, group, suite in told if not policy} == means
    assert all(
        [suite, group, regime, policy, gain] in [line[:5] for line in table]
        for regime, gain, policy, group, suite in told
        if policy
    )
    assert means


def test_the_ends_of_a_span_are_gains_of_the_table(store: page.Store) -> None:
    low, high = page.span(store, "beyond", "avg@4", "weak-0").split(" to ")
    assert low == f"{page.gain(store, 'beyond', 'sapo', 'avg@4', 'weak-0')} (sapo)"
    assert high.endswith(" (luffy)")
    assert re.fullmatch(r"\d+\.\d \(\S+\) to \d+\.\d points \(\S+\)", page.power(store, "beyond", "avg@4", "weak-0"))


def test_a_digit_that_is_another_is_found_and_mended(store: page.Store) -> None:
    right = "before <!-- results: gain beyond luffy avg@4 weak-0 -->{}<!-- /results --> after"
    good = right.format(page.gain(store, "beyond", "luffy", "avg@4", "weak-0"))
    assert page.marked(store, good) == good
    assert page.marked(store, right.format("+99.9")) == good
    absent = "<!-- results: gain quickstart sgt avg@4 -->+1.0<!-- /results -->"
    assert page.marked(store, absent) == absent


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("gain beyond luffy avg@4", "2 rows"),
        ("gain beyond nobody avg@4 weak-0", "0 rows"),
        ("frobnicate beyond", "no figure 'frobnicate'"),
        ("gain beyond", "missing"),
        ("optimism elicit", "no tuning"),
        ("by_step beyond weak-0 independent 4 luffy", "no held-out curves"),
    ],
)
def test_what_cannot_be_said_is_refused(store: page.Store, words: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        page.marked(store, f"<!-- results: {words} -->x<!-- /results -->")


def test_every_mark_and_figure_names_a_shipped_suite() -> None:
    words = [w for name in page.MARKED for _, w, _, _ in page._MARKS.findall((ROOT / name).read_text("utf-8"))]
    words += page._FIGURE.findall(page.TEMPLATE.read_text("utf-8"))
    assert len(words) > 20
    for kind, *arguments in map(shlex.split, words):
        assert kind in page.FIGURES
        assert kind in page.OVER_ALL or {*arguments[0].split("+")} <= {*shipped_suites()}
