"""Answers as OpenRLHF's `Experience`, cut into micro-batches. Ranks take part in collective operations at every pass, so all
run equally many: the shorter lists are filled up with idle ones, whose loss is zero."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int32

from harness.engines.openrlhf.strategy import Experience
from harness.learning.minibatches import MiniBatch, Packed, pack


@dataclass(frozen=True, slots=True, eq=False)
class AnswerRow:
    """One answer after its prompt; `mask` (T,) says which of its tokens are asked for."""

    prompt: Sequence[int]
    answer: Int32[np.ndarray, "T"]
    mask: Bool[np.ndarray, "T"] | None = None

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.answer)


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatch:
    """sequences, attention_mask (B, L) and action_mask (B, L - 1); `packed` is None for an idle one and where nothing is
    learnt."""

    experience: Experience
    packed: Packed | None = None


class Split(NamedTuple):
    """Micro-batches by rank, equally many on each, and the indices of the rows in each of them."""

    batches: list[list[MicroBatch]]
    places: list[list[list[int]]]


def experience(rows: Sequence[AnswerRow]) -> Experience:
    """Right-padded rows; `action_mask[b, t]` marks that token t + 1 is asked for."""
    width = max(row.length for row in rows)
    sequences = torch.zeros(len(rows), width, dtype=torch.long)
    attention = torch.zeros(len(rows), width, dtype=torch.long)
    actions = torch.zeros(len(rows), width - 1, dtype=torch.bool)
    for index, row in enumerate(rows):
        sequences[index, : row.length] = torch.tensor([*row.prompt, *row.answer.tolist()])
        attention[index, : row.length] = 1
        asked = True if row.mask is None else torch.from_numpy(row.mask)
        actions[index, len(row.prompt) - 1 : row.length - 1] = asked
    return Experience(sequences=sequences, attention_mask=attention, action_mask=actions)


def scoring_split(rows: Sequence[AnswerRow], ranks: int, budget: int) -> Split:
    """Micro-batches of at most `budget` padded tokens each, without anything to learn."""
    return _split(rows, range(len(rows)), ranks, budget, lambda places: None)


def learning_splits(batch: MiniBatch, rows: Sequence[AnswerRow], ranks: int, budget: int) -> tuple[Split, Split]:
    """Micro-batches of a mini-batch's own and of its peer answers, learnt in this order; `rows[i]` is the i-th answer of
    `batch.live()`."""
    live = list(batch.live())
    own, peer = (
        [i for i, (term, _) in enumerate(live) if batch.terms[term].source == source] for source in ("own", "peer")
    )
    split = partial(
        _split, rows, ranks=ranks, budget=budget, packed=lambda places: pack(batch, [live[i] for i in places])
    )
    return split(own, fewest=0 if peer else 1), split(peer)


def _split(
    rows: Sequence[AnswerRow],
    chosen: Sequence[int],
    ranks: int,
    budget: int,
    packed: Callable[[list[int]], Packed | None],
    fewest: int = 0,
) -> Split:
    shares: list[list[list[int]]] = [[] for _ in range(ranks)]
    for turn, index in enumerate(sorted(chosen, key=lambda i: -rows[i].length)):
        # Back and forth over the ranks, so that each gets long and short rows alike.
        place = turn % (2 * ranks)
        groups = shares[min(place, 2 * ranks - 1 - place)]
        # The longest row of a group comes first; a single row that is longer than the budget goes alone.
        if groups and rows[groups[-1][0]].length * (len(groups[-1]) + 1) <= budget:
            groups[-1].append(index)
        else:
            groups.append([index])
    longest = max(fewest, *map(len, shares))
    idle = MicroBatch(experience([AnswerRow([0], np.zeros(1, np.int32), np.zeros(1, bool))]))
    batches = [
        [*(MicroBatch(experience([rows[i] for i in g]), packed(g)) for g in groups), *[idle] * (longest - len(groups))]
        for groups in shares
    ]
    return Split(batches, shares)
