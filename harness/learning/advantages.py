"""Group statistics and the term builders that regimes share. float64 inside; invalid answers never come here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from jaxtyping import Float32, Float64

from harness.experience.answers import Answer, Group, PeerAnswer
from harness.learning.terms import OLD, Objective, Term, TermAnswer

__all__ = [
    "EPSILON",
    "GRPO",
    "GSPO",
    "Rewards",
    "by_author",
    "deviation",
    "grpo_advantages",
    "own_answers",
    "own_term",
    "peer_answer",
    "rewards_of",
    "standardise",
]

EPSILON = 1e-6
"""Added to a deviation before it divides."""

GRPO = Objective(ratio="token", form="ppo", low=0.8, high=1.28, aggregation="token")
"""Token ratio, asymmetric clip 0.2 / 0.28 (arXiv 2402.03300 with DAPO's upper bound, as verl and OpenRLHF run it)."""
GSPO = Objective(ratio="sequence", form="ppo", low=1 - 3e-4, high=1 + 4e-4, aggregation="answer")
"""Sequence ratio, clip 3e-4 / 4e-4 (arXiv 2507.18071)."""

Rewards = Float64[np.ndarray, "n"]
"""(n,) rewards, or advantages made of them."""


def rewards_of(answers: Iterable[Answer | PeerAnswer]) -> Rewards:
    """Rewards, in order; of valid answers, for those of invalid ones are NaN."""
    return np.array([a.reward for a in answers], dtype=np.float64)


def deviation(rewards: Rewards) -> float:
    """Unbiased standard deviation (n - 1); 0 for fewer than two rewards."""
    return float(rewards.std(ddof=1)) if rewards.size > 1 else 0.0


def standardise(rewards: Rewards, pool: Rewards, scale: bool = True) -> Rewards:
    """(R - mean of the pool) / (unbiased std of the pool + 1e-6); without `scale` only centred.

    Parameters
    ----------
    rewards
        (n,) to be standardised.
    pool
        (m,) m >= 1, of which mean and deviation are taken; often `rewards` themselves.
    scale
        Divide by the deviation (GRPO, arXiv 2402.03300); without, as Dr. GRPO (arXiv 2503.20783).

    Returns
    -------
    :
        (n,) advantages.
    """
    centred = rewards - pool.mean()
    standardised: Rewards = centred / (deviation(pool) + EPSILON) if scale else centred
    return standardised


def own_answers(group: Group, advantages: Sequence[float] | Rewards) -> list[TermAnswer]:
    """The group's valid answers with their advantages; the denominators are the learner's own old log-probabilities.

    Parameters
    ----------
    group
        An own one.
    advantages
        One per valid answer, in their order.

    Raises
    ------
    ValueError
        Not as many advantages as valid answers.
    """
    return [
        TermAnswer(group.prompt.id, a.tokens, float(advantage), OLD, mask=a.chosen, sampled=a.logprobs)
        for a, advantage in zip(group.valid, advantages, strict=True)
    ]


def own_term(own: Sequence[Group], advantages: Callable[[Group], Rewards], objective: Objective) -> Term:
    """One term over all own groups; a group without valid answers gives nothing.

    Parameters
    ----------
    own
        The step's groups.
    advantages
        Those of a group's valid answers, e.g. `grpo_advantages`.
    objective
        E.g. `GRPO` or `GSPO`.

    Returns
    -------
    :
        Named `own`, of source `own`.
    """
    answers = [t for group in own if group.valid for t in own_answers(group, advantages(group))]
    return Term("own", "own", objective, tuple(answers))


def grpo_advantages(group: Group) -> Rewards:
    """(R - mean_own) / (std_own + 1e-6) over the group's valid answers (arXiv 2402.03300, eq. for outcome supervision)."""
    rewards = rewards_of(group.valid)
    return standardise(rewards, rewards)


def peer_answer(
    answer: PeerAnswer,
    advantage: float,
    denominator: Float32[np.ndarray, "T"] | float | None,
    *,
    weight: float = 1.0,
    without_eos: bool = False,
) -> TermAnswer:
    """A peer's answer as a term's.

    Parameters
    ----------
    answer
        As it stands in the inbox.
    advantage
        Idle in `nll`.
    denominator
        (T,) nats: `answer.aligned` (importance sampling from the peer) or `answer.receiver_old`; a float for `cross` ratios; None
        for no ratio.
    weight
        Factor on the answer's objective.
    without_eos
        Leave the learner's final EOS out of the ratio.
    """
    mask = None
    if without_eos and answer.finished:
        mask = np.ones(answer.tokens.size, dtype=bool)
        mask[-1] = False
    return TermAnswer(
        answer.prompt_id,
        answer.tokens,
        float(advantage),
        denominator,
        float(weight),
        mask,
        origin=(answer.author, answer.index),
    )


def by_author(answers: Iterable[PeerAnswer]) -> list[list[PeerAnswer]]:
    """One list per author, in order of appearance (suite order)."""
    found: dict[str, list[PeerAnswer]] = {}
    for answer in answers:
        found.setdefault(answer.author, []).append(answer)
    return list(found.values())
