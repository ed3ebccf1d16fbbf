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
    """Words, numbers and signs, without LaTeX cosmetics."""
    return _TOKEN.findall(_COSMETIC.sub(" ", problem).lower())


def shingles_of(words: Sequence[str]) -> frozenset[tuple[str, ...]]:
    """Runs of four; a shorter problem whole."""
    last = max(1, len(words) - SHINGLE + 1)
    return frozenset(tuple(words[start : start + SHINGLE]) for start in range(last))


def find_overlaps(training: Iterable[tuple[str, str]], evaluation: Iterable[tuple[str, str, str]]) -> list[Overlap]:
    """Training problems (id, text) that repeat an evaluation problem (set, id, text): the same tokens, or Jaccard
    similarity of token 4-grams of at least `NEAR`; the most similar one of each."""
    known: list[tuple[str, str, frozenset[tuple[str, ...]]]] = []  # set, id, 4-grams
    exact: dict[str, int] = {}
    index: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    for name, identifier, text in evaluation:
        words = tokens_of(text)
        exact.setdefault("".join(words), len(known))
        grams = shingles_of(words)
        for gram in grams:
            index[gram].append(len(known))
        known.append((name, identifier, grams))
    overlaps = []
    for identifier, text in training:
        words = tokens_of(text)
        if (place := exact.get("".join(words))) is not None:
            overlaps.append(Overlap(identifier, *known[place][:2], "exact", 1.0))
            continue
        grams = shingles_of(words)
        # A near one shares `NEAR` of these, so one of the rarest; templates share the common ones
        rest = len(grams) - ceil(NEAR * len(grams) - 1e-9) + 1
        rare = sorted(grams, key=lambda gram: len(index.get(gram, ())))[:rest]
        shared = {place: len(grams & known[place][2]) for gram in rare for place in index.get(gram, ())}
        best, place = max(
            ((count / (len(grams) + len(known[place][2]) - count), -place) for place, count in shared.items()),
            default=(0.0, 1),
        )
        if best >= NEAR:
            overlaps.append(Overlap(identifier, *known[-place][:2], "near", round(best, 4)))
    return overlaps
