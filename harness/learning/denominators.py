"""Which log-probabilities the ratios of own answers are taken to: those of the sampler, or of the trainer at the step's start.

Sampler and trainer are one policy, but may be two programs in half precision, whose log-probabilities differ by more than
GSPO's window is wide. The published algorithms take the ratio between two states of the trained policy, and their reference
implementations (verl, OpenRLHF) score own answers again with the trainer before the first update. A step's first mini-batch
needs no such pass: its forward pass sees the weights of the step's start, so that its denominators are its own
log-probabilities without gradient, and its ratios exactly 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from jaxtyping import Float32, Int32

from harness.experience.answers import Prompt
from harness.learning.minibatches import MiniBatch, can_move
from harness.learning.terms import OLD, TermAnswer

__all__ = ["OldLogprobs", "Score", "from_sampler", "settle"]

OldLogprobs = Literal["sampler", "trainer"]
"""Whose log-probabilities OLD stands for."""
Score = Callable[[Sequence[Prompt], Sequence[Int32[np.ndarray, "T"]]], Sequence[Float32[np.ndarray, "T"]]]
"""The trainer's log-probabilities of answers to prompts under its present weights."""


def settle(
    batches: Sequence[MiniBatch],
    prompts: Sequence[Prompt],
    score: Score,
    old: OldLogprobs = "trainer",
    correction: float = 0.0,
) -> list[MiniBatch]:
    """The mini-batches with every OLD denominator filled in; call it before the step's first update.

    Parameters
    ----------
    batches
        Of one step.
    prompts
        All that an answer names.
    score
        Asked at most once, for the answers of later mini-batches that can have a gradient.
    old
        Whose log-probabilities OLD stands for.
    correction
        C of the truncated importance correction of the sampler's drift (`learning.minibatches.MiniBatch`); 0 is none.

    Raises
    ------
    ValueError
        An answer whose denominator is OLD does not say what it was sampled with.
    """
    waiting = [
        a for b in batches if b.update for t in b.terms for a in t.answers if a.denominator is OLD and can_move(t, a)
    ]
    found = {}
    if waiting and old == "trainer":
        by_id = {p.id: p for p in prompts}
        scores = score([by_id[a.prompt_id] for a in waiting], [a.tokens for a in waiting])
        found = dict(zip(map(id, waiting), scores, strict=True))

    def settled(answer: TermAnswer) -> TermAnswer:
        if answer.denominator is not OLD:
            return answer
        if answer.sampled is None:
            raise ValueError(f"an answer to {answer.prompt_id!r} has OLD as its denominator, but no `sampled`")
        return replace(answer, denominator=answer.sampled if old == "sampler" else found.get(id(answer)))

    return [
        replace(
            b, terms=tuple(replace(t, answers=tuple(map(settled, t.answers))) for t in b.terms), correction=correction
        )
        for b in batches
    ]


def from_sampler(batches: Sequence[MiniBatch]) -> list[MiniBatch]:
    """`settle` for `old_logprobs: sampler`, which needs no trainer."""
    return settle(batches, (), lambda prompts, answers: [], "sampler")
