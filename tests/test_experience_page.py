"""docs/experience.md lists every field and value that a regime meets, and no other."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path
from typing import get_args

import pytest

from harness.experience.answers import Answer, Group, Inbox, PeerAnswer, PeerScores, Prompt
from harness.learning.regime import Context, Measured
from harness.learning.terms import Aggregation, Form, Objective, Phase, Ratio, Schedule, Term, TermAnswer, TokenWeight

PAGE = (Path(__file__).parents[1] / "docs" / "experience.md").read_text()
LISTS = {
    name: [line.removeprefix("- ").partition(": ")[0].partition(" (") for line in lines.splitlines() if line[0] == "-"]
    for name, lines in re.findall(r"(?m)^\*\*`(\w+)`\*\*\n\n((?:- .*\n(?:  .*\n)*)+)", PAGE)
}
TABLES = {
    name: [row.strip("|").split("|")[0] for row in rows.splitlines()]
    for name, rows in re.findall(r"(?m)^\| `(\w+)` \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", PAGE)
}
CLASSES = (
    Group,
    Prompt,
    Answer,
    Inbox,
    PeerAnswer,
    PeerScores,
    Context,
    Measured,
    Term,
    TermAnswer,
    Objective,
    Phase,
    Schedule,
)
VALUES = {"ratio": Ratio, "form": Form, "aggregation": Aggregation, "token_weight": TokenWeight}


def words(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_field_is_listed(kind: type) -> None:
    fields = {f.name for f in dataclasses.fields(kind)}
    members = {
        n for n, m in inspect.getmembers(kind) if n[0] != "_" and (isinstance(m, property) or inspect.isfunction(m))
    }
    assert sorted(name for names, _, _ in LISTS[kind.__name__] for name in words(names)) == sorted(fields | members)


@pytest.mark.parametrize("name", VALUES)
def test_every_value_is_listed(name: str) -> None:
    assert sorted(value for row in TABLES[name] for value in words(row)) == sorted(get_args(VALUES[name]))


def test_nothing_else_is_listed() -> None:
    assert set(LISTS) == {kind.__name__ for kind in CLASSES}
    assert set(TABLES) == set(VALUES)


def test_defaults_are_the_codes() -> None:
    said = {
        n: value for names, _, given in LISTS["Objective"] for n, value in zip(words(names), words(given), strict=False)
    }
    assert said == {f.name: str(f.default) for f in dataclasses.fields(Objective)}
