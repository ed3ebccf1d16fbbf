"""A supervised start of a pretrained model: a base checkpoint that answers in the form that is scored, cached by content.

The mixture, the presets and the gate are those of the micro families' stage 0 (`stage0`); the weights, the tokenizer, the chat
template and the end of an answer are the policy's own, and what trains them is the engine that RL uses: bf16 with fp32 masters,
log-probabilities at answer positions only.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import numpy as np
import tokenizers
import torch
import transformers

from harness.allocation.shapes import Precision, chosen, read_config
from harness.engines.embedded.engine import EmbeddedEngine
from harness.engines.embedded.mixture import Example, draw_examples, draw_ladder_examples
from harness.engines.embedded.presets import PRESETS, START_EXAMPLES, START_STEPS, Mixture
from harness.engines.embedded.pretraining import Schedule
from harness.engines.embedded.stage0 import REPORT, Probe, Progress, Report, kept, tell
from harness.engines.protocol import Optimisation, Sample
from harness.errors import CellError, UsageError
from harness.experience.answers import Prompt
from harness.learning.terms import Objective, Term, TermAnswer
from harness.tasks import ladder, micro
from harness.versions import versions

RATE, WARMUP = 3e-5, 3
"""Learning rate of a start that is asked for without one, and steps until it is reached (docs/pretrained.md)."""
IMITATION = Objective(form="nll", aggregation="answer")
_BOXED = re.compile(r"\\boxed\{([^{}]*)\}")


@dataclass(frozen=True, slots=True)
class Start:
    """One start: `content` says which weights it begins from, `task` what its examples are of (micro, or levels of the ladder).

    steps: of the first round; each of at most `rounds` further ones has a quarter of it. gate: least accuracy given chain of
    thought in every skill group, as in stage 0. probes: held-out prompts a skill that measure it.
    """

    name: str
    content: str
    chat: bool
    preset: str = "format"
    strong: str = "add"
    task: str = "micro"
    seed: int = 0
    steps: int = START_STEPS
    learning_rate: float = RATE
    batch: int = START_EXAMPLES
    rounds: int = 4
    gate: float = 0.1
    probes: int = 12

    def __post_init__(self) -> None:
        if self.preset not in PRESETS:
            raise UsageError(f"unknown stage 0 preset {self.preset!r}; there are {', '.join(PRESETS)}")
        if self.task != "micro" and not ladder.is_ladder(self.task):
            raise UsageError(
                f"stage 0 has no examples of {self.task!r}; it has those of micro and of the ladder's levels"
            )

    @property
    def mixture(self) -> Mixture:
        return PRESETS[self.preset]

    @property
    def schedule(self) -> Schedule:
        return Schedule(batch=self.batch, learning_rate=self.learning_rate, warmup=WARMUP, betas=(0.9, 0.99))

    def key(self, precision: Precision) -> str:
        """Content hash of everything that determines the weights."""
        parts = {
            "spec": {**asdict(self), "name": "", "mixture": asdict(self.mixture), "schedule": asdict(self.schedule)},
            "precision": precision,
            "code": versions(("stage0", "tasks", "learning", "engines", "engines/embedded")),
            "versions": [str(library.__version__) for library in (torch, transformers, tokenizers)],
        }
        digest = hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()
        return f"{_plain(self.name)}-{self.preset}-{self.seed}-{digest[:20]}"

    def examples(self) -> Iterator[Example]:
        rng = Random(self.seed)
        if self.task == "micro":
            return draw_examples(self.mixture, self.strong, rng)
        return draw_ladder_examples(self.mixture, self.strong, ladder.levels_of(self.task), rng)

    def probed(self, *, hinted: bool) -> list[Prompt]:
        """Held-out prompts."""
        if self.task == "micro":
            return micro.evaluation_prompts(self.probes, hinted=hinted)
        return ladder.evaluation_prompts(ladder.levels_of(self.task), self.probes, hinted=hinted)


def started(
    start: Start,
    folder: Path,
    progress: Progress | None = None,
    *,
    device: str | None = None,
    dtype: Precision | None = None,
    threads: int | None = None,
    deadline: float = 7200.0,
) -> Path:
    """The folder of the model in `folder` after its start: from the cache, or trained now.

    device, dtype, threads: the engine's.

    Raises
    ------
    CellError
        The gate does not hold after all rounds, or another process did not finish in time.
    EngineError
        The folder does not open.
    DiskFullError
        No room for the checkpoint.
    """
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    precision = dtype or chosen(read_config(folder / "config.json"))
    options = {"device": str(place), "dtype": precision, "threads": threads}
    key = start.key(precision)
    return kept(key, lambda new: _build(start, folder, new, progress or _silent, options), deadline)


def _build(start: Start, folder: Path, new: Path, progress: Progress, options: dict[str, Any]) -> None:
    """Train until the gate holds, and leave model, tokenizer and report in `new`."""
    began, steps = time.process_time(), 0
    engine = EmbeddedEngine(start.name, folder, chat=start.chat, **options)
    probe, examples = Probe(engine, _right), start.examples()
    name = f"start of {start.name} ({start.preset}, {start.task})"
    for extra in range(start.rounds + 1):
        planned = start.steps if extra == 0 else max(1, start.steps // 4)
        words = f"{name}: training" if extra == 0 else f"{name}: training, extra round {extra} of {start.rounds}"
        for step in range(planned):
            _learn(engine, list(islice(examples, start.batch)), start, step, planned)
            tell(progress, words, planned, step + 1)
        steps += planned
        given_cot = probe.accuracy(start.probed(hinted=True), temperature=1.0, samples=2)
        if given_cot.least >= start.gate:
            break
    else:
        raise CellError(
            f"{name}: accuracy given chain of thought is {given_cot.groups} after {steps} steps; RL needs {start.gate}"
        )
    plain = start.probed(hinted=False)
    report = Report(
        spec=asdict(start),
        steps=steps,
        given_cot=given_cot,
        sampled=probe.accuracy(plain, temperature=1.0, samples=2),
        greedy=probe.accuracy(plain, temperature=0.0, samples=1),
        cot_share=probe.share(plain, _by_steps, temperature=1.0, samples=2),
        cpu_seconds=time.process_time() - began,
    )
    engine.model.save_pretrained(new)
    engine.tokenizer.save_pretrained(new)
    (new / REPORT).write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    engine.close()


def _learn(engine: EmbeddedEngine, examples: Sequence[Example], start: Start, step: int, steps: int) -> None:
    """One optimiser step: the mean over examples of each response's mean log-likelihood, the end included that the policy itself
    would sample."""
    prompts = [Prompt(f"{step}/{place}", example.prompt, "") for place, example in enumerate(examples)]
    answers = tuple(
        TermAnswer(prompt.id, _response(engine, example.response, start.chat), advantage=1.0)
        for prompt, example in zip(prompts, examples, strict=True)
    )
    schedule = start.schedule
    optimisation = Optimisation(
        learning_rate=schedule.rate(step, steps),
        betas=schedule.betas,
        weight_decay=schedule.weight_decay,
        clip_norm=schedule.clip_norm,
        max_tokens=max(answer.tokens.size for answer in answers),
    )
    engine.update(prompts, [Term("start", "own", IMITATION, answers)], optimisation)


def _response(engine: EmbeddedEngine, text: str, chat: bool) -> np.ndarray:
    """Ids of a response; a chat template ends with a separator of its own, to which no blank is added."""
    ids = engine.tokenizer.encode(text.lstrip() if chat else text, add_special_tokens=False)
    return np.array([*ids, engine.stop[0]], dtype=np.int32)


def _right(prompt: Prompt, sample: Sample) -> bool:
    """It finishes, and boxes exactly the right answer."""
    return sample.finished and _BOXED.findall(sample.text) == [prompt.gold]


def _by_steps(prompt: Prompt, sample: Sample) -> bool:
    """Something stands before the box."""
    return bool(sample.text.partition("\\boxed")[0].strip())


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name)[:64]


def _silent(share: float, words: str) -> None:
    """No progress asked for."""
