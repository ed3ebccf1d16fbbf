"""Answers as OpenRLHF's `Experience`, cut into micro-batches that every trainer rank runs in step.

Ranks take part in collective operations at every forward and backward pass, so all must run equally many: the shorter
lists are filled up with idle micro-batches, whose loss is zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Int32

from harness.engines.openrlhf import flash

flash.stand_in()

from openrlhf.trainer.ppo_utils.experience import Experience  # noqa: E402

from harness.learning.minibatches import (  # noqa: E402
    MiniBatch,
    Packed,
    pack,
)


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
    """`experience` has sequences, attention_mask (B, L) and action_mask (B, L - 1); `packed` is None for an idle one
    and where nothing is learnt."""

    experience: Experience
    packed: Packed | None = None


@dataclass(frozen=True, slots=True)
class Split:
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


def idle() -> MicroBatch:
    """Keeps a rank in step with the others."""
    return MicroBatch(experience([AnswerRow([0], np.zeros(1, np.int32), np.zeros(1, bool))]))


def scoring_split(rows: Sequence[AnswerRow], ranks: int, budget: int) -> Split:
    """Micro-batches without anything to learn."""

    def make(places: list[int]) -> MicroBatch:
        return MicroBatch(experience([rows[i] for i in places]))

    return _split(rows, range(len(rows)), ranks, budget, make)


def learning_splits(batch: MiniBatch, rows: Sequence[AnswerRow], ranks: int, budget: int) -> tuple[Split, Split]:
    """Micro-batches of a mini-batch's own and of its peer answers; `rows[i]` is the i-th answer of `batch.live()`.

    Own ones are learnt first, whether gradients are measured or not, so that measuring does not change the rounding.
    """
    live = list(batch.live())

    def make(places: list[int]) -> MicroBatch:
        return MicroBatch(experience([rows[i] for i in places]), pack(batch, [live[i] for i in places]))

    own, peer = (
        [i for i, (term, _) in enumerate(live) if batch.terms[term].source == source] for source in ("own", "peer")
    )
    return _split(rows, own, ranks, budget, make, fewest=0 if peer else 1), _split(rows, peer, ranks, budget, make)


def plan(splits: tuple[Split, Split], rank: int) -> tuple[list[MicroBatch], list[MicroBatch]]:
    """One rank's own and peer micro-batches."""
    return splits[0].batches[rank], splits[1].batches[rank]


def _split(
    rows: Sequence[AnswerRow],
    chosen: Sequence[int],
    ranks: int,
    budget: int,
    make: Callable[[list[int]], MicroBatch],
    fewest: int = 0,
) -> Split:
    shares: list[list[int]] = [[] for _ in range(ranks)]
    for turn, index in enumerate(sorted(chosen, key=lambda i: -rows[i].length)):
        # Back and forth over the ranks, so that each gets long and short rows alike.
        place = turn % (2 * ranks)
        shares[min(place, 2 * ranks - 1 - place)].append(index)
    places = [_cut(share, rows, budget) for share in shares]
    longest = max(fewest, *map(len, places))
    batches = [[*map(make, groups), *(idle() for _ in range(longest - len(groups)))] for groups in places]
    return Split(batches, places)


def _cut(share: Sequence[int], rows: Sequence[AnswerRow], budget: int) -> list[list[int]]:
    """Groups, longest row first, whose padded size stays within the budget (a longer single row goes alone)."""
    groups: list[list[int]] = []
    for index in share:
        if groups and rows[groups[-1][0]].length * (len(groups[-1]) + 1) <= budget:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups
