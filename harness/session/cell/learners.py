"""The learners of a cell, with their clocks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int32

from harness import phases
from harness.engines.protocol import PolicyEngine, Sample, Sampling
from harness.errors import TokenizationError
from harness.experience.answers import Answer, AnswerId, Group, Prompt
from harness.experience.records import Pieces
from harness.learning.hints import Hint, without_answer
from harness.learning.regime import Regime
from harness.session.cell.judge import Judge, scorer_for
from harness.session.cell.questions import stop_strings, truncated_answers
from harness.suite.cells import Cell
from harness.suite.schema import Policy
from harness.suite.seeds import derive_many
from harness.tokenization.codec import TokenCodec
from harness.verification.processes import asked_seconds
from harness.verification.scorer import beginning_of
from harness.verification.verdict import TRUNCATED, Verdict

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

DOING = {
    "generate": "sampling", "verify": "verifying", "exchange": "exchanging", "score": "scoring", "train": "learning",
    "measure": "measuring", "curve": "sampling", "evaluate": "evaluating", "save": "saving",
}  # fmt: skip
_WITHOUT_ENGINE = frozenset({"verify", "exchange"})


@dataclass(slots=True)
class Spent:
    cpu: float = 0.0
    wall: float = 0.0
    gpu: float = 0.0


@dataclass(slots=True)
class Clock:
    """One policy's phases. meter: CPU-seconds of its engine; other phases count this thread's, and all the verifier's. gpus
    count by wall time while the engine works."""

    meter: Callable[[], float] = time.process_time
    gpus: int = 0
    policy: str = ""
    step: dict[str, Spent] = field(default_factory=dict)
    total: dict[str, Spent] = field(default_factory=dict)
    # CPU-seconds so far
    cpu_seconds_total: float = 0.0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the seconds that are spent inside for a phase: by the engine's meter, or in phases without an engine by this
        thread's clock."""
        engine = name not in _WITHOUT_ENGINE
        own = self.meter if engine else time.thread_time
        cpu = own() + asked_seconds()
        wall = time.perf_counter()
        try:
            with phases.announce_phase(f"{self.policy} {DOING.get(name, name)}".strip(), quiet=True):
                yield
        finally:
            wall = time.perf_counter() - wall
            cpu = own() + asked_seconds() - cpu
            self.cpu_seconds_total += cpu
            for book in (self.step, self.total):
                spent = book.setdefault(name, Spent())
                spent.cpu += cpu
                spent.wall += wall
                spent.gpu += wall * self.gpus * engine

    def cpu(self, name: str) -> float:
        return self.step[name].cpu if name in self.step else float("nan")

    def next_step(self) -> None:
        self.step = {}

    def take(self) -> dict[str, Spent]:
        total = self.total
        self.total = {}
        return total


@dataclass
class Learner:
    policy: Policy
    engine: PolicyEngine
    regime: Regime
    rollouts: int
    base: Path
    clock: Clock = field(default_factory=Clock)

    @property
    def name(self) -> str:
        return self.policy.name

    @cached_property
    def codec(self) -> TokenCodec:
        """What carries text into the learner's tokens. Raises TokenizationError."""
        return TokenCodec(self.engine.tokenizer, self.engine.stop, self.closing)

    @property
    def closing(self) -> tuple[int, ...]:
        """Ids that end a carried answer; an engine may say but one, its first `stop`."""
        return tuple(getattr(self.engine, "closing", self.engine.stop[:1]))

    def ending(self, tokens: Int32[np.ndarray, "T"]) -> int:
        """Count the tokens of a finished answer's end: the whole of `closing` where it ends so, else one."""
        size = len(self.closing)
        if tuple(tokens[-size:].tolist()) == self.closing:
            return size
        return 1

    def pieces(self, groups: Sequence[Group]) -> Pieces:
        """Return what tells an answer's bytes by token, without the final EOS. It knows the answers of these groups."""
        table: dict[Answer, list[int]] = {}

        def of(answer: Answer) -> list[int]:
            if not table:
                answers = [answer for group in groups for answer in group.answers if answer.text]
                read = self.codec.read([answer.content for answer in answers])  # once for all, at the first question
                for known, decoded in zip(answers, read, strict=True):
                    table[known] = decoded.pieces.tolist()
            return table[answer]

        return of


def template_date(policy: Policy, tokenizer: PreTrainedTokenizerFast) -> str:
    """Return the day that the chat template of a policy writes, as its `chat` states it; empty where it writes none."""
    if not isinstance(policy.chat, dict):
        return ""
    from harness.engines.templates import ChatTemplate

    if ChatTemplate.of(policy.name, tokenizer, policy.chat).writes_date():
        return str(policy.chat["date"])
    return ""


def verdicts_of_answers(
    judge: Judge, prompts: Sequence[Prompt], texts: Sequence[str], finished: Sequence[bool]
) -> list[Verdict]:
    """Have answers judged, in order. A truncated answer is always wrong, and is not read."""
    asked = [(prompt, text) for prompt, text, done in zip(prompts, texts, finished, strict=True) if done]
    said = iter(judge.verify(asked))
    return [next(said) if done else TRUNCATED for done in finished]


def second_round(
    learner: Learner, cell: Cell, step: int, own: Sequence[Group], hints: Sequence[Hint], judge: Judge
) -> list[Group]:
    """Sample and judge the hinted questions, as often as before. A hint ends before what gives away the gold or the peer's
    answer, or reads as a control token; where nothing is left, the question is not asked."""
    if not hints:
        return []
    asked = {group.prompt.id: group.prompt for group in own}
    control = [token for token in learner.engine.tokenizer.get_added_vocab() if token.strip()]
    prompts: dict[str, Prompt] = {}
    with learner.clock.phase("verify"):
        for hint in hints:
            prompt = asked.get(hint.prompt_id)
            if prompt is None:
                continue
            text = _text_of_hint(learner, cell, hint, prompt, control, judge)
            if not text:
                continue
            asking = hint.template.format(question=prompt.text, hint=text)
            origin = AnswerId(hint.answer.author, prompt.id, hint.answer.index)
            hinted = replace(prompt, id=f"{prompt.id}/hinted", text=asking, hint=origin)
            prompts.setdefault(prompt.id, hinted)
    if not prompts:
        return []
    return roll_out(learner, cell, step, list(prompts.values()), judge)


def _text_of_hint(
    learner: Learner, cell: Cell, hint: Hint, prompt: Prompt, control: Sequence[str], judge: Judge
) -> str:
    """Return as much of a peer's answer as the learner may read, by `Regime.hint_tokens` of its own tokens; may be empty.

    control: texts of the learner's added tokens, which no hint may write."""
    answer = hint.answer
    scorer = scorer_for(cell.training.task, prompt)

    def gives_away(texts: Sequence[str]) -> list[bool]:
        finished = [True] * len(texts)
        verdicts = verdicts_of_answers(judge, [prompt] * len(texts), texts, finished)
        return [verdict.value != "wrong" for verdict in verdicts]

    found_at = [answer.text.find(token) for token in control]
    first_control = min((place for place in found_at if place >= 0), default=None)
    secrets = prompt.gold, beginning_of(answer.verdict.extracted)
    whole = without_answer(answer.text[:first_control], secrets, scorer.perfect, gives_away)
    read = learner.codec.try_encode([whole])[0]
    if isinstance(read, TokenizationError):  # nothing readable was left
        return ""
    ends = read.ends[: learner.regime.hint_tokens]  # (T,) in bytes
    text = whole.encode()[: ends[-1]].decode(errors="ignore")
    if text == whole:
        return text
    # The cut may have made an answer of another one: 924 may have become 92
    safe = without_answer(text, secrets, scorer.perfect, gives_away)
    return text if safe == text.strip() else safe


def roll_out(learner: Learner, cell: Cell, step: int, prompts: Sequence[Prompt], judge: Judge) -> list[Group]:
    """Sample a group of answers to each prompt and judge them. Seeds derive from (seed, stream, group, policy, step, prompt,
    sample), so that an answer depends on these and the weights alone."""
    own = cell.seed, cell.variant.sampling_stream, cell.group.name, learner.name, step
    seeds = np.stack([derive_many(learner.rollouts, *own, prompt.id) for prompt in prompts])  # (P, G)
    version = learner.engine.version
    with learner.clock.phase("generate"):
        sampling = Sampling(cell.training.temperature, cell.training.max_new_tokens)
        sampled = learner.engine.sample(prompts, seeds, sampling)
    answers = [[(sample, False) for sample in row] for row in sampled]
    strings = stop_strings(cell, learner.policy)
    if strings:
        with learner.clock.phase("score"):
            answers = truncated_answers(learner.codec, learner.engine, prompts, sampled, strings)
    with learner.clock.phase("verify"):
        asked: list[Prompt] = []
        texts: list[str] = []
        finished: list[bool] = []
        for prompt, row in zip(prompts, answers, strict=True):
            for sample, _ in row:
                asked.append(prompt)
                texts.append(sample.text)
                finished.append(sample.finished)
        said = iter(verdicts_of_answers(judge, asked, texts, finished))
    groups = []
    for prompt, row in zip(prompts, answers, strict=True):
        own_answers = [_judged_answer(learner, sample, closed, next(said)) for sample, closed in row]
        groups.append(Group(prompt, learner.name, version, step, tuple(own_answers)))
    return groups


def _judged_answer(learner: Learner, sample: Sample, closed: bool, verdict: Verdict) -> Answer:
    """Make an answer of a sample and its verdict. closed: a stop text ended it, for which one EOS stands that is not learnt."""
    ending = 1 if closed else learner.ending(sample.tokens)
    return Answer(sample.tokens, sample.logprobs, sample.text, sample.finished, verdict, closed, ending)
