"""The contract of every engine, as checks that raise AssertionError.

@pytest.mark.parametrize("check", CHECKS, ids=name_of)
def test_conformance(check, case): check(case)
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from random import Random

import numpy as np
from jaxtyping import Float32, UInt64

from harness.engines.protocol import Optimisation, PolicyEngine, Sample, Sampling
from harness.errors import CheckpointError, Fault, TrainingError
from harness.experience.answers import Prompt
from harness.learning.minibatches import cut_into_minibatches
from harness.learning.terms import OLD, Objective, Term, TermAnswer
from harness.tasks.micro import LEVELS, SKILLS, MicroProblem

__all__ = [
    "CHECKS",
    "TOLERANCE",
    "Case",
    "a_gradient_that_is_no_number_ends_the_training",
    "answers_depend_on_seed_and_weights_only",
    "broken_checkpoints_are_refused",
    "checkpoints_are_ordinary_folders",
    "closing_twice_is_fine",
    "greedy_ignores_the_seed",
    "measuring_changes_nothing",
    "name_of",
    "old_denominators_are_of_the_steps_start",
    "restored_engine_continues_exactly",
    "samples_are_well_formed",
    "scores_equal_sampled_logprobs",
    "tiny_policy",
    "tiny_prompts",
    "updates_move_probability_towards_advantage",
    "updates_without_gradient_change_nothing",
]

TOLERANCE = 1e-4
"""Nats per token between sampled and teacher-forced log-probabilities (float32)."""


@dataclass(frozen=True, slots=True)
class Case:
    """make: a fresh engine of that name, always with the same weights. prompts: at least 6, of different lengths. folder:
    empty."""

    make: Callable[[str], PolicyEngine]
    prompts: tuple[Prompt, ...]
    folder: Path
    max_tokens: int = 24
    group: int = 4

    @property
    def seeds(self) -> UInt64[np.ndarray, "P G"]:
        """The same each time."""
        return np.random.default_rng(7).integers(0, 2**64, (len(self.prompts), self.group), dtype=np.uint64)

    def sample(self, engine: PolicyEngine, temperature: float = 1.0) -> list[list[Sample]]:
        """Sample answers to all prompts."""
        return engine.sample(self.prompts, self.seeds, Sampling(temperature, self.max_tokens))

    def score(self, engine: PolicyEngine, samples: Sequence[Sequence[Sample]]) -> list[Float32[np.ndarray, "T"]]:
        """Score samples, in their order."""
        prompts = [p for p, group in zip(self.prompts, samples, strict=True) for _ in group]
        return engine.score(prompts, [s.tokens for group in samples for s in group])

    def optimisation(self, **changes: object) -> Optimisation:
        """Return settings with `changes`."""
        return replace(Optimisation(learning_rate=1e-3, max_tokens=self.max_tokens), **changes)  # type: ignore[arg-type]

    def term(self, samples: Sequence[Sequence[Sample]], advantages: Sequence[float], source: str = "own") -> Term:
        """Make GRPO's term over the samples, one group to each of `prompts`. advantages: of a group's answers in their order,
        from the first again where there are fewer. source: also the term's name; a peer's term is learnt after the own one."""
        answers = []
        for prompt, group in zip(self.prompts, samples, strict=True):
            for index, sample in enumerate(group):
                advantage = advantages[index % len(advantages)]
                answers.append(TermAnswer(prompt.id, sample.tokens, advantage, sample.logprobs))
        is_of_peer = source == "peer"
        return Term(source, "peer" if is_of_peer else "own", Objective(), tuple(answers), order=int(is_of_peer))


def tiny_policy(folder: Path, family: str = "llama") -> Path:
    """Return a micro policy that ends its answers, trained for a second."""
    from harness.engines.embedded.families import build_model, build_tokenizer
    from harness.engines.embedded.presets import WarmupExample
    from harness.engines.embedded.warmup import Pretrainer, RateSchedule

    tokenizer = build_tokenizer(family)
    model = build_model(family, seed=0, tokenizer=tokenizer)
    examples = []
    for index, problem in enumerate(_draw_problems(52 * 16, seed=1)):
        completion = problem.direct if index % 2 else problem.chain_of_thought
        examples.append(WarmupExample(problem.prompt, completion))
    Pretrainer(model, tokenizer, iter(examples), RateSchedule(learning_rate=4e-3, warmup=1)).run(50, lambda done: None)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def tiny_prompts(count: int) -> tuple[Prompt, ...]:
    """Draw prompts for `tiny_policy`."""
    return tuple(Prompt(f"p{i}", p.prompt, "0") for i, p in enumerate(_draw_problems(count, seed=5)))


def _draw_problems(count: int, seed: int) -> list[MicroProblem]:
    """Return so many problems of the micro task, one skill after the other."""
    rng = Random(seed)
    skills = list(SKILLS.values())
    return [skills[i % len(skills)].draw(rng, rng.choice(LEVELS), held_out=False) for i in range(count)]


def _on_engine(check: Callable[[Case, PolicyEngine], None]) -> Callable[[Case], None]:
    """Turn a check of one engine into one of a case: it opens the case's engine, and closes it however the check ends."""

    @wraps(check)
    def run(case: Case) -> None:
        with closing(case.make("a")) as engine:
            check(case, engine)

    return run


@_on_engine
def samples_are_well_formed(case: Case, engine: PolicyEngine) -> None:
    """Check shapes and dtypes, that EOS ends finished answers alone, and that text lacks it."""
    assert all(prompt.text in engine.reads(prompt) for prompt in case.prompts)
    samples = case.sample(engine)
    assert [len(group) for group in samples] == [case.group] * len(case.prompts)
    eos = engine.tokenizer.eos_token_id
    for sample in (s for group in samples for s in group):
        assert sample.tokens.dtype == np.int32
        assert sample.logprobs.dtype == np.float32
        assert 1 <= len(sample.tokens) == len(sample.logprobs) <= case.max_tokens
        assert (sample.logprobs <= 0).all()
        assert np.isfinite(sample.logprobs).all()
        assert eos not in sample.tokens[:-1]
        assert sample.finished == (sample.tokens[-1] == eos)
        assert sample.finished or len(sample.tokens) == case.max_tokens
        content = sample.tokens[:-1] if sample.finished else sample.tokens
        assert sample.text == engine.tokenizer.decode(content, skip_special_tokens=True)
    assert any(s.finished for group in samples for s in group), "no answer finished: nothing was tested"


@_on_engine
def answers_depend_on_seed_and_weights_only(case: Case, engine: PolicyEngine) -> None:
    """Check that a seed gives the same answer alone, in another order and in a larger batch; another seed gives another
    answer."""
    whole = case.sample(engine)
    settings = Sampling(1.0, case.max_tokens)
    _assert_same_samples(whole, case.sample(engine), exact=True)
    backwards = engine.sample(case.prompts[::-1], case.seeds[::-1], settings)[::-1]
    alone = [engine.sample([p], case.seeds[i : i + 1], settings)[0] for i, p in enumerate(case.prompts)]
    fewer = engine.sample(case.prompts, case.seeds[:, :1], settings)
    _assert_same_samples(whole, backwards)
    _assert_same_samples(whole, alone)
    _assert_same_samples([group[:1] for group in whole], fewer)
    other = engine.sample(case.prompts, case.seeds + np.uint64(1), settings)
    differing = 0
    for group, other_group in zip(whole, other, strict=True):
        differing += sum(one.text != two.text for one, two in zip(group, other_group, strict=True))
    assert differing > 0, "another seed gave the same answers"


@_on_engine
def greedy_ignores_the_seed(case: Case, engine: PolicyEngine) -> None:
    """Check that at temperature 0 all answers of a group are alike."""
    for group in case.sample(engine, temperature=0.0):
        assert all(np.array_equal(sample.tokens, group[0].tokens) for sample in group)


@_on_engine
def scores_equal_sampled_logprobs(case: Case, engine: PolicyEngine) -> None:
    """Check that scores are the sampled log-probabilities, in any batch."""
    samples = case.sample(engine)
    flat = [s for group in samples for s in group]
    together = case.score(engine, samples)
    for sample, score in zip(flat, together, strict=True):
        assert np.abs(score - sample.logprobs).max() < TOLERANCE
    for index in (0, len(flat) - 1):
        alone = engine.score([case.prompts[index // case.group]], [flat[index].tokens])[0]
        assert np.abs(alone - together[index]).max() < TOLERANCE
    empty = engine.score(case.prompts[:2], [np.zeros(0, np.int32), flat[0].tokens])
    assert [len(s) for s in empty] == [0, len(flat[0].tokens)]


@_on_engine
def updates_move_probability_towards_advantage(case: Case, engine: PolicyEngine) -> None:
    """Check that answers with an advantage become likelier, others less likely, and that the report counts them."""
    samples = case.sample(engine)
    before = case.score(engine, samples)
    report = engine.update(case.prompts, [case.term(samples, [1.0, -1.0, 0.0, 1.0])], case.optimisation())
    after = case.score(engine, samples)
    gain = [(late - early).sum() for early, late in zip(before, after, strict=True)]  # (A,) nats of each answer
    sign = np.array([1.0, -1.0, 0.0, 1.0] * len(case.prompts))[: len(gain)]  # (A,)
    assert np.dot(gain, sign) > 0
    term = report.terms[0]
    answers = sum(map(len, samples))
    assert (term.answers, term.active) == (answers, int((sign != 0).sum()))
    assert term.tokens == sum(len(s.tokens) for group in samples for s in group)
    assert abs(term.ratio_mean - 1) < TOLERANCE
    assert abs(term.loss - report.loss) < 1e-7
    assert report.gradient_norm > 0
    assert engine.version == report.updates == 1


@_on_engine
def updates_without_gradient_change_nothing(case: Case, engine: PolicyEngine) -> None:
    """Check that updates with advantages of 0, or without terms, leave the weights, and that the version moves on."""
    samples = case.sample(engine)
    before = case.score(engine, samples)
    report = engine.update(case.prompts, [case.term(samples, [0.0])], case.optimisation(updates=2))
    assert (report.terms[0].active, report.trained_tokens, report.gradient_norm) == (0, 0, 0.0)
    engine.update(case.prompts, [], case.optimisation())
    assert engine.version == 3
    assert all(np.array_equal(a, b) for a, b in zip(before, case.score(engine, samples), strict=True))


@_on_engine
def a_gradient_that_is_no_number_ends_the_training(case: Case, engine: PolicyEngine) -> None:
    """Check that such a gradient is told as the training's fault and not the engine's: a tuner then takes the trial for lost."""
    term = case.term(case.sample(engine), [math.nan, 1.0])
    said = ("none", "it learnt")
    try:
        engine.update(case.prompts, [term], case.optimisation())
    except TrainingError as error:
        said = error.fault, str(error)
    assert said == (Fault.NOT_FINITE, "policy a: the gradient of update 0 is not finite")


def measuring_changes_nothing(case: Case) -> None:
    """Check that norms of own and peer gradients and their cosine are consistent, and free of side effects."""
    scores = []
    reports = []
    for measure in (False, True):
        engine = case.make("a")
        samples = case.sample(engine)
        terms = [case.term(samples, [1.0, -1.0]), case.term(samples, [0.5, -2.0], source="peer")]
        reports.append(engine.update(case.prompts, terms, case.optimisation(measure=measure)))
        scores.append(case.score(engine, samples))
        engine.close()
    assert all(np.array_equal(a, b) for a, b in zip(*scores, strict=True))
    silent, measured = reports
    assert np.isnan(silent.own_peer_cosine)
    own = measured.own_gradient_norm
    peer = measured.peer_gradient_norm
    cosine = measured.own_peer_cosine
    assert own > 0
    assert peer > 0
    assert -1 <= cosine <= 1
    together = (own**2 + peer**2 + 2 * cosine * own * peer) ** 0.5
    assert abs(together - measured.gradient_norm) < 1e-3 * measured.gradient_norm


@_on_engine
def old_denominators_are_of_the_steps_start(case: Case, engine: PolicyEngine) -> None:
    """Check that the trainer's old log-probabilities give ratios of 1, and the sampler's the difference between both."""
    samples = case.sample(engine)
    own = case.term(samples, [1.0, -1.0])
    # The sampler is said to be off by 0.01 nats a token, up and down in turn, which no ratio to the trainer may show
    off = 0.01 * (-1.0) ** np.arange(len(own.answers))  # (A,)
    answers = []
    for answer, score, nats in zip(own.answers, case.score(engine, samples), off, strict=True):
        answers.append(replace(answer, denominator=OLD, sampled=score - np.float32(nats)))
    # So narrow that it clips answers whose ratio is to the sampler, and none whose ratio is 1
    window = Objective(ratio="sequence", low=1 - 3e-4, high=1 + 4e-4, aggregation="answer")
    terms = [replace(own, answers=tuple(answers), objective=window)]
    still = case.optimisation(learning_rate=0.0)
    for updates, tolerance in ((1, 1e-6), (3, TOLERANCE)):
        report = engine.update(case.prompts, terms, replace(still, updates=updates))
        assert abs(report.terms[0].ratio_mean - 1) < tolerance
        assert abs(report.terms[0].ratio_second - 1) < tolerance
        assert report.terms[0].active == len(answers)
        assert abs(report.drift.mean - 0.01) < TOLERANCE
        assert abs(report.drift.p99 - 0.01) < TOLERANCE
        assert report.drift.outside == 1.0
    report = engine.update(case.prompts, terms, replace(still, old_logprobs="sampler"))
    second_moment = np.exp(2 * off).mean()
    assert abs(report.terms[0].ratio_second - second_moment) < TOLERANCE
    assert report.terms[0].active < len(answers)
    assert abs(report.drift.mean - 0.01) < TOLERANCE
    _compare_later_ratios(case, engine, terms)


def _compare_later_ratios(case: Case, engine: PolicyEngine, terms: list[Term]) -> None:
    """Compare one step of two updates with two steps of one update each, on the same halves of the answers, whose denominators
    are stated: the log-probabilities at the start of both."""
    settings = case.optimisation(learning_rate=3e-4, max_tokens=case.max_tokens)
    term = terms[0]
    prompts = {prompt.id: prompt for prompt in case.prompts}
    asked = [prompts[answer.prompt_id] for answer in term.answers]
    start = engine.score(asked, [answer.tokens for answer in term.answers])  # (T,) nats of each answer
    engine.save(case.folder / "start")
    report = engine.update(case.prompts, terms, replace(settings, updates=2)).terms[0]

    engine.restore(case.folder / "start")
    known = [replace(answer, denominator=score) for answer, score in zip(term.answers, start, strict=True)]
    batches = cut_into_minibatches([replace(term, answers=tuple(known))], 2, case.max_tokens)
    halves = [batch.terms[0] for batch in batches]
    reports = [engine.update(case.prompts, [half], settings).terms[0] for half in halves]
    total = sum(one.ratio_second * len(half.answers) for one, half in zip(reports, halves, strict=True))
    assert abs(report.ratio_second - total / len(known)) < TOLERANCE
    assert abs(reports[1].ratio_second - 1) > 10 * TOLERANCE, "the first update moved nothing: nothing was tested"


@_on_engine
def restored_engine_continues_exactly(case: Case, engine: PolicyEngine) -> None:
    """Check that a checkpoint restored into a fresh engine gives the same numbers, bit for bit."""
    samples = case.sample(engine)
    terms = [case.term(samples, [1.0, -1.0])]
    engine.update(case.prompts, terms, case.optimisation(updates=2))
    engine.save(case.folder / "checkpoint")
    engine.save(case.folder / "checkpoint")
    learnt = [[case.term(samples, [0.0])], terms, terms]  # without advantages momentum alone must survive a resume

    def go_on(engine: PolicyEngine) -> tuple[str, list[Float32[np.ndarray, "T"]], list[list[Sample]]]:
        assert engine.version == 2
        reports = ""
        scores = []
        for one in learnt:
            reports += repr(engine.update(case.prompts, one, case.optimisation(updates=2)))
            scores += case.score(engine, samples)
        return reports, scores, case.sample(engine)

    reports, scores, later = go_on(engine)
    engine.close()  # a machine may have room for one
    with closing(case.make("a")) as fresh:
        fresh.restore(case.folder / "checkpoint")
        fresh_reports, fresh_scores, fresh_later = go_on(fresh)
    assert fresh_reports == reports
    assert all(np.array_equal(a, b) for a, b in zip(scores, fresh_scores, strict=True))
    _assert_same_samples(later, fresh_later, exact=True)


@_on_engine
def broken_checkpoints_are_refused(case: Case, engine: PolicyEngine) -> None:
    """Check that broken checkpoints are refused in one clear line, and leave the engine as it was."""
    samples = case.sample(engine)
    before = case.score(engine, samples)
    good = case.folder / "good"
    engine.save(good)

    def refused(folder: Path, by: PolicyEngine = engine) -> None:
        message = ""
        try:
            by.restore(folder)
        except CheckpointError as error:
            message = str(error)
        assert folder.name in message, f"{folder} was accepted"
        assert "\n" not in message

    refused(case.folder / "absent")
    files = sorted(path for path in good.iterdir() if path.is_file())
    for index, file in enumerate(files):
        content = file.read_bytes()
        damages = {"truncated": content[: len(content) // 2], "altered": b"\x00" + content[1:], "gone": b""}
        for kind, damaged in damages.items():
            folder = case.folder / f"bad-{index}-{kind}"
            shutil.copytree(good, folder)
            (folder / file.name).unlink()
            if damaged:
                (folder / file.name).write_bytes(damaged)
            refused(folder)
    engine.restore(good)
    assert all(np.array_equal(a, b) for a, b in zip(before, case.score(engine, samples), strict=True))
    engine.close()
    with closing(case.make("b")) as other:
        refused(good, by=other)


@_on_engine
def checkpoints_are_ordinary_folders(case: Case, engine: PolicyEngine) -> None:
    """Check that transformers opens a checkpoint, and that its model gives the engine's scores."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    samples = case.sample(engine)
    engine.update(case.prompts, [case.term(samples, [1.0, -1.0])], case.optimisation())
    engine.save(case.folder / "checkpoint")
    model = AutoModelForCausalLM.from_pretrained(case.folder / "checkpoint", dtype=torch.float32).train(False)
    tokenizer = AutoTokenizer.from_pretrained(case.folder / "checkpoint")
    assert tokenizer.get_vocab() == engine.tokenizer.get_vocab()
    scores = case.score(engine, samples)[:: case.group]
    for prompt, group, score in zip(case.prompts, samples, scores, strict=True):
        start = tokenizer.encode(prompt.text, add_special_tokens=False)
        ids = torch.tensor([[*start, *group[0].tokens.tolist()]])  # (1, L + T)
        with torch.no_grad():
            logits = model(ids).logits[0, len(start) - 1 : -1]  # (T, V)
        if tokenizer.pad_token_id != tokenizer.eos_token_id:  # padding is never sampled, so that it has no share of 1
            logits[:, tokenizer.pad_token_id] = float("-inf")
        targets = ids[0, len(start) :, None]  # (T, 1)
        logp = logits.log_softmax(-1).gather(1, targets).squeeze(1).numpy()  # (T,)
        assert np.abs(logp - score).max() < TOLERANCE


def closing_twice_is_fine(case: Case) -> None:
    """Check that `close` is idempotent."""
    engine = case.make("a")
    engine.close()
    engine.close()


CHECKS: tuple[Callable[[Case], None], ...] = (
    samples_are_well_formed,
    answers_depend_on_seed_and_weights_only,
    greedy_ignores_the_seed,
    scores_equal_sampled_logprobs,
    updates_move_probability_towards_advantage,
    updates_without_gradient_change_nothing,
    a_gradient_that_is_no_number_ends_the_training,
    measuring_changes_nothing,
    old_denominators_are_of_the_steps_start,
    restored_engine_continues_exactly,
    broken_checkpoints_are_refused,
    checkpoints_are_ordinary_folders,
    closing_twice_is_fine,
)
"""All of them."""


def name_of(check: Callable[[Case], None]) -> str:
    """Test id of a check."""
    return check.__name__


def _assert_same_samples(
    left: Sequence[Sequence[Sample]], right: Sequence[Sequence[Sample]], exact: bool = False
) -> None:
    """Assert that two sets of samples are the same, log-probabilities up to rounding unless `exact`."""
    for group, other in zip(left, right, strict=True):
        for a, b in zip(group, other, strict=True):
            assert np.array_equal(a.tokens, b.tokens), f"{a.text!r} != {b.text!r}"
            assert (a.text, a.finished) == (b.text, b.finished)
            assert np.abs(a.logprobs - b.logprobs).max() <= (0.0 if exact else TOLERANCE)
