"""A part of a set that speaks for the whole: the same questions in every cell and every lab, evenly over the labels."""

from __future__ import annotations

from collections.abc import Sequence

from harness.experience.answers import Prompt
from harness.suite.seeds import derive

_SEED = 20_260


def fair_part(documents: Sequence[Prompt], limit: int | None) -> list[Prompt]:
    """`limit` of the documents in the set's order; all where there are no more than that.

    Each label's values (skill, level; level, subject) get their share of any `limit`, rounded; within a value the choice is
    drawn by a fixed seed from the documents' ids. A smaller limit chooses a part of what a larger one chooses.
    """
    if limit is None or limit >= len(documents):
        return list(documents)
    labels = list(dict.fromkeys(label for document in documents for label in document.labels))
    keep = {document.id for document in _spread(documents, labels)[:limit]}
    return [document for document in documents if document.id in keep]


def _spread(documents: Sequence[Prompt], labels: Sequence[str], within: str = "") -> list[Prompt]:
    """In an order whose every beginning holds each value of each label in its share: systematic sampling, the j-th of a value's n
    documents at (j + u) / n with a drawn u in [0, 1)."""
    if not labels:
        return sorted(documents, key=lambda document: derive(_SEED, document.id))
    label, *rest = labels
    values: dict[str, list[Prompt]] = {}
    for document in documents:
        values.setdefault(document.labels.get(label, ""), []).append(document)
    placed = [
        ((j + derive(_SEED, within, value) / 2**64) / len(own), document)
        for value, own in values.items()
        for j, document in enumerate(_spread(own, rest, f"{within}/{value}"))
    ]
    return [document for _, document in sorted(placed, key=lambda place: place[0])]
