"""Training problems that repeat evaluation problems, found by tools/overlap_index.py and shipped as `overlaps.json`."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from math import ceil
from pathlib import Path
from typing import Literal

import msgspec

INDEX = Path(__file__).with_name("overlaps.json")
SHINGLE = 4
NEAR = 0.7
_TOKEN = re.compile(r"\\?[a-z]+|\d+(?:\.\d+)?|[^\sa-z\d.,;:?!'\"]")
_COSMETIC = re.compile(
    r"(?s:\[asy\].*?\[/asy\])|\\(?:left|right|displaystyle|[dt]?frac|!|,|;|:|quad|text|mathrm)|[${}~]|\\(?=\s)"
)


class Overlap(msgspec.Struct, frozen=True, array_like=True):
    """similarity: 1.0 where equal once normalised."""

    training: str
    evaluation_set: str
    evaluation: str
    kind: Literal["exact", "near"]
    similarity: float


class Index(msgspec.Struct, frozen=True):
    """sets: SHA-256 of those compared. overlaps: by training set."""

    sets: dict[str, str]
    overlaps: dict[str, list[Overlap]]


@cache
def pinned_index() -> Index:
    return msgspec.json.decode(INDEX.read_bytes(), type=Index)


def tokens_of(problem: str) -> list[str]:
    """Return the words, numbers and signs of a text, without LaTeX cosmetics."""
    return _TOKEN.findall(_COSMETIC.sub(" ", problem).lower())


def shingles_of(words: Sequence[str]) -> frozenset[tuple[str, ...]]:
    """Return the runs of four tokens; a shorter problem is one run."""
    last = max(1, len(words) - SHINGLE + 1)
    return frozenset(tuple(words[start : start + SHINGLE]) for start in range(last))


def find_overlaps(training: Iterable[tuple[str, str]], evaluation: Iterable[tuple[str, str, str]]) -> list[Overlap]:
    """Training problems (id, text) that repeat an evaluation problem (set, id, text): the same tokens, or Jaccard
    similarity of token 4-grams of at least `NEAR`; the most similar one of each."""
    index = _NearIndex()
    exact: dict[str, int] = {}  # by the tokens, the place of the first problem with these
    for name, identifier, text in evaluation:
        words = tokens_of(text)
        place = index.add_problem(name, identifier, shingles_of(words))
        exact.setdefault("".join(words), place)
    overlaps = []
    for identifier, text in training:
        words = tokens_of(text)
        place_of_same = exact.get("".join(words))
        if place_of_same is not None:
            name, other, _ = index.problems[place_of_same]
            overlaps.append(Overlap(identifier, name, other, "exact", 1.0))
            continue
        nearest = index.find_nearest(shingles_of(words))
        if nearest is not None:
            similarity, place = nearest
            name, other, _ = index.problems[place]
            overlaps.append(Overlap(identifier, name, other, "near", round(similarity, 4)))
    return overlaps


Grams = frozenset[tuple[str, ...]]


class _NearIndex:
    """Evaluation problems (set, id, 4-grams), found by 4-grams that they share with a text."""

    def __init__(self) -> None:
        self.problems: list[tuple[str, str, Grams]] = []
        self._places_of: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)

    def add_problem(self, name: str, identifier: str, grams: Grams) -> int:
        """Take a problem in; return its place."""
        place = len(self.problems)
        for gram in grams:
            self._places_of[gram].append(place)
        self.problems.append((name, identifier, grams))
        return place

    def find_nearest(self, grams: Grams) -> tuple[float, int] | None:
        """Return the Jaccard similarity to the most similar problem, and its place, the first of equals; None where none is near.

        A near one shares `NEAR` of the 4-grams, so one of the rarest: only these are looked up, as templates share the
        common ones."""
        rest = len(grams) - ceil(NEAR * len(grams) - 1e-9) + 1
        rare = sorted(grams, key=lambda gram: len(self._places_of.get(gram, ())))[:rest]
        candidates: set[int] = set()
        for gram in rare:
            candidates.update(self._places_of.get(gram, ()))
        best = (0.0, 1)
        for place in candidates:
            others = self.problems[place][2]
            shared = len(grams & others)
            similarity = shared / (len(grams) + len(others) - shared)
            best = max(best, (similarity, -place))
        similarity, backwards = best
        return (similarity, -backwards) if similarity >= NEAR else None
