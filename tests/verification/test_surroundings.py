"""Golds of the benchmark sets in five surroundings, and beside golds of other questions."""

from __future__ import annotations

import os
import random
import re
from fractions import Fraction
from pathlib import Path

import pytest

from harness.tasks.data import load
from harness.tasks.registry import EVALUATION_SETS
from harness.verification.notation import normalise, split_items
from harness.verification.verifier import Verifier

FOLDER = Path(os.environ.get("HARNESS_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not (FOLDER / "math500.jsonl").is_file(), reason="no benchmark folder (HARNESS_DATA)"),
]
SURROUNDINGS = {
    "box": "So it is $\\boxed{%s}$.",
    "thinking with another box": "<think>Perhaps \\boxed{\\frac{7}{11}}? No.</think>\nHence $\\boxed{%s}$.",
    "last sentence": "We add the parts.\nTherefore it is $%s$.",
    "tag": "<think>Some work with 12 steps.</think>\n<answer>%s</answer>",
}
PAIRS = int(os.environ.get("PAIRS", "10000"))


def golds_of(name: str) -> list[str]:
    return sorted({row.answer for row in load(name, FOLDER)})


def box_for_each(gold: str) -> str | None:
    """A list with a box for each of its values; None for another gold."""
    items = split_items(normalise(gold))
    if items.brackets or len(items.items) < 2 or not items.separators <= {",", ";", "and", "or"}:
        return None
    return "They are " + " and ".join(f"$\\boxed{{{item}}}$" for item in items.items) + "."


@pytest.mark.parametrize("name", EVALUATION_SETS)
def test_a_gold_is_right_for_itself_in_five_surroundings(name: str, verifier: Verifier) -> None:
    golds = golds_of(name)
    ways = {surrounding: [(g, text.replace("%s", g)) for g in golds] for surrounding, text in SURROUNDINGS.items()}
    ways["a box for each"] = [(gold, text) for gold in golds if (text := box_for_each(gold))]
    for surrounding, pairs in ways.items():
        verdicts = verifier.verify(pairs)
        fallen = [pair for pair, verdict in zip(pairs, verdicts, strict=True) if verdict.value != "right"]
        assert len(fallen) <= 0.01 * len(pairs), (surrounding, fallen)


def known_value(text: str) -> Fraction | None:
    """Of a number in a few plain spellings, told without the verifier: decimals, fractions, units and names left away."""
    plain = re.sub(r"\\text\s*\{[^{}]*\}|\^\s*\{?\\circ\}?|\\?[$%]|\\!|\{,\}|^[a-zA-Z]\s*=|\s", "", text).removesuffix(
        "."
    )
    plain = re.sub(r"\\[dt]?frac\{?(-?\d+)\}?\{?(\d+)\}?", r"\1/\2", plain)
    try:
        return Fraction(plain.replace(",", ""))
    except (ValueError, ZeroDivisionError):
        return None


def test_no_answer_is_right_for_a_gold_of_another_value(verifier: Verifier) -> None:
    """Neighbours in the alphabet, which look alike, and random pairs; what is accepted must be one value in two spellings."""
    draw = random.Random(0)
    every = sorted({gold for name in EVALUATION_SETS for gold in golds_of(name)})
    pairs: dict[tuple[str, str], str] = {}
    while len(pairs) < PAIRS:
        place = draw.randrange(len(every) - 3)
        other = every[place + draw.randint(1, 3)] if draw.random() < 0.5 else draw.choice(every)
        gold, answer = draw.sample((every[place], other), 2)
        if gold != answer:
            pairs[gold, answer] = draw.choice(list(SURROUNDINGS.values())).replace("%s", answer)
    verdicts = verifier.verify([(gold, text) for (gold, _), text in pairs.items()])
    accepted = [pair for pair, verdict in zip(pairs, verdicts, strict=True) if verdict.value == "right"]
    unlike = [pair for pair in accepted if known_value(pair[0]) is None or known_value(pair[0]) != known_value(pair[1])]
    seen = [pair for pair in unlike if normalise(pair[0]).replace(" ", "") != normalise(pair[1]).replace(" ", "")]
    assert len(accepted) <= 0.01 * len(pairs)
    assert [pair for pair in seen if frozenset(pair) not in SAME] == []


SAME: frozenset[frozenset[str]] = frozenset()
"""Pairs of golds that a reader finds to be one value, which `known_value` does not read."""
