"""Golds of the benchmark sets in five surroundings, and beside golds of other questions."""

from __future__ import annotations

import os
import random
import re
from fractions import Fraction
from pathlib import Path

import pytest

from harness.tasks.data import load_set
from harness.tasks.registry import EVALUATION_SETS
from harness.verification.notation import normalise_answer, split_items
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
    return sorted({row.answer for row in load_set(name, FOLDER)})


def box_for_each(gold: str) -> str | None:
    """A list with a box for each of its values; None for another gold."""
    items = split_items(normalise_answer(gold))
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


WORDS = re.compile(r"\\(?:text|mbox|mathrm)\s*\{[^{}]*\}(?:\s*\^\s*\{?\d\}?)?|\^\s*\{?\\circ\}?")


def known_values(text: str) -> set[Fraction]:
    """Of a number in a few plain spellings, told without the verifier; per cent may mean the hundredth or the bare number."""
    plain = WORDS.sub("", text)
    percent = "%" in plain
    plain = re.sub(r"\\?[$%]|\\[!,]|\{,\}|^[a-zA-Z]\s*=|[\s,]", "", plain).removesuffix(".")
    mixed = re.fullmatch(r"(\d+)\\[dt]?frac\{?(\d)\}?\{?(\d+)\}?", plain)
    plain = re.sub(r"\\[dt]?frac(?:\{(-?\d+)\}\{(\d+)\}|(\d)(\d))", r"\1\3/\2\4", plain)
    try:
        value = int(mixed[1]) + Fraction(int(mixed[2]), int(mixed[3])) if mixed else Fraction(plain)
    except (ValueError, ZeroDivisionError):
        return set()
    return {value, value / 100} if percent else {value}


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
    assert len(accepted) <= 0.01 * len(pairs)
    assert [pair for pair in accepted if not is_one_value(*pair)] == []


def is_one_value(gold: str, answer: str) -> bool:
    """Whether a reader finds one value in two spellings: numbers, digits without their base, the same list in another order."""
    if known_values(gold) & known_values(answer):
        return True
    ours, theirs = (normalise_answer(WORDS.sub("", text)).replace(" ", "") for text in (gold, answer))
    digits = re.fullmatch(r"(\d+)_\{?\d+\}?", ours)
    if digits and digits[1] == theirs:
        return True
    return sorted(ours.split(",")) == sorted(theirs.split(","))
