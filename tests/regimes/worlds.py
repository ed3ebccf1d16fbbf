"""Random experience for regimes: own groups, and peers' answers as the substrate would hand them over."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property

import numpy as np

from harness.experience.answers import Answer, Group, Inbox, PeerAnswer, PeerScores, Prompt
from harness.experience.records import GroupValue
from harness.learning.regime import Context
from harness.verification.verdict import Verdict

Key = tuple[str, str, int]
"""(policy, prompt, index): names one answer."""
NAMES = ("p0", "p1", "p2", "p3")
MAX_TOKENS = 9


@dataclass
class World:
    """What one learner (p0) sees in one step, and the same answers by key."""

    own: list[Group]
    inbox: Inbox
    policies: tuple[str, ...]
    answers: dict[Key, Answer | PeerAnswer] = field(default_factory=dict)
    _keys: dict[int, Key] = field(default_factory=dict)

    def context(self, step: int = 1, seed: int = 0, updates: int = 1) -> Context:
        return Context("p0", self.policies, step, np.random.default_rng(seed), MAX_TOKENS, updates)

    @cached_property
    def _groups(self) -> dict[tuple[str, str], list[Key]]:
        groups: dict[tuple[str, str], list[Key]] = {}
        for key, answer in self.answers.items():
            if answer.verdict.valid:
                groups.setdefault(key[:2], []).append(key)
        return groups

    @property
    def prompts(self) -> list[str]:
        return [g.prompt.id for g in self.own]

    def group(self, policy: str, prompt: str) -> list[Key]:
        """Keys of the valid answers of one policy to one prompt, in order."""
        return self._groups.get((policy, prompt), [])

    def reward(self, key: Key) -> float:
        return 1.0 if self.answers[key].verdict.value == "right" else 0.0

    def key_of(self, tokens: np.ndarray) -> Key:
        if not self._keys:
            self._keys.update({id(a.tokens): k for k, a in self.answers.items()})
        return self._keys[id(tokens)]


def verdicts(rng: np.random.Generator, count: int, invalid: float) -> list[Verdict]:
    """Mostly wrong, mixed or right, so that groups without success and without failure both occur."""
    rate = rng.choice([0.0, 0.0, 0.4, 0.7, 1.0])
    return [
        Verdict("invalid", "timeout")
        if rng.random() < invalid
        else Verdict("right" if rng.random() < rate else "wrong")
        for _ in range(count)
    ]


@cache
def make_world(
    seed: int, policies: int = 2, prompts: int = 8, rollouts: int | tuple[int, ...] = 4, invalid: float = 0.0
) -> World:
    """Lengths 2 to 8, four answers in five finished. Successes are all that peers' verifiers claimed; some claims are false."""
    rng = np.random.default_rng(seed)
    names = NAMES[:policies]
    sizes = dict(zip(names, (rollouts,) * policies if isinstance(rollouts, int) else rollouts, strict=True))
    world = World([], Inbox(), names)
    sent: dict[str, tuple[PeerAnswer, ...]] = {}
    claimed: dict[str, tuple[PeerAnswer, ...]] = {}
    values: dict[str, tuple[GroupValue, ...]] = {}
    for prompt in (f"x{i}" for i in range(prompts)):
        own = [_own(rng, v) for v in verdicts(rng, sizes["p0"], invalid)]
        world.own.append(Group(Prompt(prompt, prompt, "1"), "p0", 3, 1, tuple(own)))
        world.answers |= {("p0", prompt, i): a for i, a in enumerate(own)}
        for name in names[1:]:
            group = [_peer(rng, name, prompt, i, v) for i, v in enumerate(verdicts(rng, sizes[name], invalid))]
            world.answers |= {(name, prompt, i): a for i, a in enumerate(group)}
            valid = [a for a in group if a.verdict.valid]
            sent[prompt] = sent.get(prompt, ()) + tuple(group)
            claims = tuple(a for a in group if a.verdict.value == "right" or a.index == 0)
            claimed[prompt] = claimed.get(prompt, ()) + claims
            if valid:
                right = sum(a.verdict.value == "right" for a in valid)
                header = {"author": name, "version": 2, "step": 1, "prompt_id": prompt}
                values[prompt] = (*values.get(prompt, ()), GroupValue(**header, count=len(valid), right=right))
    scores = {g.prompt.id: tuple(_scores(g, names[1:], seed)) for g in world.own}
    world.inbox = Inbox(sent, claimed, values, scores=scores)
    return world


def _scores(group: Group, peers: tuple[str, ...], seed: int) -> Iterator[PeerScores]:
    """Every peer's of every valid answer but one."""
    rng = np.random.default_rng([seed, int(group.prompt.id[1:])])
    starts = np.random.default_rng([seed, int(group.prompt.id[1:]), 1])
    for i, answer in list(enumerate(group.answers))[:: -1 if seed % 2 else 1]:
        for peer in peers:
            if answer.verdict.valid and (peer, i) != ("p1", 3):
                aligned = _logprobs(rng, answer.tokens.size)
                start, own_start = _logprobs(starts, answer.tokens.size), answer.logprobs * np.float32(1.25)
                yield PeerScores(
                    peer, 2, group.prompt.id, i, aligned, float(aligned.sum()), 3, start=start, own_start=own_start
                )


def _own(rng: np.random.Generator, verdict: Verdict) -> Answer:
    tokens, finished = _tokens(rng)
    return Answer(tokens, _logprobs(rng, tokens.size), "é" * tokens.size, finished, verdict)


def _peer(rng: np.random.Generator, author: str, prompt: str, index: int, verdict: Verdict) -> PeerAnswer:
    tokens, finished = _tokens(rng)
    source_tokens = int(rng.integers(1, 9))
    source = float(-rng.gamma(2.0, 0.4, source_tokens).sum())
    old = np.full(tokens.size, source / source_tokens) + rng.normal(-0.1, 0.25, tokens.size)
    return PeerAnswer(
        author,
        version=2,
        step=1,
        prompt_id=prompt,
        index=index,
        tokens=tokens,
        text="aé" * tokens.size,
        finished=finished,
        verdict=verdict,
        aligned=_logprobs(rng, tokens.size),
        source_logprob=source,
        source_tokens=source_tokens,
        receiver_old=np.minimum(old, -1e-3).astype(np.float32),
    )


def _tokens(rng: np.random.Generator) -> tuple[np.ndarray, bool]:
    return rng.integers(1, 50, int(rng.integers(2, MAX_TOKENS))).astype(np.int32), bool(rng.random() < 0.8)


def _logprobs(rng: np.random.Generator, size: int) -> np.ndarray:
    return (-rng.gamma(1.5, 0.6, size)).astype(np.float32)
