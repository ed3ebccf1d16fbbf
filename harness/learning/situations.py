"""Experience of every kind that a regime may meet, for the contract tests: from the ordinary to the empty."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from harness.experience.answers import Answer, Group, Inbox, PeerAnswer, PeerValue, Prompt
from harness.experience.records import SHIPPED, GroupValue, Record, Rollout, Success, TextRollout
from harness.learning.regime import Context, Need, Regime
from harness.verification.verdict import Verdict

__all__ = ["MAX_TOKENS", "Situation", "situations"]

MAX_TOKENS = 8
"""Of the longest answer."""


@dataclass(frozen=True, slots=True)
class Situation:
    """One learner's step: its groups and what came in.

    Attributes
    ----------
    name
        What is particular about it.
    own
        The learner's groups.
    inbox
        What its peers sent.
    policies
        The learner first.
    """

    name: str
    own: tuple[Group, ...]
    inbox: Inbox
    policies: tuple[str, ...]

    def context(self, seed: int = 0) -> Context:
        """What the learner may know besides, with a generator of this seed."""
        return Context(self.policies[0], self.policies, 1, np.random.default_rng(seed), MAX_TOKENS, updates=2)


def situations(regime: Regime) -> list[Situation]:
    """Experience of the kinds that `regime` shares and needs, from the ordinary to the empty."""
    several = ("ada", "bob", "cyd")
    silent = _situation("silent peers", regime, several)
    return [
        _situation("a peer", regime, several[:2]),
        _situation("three policies", regime, several),
        _situation("unequal rollouts", regime, several, rollouts=(1, 5, 3)),
        _situation("some invalid", regime, several, invalid=0.4),
        _situation("only invalid answers", regime, several, invalid=1.0),
        Situation("silent peers", silent.own, Inbox(), several),
        _situation("zero peers", regime, several[:1]),
        Situation("no prompts", (), Inbox(), several),
    ]


def _situation(
    name: str, regime: Regime, policies: tuple[str, ...], rollouts: tuple[int, ...] = (4, 4, 4), invalid: float = 0.0
) -> Situation:
    rng = np.random.default_rng(7)
    tag = iter(range(1, 1_000_000))
    own: list[Group] = []
    sent: dict[str, tuple[PeerAnswer, ...]] = {}
    successes: dict[str, tuple[PeerAnswer, ...]] = {}
    values: dict[str, tuple[PeerValue, ...]] = {}
    declared: dict[str, tuple[Record, ...]] = {}
    for p in range(12):
        prompt = Prompt(f"x{p}", f"question {p}", "1")
        mine = _verdicts(rng, rollouts[0], invalid)
        answers = [
            Answer(*_tokens(rng, tag), text="" if i == 3 else "aé", finished=True, verdict=v)
            for i, v in enumerate(mine)
        ]
        own.append(Group(prompt, policies[0], 1, 1, tuple(answers)))
        for author, count in zip(policies[1:], rollouts[1:], strict=False):
            group = [
                _peer(rng, tag, regime, author, prompt.id, i, v) for i, v in enumerate(_verdicts(rng, count, invalid))
            ]
            right = tuple(a for a in group if a.verdict.value == "right")
            valid = sum(a.verdict.valid for a in group)
            sent[prompt.id] = (*sent.get(prompt.id, ()), *group)
            successes[prompt.id] = (*successes.get(prompt.id, ()), *right)
            if valid:
                values[prompt.id] = (*values.get(prompt.id, ()), PeerValue(author, prompt.id, valid, len(right)))
            if not regime.shares <= SHIPPED:
                theirs = Group(prompt, author, 1, 1, tuple(map(_as_its_own, group)))
                records = regime.publish([theirs], lambda a: [1] * (a.tokens.size - a.finished))
                added = tuple(r for r in records if type(r) not in SHIPPED)
                declared[prompt.id] = (*declared.get(prompt.id, ()), *added)
    shares = regime.shares
    inbox = Inbox(
        sent if shares & {Rollout, TextRollout} else {},
        successes if Success in shares else {},
        values if GroupValue in shares else {},
        declared,
    )
    return Situation(name, tuple(own), inbox, policies)


def _as_its_own(answer: PeerAnswer) -> Answer:
    return Answer(
        answer.tokens, np.full(answer.tokens.size, -1.0, np.float32), answer.text, answer.finished, answer.verdict
    )


def _verdicts(rng: np.random.Generator, count: int, invalid: float) -> list[Verdict]:
    rate = rng.choice([0.0, 0.5, 1.0])
    return [
        Verdict("invalid", "timeout")
        if rng.random() < invalid
        else Verdict("right" if rng.random() < rate else "wrong")
        for _ in range(count)
    ]


def _tokens(rng: np.random.Generator, tag: Iterator[int]) -> tuple[np.ndarray, np.ndarray]:
    """Tokens that no other answer has, and log-probabilities."""
    size = int(rng.integers(2, MAX_TOKENS + 1))
    return np.array([next(tag)] * (size - 1) + [0], dtype=np.int32), -rng.gamma(1.5, 0.5, size).astype(np.float32)


def _peer(
    rng: np.random.Generator, tag: Iterator[int], regime: Regime, author: str, prompt: str, index: int, verdict: Verdict
) -> PeerAnswer:
    tokens, logprobs = _tokens(rng, tag)
    raw = Rollout in regime.shares
    return PeerAnswer(
        author,
        version=1,
        step=1,
        prompt_id=prompt,
        index=index,
        tokens=tokens,
        text="aé",
        finished=True,
        verdict=verdict,
        aligned=logprobs if raw else None,
        source_logprob=float(logprobs[:-1].sum()) if raw else float("nan"),
        source_tokens=int(rng.integers(1, 7)) if raw else 0,
        receiver_old=-rng.gamma(1.5, 0.5, tokens.size).astype(np.float32)
        if Need.RECEIVER_OLD in regime.needs
        else None,
    )
