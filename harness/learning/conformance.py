"""The contract of every regime, as a test: `check_regime(BestOfPeers)`. Needs no torch."""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import msgspec
import numpy as np

from harness.errors import ExchangeError, PluginError
from harness.experience.answers import Answer, AnswerId, Group, Inbox, PeerAnswer, PeerScores, Prompt
from harness.experience.records import AnswerRecord, Draft, Rollout, answers_to_send
from harness.learning.minibatches import cut_into_minibatches, from_sampler, pack_answers
from harness.learning.regime import Context, Measured, Need, Regime
from harness.learning.registry import check_declaration, check_options, load, resolve_options, search_spaces
from harness.learning.terms import OLD, Denominator, Term, TermAnswer, with_step_weights
from harness.suite.space import Choice
from harness.verification.verdict import Verdict

__all__ = ["Situation", "check_regime", "situations"]

Make = Callable[[], Regime]  # gives a fresh instance
SAMPLED = 6  # settings drawn from a regime's search spaces
MAX_TOKENS = 8  # of the longest answer


@dataclass(frozen=True, slots=True)
class Situation:
    """One learner's step. policies: the learner first. again: by question, what it would say with a hint."""

    name: str
    own: tuple[Group, ...]
    inbox: Inbox
    policies: tuple[str, ...]
    again: Mapping[str, Group] = field(default_factory=dict)

    def context(self) -> Context:
        """Return what the learner may know besides."""
        return Context(self.policies[0], self.policies, 1, np.random.default_rng(0), MAX_TOKENS, updates=2)

    def learn(self, regime: Regime) -> list[Term]:
        """Return the regime's terms, its second round included."""
        context = self.context()
        hints = regime.hints(self.own, self.inbox, context)
        second = [self.again[hint.prompt_id] for hint in hints if hint.prompt_id in self.again]
        terms = regime.learn([*self.own, *second], self.inbox, context)
        is_list_of_terms = isinstance(terms, list) and all(isinstance(term, Term) for term in terms)
        _require_that(is_list_of_terms, "`learn` must return a list of Term")
        return with_step_weights(terms, 1, 2)


def situations(regime: Regime) -> list[Situation]:
    """Make experience of the kinds that `regime` shares and needs."""
    several = ("ada", "bob", "cyd")
    silent = _make_situation("silent peers", regime, several)
    return [
        _make_situation("a peer", regime, several[:2]),
        _make_situation("three policies", regime, several),
        _make_situation("unequal rollouts", regime, several, rollouts=(1, 5, 3)),
        _make_situation("some invalid", regime, several, invalid=0.4),
        _make_situation("only invalid answers", regime, several, invalid=1.0),
        Situation("silent peers", silent.own, Inbox(), several, silent.again),
        _make_situation("zero peers", regime, several[:1]),
        Situation("no prompts", (), Inbox(), several),
    ]


def _make_situation(
    name: str, regime: Regime, policies: tuple[str, ...], rollouts: tuple[int, ...] = (4, 4, 4), invalid: float = 0.0
) -> Situation:
    """Make the experience of one step, the same in every process. policies: the learner first. rollouts: answers of each policy
    to a prompt. invalid: the share of answers on which no verifier could decide."""
    maker = _ExperienceMaker(regime, policies[0], invalid)
    own: list[Group] = []
    again: dict[str, Group] = {}
    boxes: dict[str, dict[str, tuple[Any, ...]]] = defaultdict(lambda: defaultdict(tuple))
    for number in range(12):
        prompt = Prompt(f"x{number}", f"question {number}", "1")
        asked = maker.make_group(prompt, policies[0], rollouts[0])
        own.append(asked)
        for author, count in zip(policies[1:], rollouts[1:], strict=False):
            theirs = maker.make_group(prompt, author, count)
            for inbox, content in maker.list_arrivals(theirs):
                boxes[inbox][prompt.id] += (content,)
            if Need.SCORES in regime.needs:
                boxes["scores"][prompt.id] += maker.score_answers(author, asked)
        if regime.hint_tokens:
            hinted = replace(prompt, id=f"{prompt.id}/hinted", hint=AnswerId("a peer", prompt.id, 0))
            again[prompt.id] = maker.make_group(hinted, policies[0], rollouts[0])
    return Situation(name, tuple(own), Inbox(**boxes), policies, again)


@dataclass(slots=True)
class _ExperienceMaker:
    """Draws answers, and makes of peers' answers what reaches the learner. tags: token ids, another one for each answer, so that
    answers are told apart by their tokens."""

    regime: Regime
    learner: str
    invalid: float
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))
    tags: Iterator[int] = field(default_factory=lambda: iter(range(1, 1_000_000)))

    def make_group(self, prompt: Prompt, policy: str, count: int) -> Group:
        """Draw a policy's answers to a prompt: all right, all wrong, or half of each. The learner's fourth has no text."""
        rate = self.rng.choice([0.0, 0.5, 1.0])
        answers = []
        for number in range(count):
            text = "" if policy == self.learner and number == 3 else "aé"
            answers.append(self._draw_answer(text, rate))
        return Group(prompt, policy, 1, 1, tuple(answers))

    def _draw_answer(self, text: str, rate: float) -> Answer:
        """Draw a finished answer of at most `MAX_TOKENS` tokens (T,), right with this probability."""
        size = int(self.rng.integers(2, MAX_TOKENS + 1))
        is_right = self.rng.random() < rate
        content = [next(self.tags)] * (size - 1)
        tokens = np.array([*content, 0], dtype=np.int32)  # (T,)
        logprobs = -self.rng.gamma(1.5, 0.5, size).astype(np.float32)  # (T,) nats
        verdict = Verdict("right" if is_right else "wrong")
        if self.rng.random() < self.invalid:
            verdict = Verdict("invalid", "timeout")
        return Answer(tokens, logprobs, text, True, verdict)

    def list_arrivals(self, theirs: Group) -> Iterator[tuple[str, object]]:
        """Yield what the learner gets of a peer's group, each with the box that it lies in. Drafts go to who scores them."""
        for record in self.regime.publish([theirs], _bytes_by_token):
            if isinstance(record, Draft):
                continue
            content: object = record
            if isinstance(record, AnswerRecord):
                content = _make_peer_answer(self.rng, self.regime, record, theirs.answers[record.index])
            yield record.inbox, content

    def score_answers(self, author: str, own: Group) -> tuple[PeerScores, ...]:
        """Draw a peer's scores of the learner's answers that were sent to it."""
        scored = [_make_scores(self.rng, author, own, index) for index, _ in answers_to_send(own)]
        if Need.START_SCORES in self.regime.needs:
            scored = [_with_starts(one, own.answers[one.index]) for one in scored]
        return tuple(scored)


def _make_scores(rng: np.random.Generator, author: str, group: Group, index: int) -> PeerScores:
    """Draw a peer's log-probabilities of one of the learner's answers."""
    size = group.answers[index].tokens.size
    aligned = -rng.gamma(1.5, 0.5, size).astype(np.float32)  # (T,) nats
    source_logprob = float(aligned[:-1].sum())
    return PeerScores(author, 1, group.prompt.id, index, aligned, source_logprob, size)


def _with_starts(scores: PeerScores, answer: Answer) -> PeerScores:
    """Return the same scores beside those of the weights that peer and learner started from."""
    start = scores.aligned - np.float32(0.2)
    return replace(scores, start=start, own_start=answer.logprobs - np.float32(0.1))


def _bytes_by_token(answer: Answer) -> list[int]:
    """Return the bytes of the text by token: all stand at the first one; an end has none."""
    further_tokens = answer.tokens.size - answer.finished - 1
    return [len(answer.text.encode())] + [0] * further_tokens


def _make_peer_answer(rng: np.random.Generator, regime: Regime, record: AnswerRecord, answer: Answer) -> PeerAnswer:
    """Make what THL would make of a peer's record, with the needs of the regime filled in."""
    aligned = None
    source_logprob = float("nan")
    source_tokens = 0
    if Rollout in regime.shares:  # the only record with log-probabilities
        aligned = answer.logprobs  # (T,)
        source_logprob = float(answer.logprobs[:-1].sum())
        source_tokens = int(rng.integers(1, 7))
    receiver_old = None
    if Need.RECEIVER_OLD in regime.needs:
        receiver_old = -rng.gamma(1.5, 0.5, answer.tokens.size).astype(np.float32)  # (T,)
    return PeerAnswer(
        record.author,
        version=1,
        step=1,
        prompt_id=record.prompt_id,
        index=record.index,
        tokens=answer.tokens,
        text="aé",
        finished=True,
        verdict=answer.verdict,
        aligned=aligned,
        source_logprob=source_logprob,
        source_tokens=source_tokens,
        receiver_old=receiver_old,
    )


def check_regime(regime: str | type[Regime], options: Mapping[str, Any] | None = None) -> None:
    """Run every check below on a regime, which is an installed name or a class. Raises AssertionError with the clause,
    PluginError where it does not load."""
    kind = load(regime) if isinstance(regime, str) else regime
    make = partial(kind, check_options(kind, options or {}))
    for check in CHECKS:
        check(make)


def declares_itself(make: Make) -> None:
    """Check that declarations are complete, and that unknown options are refused."""
    regime = make()
    kind = type(regime)
    try:
        check_declaration(regime)
        again = check_options(kind, resolve_options(regime.options))
    except PluginError as error:
        raise AssertionError(str(error)) from None
    _require_that(again == regime.options, f"options do not survive being written out: {regime.options} became {again}")
    _require_that(
        (kind.__doc__ or "").strip(), f"{kind.__name__} has no docstring; `harness regimes` shows its first line"
    )
    try:
        check_options(kind, {"no such option": 1})
    except PluginError:
        return
    raise AssertionError("an unknown option is accepted")


def learns_with_all_that_may_be_searched(make: Make) -> None:
    """Check that options drawn from the search spaces give well-formed terms."""
    kind = type(make())
    try:
        searched = search_spaces(kind)
    except PluginError as error:
        raise AssertionError(str(error)) from None
    if not searched:
        return
    rng = np.random.default_rng(0)
    defaults = resolve_options(kind.Options())
    for trial in range(SAMPLED):
        drawn: dict[str, Any] = {}
        for name, space in searched.items():
            if isinstance(space, Choice):
                drawn[name] = space.values[trial % len(space.values)]
            else:
                place = float(trial) if trial < 2 else float(rng.random())  # a range's ends first
                drawn[name] = space.at(place, defaults[name])
        try:
            options = check_options(kind, drawn)
        except PluginError as error:
            raise AssertionError(f"{drawn}: of the search space, but refused: {error}") from None
        learns_well_formed_terms(partial(kind, options))


def publishes_what_it_shares(make: Make) -> None:
    """Check that it publishes records of declared types, of its own valid answers."""
    regime = make()
    for situation in situations(regime):
        groups = {g.prompt.id: g for g in situation.own}
        published = set[object]()
        for record in regime.publish(situation.own, _bytes_by_token):
            kind = type(record)
            _require_that(kind in regime.shares, f"publishes a {kind.__name__}, which `shares` does not name")
            _require_that(record.author == situation.policies[0], f"publishes as {record.author!r}")
            _require_that(
                record.prompt_id in groups, f"publishes about {record.prompt_id!r}, a prompt it was not asked"
            )
            once = kind, record.prompt_id, getattr(record, "index", 0)
            _require_that(
                once not in published, f"publishes two {kind.__name__} about a prompt, with no `index` that differs"
            )
            published.add(once)
            if isinstance(record, AnswerRecord):
                answer = groups[record.prompt_id].answers[record.index]
                _require_that(
                    answer.verdict.valid and answer.text, f"publishes an answer that is {answer.verdict.value} or empty"
                )
            try:
                msgspec.msgpack.decode(msgspec.msgpack.encode(record), type=kind).check()
            except (TypeError, ValueError, OverflowError, ExchangeError) as error:
                raise AssertionError(f"publishes a {kind.__name__} that receivers refuse: {error}") from None


def hints_at_what_it_received(make: Make) -> None:
    """Check that it gives at most one hint a question, of an answer that was received to it."""
    for situation in situations(make()):
        hints = make().hints(situation.own, situation.inbox, situation.context())
        hinted_prompts = {hint.prompt_id for hint in hints}
        _require_that(len(hinted_prompts) == len(hints), f"{situation.name}: two hints for one question")
        for hint in hints:
            answers = situation.inbox.answers.get(hint.prompt_id, ())
            successes = situation.inbox.successes.get(hint.prompt_id, ())
            received = any(answer is hint.answer for answer in (*answers, *successes))
            _require_that(
                received, f"{situation.name}: a hint to {hint.prompt_id!r} is no answer that was received to it"
            )


def learns_well_formed_terms(make: Make) -> None:
    """Check that it learns finite terms that engines can pack, for any inbox."""
    for situation in situations(make()):
        terms = situation.learn(make())
        for term, answer in _answers_of_terms(terms):
            at = f"{situation.name}: term {term.name!r}, prompt {answer.prompt_id!r}"
            _check_numbers(at, term, answer)
            _check_origin(at, situation, term, answer)
        try:
            for batch in from_sampler(cut_into_minibatches(terms, 2, MAX_TOKENS)):
                pack_answers(batch, list(batch.live()))
        except ValueError as error:
            raise AssertionError(f"{situation.name}: no engine can learn these terms: {error}") from None


def _check_numbers(at: str, term: Term, answer: TermAnswer) -> None:
    """Require finite numbers, weights that are not negative, and a denominator and a mask that fit. at: the place in words."""
    for name in ("advantage", "weight", "scale"):
        _require_that(np.isfinite(getattr(answer, name)).all(), f"{at}: {name} is {getattr(answer, name)}")
    _require_that(np.isfinite(term.weight), f"{at}: the term's weight is {term.weight}")
    _require_that(
        min(answer.weight, term.weight) >= 0, f"{at}: a negative weight turns the clip around; use the advantage"
    )
    has_ratio = term.objective.form in ("ppo", "hard", "truncated") and answer.denominator is not None
    is_settled = term.source == "own" and has_ratio and answer.denominator is not OLD
    _require_that(not is_settled, f"{at}: an own answer's denominator is OLD, or `old_logprobs` is idle")
    given = None if isinstance(answer.denominator, Denominator) else answer.denominator
    _require_that(given is None or np.isfinite(given).all(), f"{at}: the denominator is not finite")
    mask = answer.mask
    if mask is not None:
        fits = mask.dtype == bool and mask.shape == answer.tokens.shape
        _require_that(fits, f"{at}: the mask does not fit")


def _check_origin(at: str, situation: Situation, term: Term, answer: TermAnswer) -> None:
    """Require that a term's answer is one that was given, own or received, to its prompt. at: the place in words."""
    _require_that(term.source in ("own", "peer"), f"{at}: source {term.source!r}")
    given: Sequence[Answer | PeerAnswer]
    if term.source == "own":
        given = _check_own_origin(at, situation, answer)
    else:
        prompt = answer.prompt_id
        inbox = situation.inbox
        received = (*inbox.answers.get(prompt, ()), *inbox.successes.get(prompt, ()))
        given = [peer for peer in received if peer.id == answer.origin]
        _require_that(given, f"{at}: origin {answer.origin} names no answer that was received")
    same = [one for one in given if np.array_equal(one.tokens, answer.tokens)]
    _require_that(same, f"{at}: tokens that are no policy's answer to this prompt")
    are_valid = all(one.verdict.valid for one in same)
    _require_that(are_valid, f"{at}: an answer with an invalid verdict is learnt")


def _check_own_origin(at: str, situation: Situation, answer: TermAnswer) -> list[Answer]:
    """Return the learner's answers to the prompt, with a hint and without. OLD is the log-probability behind the prompt that was
    sampled, so an answer sampled with a hint has none behind the question alone."""
    groups = (*situation.own, *situation.again.values())
    named = {name for group in groups for name, _ in group.named}
    _require_that(answer.origin in {None, *named}, f"{at}: origin {answer.origin} names no answer of one's own")
    given: list[Answer] = []
    hinted: list[Answer] = []
    for group in groups:
        if answer.prompt_id in (group.prompt.id, group.prompt.of):
            given += group.answers
        if answer.prompt_id == group.prompt.of:
            hinted += group.answers
    if answer.denominator is OLD:
        is_hinted = any(np.array_equal(one.tokens, answer.tokens) for one in hinted)
        _require_that(
            not is_hinted, f"{at}: OLD is of the hinted prompt; on the question alone there is no denominator"
        )
    return given


def learns_alone_without_peers(make: Make) -> None:
    """Check that without peers it learns from own answers alone."""
    (alone,) = [s for s in situations(make()) if s.name == "zero peers"]
    terms = alone.learn(make())
    sources = {term.source for term, _ in _answers_of_terms(terms)}
    _require_that("peer" not in sources, "peer answers in the terms of a policy without peers")
    _require_that("own" in sources, "without peers nothing is learnt")


def restores_its_state(make: Make) -> None:
    """Check that `state` is JSON, and that a regime which takes it up goes on as the first."""
    first = make()
    second = make()
    for situation in situations(first):
        situation.learn(first)
        for measured in (Measured(1.0, 0.5, 0.25), Measured(1.0, math.nan, math.nan)):
            first.learnt(measured)
    try:
        stored = msgspec.json.encode(first.state())
    except TypeError as error:
        raise AssertionError(f"`state` is not JSON-compatible: {error}") from None
    second.restore(msgspec.json.decode(stored))
    for situation in situations(first):
        one, other = map(situation.learn, (first, second))
        _require_that(
            _comparable_terms(one) == _comparable_terms(other), f"{situation.name}: after `restore` the terms differ"
        )


def draws_only_from_the_context(make: Make) -> None:
    """Check that equal experience and generator give equal terms."""
    digests = []
    before = random.getstate(), np.random.get_state()
    try:
        for seed in (1, 2):
            random.seed(seed)
            np.random.seed(seed)
            learnt = [situation.learn(make()) for situation in situations(make())]
            digests.append([_comparable_terms(terms) for terms in learnt])
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
    same = digests[0] == digests[1]
    _require_that(same, "two runs with equal seeds differ: draw from `context.rng` only, keep no state in the class")


def leaves_its_inputs_alone(make: Make) -> None:
    """Check that it changes no inputs, which are handed over write-protected."""
    for situation in situations(make()):
        before = [a.tobytes() for a in _arrays_given(situation)]
        for array in _arrays_given(situation):
            array.flags.writeable = False
        try:
            situation.learn(make())
        except ValueError as error:
            if "read-only" not in str(error):
                raise
            raise AssertionError(f"{situation.name}: `learn` writes into the arrays that it is given") from None
        after = [a.tobytes() for a in _arrays_given(situation)]
        _require_that(before == after, f"{situation.name}: `learn` changed what it was given")


def imports_no_torch(make: Make) -> None:
    """Check that it imports no torch, without which suites are validated."""
    module = type(make()).__module__
    error, loaded = _import_alone(module, tuple(p for p in sys.path if p))
    _require_that(not error, f"{module} cannot be imported on its own: {error}")
    _require_that(not loaded, f"{module} imports torch")


@cache
def _import_alone(module: str, path: tuple[str, ...]) -> tuple[str, bool]:
    """Import a module in a fresh process; return the error's last line, and whether torch was loaded."""
    code = f"import sys, importlib; importlib.import_module({module!r}); print('torch' in sys.modules)"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment)
    error = ""
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        error = lines[-1]
    return error, done.stdout.strip() == "True"


CHECKS: tuple[Callable[[Make], None], ...] = (
    declares_itself,
    publishes_what_it_shares,
    hints_at_what_it_received,
    learns_well_formed_terms,
    learns_with_all_that_may_be_searched,
    learns_alone_without_peers,
    draws_only_from_the_context,
    restores_its_state,
    leaves_its_inputs_alone,
    imports_no_torch,
)


def _require_that(condition: object, otherwise: str) -> None:
    """Make an `assert` that `python -O` does not drop."""
    if not condition:
        raise AssertionError(otherwise)


def _answers_of_terms(terms: Sequence[Term]) -> Iterator[tuple[Term, TermAnswer]]:
    return ((term, answer) for term in terms for answer in term.answers)


def _arrays_given(situation: Situation) -> Iterator[np.ndarray]:
    """Yield every array that a regime is given, which it must not write to."""
    for group in (*situation.own, *situation.again.values()):
        for own in group.answers:
            yield own.tokens
            yield own.logprobs
    for of_prompt in situation.inbox.scores.values():
        for scores in of_prompt:
            yield scores.aligned
    for received in (situation.inbox.answers, situation.inbox.successes):
        for answers in received.values():
            for theirs in answers:
                for array in (theirs.tokens, theirs.aligned, theirs.receiver_old):
                    if array is not None:
                        yield array


def _comparable_terms(terms: Sequence[Term]) -> list[Any]:
    """Return all that terms say, comparable: the same terms give equal lists, to the bit."""
    digest: list[Any] = []
    for term, answer in _answers_of_terms(terms):
        denominator: object = answer.denominator
        if not isinstance(denominator, Denominator | None):
            denominator = np.asarray(denominator).tobytes()
        mask = None if answer.mask is None else answer.mask.tobytes()
        advantage = np.asarray(answer.advantage).tobytes()
        of_term = term.name, term.source, term.objective, term.weight, term.order
        of_answer = answer.prompt_id, answer.tokens.tobytes(), answer.weight, answer.scale, answer.origin
        digest.append((*of_term, *of_answer, advantage, denominator, mask))
    return digest
