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
        judged = np.isin(self.rewards, (0.0, 1.0)).all()
        if self.rewards.shape != (k,) or not judged or self.rollouts < 1:
            raise ValueError("a bandit needs a reward of 0 or 1 per answer, and at least one rollout")
        answers = n * self.rollouts
        if k**answers > MAX_OUTCOMES:
            raise ValueError(f"{k}^{answers} outcomes are more than {MAX_OUTCOMES:,}")

    @cached_property
    def policies(self) -> Float64[np.ndarray, "n K"]:
        """Return each policy's probabilities of the answers, the learner's first."""
        return _softmax(self.logits)

    @cached_property
    def hinted(self) -> Vector:
        """Return the learner's probabilities of the answers after the hint, or without one as before."""
        raised = 0.0 if self.hint is None else self.hint
        of_learner = _softmax(self.logits[:1] + raised)
        return np.asarray(of_learner[0])

    @property
    def success(self) -> Float64[np.ndarray, "n"]:
        """Return each policy's probability of a right answer."""
        return np.asarray(self.policies @ self.rewards)

    def policy_gradient(self) -> Vector:
        """Return the gradient of the learner's expected reward in its logits: pi (R - p)."""
        pi = self.policies[0]
        advantage = self.rewards - pi @ self.rewards
        return np.asarray(pi * advantage)

    def chi_squared(self, peer: int = 1) -> float:
        """Return chi^2(pi_learner || pi_peer) = sum pi_k^2 / pi_j - 1."""
        pi = self.policies
        moments = pi[0] ** 2 / pi[peer]  # (K,)
        return float(moments.sum() - 1)

    @cached_property
    def outcomes(self) -> tuple[tuple[float, Draws], ...]:
        """Return every joint draw of all policies' groups, with its probability."""
        answers = range(self.logits.shape[1])
        groups = list(itertools.product(answers, repeat=self.rollouts))
        places = np.array(groups)  # (groups, rollouts)
        weights = [np.prod(pi[places], axis=1).tolist() for pi in self.policies]
        outcomes = []
        for choice in itertools.product(range(len(groups)), repeat=len(weights)):
            probability = math.prod(own[drawn] for own, drawn in zip(weights, choice, strict=True))
            draws = tuple(groups[drawn] for drawn in choice)
            outcomes.append((probability, draws))
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
    """Take every outcome through a fresh instance of the regime, at a run's first step.

    All updates are at the weights of the step's start. share: of each peer's answers that arrive (`Replay.share`). What is learnt
    depends on what the learner sees alone: equal groups and inboxes go through the regime and the loss once.
    """
    delivery = BanditDelivery(bandit, regime, share)
    learnt: dict[Hashable, list[tuple[float, tuple[Term, ...]]]] = {}
    learnt_as = []
    for _, draws in bandit.outcomes:
        own, inbox, same = delivery.experience(draws)
        learnt_as.append(same)
        if same not in learnt:
            terms_by_choice = _enumerate_terms(delivery, own, inbox, updates)
            learnt[same] = list(terms_by_choice)
    every_terms = []
    for branches in learnt.values():
        every_terms += [terms for _, terms in branches]
    steps = _enumerate_gradients(bandit, every_terms, updates)
    steps_by_key = {}
    for same, branches in learnt.items():  # in this order all terms were put together
        steps_by_key[same] = list(itertools.islice(steps, len(branches)))
    joint_draws = []
    for (probability, draws), same in zip(bandit.outcomes, learnt_as, strict=True):
        for (branch_share, terms), step in zip(learnt[same], steps_by_key[same], strict=True):
            joint_draws.append(JointDraw(probability * branch_share, draws, terms, *step))
    return joint_draws


class _LearntAnswer(NamedTuple):
    """An answer that some terms learn from. owner: the place of these terms among all that were learnt."""

    owner: int
    term: Term
    answer: TermAnswer


def _enumerate_gradients(
    bandit: Bandit, learnt: Sequence[tuple[Term, ...]], updates: int
) -> Iterator[tuple[Vector, tuple[float, ...], frozenset[int]]]:
    """Compute gradient, weights and raised answers of the `JointDraw` for each of what was learnt. All go through the loss at
    once."""
    packs, rows = _pack_terms(learnt, updates)
    gradients = np.zeros((len(learnt), bandit.logits.shape[1]))  # (learnt, K)
    weights: list[list[float]] = [[] for _ in learnt]
    raised: list[set[int]] = [set() for _ in learnt]
    if rows:
        owner = [row.owner for row in rows]
        chosen = [int(row.answer.tokens[0]) for row in rows]
        probabilities = _probabilities_asked(bandit, rows)  # (rows, K)
        of_chosen = probabilities[np.arange(len(rows)), chosen]
        slope, statistics = _slope_of_loss(of_chosen, packs)
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


def _pack_terms(learnt: Sequence[tuple[Term, ...]], updates: int) -> tuple[list[Packed], list[_LearntAnswer]]:
    """Return the minibatches of all that was learnt, packed for the loss, and their answers in the same order."""
    packs: list[Packed] = []
    rows: list[_LearntAnswer] = []
    for owner, terms in enumerate(learnt):
        batches = cut_into_minibatches(terms, updates, 1)
        for batch in from_sampler(batches):
            live = list(batch.live())
            if live:
                packs.append(pack_answers(batch, live))
                rows += [_LearntAnswer(owner, terms[place], answer) for place, answer in live]
    return packs, rows


def _probabilities_asked(bandit: Bandit, rows: Sequence[_LearntAnswer]) -> Float64[np.ndarray, "N K"]:
    """Return, for each answer, the learner's probabilities of all answers to the question that it answers, hinted or not."""
    hinted = np.array([row.answer.prompt_id == HINTED.id for row in rows])
    return np.where(hinted[:, None], bandit.hinted, bandit.policies[0])


def _slope_of_loss(
    probabilities: Float64[np.ndarray, "N"], packs: Sequence[Packed]
) -> tuple[Float64[np.ndarray, "N"], AnswerStatistics]:
    """Return the loss's negative derivative by each answer's log-probability, and what the loss says of the answers."""
    logp = torch.tensor(np.log(probabilities), requires_grad=True)
    columns = []
    for field in fields(Packed):
        parts = [getattr(pack, field.name) for pack in packs]
        columns.append(np.concatenate(parts))
    loss, statistics = surrogate_loss(logp, Packed(*columns))
    derivative = torch.autograd.grad(loss, logp)[0]
    return -derivative.numpy(), statistics


def from_peers(term: Term) -> bool:
    """Say whether a term learns from peers; also one of own answers that learns from a peer's scores or hint."""
    return term.name != "own"


def mean_gradient(outcomes: Sequence[JointDraw]) -> Vector:
    """Return the expected gradient E[g], (K,)."""
    weighted = [outcome.probability * outcome.gradient for outcome in outcomes]
    return np.asarray(sum(weighted))


def gradient_variance(outcomes: Sequence[JointDraw]) -> float:
    """Return the trace of the gradient's covariance, E[|g - E[g]|^2]."""
    mean = mean_gradient(outcomes)
    total = 0.0
    for outcome in outcomes:
        deviation = outcome.gradient - mean
        total += outcome.probability * (deviation**2).sum()
    return float(total)


def expected_value(outcomes: Sequence[JointDraw], of: Callable[[JointDraw], float]) -> float:
    """Return the expectation of any number that an outcome has."""
    return float(sum(o.probability * of(o) for o in outcomes))


class BanditDelivery:
    """What reaches the learner, by what the regime shares and needs."""

    def __init__(self, bandit: Bandit, regime: Regime, share: float = 1.0) -> None:
        """Make every answer once; `experience` hands them out. share: of each peer's answers that arrive."""
        self.regime = regime
        self._bandit = bandit
        self._served = int(share * bandit.rollouts + 0.5)  # alike in distribution: the first ones stand for any
        policies, answers = bandit.logits.shape
        self.names = tuple(f"p{policy}" for policy in range(policies))
        self._logs: Float64[np.ndarray, "n K"] = np.log(bandit.policies)
        self._own = [self._make_own_answer(answer) for answer in range(answers)]
        self._theirs = [self._with_logprobs(logs) for logs in self._logs]
        self._published: dict[tuple[int, tuple[int, ...]], list[tuple[str, PeerAnswer | Record]]] = {}
        self._scores = self._logs[1:] if Need.SCORES in regime.needs else self._logs[:0]
        self.second = self._enumerate_second_round() if regime.hint_tokens else []
        """(probability, what the learner says) of every draw of a second round."""
        places = itertools.product(range(1, policies), range(bandit.rollouts), range(answers))
        self._peers = {place: self._make_peer_answer(*place) for place in places}

    def _make_own_answer(self, answer: int) -> Answer:
        """Return an answer as the learner says it."""
        right = self._bandit.rewards[answer] > 0
        verdict = Verdict("right" if right else "wrong", extracted=str(answer))
        tokens = np.array([answer], dtype=np.int32)
        logprobs = self._logs[0][[answer]]
        return Answer(tokens, logprobs, str(answer), False, verdict)

    def _make_peer_answer(self, peer: int, index: int, answer: int) -> PeerAnswer:
        """Return an answer as it arrives from a peer, the `index`-th of its group."""
        own = self._own[answer]
        aligned = self._logs[peer][[answer]]
        wants_old = Need.RECEIVER_OLD in self.regime.needs
        return PeerAnswer(
            author=self.names[peer],
            version=0,
            step=1,
            prompt_id=PROMPT.id,
            index=index,
            tokens=own.tokens,
            text=own.text,
            finished=False,
            verdict=own.verdict,
            aligned=aligned,
            source_logprob=float(aligned[0]),
            source_tokens=1,
            receiver_old=own.logprobs if wants_old else None,
        )

    def _enumerate_second_round(self) -> list[tuple[float, Group]]:
        """Return what the learner says after a hint, with its probability, for every draw of a group."""
        hinted = self._bandit.hinted
        answers = self._with_logprobs(np.log(hinted))
        rounds = []
        for drawn in itertools.product(range(len(answers)), repeat=self._bandit.rollouts):
            said = tuple(answers[answer] for answer in drawn)
            group = Group(HINTED, self.names[0], 0, 1, said)
            probability = np.prod(hinted[list(drawn)])
            rounds.append((float(probability), group))
        return rounds

    def _with_logprobs(self, logprobs: Float64[np.ndarray, "K"]) -> list[Answer]:
        """Return all answers as a policy with these log-probabilities says them."""
        return [replace(answer, logprobs=logprobs[[place]]) for place, answer in enumerate(self._own)]

    def experience(self, draws: Draws) -> tuple[Group, Inbox, Hashable]:
        """Return the learner's group, its inbox, and a key that is equal for equal ones."""
        said = tuple(self._own[answer] for answer in draws[0])
        own = Group(PROMPT, self.names[0], 0, 1, said)
        every: dict[str, tuple[PeerAnswer | Record, ...]] = {}
        for policy, drawn in enumerate(draws[1:], start=1):
            arriving = drawn[: self._served]
            for box, one in self._list_sent(policy, arriving):
                before = every.get(box, ())
                every[box] = (*before, one)
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
        even_probability = 1 / len(self._own)
        even = np.log(np.full(1, even_probability))  # every policy started from equal probabilities
        scores = []
        for name, logs in zip(self.names[1:], self._scores, strict=False):
            for place, answer in enumerate(drawn):
                aligned = logs[[answer]]
                score = float(logs[answer])
                one = PeerScores(name, 0, PROMPT.id, place, aligned, score, 1, start=even, own_start=even)
                scores.append(one)
        return tuple(scores)

    def _list_sent(self, peer: int, drawn: tuple[int, ...]) -> list[tuple[str, PeerAnswer | Record]]:
        """Return what a peer with these answers sends, each with the inbox that it goes to; made once for equal answers."""
        if (peer, drawn) not in self._published:
            self._published[peer, drawn] = self._publish_answers(peer, drawn)
        return self._published[peer, drawn]

    def _publish_answers(self, peer: int, drawn: tuple[int, ...]) -> list[tuple[str, PeerAnswer | Record]]:
        """Let the regime publish a peer's group; its answers arrive as the learner's tokens, drafts do not arrive."""
        said = tuple(self._theirs[peer][answer] for answer in drawn)
        group = Group(PROMPT, self.names[peer], 0, 1, said)
        sent: list[tuple[str, PeerAnswer | Record]] = []
        for record in self.regime.publish([group], lambda answer: [len(answer.text)]):
            if isinstance(record, AnswerRecord):
                answer = drawn[record.index]
                arrived = self._peers[peer, record.index, answer]
                sent.append((record.inbox, arrived))
            elif not isinstance(record, Draft):
                sent.append((record.inbox, record))
        return sent


def _enumerate_terms(
    delivery: BanditDelivery, own: Group, inbox: Inbox, updates: int
) -> Iterator[tuple[float, tuple[Term, ...]]]:
    """Yield what the regime learns from one group and inbox, with its probability, for each combination of its choices."""

    def run(rng: np.random.Generator) -> tuple[float, tuple[Term, ...]]:
        """Return what is learnt with one combination of choices, and what its second round is likelier than an even draw."""
        regime = type(delivery.regime)(delivery.regime.options)
        groups = [own]
        factor = 1.0
        context = Context(delivery.names[0], delivery.names, 1, rng, max_tokens=1, updates=updates)
        if regime.hints(groups, inbox, context):
            # the enumeration takes all second rounds for equally likely; the factor makes up for it
            rounds = len(delivery.second)
            place = int(rng.integers(rounds))
            probability, group = delivery.second[place]
            groups = [own, group]
            factor = probability * rounds
        learnt = regime.learn(groups, inbox, context)
        terms = with_step_weights(learnt, 1, 1)
        if not regime.hint_tokens and Need.SCORES not in regime.needs:
            terms = [replace(term, name="own") if term.source == "own" else term for term in terms]
        return factor, tuple(terms)

    for share, (factor, terms) in every_choice(run):
        yield share * factor, terms


def _softmax(logits: Float64[np.ndarray, "n K"]) -> Float64[np.ndarray, "n K"]:
    largest = logits.max(axis=1, keepdims=True)
    shifted = np.exp(logits - largest)
    total = shifted.sum(axis=1, keepdims=True)
    return np.asarray(shifted / total)


# Enumerated choices take none of its bits; other draws do
_UNTOUCHED = np.random.PCG64(0)
_START = _UNTOUCHED.state


class _Choices(np.random.Generator):
    """A generator that stands for `Context.rng` and takes the branch that `path` names."""

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
        """Choose from `a` as numpy would, by the branch of the path. Raises ValueError for choices that are not uniform and
        without replacement."""
        if args or kwargs or (replace and size is not None):
            raise ValueError("only uniform choices without replacement can be enumerated")
        items = np.arange(a) if np.ndim(a) == 0 else np.asarray(a)
        if size is None:
            return items[self._branch(len(items))]
        branch = self._branch(math.perm(len(items), size))
        orders = itertools.permutations(range(len(items)), size)
        order = next(itertools.islice(orders, branch, None))
        return items[list(order)]

    def _branch(self, size: int) -> int:
        place = len(self.sizes)
        self.sizes.append(size)
        if place == len(self.path):
            self.path.append(0)
        return self.path[place]


def every_choice(run: Callable[[np.random.Generator], T]) -> Iterator[tuple[float, T]]:
    """Yield probability and result of `run` for each combination of choices.

    A run goes along a path of branches and takes the first one wherever the path has ended; the paths to the other branches that
    it met there are followed next. Raises ValueError where a draw cannot be enumerated.
    """
    paths: list[tuple[int, ...]] = [()]
    while paths:
        path = paths.pop()
        choices = _Choices(path)
        result = run(choices)
        if _UNTOUCHED.state != _START:
            _UNTOUCHED.state = _START
            raise ValueError("only uniform choices by `integers` and `choice` can be enumerated")
        for place in range(len(path), len(choices.sizes)):
            before = choices.path[:place]
            other_branches = range(1, choices.sizes[place])
            paths += [(*before, branch) for branch in other_branches]
        combinations = math.prod(choices.sizes)
        yield 1 / combinations, result
