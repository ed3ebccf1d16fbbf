"""`harness bandit`: the stability-support plane and the facts, by an exact softmax bandit (ours).

One prompt, K answers of one token, n policies, G answers each. Every joint draw goes through a regime's `learn` and the
surrogate loss, weighted by its probability."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
import torch
from jaxtyping import Float64
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.errors import PluginError, SuiteError
from harness.experience.answers import Answer, AnswerId, Group, Inbox, PeerAnswer, PeerScores, Prompt
from harness.experience.records import AnswerRecord, Draft, Record
from harness.files import write_atomic
from harness.learning.advantages import rewards_of, standardise
from harness.learning.minibatches import Packed, cut_into_minibatches, from_sampler, pack_answers
from harness.learning.regime import Context, Need, Regime
from harness.learning.registry import build, load
from harness.learning.surrogate import surrogate_loss
from harness.learning.terms import Term, TermAnswer, with_step_weights
from harness.suite.load import LABORATORY, find_suite, first_error, read_yaml
from harness.suite.schema import Name, Variant
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


def _enumerate_gradients(
    bandit: Bandit, learnt: Sequence[tuple[Term, ...]], updates: int
) -> Iterator[tuple[Vector, tuple[float, ...], frozenset[int]]]:
    """By what was learnt: gradient, weights and raised answers of its `JointDraw`."""
    packs: list[Packed] = []
    rows: list[tuple[int, Term, TermAnswer]] = []
    for i, terms in enumerate(learnt):
        for batch in from_sampler(cut_into_minibatches(terms, updates, 1)):
            live = list(batch.live())
            if live:
                packs.append(pack_answers(batch, live))
                rows += [(i, terms[t], answer) for t, answer in live]
    gradients = np.zeros((len(learnt), bandit.logits.shape[1]))
    weights: list[list[float]] = [[] for _ in learnt]
    raised: list[set[int]] = [set() for _ in learnt]
    if rows:
        owner = [i for i, _, _ in rows]
        chosen = [int(answer.tokens[0]) for _, _, answer in rows]
        hinted = np.array([answer.prompt_id == HINTED.id for _, _, answer in rows])
        pi = np.where(hinted[:, None], bandit.hinted, bandit.policies[0])
        logp = torch.tensor(np.log(pi[np.arange(len(pi)), chosen]), requires_grad=True)
        joined = Packed(*(np.concatenate([getattr(p, f.name) for p in packs]) for f in fields(Packed)))
        loss, statistics = surrogate_loss(logp, joined)
        slope = -torch.autograd.grad(loss, logp)[0].numpy()
        np.add.at(gradients, (owner, chosen), slope)
        np.add.at(gradients, owner, -slope[:, None] * pi)
        ratios = zip(statistics.ratio_count, statistics.ratio_sum, strict=True)
        for (i, term, _), answer, rise, (count, ratio) in zip(rows, chosen, slope, ratios, strict=True):
            if term.source == "peer" and count:
                weights[i].append(float(ratio))
            if _from_peers(term) and rise > 0:
                raised[i].add(answer)
    return iter(zip(gradients, map(tuple, weights), map(frozenset, raised), strict=True))


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
        n, k = bandit.logits.shape
        self.names = tuple(f"p{j}" for j in range(n))
        logs = np.log(bandit.policies)
        verdicts = [Verdict("right" if r > 0 else "wrong", extracted=str(a)) for a, r in enumerate(bandit.rewards)]
        tokens = [np.array([a], dtype=np.int32) for a in range(k)]
        self._own = [Answer(tokens[a], logs[0][[a]], str(a), False, verdicts[a]) for a in range(k)]
        self._theirs = [[replace(a, logprobs=log[[i]]) for i, a in enumerate(self._own)] for log in logs]
        self._published: dict[tuple[int, tuple[int, ...]], list[tuple[str, PeerAnswer | Record]]] = {}
        self._scores = logs[1:] if Need.SCORES in regime.needs else logs[:0]
        again = [replace(a, logprobs=np.log(bandit.hinted)[[i]]) for i, a in enumerate(self._own)]
        self.second: list[tuple[float, Group]] = []
        """(probability, what the learner says) of every draw of a second round."""
        if regime.hint_tokens:
            for drawn in itertools.product(range(k), repeat=bandit.rollouts):
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

        places = itertools.product(range(1, n), range(bandit.rollouts), range(k))
        self._peers = {place: answer_of_peer(*place) for place in places}

    def experience(self, draws: Draws) -> tuple[Group, Inbox, Hashable]:
        """Group, inbox, and a key that is equal for equal ones."""
        own = Group(PROMPT, self.names[0], 0, 1, tuple(self._own[a] for a in draws[0]))
        every: dict[str, tuple[PeerAnswer | Record, ...]] = {}
        for j, drawn in enumerate(draws[1:], start=1):
            for box, one in self._list_sent(j, drawn[: self._served]):
                every[box] = (*every.get(box, ()), one)
        given = {box: {PROMPT.id: sent} for box, sent in every.items()}
        same = tuple((box, tuple(id(a) if box != "values" else a for a in given[box][PROMPT.id])) for box in given)
        even = np.log(np.full(1, 1 / len(self._own)))  # every policy started from equal probabilities
        scores = tuple(
            PeerScores(name, 0, PROMPT.id, i, logs[[a]], float(logs[a]), 1, start=even, own_start=even)
            for name, logs in zip(self.names[1:], self._scores, strict=False)
            for i, a in enumerate(draws[0])
        )
        inbox = Inbox(**given, scores={PROMPT.id: scores} if scores else {})  # type: ignore[arg-type]
        return own, inbox, (draws[0], same)

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


# The facts and the plane -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fact:
    """predicted: by theory, None for an observation. measured: by enumeration. Distances should be 0."""

    statement: str
    predicted: float | None
    measured: float

    @property
    def holds(self) -> bool | None:
        if self.predicted is None:
            return None
        return bool(abs(self.predicted - self.measured) <= 1e-6 * max(1.0, abs(self.predicted)))


class _Runs:
    """Enumerates a bandit's outcomes under an installed regime, by its name and options."""

    def __init__(self, bandit: Bandit) -> None:
        self._bandit = bandit

    def __call__(self, name: str, **options: object) -> list[JointDraw]:
        return enumerate_outcomes(self._bandit, build(name, options))


def list_facts(bandit: Bandit) -> list[Fact]:
    """List what is proven of the regimes' expected updates, each beside what the enumeration of this bandit gives.

    docs/formulas.md has the formulas and their sources."""
    run = _Runs(bandit)
    rescued = _probability_of_rescue(bandit)
    return [
        _of_independent(bandit, run),
        *_of_naive(bandit, run),
        *_of_xgrpo(bandit, run),
        *_of_prp(bandit, run),
        *_of_shaped_weights(bandit, run),
        *_of_sgt(bandit, run, rescued),
        *_facts_of_hacpo(bandit),
        *_scored_and_hinted(bandit, run, rescued),
        *_in_phases(bandit, run),
        _by_a_peers_vote(bandit, run),
    ]


def _largest_difference(one: Vector, other: Vector) -> float:
    return float(np.abs(one - other).max())


def _probability_of_rescue(bandit: Bandit) -> float:
    """That the learner's G answers are all wrong and at least one peer has a right one: (1-p_k)^G (1 - prod_j (1-p_j)^G)."""
    all_wrong = (1 - bandit.success) ** bandit.rollouts
    return float(all_wrong[0] * (1 - np.prod(all_wrong[1:])))


def _score_function(bandit: Bandit, answer: int) -> Vector:
    """The gradient of the learner's log-probability of an answer in its logits: e_a - pi."""
    pi = bandit.policies[0]
    return np.asarray(np.eye(pi.size)[answer] - pi)


def _of_independent(bandit: Bandit, run: _Runs) -> Fact:
    alone = mean_gradient(run("independent", objective="dr_grpo"))
    expected = (1 - 1 / bandit.rollouts) * bandit.policy_gradient()
    return Fact("independent: E[g] = (1 - 1/G) policy gradient", 0.0, _largest_difference(alone, expected))


def _of_naive(bandit: Bandit, run: _Runs) -> list[Fact]:
    """The naive mean uses peers' answers as if they were own ones, so its expectation is another direction."""
    gradient = bandit.policy_gradient()
    direct = np.zeros(gradient.size)  # A as the union's statistics make it
    for probability, draws in bandit.outcomes:
        union = [answer for drawn in draws for answer in drawn]
        rewards = np.array([bandit.rewards[answer] for answer in union])
        advantages = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)
        for answer, advantage in zip(union, advantages, strict=True):
            direct += probability * advantage / rewards.size * _score_function(bandit, answer)
    toward = mean_gradient(run("naive"))

    def distance_from_gradient(vector: Vector) -> float:
        along = (vector @ gradient) / (gradient @ gradient) * gradient
        return _largest_difference(vector, along)

    return [
        Fact("naive: E[g] = (1/n) sum_j E_j[A grad log pi_k]", 0.0, _largest_difference(toward, direct)),
        Fact(
            "naive: distance of E[g] from the policy gradient's direction",
            distance_from_gradient(direct),
            distance_from_gradient(toward),
        ),
    ]


def _of_xgrpo(bandit: Bandit, run: _Runs) -> Iterator[Fact]:
    gradient = bandit.policy_gradient()
    for beta in (0.25, 1.0):
        mixed = mean_gradient(run("xgrpo", baseline="mixed", normalise="none", beta=beta))
        distance = _largest_difference(mixed, gradient)
        yield Fact(f"xgrpo: unbiased with leave-one-out baselines, beta {beta}", 0.0, distance)


def _of_prp(bandit: Bandit, run: _Runs) -> list[Fact]:
    """The importance weight of a peer's answer is exact here, so nothing but its second moment costs."""
    pi = bandit.policies
    union = len(pi) * bandit.rollouts
    outcomes = run("prp", normalise="none", clip_low=1.0, clip_high=1e8)
    distance = _largest_difference(mean_gradient(outcomes), (1 - 1 / union) * bandit.policy_gradient())
    unbiased = Fact("prp: E[g] = (1 - 1/|U|) policy gradient, unclipped", 0.0, distance)
    if len(pi) != 2:
        return [unbiased]

    def squared_weight(outcome: JointDraw) -> float:
        """Of the peer's first answer, as in PRP's term."""
        answer = outcome.terms[1].answers[0]
        assert isinstance(answer.denominator, np.ndarray)
        log_weight = np.log(pi[0])[answer.tokens[0]] - answer.denominator[0]
        return float(np.exp(2 * log_weight))

    moment = expected_value(outcomes, squared_weight)
    return [unbiased, Fact("prp: second moment of the weight = 1 + chi^2", 1 + bandit.chi_squared(), moment)]


def _shaped_gradient(bandit: Bandit, weight: Callable[[float], float]) -> Vector:
    """LUFFY's E[g] with peers' right answers weighed by `weight` of the learner's probability."""
    pi = bandit.policies[0]
    total = np.zeros(pi.size)
    for probability, (own, *theirs) in bandit.outcomes:
        right = [answer for drawn in theirs for answer in drawn if bandit.rewards[answer]]
        pool = [*own, *right]
        rewards = np.array([bandit.rewards[answer] for answer in pool])
        weights = [*[1.0] * bandit.rollouts, *(weight(pi[answer]) for answer in right)]
        for answer, factor, advantage in zip(pool, weights, standardise(rewards, rewards), strict=True):
            total += probability * factor * advantage / rewards.size * _score_function(bandit, answer)
    return total


def _of_shaped_weights(bandit: Bandit, run: _Runs) -> list[Fact]:
    """LUFFY's shaping as a gradient and as a weight, at both ends of gamma; CHORD without its share of imitation."""
    tiny_gamma = 1e-9 * float(bandit.policies[0].min())
    small = mean_gradient(run("luffy", gamma=tiny_gamma, gradient="weight"))
    large = mean_gradient(run("luffy", gamma=1e6, gradient="weight"))
    shaping = _shaped_gradient(bandit, lambda p: 0.1 * p / (p + 0.1) ** 2)
    score_function = _shaped_gradient(bandit, lambda p: 1.0)
    own_part = _shaped_gradient(bandit, lambda p: 0.0)
    by_probability = _shaped_gradient(bandit, lambda p: p) - own_part
    slope = _largest_difference(mean_gradient(run("luffy")), shaping)
    proportional = _largest_difference((large - own_part) * 1e6, by_probability)
    apart = _largest_difference(mean_gradient(run("chord", mu_first=0.0)), mean_gradient(run("independent")))
    near_zero = _largest_difference(small, score_function)
    return [
        Fact("luffy: E[g] is the gradient of p / (p + gamma) A on peers' right answers", 0.0, slope),
        Fact("luffy, as a weight: gamma -> 0 is the score function", 0.0, near_zero),
        Fact("luffy, as a weight: gamma -> infinity is proportional to p", 0.0, proportional),
        Fact("chord: mu = 0 is GRPO", 0.0, apart),
    ]


def _of_sgt(bandit: Bandit, run: _Runs, rescued: float) -> list[Fact]:
    """rescued: as `_probability_of_rescue`."""
    outcomes = run("sgt")
    fires = expected_value(outcomes, lambda outcome: float(bool(outcome.terms[1].answers)))
    imitated_although_right = [
        len(outcome.terms[1].answers)
        for outcome in outcomes
        if any(bandit.rewards[answer] for answer in outcome.draws[0])
    ]
    outside = max(imitated_although_right, default=0)
    return [
        Fact("sgt: fires with (1-p_k)^G (1 - prod_j (1-p_j)^G)", rescued, fires),
        Fact("sgt: imitated answers outside the rescue set", 0.0, float(outside)),
    ]


def _by_a_peers_vote(bandit: Bandit, run: _Runs) -> Fact:
    """Co-RL's gradient from the next policy's majority answer, the first drawn of equals."""
    pi = bandit.policies[0]
    size = bandit.rollouts
    direct = np.zeros(pi.size)
    for probability, (own, peer, *_) in bandit.outcomes:
        winner = max(peer, key=peer.count)
        rewards = np.array([float(a == winner) for a in own])
        for a, each in zip(own, standardise(rewards, rewards), strict=True):
            direct += probability * each / size * (np.eye(pi.size)[a] - pi)
    far = float(np.abs(mean_gradient(run("rlccf", vote="peer")) - direct).max())
    return Fact("rlccf, vote of a peer: E[g] is GRPO's toward its majority answer", 0.0, far)


def _in_phases(bandit: Bandit, run: _Runs) -> list[Fact]:
    """The regimes that learn from peers first: a run's first step is of the first phase, if there is one."""
    someone_right = 1 - float(np.prod((1 - bandit.success[1:]) ** bandit.rollouts))
    alone = mean_gradient(run("independent"))
    outcomes = run("imitate-then-rl")
    imitates = expected_value(outcomes, lambda o: float(any(t.answers for t in o.terms if t.source == "peer")))
    without = {name: mean_gradient(run(name, share=0.0)) for name in ("imitate-then-rl", "score-then-rl")}
    scored = mean_gradient(run("score-then-rl")) - mean_gradient(run("copd", ratio=0.0))
    return [
        Fact("imitate-then-rl: imitates with 1 - prod_j (1-p_j)^G", someone_right, imitates),
        *(Fact(f"{name}: share 0 is GRPO", 0.0, float(np.abs(g - alone).max())) for name, g in without.items()),
        Fact("score-then-rl: its first phase is copd's distillation", 0.0, float(np.abs(scored).max())),
    ]


def _scored_and_hinted(bandit: Bandit, run: _Runs, rescued: float) -> list[Fact]:
    """rescued: probability that only peers have a right answer."""
    pi = bandit.policies
    beta = 0.5
    peers = np.log(pi[1:]).mean(axis=0)
    toward = beta * pi[0] * (peers - np.log(pi[0]) - pi[0] @ (peers - np.log(pi[0])))
    itself = replace(bandit, logits=np.tile(bandit.logits[0], (len(pi), 1)))
    alone = mean_gradient(enumerate_outcomes(itself, build("copd", {"ratio": 0.0})))
    far = float(np.abs(mean_gradient(run("copd", ratio=0.0, beta=beta)) - toward).max())
    apart = {"offset": "removed", "alpha": 0.3}
    changed = peers - 0.3 * np.log(pi[0])
    less = beta * pi[0] * (changed - pi[0] @ changed)
    removed = float(np.abs(mean_gradient(run("copd", ratio=0.0, beta=beta, **apart)) - less).max())
    never = mean_gradient(run("core", probability=0.0)) - mean_gradient(run("xgrpo"))
    fires = expected_value(run("core"), lambda o: float(bool(o.terms[1].answers)))
    return [
        Fact("copd: E[g] = beta E_k[(mean log pi_j - log pi_k) grad log pi_k]", 0.0, far),
        Fact("copd: peers like the learner give no gradient", 0.0, float(np.abs(alone).max())),
        Fact("copd: without offset E[g] = beta E_k[(mean D_j - alpha D_k) grad log pi_k]", 0.0, removed),
        Fact("core: without a second round GRPO with joint statistics", 0.0, float(np.abs(never).max())),
        Fact("core: asks again with 3/4 (1-p_k)^G (1 - prod_j (1-p_j)^G)", 0.75 * rescued, fires),
    ]


def _facts_of_hacpo(bandit: Bandit) -> list[Fact]:
    """E[mu] = p_k where omega is the true capability ratio and guards and clamps are off."""
    true = {f"p{j}": float(p) for j, p in enumerate(bandit.success)}
    base: type[Regime] = load("hacpo")

    class TrueCapability(base):  # type: ignore[misc, valid-type]
        def capability(self, policy: str) -> float:
            return true[policy]

    if min(true.values()) <= 0:
        return []
    options = replace(base.Options(), guards=False, omega_min=1e-12, omega_max=1e12)
    regime = TrueCapability(options)
    guarded = TrueCapability(replace(options, guards=True))
    delivery = BanditDelivery(bandit, regime)
    off = on = 0.0
    for probability, draws in bandit.outcomes:
        own, inbox, _ = delivery.experience(draws)
        peers = inbox.valid("x")
        rewards = rewards_of([*own.valid, *peers])
        omega = np.array([1.0] * len(own.valid) + [regime.omega("p0", p.author) for p in peers])
        off += probability * regime.baseline(rewards, omega, len(own.valid))
        on += probability * guarded.baseline(rewards, omega, len(own.valid))
    bias = Fact("hacpo: bias of E[mu] by the code's two guards", None, on - true["p0"])
    return [Fact("hacpo: E[mu] = p_k under true capability ratios", true["p0"], off), bias]


class BanditCase(BaseModel):
    """Logits per policy, the learner first. hint: added to the learner's."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    name: Name
    logits: Annotated[
        list[Annotated[list[float], Field(min_length=2, max_length=8)]], Field(min_length=2, max_length=4)
    ]
    rewards: list[Annotated[int, Field(ge=0, le=1)]]
    rollouts: Annotated[int, Field(ge=2, le=6)] = 2
    hint: list[float] | None = None


class BanditSuite(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    name: Name
    title: str = ""
    bandits: Annotated[list[BanditCase], Field(min_length=1)]
    regimes: Annotated[list[Variant], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class Point:
    """One regime on one bandit. scale, bias: E[g] along and beside the policy gradient. noise: sqrt(trace Cov[g]). All three in
    the gradient's units. support: probability of raising a right answer that was not sampled. fires: of any peer answer.
    weight_second_moment: mean r^2 of peer answers with a ratio."""

    bandit: str
    regime: str
    scale: float
    bias: float
    noise: float
    support: float
    fires: float
    weight_second_moment: float | None


@dataclass(frozen=True, slots=True)
class BanditReport:
    suite: str
    points: tuple[Point, ...]
    facts: tuple[tuple[str, Fact], ...]
    folder: Path

    def as_json(self) -> dict[str, Any]:
        return {
            "suite": self.suite,
            "points": list(self.points),
            "facts": [{"bandit": b, **asdict(f), "holds": f.holds} for b, f in self.facts],
        }

    def describe(self) -> str:
        lines = [
            f"{self.suite}: exact expectations of one step, by enumeration\n",
            f"{'bandit':<12} {'regime':<16} {'scale':>7} {'bias':>7} {'noise':>8} {'support':>8} {'fires':>6} {'E[w^2]':>8}",
        ]
        for p in self.points:
            moment = "" if p.weight_second_moment is None else f"{p.weight_second_moment:.3f}"
            lines.append(
                f"{p.bandit:<12} {p.regime:<16} {p.scale:>7.3f} {p.bias:>7.3f} {p.noise:>8.2f} {p.support:>8.3f} "
                f"{p.fires:>6.3f} {moment:>8}"
            )
        lines += [
            "\nscale, bias: E[g] along and beside the policy gradient, in its units; noise: its standard deviation;",
            "support: probability of raising a right answer that the learner did not sample itself.\n",
        ]
        for bandit, fact in self.facts:
            mark = {True: "ok ", False: "NO ", None: "-- "}[fact.holds]
            predicted = "" if fact.predicted is None else f"predicted {fact.predicted:.6f}, "
            lines.append(f"{mark} {bandit:<12} {fact.statement}: {predicted}measured {fact.measured:.6f}")
        return "\n".join(lines) + f"\n\nstored in {self.folder}"


def run_bandit(name: str, results: Path) -> BanditReport:
    """Stores the report as results/<suite>/bandit.json. Raises SuiteError."""
    try:
        source = find_suite(name)
    except SuiteError:
        raise SuiteError(name, "", f"no such file of bandits (shipped: {Path(LABORATORY).stem})") from None
    raw = read_yaml(source)
    if not isinstance(raw, dict) or ("groups" in raw and "bandits" not in raw):
        what = "a suite, for `harness run`;" if isinstance(raw, dict) else "no mapping;"
        raise SuiteError(str(source), "", f"{what} a bandit suite has `bandits` and `regimes`")
    raw.setdefault("name", source.stem)
    try:
        suite = BanditSuite.model_validate(raw)
    except ValidationError as error:
        raise first_error(error, str(source)) from None
    points: list[Point] = []
    proven: list[tuple[str, Fact]] = []
    for i, case in enumerate(suite.bandits):
        try:
            hint = None if case.hint is None else np.array(case.hint)
            bandit = Bandit(
                np.array(case.logits, dtype=float), np.array(case.rewards, dtype=float), case.rollouts, hint
            )
            if not bandit.policy_gradient().any():
                raise ValueError(
                    "its policy gradient is 0: a right and a wrong answer are needed, each of some probability"
                )
        except ValueError as error:
            raise SuiteError(str(source), f"bandits[{i}]", str(error)) from None
        for j, variant in enumerate(suite.regimes):
            try:
                share = variant.replay.share[0] if variant.replay else 1.0
                outcomes = enumerate_outcomes(bandit, build(variant.regime, variant.options), share=share)
            except (PluginError, ValueError) as error:
                raise SuiteError(str(source), f"regimes[{j}]", str(error)) from None
            points.append(_measure_point(case.name, variant.name, bandit, outcomes))
        proven += [(case.name, fact) for fact in list_facts(bandit)]
    folder = results / suite.name
    report = BanditReport(suite.name, tuple(points), tuple(proven), folder / "bandit.json")
    write_atomic(folder / "bandit.json", msgspec.json.format(msgspec.json.encode(report.as_json()), indent=1))
    return report


def _measure_point(case: str, regime: str, bandit: Bandit, outcomes: list[JointDraw]) -> Point:
    true = bandit.policy_gradient()
    mean = mean_gradient(outcomes)
    size = float(np.linalg.norm(true))
    scale = float(mean @ true) / size**2
    weights = [(w, o.probability / len(o.weights)) for o in outcomes for w in o.weights]
    mass = sum(p for _, p in weights)
    return Point(
        bandit=case,
        regime=regime,
        scale=scale,
        bias=float(np.linalg.norm(mean - scale * true)) / size,
        noise=float(np.sqrt(gradient_variance(outcomes))) / size,
        support=expected_value(outcomes, lambda o: float(any(bandit.rewards[a] > 0 for a in o.raised - {*o.draws[0]}))),
        fires=expected_value(outcomes, lambda o: float(any(_from_peers(t) and t.answers for t in o.terms))),
        weight_second_moment=sum(w * w * p for w, p in weights) / mass if mass else None,
    )


def _from_peers(term: Term) -> bool:
    """Also of own answers that learn from a peer's scores or hint."""
    return term.name != "own"
