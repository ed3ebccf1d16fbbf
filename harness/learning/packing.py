"""Answers of a mini-batch as flat arrays, ready for the surrogate loss. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from jaxtyping import Bool, Float64, Int64

from harness.learning.minibatches import MiniBatch
from harness.learning.terms import Denominator, TermAnswer


class FormCode(IntEnum):
    """`Objective.form` as a number per answer."""

    PPO = 0
    HARD = 1
    NLL = 2
    KL = 3
    TRUNCATED = 4


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """A answers with N tokens taking part, answer after answer.

    term: index of each answer's term. counts: tokens taking part, at least 1. weight: what the objective of each of the
    answer's tokens is multiplied by: weights, the mini-batch's normaliser, and 1/counts where the aggregation takes the
    token mean. log_scale: factor on the log-ratio. pooled: one ratio per answer (sequence, cross) instead of one per token.
    on_policy: the denominator is the current policy without gradient. denominator: per token; a cross ratio's source mean
    is repeated on every token. sampled: per token, what an own answer was sampled with; NaN for others. first: whether the
    mini-batch is the step's first, whose forward pass sees the weights of the step's start. correction: `MiniBatch.correction`.
    """

    term: Int64[np.ndarray, "A"]
    counts: Int64[np.ndarray, "A"]
    weight: Float64[np.ndarray, "A"]
    advantage: Float64[np.ndarray, "A"]
    form: Int64[np.ndarray, "A"]
    log_scale: Float64[np.ndarray, "A"]
    pooled: Bool[np.ndarray, "A"]
    on_policy: Bool[np.ndarray, "A"]
    low: Float64[np.ndarray, "A"]
    high: Float64[np.ndarray, "A"]
    exponent: Float64[np.ndarray, "A"]
    log_bound: Float64[np.ndarray, "A"]
    first: Bool[np.ndarray, "A"]
    correction: Float64[np.ndarray, "A"]
    denominator: Float64[np.ndarray, "N"]
    sampled: Float64[np.ndarray, "N"]


def pack(batch: MiniBatch, answers: Sequence[tuple[int, TermAnswer]]) -> Packed:
    """Some or all of a mini-batch's answers. The loss is linear in answers, so any split of `batch.live()` will do.

    Raises
    ------
    ValueError
        An answer without tokens, log-probabilities of another length than the tokens, or no denominator where the objective
        needs one or it is not settled.
    """
    objectives = [batch.terms[index].objective for index, _ in answers]
    normalisers = {index: batch.normaliser(batch.terms[index].objective) for index in {index for index, _ in answers}}
    counts = np.array([answer.counted for _, answer in answers], dtype=np.int64)
    if not counts.all():
        raise ValueError("an answer without tokens cannot be packed")
    weights = np.array([batch.terms[i].weight * answer.weight / normalisers[i] for i, answer in answers])
    per_answer = np.array([o.aggregation in ("answer", "prompt") for o in objectives], dtype=bool)
    bounds = np.array([o.bounds(batch.update) for o in objectives]).reshape(-1, 2)
    flat = [_denominator(batch, index, answer) for index, answer in answers]
    sampled = [_per_token(batch, index, answer, answer.sampled, np.nan) for index, answer in answers]
    return Packed(
        term=np.array([index for index, _ in answers], dtype=np.int64),
        counts=counts,
        weight=weights / np.where(per_answer, counts, 1),
        advantage=np.array([answer.advantage for _, answer in answers], dtype=np.float64),
        form=np.array([FormCode[o.form.upper()] for o in objectives], dtype=np.int64),
        log_scale=np.array([answer.scale for _, answer in answers], dtype=np.float64),
        pooled=np.array(
            [o.ratio != "token" and o.form in ("ppo", "hard", "truncated") for o in objectives], dtype=bool
        ),
        on_policy=np.array([answer.denominator is None for _, answer in answers], dtype=bool),
        low=bounds[:, 0],
        high=bounds[:, 1],
        exponent=np.array([o.exponent if o.form == "hard" else 0.0 for o in objectives], dtype=np.float64),
        log_bound=np.array([o.log_bound for o in objectives], dtype=np.float64),
        first=np.full(len(answers), batch.update == 0),
        correction=np.full(len(answers), batch.correction),
        denominator=np.concatenate([*flat, np.zeros(0)]),
        sampled=np.concatenate([*sampled, np.zeros(0)]),
    )


def _denominator(batch: MiniBatch, index: int, answer: TermAnswer) -> Float64[np.ndarray, "T"]:
    term = batch.terms[index]
    if answer.denominator is None:
        if term.objective.form == "kl" or (term.objective.ratio == "cross" and term.objective.form != "nll"):
            raise ValueError(f"term {term.name!r}: an answer to {answer.prompt_id!r} lacks its denominator")
    elif isinstance(answer.denominator, Denominator):
        raise ValueError(f"term {term.name!r}: denominators are not settled ({answer.prompt_id!r})")
    return _per_token(batch, index, answer, answer.denominator, 0.0)


def _per_token(
    batch: MiniBatch, index: int, answer: TermAnswer, given: np.ndarray | float | None, absent: float
) -> Float64[np.ndarray, "T"]:
    """Of the tokens that take part; one number stands for all of them."""
    term = batch.terms[index]
    if given is None or np.ndim(given) == 0:
        return np.full(answer.counted, absent if given is None else float(given))
    values = np.asarray(given, dtype=np.float64)
    if values.shape != answer.tokens.shape:
        raise ValueError(
            f"term {term.name!r}: {values.size} log-probabilities for {answer.tokens.size} tokens ({answer.prompt_id!r})"
        )
    return values if answer.mask is None else values[answer.mask]
