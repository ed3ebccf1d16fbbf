"""An exact softmax bandit (ours): one prompt, K answers of one token, n policies, G answers each. Every joint draw goes through
a regime's own `learn` and the one surrogate loss, weighted by its probability."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float64

from harness.experience.answers import Answer, Group, Inbox, PeerAnswer, PeerScores, Prompt
from harness.experience.records import GroupValue
from harness.learning.minibatches import Packed, from_sampler, minibatches, pack
from harness.learning.regime import Context, Need, Regime
from harness.learning.surrogate import surrogate
from harness.learning.terms import Term, scheduled
from harness.verification.verdict import Verdict

T = TypeVar("T")
PROMPT = Prompt("x", "x", "1")
HINTED = Prompt("x/hinted", "x", "1", hint=("p1", "x", 0))
MAX_OUTCOMES = 1_000_000
Vector = Float64[np.ndarray, "K"]


Draws = tuple[tuple[int, ...], ...]  # the answers that each policy drew, the learner's first


@dataclass(frozen=True, eq=False)
class Bandit:
    """logits: one row per policy, the learner first. rewards: 0 or 1. rollouts: G. hint: what a hint adds to the learner's logits
    in a second round; by default nothing."""

    logits: Float64[np.ndarray, "n K"]
    rewards: Vector
    rollouts: int
    hint: Vector | None = None

    def __post_init__(self) -> None:
        n, k = self.logits.shape
        if self.hint is not None and self.hint.shape != (k,):
            raise ValueError("a hint adds a number to the logit of each answer")
        if self.rewards.shape != (k,) or not np.isin(self.rewards, (0.0, 1.0)).all() or self.rollouts < 1:
            raise ValueError("a bandit needs a reward of 0 or 1 per answer, and at least one rollout")
        if k ** (n * self.rollouts) > MAX_OUTCOMES:
            raise ValueError(f"{k}^{n * self.rollouts} outcomes are more than {MAX_OUTCOMES:,}")

    @cached_property
    def policies(self) -> Float64[np.ndarray, "n K"]:
        """Probabilities of the answers."""
        return _softmax(self.logits)

    @cached_property
    def hinted(self) -> Vector:
        """The learner's, with a hint."""
        return np.asarray(_softmax(self.logits[:1] + (0.0 if self.hint is None else self.hint))[0])

    @property
    def success(self) -> Float64[np.ndarray, "n"]:
        """p_k = E over pi_k of R."""
        return np.asarray(self.policies @ self.rewards)

    def policy_gradient(self) -> Vector:
        """Gradient of the learner's expected reward in its logits: pi (R - p)."""
        pi = self.policies[0]
        return np.asarray(pi * (self.rewards - pi @ self.rewards))

    def chi_squared(self, peer: int = 1) -> float:
        """chi^2(pi_learner || pi_peer) = sum pi_k^2 / pi_j - 1."""
        pi = self.policies
        return float((pi[0] ** 2 / pi[peer]).sum() - 1)

    @cached_property
    def outcomes(self) -> tuple[tuple[float, Draws], ...]:
        """(probability, draws) of every joint draw."""
        groups = list(itertools.product(range(self.logits.shape[1]), repeat=self.rollouts))
        weights = [np.prod(pi[np.array(groups)], axis=1).tolist() for pi in self.policies]
        return tuple(
            (math.prod(w[c] for w, c in zip(weights, choice, strict=True)), tuple(groups[c] for c in choice))
            for choice in itertools.product(range(len(groups)), repeat=len(weights))
        )


@dataclass(frozen=True, slots=True)
class JointDraw:
    """One joint draw and branch of the regime's choices: its terms, the ascent direction in the learner's logits, the ratios of
    peer answers."""

    probability: float
    draws: Draws
    terms: tuple[Term, ...]
    gradient: Vector
    weights: tuple[float, ...]


def enumerate_outcomes(bandit: Bandit, regime: Regime, updates: int = 1, share: float = 1.0) -> list[JointDraw]:
    """Every outcome through a fresh instance, at a run's first step; the step's updates at the weights of its start. Draws that
    bring the learner the same are learnt once, and all go through the surrogate together. share: of each peer's answers that
    arrive (`Replay.share`)."""
    delivery = Delivery(bandit, regime, share)
    place: dict[Hashable, int] = {}
    learnt: list[list[tuple[float, tuple[Term, ...]]]] = []
    learnt_as = []
    for _, draws in bandit.outcomes:
        own, inbox, same = delivery.experience(draws)
        learnt_as.append(place.setdefault(same, len(place)))
        if len(place) > len(learnt):
            learnt.append(list(_learn(delivery, own, inbox, updates)))
    gradients, weights = _gradients(bandit, [terms for group in learnt for _, terms in group], updates)
    steps = iter(zip(gradients, weights, strict=True))
    branches = [[(share, terms, *next(steps)) for share, terms in group] for group in learnt]
    return [
        JointDraw(p * share, draws, terms, gradient, weights)
        for (p, draws), i in zip(bandit.outcomes, learnt_as, strict=True)
        for share, terms, gradient, weights in branches[i]
    ]


def _gradients(
    bandit: Bandit, learnt: Sequence[tuple[Term, ...]], updates: int
) -> tuple[Float64[np.ndarray, "S K"], list[tuple[float, ...]]]:
    """Ascent direction of each of S steps, and the ratios of its peer answers."""
    packs: list[Packed] = []
    hinted: list[bool] = []
    owner: list[int] = []
    chosen: list[int] = []
    peer: list[bool] = []
    for i, terms in enumerate(learnt):
        for batch in from_sampler(minibatches(terms, updates, 1)):
            live = list(batch.live())
            if live:
                packs.append(pack(batch, live))
                owner += [i] * len(live)
                chosen += [int(a.tokens[0]) for _, a in live]
                hinted += [a.prompt_id == HINTED.id for _, a in live]
                peer += [terms[t].source == "peer" for t, _ in live]
    gradients = np.zeros((len(learnt), bandit.logits.shape[1]))
    weights: list[list[float]] = [[] for _ in learnt]
    if packs:
        pi = np.where(np.array(hinted)[:, None], bandit.hinted, bandit.policies[0])
        logp = torch.tensor(np.log(pi[np.arange(len(pi)), chosen]), requires_grad=True)
        joined = Packed(*(np.concatenate([getattr(p, f.name) for p in packs]) for f in fields(Packed)))
        loss, statistics = surrogate(logp, joined)
        slope = -torch.autograd.grad(loss, logp)[0].numpy()
        np.add.at(gradients, (owner, chosen), slope)
        np.add.at(gradients, owner, -slope[:, None] * pi)
        for i, is_peer, count, ratio in zip(owner, peer, statistics.ratio_count, statistics.ratio_sum, strict=True):
            if is_peer and count:
                weights[i].append(float(ratio))
    return gradients, [tuple(w) for w in weights]


def mean_gradient(outcomes: Sequence[JointDraw]) -> Vector:
    """E[g]."""
    return np.asarray(sum(o.probability * o.gradient for o in outcomes))


def gradient_variance(outcomes: Sequence[JointDraw]) -> float:
    """Trace of Cov[g]."""
    mean = mean_gradient(outcomes)
    return float(sum(o.probability * ((o.gradient - mean) ** 2).sum() for o in outcomes))


def expectation(outcomes: Sequence[JointDraw], of: Callable[[JointDraw], float]) -> float:
    """E of any number that an outcome has."""
    return float(sum(o.probability * of(o) for o in outcomes))


class Delivery:
    """What the substrate hands to the learner, by what the regime shares and needs."""

    def __init__(self, bandit: Bandit, regime: Regime, share: float = 1.0) -> None:
        self.regime = regime
        self._served = int(share * bandit.rollouts + 0.5)  # alike in distribution: the first ones stand for any
        n, k = bandit.logits.shape
        self.names = tuple(f"p{j}" for j in range(n))
        logs = np.log(bandit.policies)
        verdicts = [Verdict("right" if r > 0 else "wrong") for r in bandit.rewards]
        tokens = [np.array([a], dtype=np.int32) for a in range(k)]
        self._own = [Answer(tokens[a], logs[0][[a]], str(a), False, verdicts[a]) for a in range(k)]
        self._boxes = {kind.inbox for kind in regime.shares}
        self._scores = logs[1:] if Need.SCORES in regime.needs else logs[:0]
        again = [replace(a, logprobs=np.log(bandit.hinted)[[i]]) for i, a in enumerate(self._own)]
        self.second: list[tuple[float, Group]] = []
        """(probability, what the learner says) of every draw of a second round."""
        if regime.hint_tokens:
            for drawn in itertools.product(range(k), repeat=bandit.rollouts):
                group = Group(HINTED, self.names[0], 0, 1, tuple(again[a] for a in drawn))
                self.second.append((float(np.prod(bandit.hinted[list(drawn)])), group))
        self._peers = {
            (j, index, a): PeerAnswer(
                author=self.names[j],
                version=0,
                step=1,
                prompt_id=PROMPT.id,
                index=index,
                tokens=tokens[a],
                text=str(a),
                finished=False,
                verdict=verdicts[a],
                aligned=logs[j][[a]],
                source_logprob=float(logs[j][a]),
                source_tokens=1,
                receiver_old=logs[0][[a]] if Need.RECEIVER_OLD in regime.needs else None,
            )
            for j in range(1, n)
            for index in range(bandit.rollouts)
            for a in range(k)
        }

    def experience(self, draws: Draws) -> tuple[Group, Inbox, Hashable]:
        """The learner's group and inbox, and a key that is equal for equal experience."""
        own = Group(PROMPT, self.names[0], 0, 1, tuple(self._own[a] for a in draws[0]))
        served = [d[: self._served] for d in draws[1:] if self._served]
        groups = [[self._peers[j, i, a] for i, a in enumerate(d)] for j, d in enumerate(served, start=1)]
        sent = tuple(answer for group in groups for answer in group)
        header = {"version": 0, "step": 1, "prompt_id": PROMPT.id}
        values = (
            GroupValue(author=g[0].author, count=len(g), right=sum(a.reward > 0 for a in g), **header)  # type: ignore[arg-type]
            for g in groups
        )
        every = {"answers": sent, "successes": tuple(a for a in sent if a.reward > 0), "values": tuple(values)}
        given = {box: {PROMPT.id: found} for box, found in every.items() if found and box in self._boxes}
        same = tuple((box, tuple(id(a) if box != "values" else a for a in given[box][PROMPT.id])) for box in given)
        scores = tuple(
            PeerScores(name, 0, PROMPT.id, i, logs[[a]], float(logs[a]), 1)
            for name, logs in zip(self.names[1:], self._scores, strict=False)
            for i, a in enumerate(draws[0])
        )
        inbox = Inbox(**given, scores={PROMPT.id: scores} if scores else {})  # type: ignore[arg-type]
        return own, inbox, (draws[0], same)


def _learn(delivery: Delivery, own: Group, inbox: Inbox, updates: int) -> Iterator[tuple[float, tuple[Term, ...]]]:
    def run(rng: np.random.Generator) -> tuple[float, tuple[Term, ...]]:
        regime, groups, factor = type(delivery.regime)(delivery.regime.options), [own], 1.0
        context = Context(delivery.names[0], delivery.names, 1, rng, max_tokens=1, updates=updates)
        if regime.hints(groups, inbox, context):
            probability, group = delivery.second[int(rng.integers(len(delivery.second)))]
            groups, factor = [own, group], probability * len(delivery.second)
        return factor, tuple(scheduled(regime.learn(groups, inbox, context), 1, 1))

    return ((share * factor, terms) for share, (factor, terms) in every_choice(run))


def _softmax(logits: Float64[np.ndarray, "n K"]) -> Float64[np.ndarray, "n K"]:
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))


_UNTOUCHED = np.random.PCG64(
    0
)  # gives no bits to any choice that is enumerated; when it has given some, a draw was not
_START = _UNTOUCHED.state


class _Choices(np.random.Generator):
    """Stands for `Context.rng`: takes the branch that `path` names."""

    def __init__(self, path: tuple[int, ...]) -> None:
        super().__init__(_UNTOUCHED)
        self.path, self.sizes = list(path), list[int]()

    def integers(self, low: Any, high: Any = None, *args: Any, **kwargs: Any) -> Any:
        """One whole number of [low, high), or of [0, low)."""
        if args or kwargs:
            raise ValueError("only single whole numbers can be enumerated")
        low, high = (0, low) if high is None else (low, high)
        return low + self._branch(high - low)

    def choice(self, a: Any, size: Any = None, replace: bool = True, *args: Any, **kwargs: Any) -> Any:
        """`size` of a numbers or items."""
        if args or kwargs or (replace and size is not None):
            raise ValueError("only uniform choices without replacement can be enumerated")
        items = np.arange(a) if np.ndim(a) == 0 else np.asarray(a)
        if size is None:
            return items[self._branch(len(items))]
        branch = self._branch(math.perm(len(items), size))
        return items[list(next(itertools.islice(itertools.permutations(range(len(items)), size), branch, None)))]

    def _branch(self, size: int) -> int:
        place = len(self.sizes)
        self.sizes.append(size)
        if place == len(self.path):
            self.path.append(0)
        return self.path[place]


def every_choice(run: Callable[[np.random.Generator], T]) -> Iterator[tuple[float, T]]:
    """(probability, result) of `run` for each combination of its choices. Raises ValueError where a draw cannot be
    enumerated."""
    paths: list[tuple[int, ...]] = [()]
    while paths:
        path = paths.pop()
        choices = _Choices(path)
        result = run(choices)
        if _UNTOUCHED.state != _START:
            _UNTOUCHED.state = _START
            raise ValueError("only uniform choices by `integers` and `choice` can be enumerated")
        for place in range(len(path), len(choices.sizes)):
            paths += [(*choices.path[:place], branch) for branch in range(1, choices.sizes[place])]
        yield 1 / math.prod(choices.sizes), result
