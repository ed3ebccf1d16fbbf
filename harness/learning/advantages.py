"""Group statistics and term builders that regimes share; float64, valid answers only."""

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
    "deviation_of",
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
"""Rewards, or advantages made of them."""


def rewards_of(answers: Iterable[Answer | PeerAnswer]) -> Rewards:
    """Return the rewards of valid answers, in order."""
    return np.array([a.reward for a in answers], dtype=np.float64)


def deviation_of(rewards: Rewards) -> float:
    """Compute the unbiased standard deviation; 0 for fewer than two."""
    return float(rewards.std(ddof=1)) if rewards.size > 1 else 0.0


def standardise(rewards: Rewards, pool: Rewards, scale: bool = True) -> Rewards:
    """Standardise rewards: (R - mean of the pool) / (its deviation + 1e-6) (arXiv 2402.03300); without `scale` only centred
    (arXiv 2503.20783)."""
    centred: Rewards = rewards - pool.mean()
    if not scale:
        return centred
    divisor = deviation_of(pool) + EPSILON
    return centred / divisor


def own_answers(group: Group, advantages: Sequence[float] | Rewards) -> list[TermAnswer]:
    """Return an own group's valid answers with one advantage each, to OLD. Raises ValueError where the numbers differ."""
    valid = [(name, answer) for name, answer in group.named if answer.verdict.valid]
    answers = []
    for (name, answer), advantage in zip(valid, advantages, strict=True):
        own = TermAnswer(
            group.prompt.id,
            answer.tokens,
            float(advantage),
            OLD,
            mask=answer.chosen,
            origin=name,
            sampled=answer.logprobs,
        )
        answers.append(own)
    return answers


def own_term(own: Sequence[Group], advantages: Callable[[Group], Rewards], objective: Objective) -> Term:
    """Return one term over the step's own groups that have valid answers."""
    answers: list[TermAnswer] = []
    for group in own:
        if group.valid:
            answers += own_answers(group, advantages(group))
    return Term("own", "own", objective, tuple(answers))


def grpo_advantages(group: Group) -> Rewards:
    """Compute GRPO's advantages, (R - mean_own) / (std_own + 1e-6) (arXiv 2402.03300)."""
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
    """Return a peer's answer as a term's. denominator: `answer.aligned`, `answer.receiver_old`, a float for `cross` ratios, None
    for no ratio. without_eos: leave the learner's EOS out. Of an aligned denominator only `answer.exact` tokens take part."""
    mask = None  # (T,) tokens that take part
    if denominator is not None and denominator is answer.aligned:
        mask = answer.exact
    if without_eos and answer.finished:
        mask = np.arange(answer.tokens.size) < answer.content.size
    return TermAnswer(
        answer.prompt_id,
        answer.tokens,
        float(advantage),
        denominator,
        float(weight),
        mask,
        origin=answer.id,
    )


def by_author(answers: Iterable[PeerAnswer]) -> list[list[PeerAnswer]]:
    """Return one list per author, in order of appearance."""
    authors: dict[str, list[PeerAnswer]] = {}
    for answer in answers:
        authors.setdefault(answer.author, []).append(answer)
    return list(authors.values())


# Earlier names, which packages of others may import
deviation = deviation_of
