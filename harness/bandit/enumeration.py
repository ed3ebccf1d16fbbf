"""An exact softmax bandit (ours): all that can happen to a regime in one step, by enumeration.

One prompt, K answers of one token, n policies, G answers each. Every joint draw goes through a regime's `learn` and the
surrogate loss, weighted by its probability."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Float64

from harness.experience.answers import Answer, AnswerId, Group, Inbox, PeerAnswer, PeerScores, Prompt
from harness.experience.records import AnswerRecord, Draft, Record
from harness.learning.minibatches import Packed, cut_into_minibatches, from_sampler, pack_answers
from harness.learning.regime import Context, Need, Regime
from harness.learning.surrogate import AnswerStatistics, surrogate_loss
from harness.learning.terms import Term, TermAnswer, with_step_weights
from harness.verification.verdict import Verdict

T = TypeVar("T")
PROMPT = Prompt("x", "x", "1")
HINTED = Prompt("x/hinted", "x", "1", hint=AnswerId("p1", "x", 0))
MAX_OUTCOMES = 1_000_000
Vector = Float64[np.ndarray, "K"]


Draws = tuple[tuple[int, ...], ...]  # by policy, the learner first


@dataclass(frozen=True, eq=False)
class Bandit:
    """logits: one row per policy, the learner first. rewards: 0 or 1. rollouts: G. hint: added to the learner's logits in a
    second round."""

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
        return _softmax(self.logits)

    @cached_property
    def hinted(self) -> Vector:
        return np.asarray(_softmax(self.logits[:1] + (0.0 if self.hint is None else self.hint))[0])

    @property
    def success(self) -> Float64[np.ndarray, "n"]:
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
        """Every joint draw of all policies' groups, with its probability."""
        groups = list(itertools.product(range(self.logits.shape[1]), repeat=self.rollouts))
        weights = [np.prod(pi[np.array(groups)], axis=1).tolist() for pi in self.policies]
        outcomes = []
        for choice in itertools.product(range(len(groups)), repeat=len(weights)):
            probability = math.prod(own[drawn] for own, drawn in zip(weights, choice, strict=True))
            outcomes.append((probability, tuple(groups[drawn] for drawn in choice)))
        return tuple(outcomes)


@dataclass(frozen=True, slots=True)
class JointDraw:
    """One joint draw and branch of choices. gradient: ascent direction in the learner's logits. weights: ratios of peer
    answers. raised: answers that a term from peers makes likelier."""

    probability: float
    draws: Draws
    terms: tuple[Term, ...]
    gradient: Vector
    weights: tuple[float, ...]
    raised: frozenset[int]


def enumerate_outcomes(bandit: Bandit, regime: Regime, updates: int = 1, share: float = 1.0) -> list[JointDraw]:
    """Every outcome through a fresh instance, at a run's first step; all updates at the weights of its start. share: of each
    peer's answers that arrive (`Replay.share`)."""
    delivery = BanditDelivery(bandit, regime, share)
    learnt: dict[Hashable, list[tuple[float, tuple[Term, ...]]]] = {}
    learnt_as = []
    for _, draws in bandit.outcomes:
        own, inbox, same = delivery.experience(draws)
        learnt_as.append(same)
        if same not in learnt:
            learnt[same] = list(_enumerate_terms(delivery, own, inbox, updates))
    every_terms = [terms for group in learnt.values() for _, terms in group]
    steps = _enumerate_gradients(bandit, every_terms, updates)
    branches = {same: [(share, terms, *next(steps)) for share, terms in group] for same, group in learnt.items()}
    joint_draws = []
    for (probability, draws), same in zip(bandit.outcomes, learnt_as, strict=True):
        for share, terms, gradient, weights, raised in branches[same]:
            joint_draws.append(JointDraw(probability * share, draws, terms, gradient, weights, raised))
    return joint_draws


class _LearntAnswer(NamedTuple):
    """An answer that some terms learn from. owner: the place of these terms among all that were learnt."""

    owner: int
    term: Term
    answer: TermAnswer


def _enumerate_gradients(
    bandit: Bandit, learnt: Sequence[tuple[Term, ...]], updates: int
) -> Iterator[tuple[Vector, tuple[float, ...], frozenset[int]]]:
    """By what was learnt: gradient, weights and raised answers of its `JointDraw`. All go through the loss at once."""
    packs: list[Packed] = []
    rows: list[_LearntAnswer] = []
    for index, terms in enumerate(learnt):
        for batch in from_sampler(cut_into_minibatches(terms, updates, 1)):
            live = list(batch.live())
            if live:
                packs.append(pack_answers(batch, live))
                rows += [_LearntAnswer(index, terms[place], answer) for place, answer in live]
    gradients = np.zeros((len(learnt), bandit.logits.shape[1]))
    weights: list[list[float]] = [[] for _ in learnt]
    raised: list[set[int]] = [set() for _ in learnt]
    if rows:
        owner = [row.owner for row in rows]
        chosen = [int(row.answer.tokens[0]) for row in rows]
        probabilities = _probabilities_asked(bandit, rows)
        slope, statistics = _slope_of_loss(probabilities[np.arange(len(rows)), chosen], packs)
        # The logits' gradient of log pi(a) is 1 at a, less pi everywhere
        np.add.at(gradients, (owner, chosen), slope)
        np.add.at(gradients, owner, -slope[:, None] * probabilities)
        ratios = zip(statistics.ratio_count, statistics.ratio_sum, strict=True)
        for row, answer, rise, (count, ratio) in zip(rows, chosen, slope, ratios, strict=True):
            if row.term.source == "peer" and count:
                weights[row.owner].append(float(ratio))
            if from_peers(row.term) and rise > 0:
                raised[row.owner].add(answer)
    return iter(zip(gradients, map(tuple, weights), map(frozenset, raised), strict=True))


def _probabilities_asked(bandit: Bandit, rows: Sequence[_LearntAnswer]) -> Float64[np.ndarray, "N K"]:
    """Return, for each answer, the learner's probabilities of all answers to the question that it answers, hinted or not."""
    hinted = np.array([row.answer.prompt_id == HINTED.id for row in rows])
    return np.where(hinted[:, None], bandit.hinted, bandit.policies[0])


def _slope_of_loss(
    probabilities: Float64[np.ndarray, "N"], packs: Sequence[Packed]
) -> tuple[Float64[np.ndarray, "N"], AnswerStatistics]:
    """Return the loss's negative derivative by each answer's log-probability, and what the loss says of the answers."""
    logp = torch.tensor(np.log(probabilities), requires_grad=True)
    columns = [np.concatenate([getattr(pack, field.name) for pack in packs]) for field in fields(Packed)]
    loss, statistics = surrogate_loss(logp, Packed(*columns))
    slope = -torch.autograd.grad(loss, logp)[0].numpy()
    return slope, statistics


def from_peers(term: Term) -> bool:
    """Also of own answers that learn from a peer's scores or hint."""
    return term.name != "own"


def mean_gradient(outcomes: Sequence[JointDraw]) -> Vector:
    return np.asarray(sum(o.probability * o.gradient for o in outcomes))


def gradient_variance(outcomes: Sequence[JointDraw]) -> float:
    mean = mean_gradient(outcomes)
    return float(sum(o.probability * ((o.gradient - mean) ** 2).sum() for o in outcomes))


def expected_value(outcomes: Sequence[JointDraw], of: Callable[[JointDraw], float]) -> float:
    """E of any number that an outcome has."""
    return float(sum(o.probability * of(o) for o in outcomes))


class BanditDelivery:
    """What reaches the learner, by what the regime shares and needs."""

    def __init__(self, bandit: Bandit, regime: Regime, share: float = 1.0) -> None:
        self.regime = regime
        self._served = int(share * bandit.rollouts + 0.5)  # alike in distribution: the first ones stand for any
        policies, answers = bandit.logits.shape
        self.names = tuple(f"p{policy}" for policy in range(policies))
        logs = np.log(bandit.policies)
        verdicts = []
        for answer, reward in enumerate(bandit.rewards):
            verdicts.append(Verdict("right" if reward > 0 else "wrong", extracted=str(answer)))
        tokens = [np.array([answer], dtype=np.int32) for answer in range(answers)]
        self._own = [Answer(tokens[a], logs[0][[a]], str(a), False, verdicts[a]) for a in range(answers)]
        self._theirs = [self._with_logprobs(log) for log in logs]
        self._published: dict[tuple[int, tuple[int, ...]], list[tuple[str, PeerAnswer | Record]]] = {}
        self._scores = logs[1:] if Need.SCORES in regime.needs else logs[:0]
        again = self._with_logprobs(np.log(bandit.hinted))
        self.second: list[tuple[float, Group]] = []
        """(probability, what the learner says) of every draw of a second round."""
        if regime.hint_tokens:
            for drawn in itertools.product(range(answers), repeat=bandit.rollouts):
                group = Group(HINTED, self.names[0], 0, 1, tuple(again[a] for a in drawn))
                self.second.append((float(np.prod(bandit.hinted[list(drawn)])), group))
        wants_old = Need.RECEIVER_OLD in regime.needs

        def answer_of_peer(peer: int, index: int, answer: int) -> PeerAnswer:
            return PeerAnswer(
                author=self.names[peer],
                version=0,
                step=1,
                prompt_id=PROMPT.id,
                index=index,
                tokens=tokens[answer],
                text=str(answer),
                finished=False,
                verdict=verdicts[answer],
                aligned=logs[peer][[answer]],
                source_logprob=float(logs[peer][answer]),
                source_tokens=1,
                receiver_old=logs[0][[answer]] if wants_old else None,
            )

        places = itertools.product(range(1, policies), range(bandit.rollouts), range(answers))
        self._peers = {place: answer_of_peer(*place) for place in places}

    def _with_logprobs(self, logprobs: Float64[np.ndarray, "K"]) -> list[Answer]:
        """Return all answers as a policy with these log-probabilities says them."""
        return [replace(answer, logprobs=logprobs[[place]]) for place, answer in enumerate(self._own)]

    def experience(self, draws: Draws) -> tuple[Group, Inbox, Hashable]:
        """Group, inbox, and a key that is equal for equal ones."""
        own = Group(PROMPT, self.names[0], 0, 1, tuple(self._own[a] for a in draws[0]))
        every: dict[str, tuple[PeerAnswer | Record, ...]] = {}
        for policy, drawn in enumerate(draws[1:], start=1):
            for box, one in self._list_sent(policy, drawn[: self._served]):
                every[box] = (*every.get(box, ()), one)
        same: list[Hashable] = []
        for box, sent in every.items():
            # Each peer's answer was made once, so that equal ones are one object; values compare by what they say
            same.append((box, sent if box == "values" else tuple(map(id, sent))))
        given = {box: {PROMPT.id: sent} for box, sent in every.items()}
        scores = self._score_own_answers(draws[0])
        inbox = Inbox(**given, scores={PROMPT.id: scores} if scores else {})  # type: ignore[arg-type]  # fields of several types
        return own, inbox, (draws[0], tuple(same))

    def _score_own_answers(self, drawn: tuple[int, ...]) -> tuple[PeerScores, ...]:
        """Return each peer's scores of the learner's answers; none where the regime needs none."""
        even = np.log(np.full(1, 1 / len(self._own)))  # every policy started from equal probabilities
        scores = []
        for name, logs in zip(self.names[1:], self._scores, strict=False):
            for place, answer in enumerate(drawn):
                score = float(logs[answer])
                scores.append(
                    PeerScores(name, 0, PROMPT.id, place, logs[[answer]], score, 1, start=even, own_start=even)
                )
        return tuple(scores)

    def _list_sent(self, j: int, drawn: tuple[int, ...]) -> list[tuple[str, PeerAnswer | Record]]:
        if (j, drawn) not in self._published:
            group = Group(PROMPT, self.names[j], 0, 1, tuple(self._theirs[j][a] for a in drawn))
            sent: list[tuple[str, PeerAnswer | Record]] = []
            for record in self.regime.publish([group], lambda answer: [len(answer.text)]):
                if isinstance(record, AnswerRecord):
                    sent.append((record.inbox, self._peers[j, record.index, drawn[record.index]]))
                elif not isinstance(record, Draft):
                    sent.append((record.inbox, record))
            self._published[j, drawn] = sent
        return self._published[j, drawn]


def _enumerate_terms(
    delivery: BanditDelivery, own: Group, inbox: Inbox, updates: int
) -> Iterator[tuple[float, tuple[Term, ...]]]:
    def run(rng: np.random.Generator) -> tuple[float, tuple[Term, ...]]:
        regime = type(delivery.regime)(delivery.regime.options)
        groups = [own]
        factor = 1.0
        context = Context(delivery.names[0], delivery.names, 1, rng, max_tokens=1, updates=updates)
        if regime.hints(groups, inbox, context):
            probability, group = delivery.second[int(rng.integers(len(delivery.second)))]
            groups = [own, group]
            factor = probability * len(delivery.second)
        terms = with_step_weights(regime.learn(groups, inbox, context), 1, 1)
        if not regime.hint_tokens and Need.SCORES not in regime.needs:
            terms = [replace(term, name="own") if term.source == "own" else term for term in terms]
        return factor, tuple(terms)

    return ((share * factor, terms) for share, (factor, terms) in every_choice(run))


def _softmax(logits: Float64[np.ndarray, "n K"]) -> Float64[np.ndarray, "n K"]:
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))


# Enumerated choices take none of its bits; other draws do
_UNTOUCHED = np.random.PCG64(0)
_START = _UNTOUCHED.state


class _Choices(np.random.Generator):
    """Stands for `Context.rng`: takes the branch that `path` names."""

    def __init__(self, path: tuple[int, ...]) -> None:
        super().__init__(_UNTOUCHED)
        self.path = list(path)
        self.sizes = list[int]()

    def integers(self, low: Any, high: Any = None, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs:
            raise ValueError("only single whole numbers can be enumerated")
        low, high = (0, low) if high is None else (low, high)
        return low + self._branch(high - low)

    def choice(self, a: Any, size: Any = None, replace: bool = True, *args: Any, **kwargs: Any) -> Any:
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
    """(probability, result) of `run` for each combination of choices. Raises ValueError where a draw cannot be enumerated."""
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
