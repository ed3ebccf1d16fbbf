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
        """What the learner may know besides."""
        return Context(self.policies[0], self.policies, 1, np.random.default_rng(0), MAX_TOKENS, updates=2)

    def learn(self, regime: Regime) -> list[Term]:
        """The regime's terms, its second round included."""
        context = self.context()
        hints = regime.hints(self.own, self.inbox, context)
        second = [self.again[hint.prompt_id] for hint in hints if hint.prompt_id in self.again]
        terms = regime.learn([*self.own, *second], self.inbox, context)
        _require_that(
            isinstance(terms, list) and all(isinstance(t, Term) for t in terms), "`learn` must return a list of Term"
        )
        return with_step_weights(terms, 1, 2)


def situations(regime: Regime) -> list[Situation]:
    """Experience of the kinds that `regime` shares and needs."""
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
    rng = np.random.default_rng(7)
    tag = iter(range(1, 1_000_000))
    own: list[Group] = []
    again: dict[str, Group] = {}
    boxes: dict[str, dict[str, tuple[Any, ...]]] = defaultdict(lambda: defaultdict(tuple))

    def group(prompt: Prompt, policy: str, count: int) -> Group:
        rate = rng.choice([0.0, 0.5, 1.0])
        answers = []
        for i in range(count):
            size = int(rng.integers(2, MAX_TOKENS + 1))
            value = "right" if rng.random() < rate else "wrong"
            tokens = np.array([next(tag)] * (size - 1) + [0], dtype=np.int32)
            logprobs = -rng.gamma(1.5, 0.5, size).astype(np.float32)
            verdict = Verdict("invalid", "timeout") if rng.random() < invalid else Verdict(value)  # type: ignore[arg-type]
            text = "" if policy == policies[0] and i == 3 else "aé"
            answers.append(Answer(tokens, logprobs, text, True, verdict))
        return Group(prompt, policy, 1, 1, tuple(answers))

    for p in range(12):
        prompt = Prompt(f"x{p}", f"question {p}", "1")
        own.append(group(prompt, policies[0], rollouts[0]))
        for author, count in zip(policies[1:], rollouts[1:], strict=False):
            theirs = group(prompt, author, count)
            for record in regime.publish([theirs], _bytes_by_token):
                if isinstance(record, Draft):
                    continue
                answer = isinstance(record, AnswerRecord) and _make_peer_answer(
                    rng, regime, record, theirs.answers[record.index]
                )
                boxes[record.inbox][prompt.id] += (answer or record,)
            if Need.SCORES in regime.needs:
                scored = tuple(_make_scores(rng, author, own[-1], i) for i, _ in answers_to_send(own[-1]))
                if Need.START_SCORES in regime.needs:
                    scored = tuple(_with_starts(one, own[-1].answers[one.index]) for one in scored)
                boxes["scores"][prompt.id] += scored
        if regime.hint_tokens:
            asked = replace(prompt, id=f"{prompt.id}/hinted", hint=AnswerId("a peer", prompt.id, 0))
            again[prompt.id] = group(asked, policies[0], rollouts[0])
    return Situation(name, tuple(own), Inbox(**boxes), policies, again)


def _make_scores(rng: np.random.Generator, author: str, group: Group, index: int) -> PeerScores:
    aligned = -rng.gamma(1.5, 0.5, group.answers[index].tokens.size).astype(np.float32)
    return PeerScores(author, 1, group.prompt.id, index, aligned, float(aligned[:-1].sum()), aligned.size)


def _with_starts(scores: PeerScores, answer: Answer) -> PeerScores:
    """The same scores beside those of the weights that peer and learner started from."""
    start = scores.aligned - np.float32(0.2)
    return replace(scores, start=start, own_start=answer.logprobs - np.float32(0.1))


def _bytes_by_token(answer: Answer) -> list[int]:
    """Bytes of the text by token: all stand at the first one; an end has none."""
    further_tokens = answer.tokens.size - answer.finished - 1
    return [len(answer.text.encode())] + [0] * further_tokens


def _make_peer_answer(rng: np.random.Generator, regime: Regime, record: AnswerRecord, answer: Answer) -> PeerAnswer:
    raw = Rollout in regime.shares
    size = answer.tokens.size
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
        aligned=answer.logprobs if raw else None,
        source_logprob=float(answer.logprobs[:-1].sum()) if raw else float("nan"),
        source_tokens=int(rng.integers(1, 7)) if raw else 0,
        receiver_old=-rng.gamma(1.5, 0.5, size).astype(np.float32) if Need.RECEIVER_OLD in regime.needs else None,
    )


def check_regime(regime: str | type[Regime], options: Mapping[str, Any] | None = None) -> None:
    """Every check below, by an installed name or a class. Raises AssertionError with the clause, PluginError where it does
    not load."""
    kind = load(regime) if isinstance(regime, str) else regime
    make = partial(kind, check_options(kind, options or {}))
    for check in CHECKS:
        check(make)


def declares_itself(make: Make) -> None:
    """Declarations are complete; unknown options are refused."""
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
    """Options drawn from the search spaces give well-formed terms."""
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
    """Records of declared types, of its own valid answers."""
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
    """At most one hint a question, of an answer that was received to it."""
    for situation in situations(make()):
        hints = make().hints(situation.own, situation.inbox, situation.context())
        _require_that(
            len({hint.prompt_id for hint in hints}) == len(hints), f"{situation.name}: two hints for one question"
        )
        for hint in hints:
            answers = situation.inbox.answers.get(hint.prompt_id, ())
            successes = situation.inbox.successes.get(hint.prompt_id, ())
            received = any(answer is hint.answer for answer in (*answers, *successes))
            _require_that(
                received, f"{situation.name}: a hint to {hint.prompt_id!r} is no answer that was received to it"
            )


def learns_well_formed_terms(make: Make) -> None:
    """Finite terms that engines can pack, for any inbox."""
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
    for name in ("advantage", "weight", "scale"):
        _require_that(np.isfinite(getattr(answer, name)).all(), f"{at}: {name} is {getattr(answer, name)}")
    _require_that(np.isfinite(term.weight), f"{at}: the term's weight is {term.weight}")
    _require_that(
        min(answer.weight, term.weight) >= 0, f"{at}: a negative weight turns the clip around; use the advantage"
    )
    ratio = term.objective.form in ("ppo", "hard", "truncated") and answer.denominator is not None
    settled = term.source == "own" and ratio and answer.denominator is not OLD
    _require_that(not settled, f"{at}: an own answer's denominator is OLD, or `old_logprobs` is idle")
    given = None if isinstance(answer.denominator, Denominator) else answer.denominator
    _require_that(given is None or np.isfinite(given).all(), f"{at}: the denominator is not finite")
    mask = answer.mask
    _require_that(
        mask is None or (mask.dtype == bool and mask.shape == answer.tokens.shape), f"{at}: the mask does not fit"
    )


def _check_origin(at: str, situation: Situation, term: Term, answer: TermAnswer) -> None:
    _require_that(term.source in ("own", "peer"), f"{at}: source {term.source!r}")
    prompt = answer.prompt_id
    inbox = situation.inbox
    given: Sequence[Answer | PeerAnswer]
    if term.source == "own":
        groups = (*situation.own, *situation.again.values())
        named = {name for group in groups for name, _ in group.named}
        _require_that(answer.origin in {None, *named}, f"{at}: origin {answer.origin} names no answer of one's own")
        given = [a for g in groups if prompt in (g.prompt.id, g.prompt.of) for a in g.answers]
        unlike = [a for g in groups if prompt == g.prompt.of for a in g.answers if answer.denominator is OLD]
        hinted = any(np.array_equal(a.tokens, answer.tokens) for a in unlike)
        _require_that(not hinted, f"{at}: OLD is of the hinted prompt; on the question alone there is no denominator")
    else:
        received = (*inbox.answers.get(prompt, ()), *inbox.successes.get(prompt, ()))
        given = [a for a in received if a.id == answer.origin]
        _require_that(given, f"{at}: origin {answer.origin} names no answer that was received")
    same = [a for a in given if np.array_equal(a.tokens, answer.tokens)]
    _require_that(same, f"{at}: tokens that are no policy's answer to this prompt")
    _require_that(all(a.verdict.valid for a in same), f"{at}: an answer with an invalid verdict is learnt")


def learns_alone_without_peers(make: Make) -> None:
    """Without peers: own answers, nothing of a peer's."""
    (alone,) = [s for s in situations(make()) if s.name == "zero peers"]
    sources = {t.source for t, _ in _answers_of_terms(alone.learn(make()))}
    _require_that("peer" not in sources, "peer answers in the terms of a policy without peers")
    _require_that("own" in sources, "without peers nothing is learnt")


def restores_its_state(make: Make) -> None:
    """`state` is JSON, and who takes it up goes on as the first."""
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
    """Equal experience and generator give equal terms."""
    digests = []
    before = random.getstate(), np.random.get_state()
    try:
        for seed in (1, 2):
            random.seed(seed)
            np.random.seed(seed)
            digests.append([_comparable_terms(s.learn(make())) for s in situations(make())])
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
    same = digests[0] == digests[1]
    _require_that(same, "two runs with equal seeds differ: draw from `context.rng` only, keep no state in the class")


def leaves_its_inputs_alone(make: Make) -> None:
    """They are handed over write-protected."""
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
    """A suite is validated without torch."""
    module = type(make()).__module__
    error, loaded = _import_alone(module, tuple(p for p in sys.path if p))
    _require_that(not error, f"{module} cannot be imported on its own: {error}")
    _require_that(not loaded, f"{module} imports torch")


@cache
def _import_alone(module: str, path: tuple[str, ...]) -> tuple[str, bool]:
    """In a fresh process: the error's last line, and whether torch was loaded."""
    code = f"import sys, importlib; importlib.import_module({module!r}); print('torch' in sys.modules)"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment)
    error = (done.stderr.strip().splitlines() or ["no message"])[-1] if done.returncode else ""
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
    """`assert` that `python -O` does not drop."""
    if not condition:
        raise AssertionError(otherwise)


def _answers_of_terms(terms: Sequence[Term]) -> Iterator[tuple[Term, TermAnswer]]:
    return ((term, answer) for term in terms for answer in term.answers)


def _arrays_given(situation: Situation) -> Iterator[np.ndarray]:
    """Every array that a regime is given, which it must not write to."""
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
    """All that terms say, comparable: the same terms give equal lists, to the bit."""
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
