"""Measure what a policy can do on a level of questions: ask it, have its answers judged, count. `harness tasks --calibrate` and
the trial of `harness new-suite` both measure here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np
from jaxtyping import Float

from harness.engines.embedded.engine import EmbeddedEngine
from harness.engines.protocol import Sample, Sampling
from harness.errors import DataError, UsageError
from harness.experience.answers import Prompt
from harness.phases import announce_phase
from harness.session.cell.judge import Judge
from harness.session.cell.learners import verdicts_of_answers
from harness.suite.seeds import derive_many, derive_seed
from harness.tasks import ladder, micro
from harness.tasks.registry import training_source

SEED = 20_263
# Of pass@1: RL needs successes and failures
LEAST, MOST = 0.1, 0.5
ANSWERS_AT_ONCE = 512
# Texts that are sampled together: at most so many times as long as the shortest, and so many characters
_LONGER, _EITHER_WAY = 1.5, 200
# 1 for a right answer, 0 for a wrong one, NaN without a verdict
Solved = Float[np.ndarray, "prompts answers"]


class LevelResult(msgspec.Struct, frozen=True, kw_only=True):
    """A policy on a level, by answers with a verdict. pass1, pass_any: shares of right answers, and of prompts with a right one.
    error: standard error of pass1 over prompts."""

    policy: str
    level: str
    prompts: int
    answers: int
    pass1: float
    error: float
    pass_any: float
    boxed: float
    finished: float

    @property
    def fits(self) -> bool:
        """Whether RL has something to learn from here."""
        return LEAST <= self.pass1 <= MOST and self.pass_any > self.pass1


def questions_of(task: str, level: str, count: int) -> list[Prompt]:
    """Return `count` training questions of a level of micro or the ladder, or of a task that is a level itself, the same ones
    every time; fewer where the level is small. Raises UsageError for none, DataError where a library is missing."""
    seed = derive_seed(SEED, level)
    draw = _draw_of_level(task, level)
    prompts = list[Prompt]()
    few = 0
    asked = count
    many = count
    while few < many:  # by halves: a search that fails is slow
        try:
            prompts = draw(seed, asked)
            few = asked
        except DataError:
            many = asked - 1
        asked = (few + many + 1) // 2
    if prompts:
        return prompts
    raise UsageError(f"--prompts {count}: at least 1")


def _draw_of_level(task: str, level: str) -> Callable[[int, int], list[Prompt]]:
    """Return what draws so many training questions of a level by a seed."""
    if task == "micro" or ladder.is_ladder(task):
        source = micro if task == "micro" else ladder
        return lambda seed, count: source.training_prompts(seed, count, [level])
    its_source = training_source(level)
    its_source.draw(0, 1)  # a library that is missing is another fault than too few questions
    return its_source.draw


def sample_answers(
    engine: EmbeddedEngine, name: str, prompts: Sequence[Prompt], answers: int, length: int, stream: str
) -> list[list[Sample]]:
    """Sample answers to each prompt at temperature 1. name: of the phase that is shown. length: in tokens, at most. stream: names
    the random numbers, which depend on it, the prompt and the answer's number alone. Prompts of like length are
    sampled together: beside one of 1,500 tokens a prompt of 50 would cost as much at every token of its answer."""
    drawn: dict[int, list[Sample]] = {}
    with announce_phase(f"{engine.name}: {name}", len(prompts)) as sampling:
        lengths = [len(prompt.text) for prompt in prompts]
        most = max(1, ANSWERS_AT_ONCE // answers)
        for places in _of_like_length(lengths, most):
            part = [prompts[place] for place in places]
            seeds = np.stack([derive_many(answers, stream, prompt.id) for prompt in part])  # (P, A)
            drawn |= zip(places, engine.sample(part, seeds, Sampling(max_new_tokens=length)), strict=True)
            sampling.count(len(drawn))
    return [drawn[place] for place in range(len(prompts))]


def _of_like_length(lengths: Sequence[int], most: int) -> Iterator[list[int]]:
    """Yield the places of texts in lists of at most `most`, in which no text is much longer than the shortest."""
    part: list[int] = []
    for place in sorted(range(len(lengths)), key=lengths.__getitem__):
        if part and (len(part) == most or lengths[place] > _LONGER * lengths[part[0]] + _EITHER_WAY):
            yield part
            part = []
        part.append(place)
    if part:
        yield part


def measure_level(
    policy: str, level: str, questions: Sequence[Prompt], drawn: Sequence[Sequence[Sample]], judge: Judge
) -> tuple[LevelResult, Solved]:
    """Judge a policy's answers to the questions of a level. drawn: as many answers to each question. Raises UsageError where no
    answer has a verdict."""
    asked: list[Prompt] = []
    samples: list[Sample] = []
    for prompt, row in zip(questions, drawn, strict=True):
        asked += [prompt] * len(row)
        samples += row
    texts = [sample.text for sample in samples]
    finished = [sample.finished for sample in samples]
    said = verdicts_of_answers(judge, asked, texts, finished)
    rewards = [float(verdict.value == "right") if verdict.valid else np.nan for verdict in said]
    solved = np.array(rewards).reshape(len(drawn), -1)  # (P, A)
    has_verdict = ~np.isnan(solved).all(axis=1)  # (P,)
    judged = solved[has_verdict]
    if not judged.size:
        raise UsageError(f"{level}: the verifier decided on no answer of {policy}: {said[0].reason}")
    shares = np.nanmean(judged, axis=1)  # (P,) of right answers to each judged question
    any_right = (judged == 1).any(axis=1)  # (P,)
    error = float("nan")
    if len(shares) > 1:
        error = float(shares.std(ddof=1) / len(shares) ** 0.5)
    boxed = ["\\boxed{" in text for text in texts]
    result = LevelResult(
        policy=policy,
        level=level,
        prompts=len(judged),
        answers=solved.shape[1],
        pass1=float(shares.mean()),
        error=error,
        pass_any=float(any_right.mean()),
        boxed=float(np.mean(boxed)),
        finished=float(np.mean(finished)),
    )
    return result, solved
