"""Cut a step's terms into the mini-batches of its optimiser updates. Needs no torch.

Our reading: a *unit* is every answer of one (order, prompt). Units, sorted by the terms' `order` and then by prompt, are
cut into `updates` contiguous mini-batches of nearly equal numbers of answers. So own comes before peer where a regime
orders it so, a single update shares one mini-batch, and every regime makes the same number of updates a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from harness.learning.terms import Objective, Term, TermAnswer


@dataclass(frozen=True, slots=True, eq=False)
class MiniBatch:
    """What one optimiser update learns.

    update: index of the update inside the step. terms: one per term of the step, in the same order, each with the answers
    that fell into this mini-batch (possibly none). max_tokens: the constant of the `constant` aggregation.
    correction: C of the truncated importance correction of the sampler's drift, by which the objective of each token of an
    own answer is multiplied: min(exp(old - sampled), C), `old` being the denominator; 0 for none.
    """

    update: int
    terms: tuple[Term, ...]
    max_tokens: int
    correction: float = 0.0

    def normaliser(self, objective: Objective) -> int:
        """Divisor shared by all terms of the mini-batch with this objective's aggregation, at least 1.

        Own and peer answers are counted together, and so are answers of weight or advantage 0. KL terms are counted among
        themselves: they regularise answers that another term already counts.
        """
        if objective.aggregation == "prompt":
            return max(1, len({answer.prompt_id for term in self.terms for answer in term.answers}))
        alike = [
            answer
            for term in self.terms
            if term.objective.aggregation == objective.aggregation
            and (term.objective.form == "kl") == (objective.form == "kl")
            for answer in term.answers
        ]
        match objective.aggregation:
            case "token":
                return max(1, sum(answer.counted for answer in alike))
            case "answer":
                return max(1, len(alike))
            case "constant":
                return max(1, len(alike) * self.max_tokens)

    def live(self) -> Iterator[tuple[int, TermAnswer]]:
        """(index of the term, answer) of every answer that can have a gradient; the others need no forward pass."""
        for index, term in enumerate(self.terms):
            for answer in term.answers:
                if can_move(term, answer):
                    yield index, answer


def can_move(term: Term, answer: TermAnswer) -> bool:
    """False where the gradient is zero whatever the weights are: weight 0, no tokens, or advantage 0 in a ratio's form."""
    pushes = answer.advantage != 0.0 or term.objective.form in ("nll", "kl")
    return pushes and term.weight * answer.weight != 0.0 and answer.counted > 0


def minibatches(terms: Sequence[Term], updates: int, max_tokens: int) -> list[MiniBatch]:
    """Exactly `updates` mini-batches; some hold no answer when there are fewer units than updates.

    Prompts keep the order in which the terms first name them.
    """
    if updates < 1:
        raise ValueError(f"updates must be at least 1, not {updates}")
    rank: dict[str, int] = {}
    sizes: dict[tuple[int, int], int] = {}
    for term in terms:
        for answer in term.answers:
            unit = (term.order, rank.setdefault(answer.prompt_id, len(rank)))
            sizes[unit] = sizes.get(unit, 0) + 1
    units = sorted(sizes)
    place = dict(zip(units, _cut([sizes[unit] for unit in units], updates), strict=True))
    return [
        MiniBatch(
            update,
            tuple(
                replace(t, answers=tuple(a for a in t.answers if place[t.order, rank[a.prompt_id]] == update))
                for t in terms
            ),
            max_tokens,
        )
        for update in range(updates)
    ]


def _cut(sizes: Sequence[int], parts: int) -> list[int]:
    """Part of each unit: contiguous, each edge as near as can be to an equal share, no part empty unless units lack."""
    ends = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    edges = [0]
    for part in range(1, parts):
        lowest = min(edges[-1] + 1, len(sizes))
        highest = max(lowest, len(sizes) - (parts - part))
        wanted = ends[-1] * part / parts
        edges.append(lowest + int(np.argmin(np.abs(ends[lowest : highest + 1] - wanted))))
    parts_of: list[int] = (np.searchsorted(edges, np.arange(len(sizes)), side="right") - 1).tolist()
    return parts_of
