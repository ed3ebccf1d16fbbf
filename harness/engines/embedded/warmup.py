"""Supervised warm-up before any RL, cached by content, in rounds until each skill group's accuracy on held-out prompts that ask
for steps (temperature 1) reaches the gate."""

from __future__ import annotations

import hashlib
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import islice
from math import cos, pi
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import msgspec
import numpy as np
import tokenizers
import torch
import transformers
from jaxtyping import Int64
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from harness.allocation.shapes import Precision, precision_of_config, read_config
from harness.cache import cache_folder
from harness.engines import checkpoint
from harness.engines.embedded.engine import EmbeddedEngine
from harness.engines.embedded.families import build_model, build_tokenizer
from harness.engines.embedded.numerics import Numerics, require_portable
from harness.engines.embedded.presets import (
    SHIPPED,
    START_EXAMPLES,
    START_STEPS,
    Mixture,
    WarmupExample,
    draw_examples,
    draw_ladder_examples,
    mixture_of,
)
from harness.engines.protocol import Optimisation, Sample, Sampling
from harness.errors import CellError, CheckpointError, DiskFullError
from harness.experience.answers import Prompt
from harness.files import is_full, lock_file
from harness.learning.terms import Objective, Term, TermAnswer
from harness.phases import show_inside_phase, stop_if_asked
from harness.tasks import ladder, micro
from harness.versions import versions_of

Progress = Callable[[float, str], None]  # share done, a few words
STEPS = {
    "llama": 2000,
    "qwen": 2000,
    "neox": 2000,
    "gpt2": 2000,
}  # to the gate (docs/micro.md)
RATE, RISE = (
    3e-5,
    3,
)  # a pretrained model's learning rate, and steps until it is reached (docs/pretrained.md)
REPORT = "stage0.json"
IMITATION = Objective(form="nll", aggregation="answer")
_IGNORED = -100


@dataclass(frozen=True, slots=True)
class RateSchedule:
    """A linear rise, then a cosine down to `floor` times `learning_rate`. A `Pretrainer` draws `pool` batches together."""

    batch: int = 16
    pool: int = 4
    learning_rate: float = 2e-3
    warmup: int = 80
    floor: float = 0.1
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.98)
    clip_norm: float = 1.0

    def rate(self, step: int, steps: int) -> float:
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, steps - self.warmup)
        return self.learning_rate * (self.floor + (1 - self.floor) * (1 + cos(pi * done)) / 2)


@dataclass(frozen=True, slots=True)
class MicroSpec:
    """A micro family's base. weak_cot: instead of the preset's. steps: of the first round; further ones have a quarter. gate:
    least accuracy of a skill group. probes: held-out prompts a skill."""

    boxed: ClassVar[str] = r"\\boxed\{(-?\d+)\}"

    family: str
    strong: str
    preset: str = "trap"
    seed: int = 0
    steps: int | None = None
    rounds: int = 4
    gate: float = 0.65
    probes: int = 40
    schedule: RateSchedule = field(default_factory=RateSchedule)
    numerics: Numerics = "fast"
    weak_cot: float | None = None

    @property
    def title(self) -> str:
        share = "" if self.weak_cot is None else f" with weak_cot {self.weak_cot:g}"
        return f"base {self.family} ({self.preset}{share}, strong in {self.strong})"

    @property
    def mixture(self) -> Mixture:
        return mixture_of(self.preset, self.weak_cot)

    @property
    def budget(self) -> int:
        return STEPS[self.family] if self.steps is None else self.steps

    @property
    def key(self) -> str:
        """The checkpoint's name: what it is, with a digest of all that decides its weights."""
        said = asdict(self) | {"steps": self.budget, "mixture": asdict(self.mixture)}
        if self.weak_cot is None:  # older ones keep their keys
            del said["weak_cot"]
        if self.numerics == "fast":
            del said["numerics"]
        digest = _digest_parts(self.numerics == "portable", spec=said, code=versions_of(("stage0", "tasks")))
        return f"{self.family}-{self.strong}-{self.preset}-{self.seed}-{digest}"

    def questions(self, *, hinted: bool) -> list[Prompt]:
        return micro.evaluation_prompts(self.probes, hinted=hinted)

    def reasons(self, text: str) -> bool:
        return "=" in text


@dataclass(frozen=True, slots=True)
class Warmup:
    """A pretrained model's. content: which weights it begins from. task: micro, or levels of the ladder."""

    boxed: ClassVar[str] = r"\\boxed\{([^{}]*)\}"

    name: str
    content: str
    chat: bool | Mapping[str, Any]
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
    weak_cot: float | None = None

    @property
    def title(self) -> str:
        return f"start of {self.name} ({self.preset}, {self.task})"

    @property
    def mixture(self) -> Mixture:
        return mixture_of(self.preset, self.weak_cot)

    @property
    def schedule(self) -> RateSchedule:
        return RateSchedule(batch=self.batch, learning_rate=self.learning_rate, warmup=RISE, betas=(0.9, 0.99))

    def key(self, precision: Precision) -> str:
        """Name the checkpoint by what it is, with a digest of all that decides its weights; the policy's name is none of that."""
        said = {**asdict(self), "name": "", "mixture": asdict(self.mixture), "schedule": asdict(self.schedule)}
        if self.weak_cot is None:  # older ones keep their keys
            del said["weak_cot"]
        code = versions_of(("stage0", "tasks", "learning", "engines", "engines/embedded"))
        plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", self.name)[:64]
        kept = "bf16, dithered" if precision == "bf16" else precision
        return f"{plain}-{self.preset}-{self.seed}-{_digest_parts(spec=said, precision=kept, code=code)}"

    def examples(self) -> Iterator[WarmupExample]:
        rng = Random(self.seed)
        if self.task == "micro":
            return draw_examples(self.mixture, self.strong, rng)
        return draw_ladder_examples(self.mixture, self.strong, ladder.levels_of(self.task), rng)

    def questions(self, *, hinted: bool) -> list[Prompt]:
        if self.task == "micro":
            return micro.evaluation_prompts(self.probes, hinted=hinted)
        return ladder.evaluation_prompts(ladder.levels_of(self.task), self.probes, hinted=hinted)

    def reasons(self, text: str) -> bool:
        return bool(text.partition("\\boxed")[0].strip())


class Accuracy(msgspec.Struct, frozen=True):
    groups: dict[str, float]
    mean: float


def base_checkpoint(spec: MicroSpec, progress: Progress | None = None, *, deadline: float = 3600.0) -> Path:
    """Return the folder of a base checkpoint, from the package or the cache, or trained now. Raises CellError where the gate does
    not hold or another process takes too long, DiskFullError, Interrupted."""
    return _take_or_build(spec.key, lambda folder: train_base(spec, folder, progress), deadline)


def is_shipped(spec: MicroSpec) -> bool:
    return (SHIPPED / spec.key).is_dir()


def train_base(spec: MicroSpec, folder: Path, progress: Progress | None = None) -> None:
    """Train a base checkpoint. Raises CellError where the gate does not hold."""
    tokenizer = build_tokenizer(spec.family)
    model = build_model(spec.family, spec.seed, tokenizer)
    examples = draw_examples(spec.mixture, spec.strong, Random(spec.seed))
    pretrainer = Pretrainer(model, tokenizer, examples, spec.schedule)
    tokenizer.save_pretrained(folder)

    def opened() -> EmbeddedEngine:
        model.save_pretrained(folder)
        return EmbeddedEngine("stage0", folder, device="cpu", numerics=spec.numerics)

    if spec.numerics == "portable":
        require_portable()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # weights must not depend on cores
    try:
        _train_to_gate(spec, spec.budget, pretrainer.run, opened, folder, progress)
    finally:
        torch.set_num_threads(threads)


def warmup_checkpoint(
    warmup: Warmup,
    folder: Path,
    progress: Progress | None = None,
    *,
    device: str | None = None,
    dtype: Precision | None = None,
    threads: int | None = None,
    numerics: Numerics | None = None,
    deadline: float = 7200.0,
) -> Path:
    """Return the folder of the model in `folder` after its warm-up. Raises as `base_checkpoint`, and EngineError."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    precision = dtype or precision_of_config(read_config(folder / "config.json"))

    def build(new: Path) -> None:
        engine = EmbeddedEngine(
            warmup.name,
            folder,
            chat=warmup.chat,
            device=device,
            dtype=precision,
            threads=threads,
            numerics=numerics,
            ends_are_one=False,  # the end that examples show is the one to be taught
        )
        examples = warmup.examples()

        def train(steps: int, done: Callable[[int], None]) -> None:
            for step in range(steps):
                _learn_examples(engine, list(islice(examples, warmup.batch)), warmup, step, steps)
                done(step + 1)

        _train_to_gate(warmup, warmup.steps, train, lambda: engine, new, progress)
        engine.model.save_pretrained(new)
        checkpoint.keep_generation(folder, new)
        engine.tokenizer.save_pretrained(new)
        engine.close()

    return _take_or_build(warmup.key(precision) + "-portable" * (numerics == "portable"), build, deadline)


def _digest_parts(portable: bool = False, **parts: Any) -> str:
    """Return twenty hexadecimal digits of what decides the weights, with the versions of the libraries."""
    build = str(torch.__version__)
    release = build.partition("+")[0]  # all its builds are the same on a CPU in portable numerics
    parts["versions"] = [release if portable else build, transformers.__version__, tokenizers.__version__]
    return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()[:20]


def _take_or_build(key: str, build: Callable[[Path], None], deadline: float) -> Path:
    """Return the folder of a base checkpoint: from the package, from the cache, or built now, by one process at a time."""
    if _is_whole(SHIPPED / key, key):
        return SHIPPED / key
    folder = cache_folder() / "stage0" / key
    if _is_whole(folder, key):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with (folder.parent / f"{key}.lock").open("ab") as file:
            try:
                alone = lock_file(file.fileno(), deadline, 0.5, _report_waiting)
            except TimeoutError:
                raise CellError(f"stage 0 of {key}: another process has been at it for over {deadline:.0f} s") from None
            if not _is_whole(folder, key):
                for leftover in folder.parent.glob(f".{key}.*") if alone else ():
                    shutil.rmtree(leftover, ignore_errors=True)
                checkpoint.write(folder, key, 0, build)
    except OSError as error:
        if is_full(error):
            raise DiskFullError(f"no room for the base checkpoint {folder}") from error
        raise CellError(f"cannot write the base checkpoint {folder}: {error.strerror}") from error
    return folder


def _report_waiting() -> None:
    """Say that another process is training it."""
    stop_if_asked()
    show_inside_phase("another process is training it")


def _is_whole(folder: Path, key: str) -> bool:
    """Whether a folder holds all of a base checkpoint."""
    try:
        checkpoint.check(folder, key)
    except CheckpointError:
        return False
    return True


def _train_to_gate(
    spec: MicroSpec | Warmup,
    budget: int,
    train: Callable[[int, Callable[[int], None]], None],
    opened: Callable[[], EmbeddedEngine],
    folder: Path,
    progress: Progress | None,
) -> None:
    """Train until the gate holds; leaves a report. budget: steps of the first round. opened: the engine of what was made."""
    began = time.process_time()
    steps = 0
    for extra in range(spec.rounds + 1):
        planned = max(1, budget // 4) if extra else budget
        words = f"{spec.title}: training"
        if extra:
            words += f", extra round {extra} of {spec.rounds}"
        train(planned, partial(_report_progress, progress, words, planned))
        steps += planned
        engine = opened()
        measured = partial(_measure_share, engine, partial(_is_right, spec.boxed))
        given_cot = measured(spec.questions(hinted=True))
        if min(given_cot.groups.values()) >= spec.gate:
            break
    else:
        shares = ", ".join(f"{group} {share:.0%}" for group, share in given_cot.groups.items())
        raise CellError(
            f"{spec.title}: after {steps} steps too few answers by steps are right ({shares}; RL needs {spec.gate:.0%} in each). "
            "Take easier levels, more steps or a larger model"
        )
    plain = spec.questions(hinted=False)

    def has_steps(prompt: Prompt, sample: Sample) -> bool:
        return spec.reasons(sample.text)

    report = {
        "spec": asdict(spec),
        "steps": steps,
        "given_cot": given_cot,  # on prompts that ask for steps
        "sampled": measured(plain),
        "greedy": measured(plain, temperature=0.0, samples=1),
        "cot_share": _measure_share(engine, has_steps, plain),  # of answers with steps
        "cpu_seconds": time.process_time() - began,
    }
    (folder / REPORT).write_bytes(msgspec.json.format(msgspec.json.encode(report)))


def _report_progress(progress: Progress | None, words: str, planned: int, done: int) -> None:
    """Report how much of the planned steps is done."""
    if progress:
        progress(done / planned, words)


def _measure_share(
    engine: EmbeddedEngine,
    holds: Callable[[Prompt, Sample], bool],
    prompts: Sequence[Prompt],
    temperature: float = 1.0,
    samples: int = 2,
) -> Accuracy:
    """Measure, by group of skills, and on average, the share of samples for which `holds` is true."""
    seeds = np.arange(len(prompts) * samples, dtype=np.uint64).reshape(len(prompts), samples)
    groups: dict[str, list[bool]] = {}
    for prompt, row in zip(prompts, engine.sample(prompts, seeds, Sampling(temperature=temperature)), strict=True):
        groups.setdefault(prompt.labels["group"], []).extend(holds(prompt, sample) for sample in row)
    flat = [value for values in groups.values() for value in values]
    return Accuracy({group: float(np.mean(values)) for group, values in groups.items()}, float(np.mean(flat)))


def _is_right(boxed: str, prompt: Prompt, sample: Sample) -> bool:
    return sample.finished and re.findall(boxed, sample.text) == [prompt.gold]


def _learn_examples(
    engine: EmbeddedEngine, examples: Sequence[WarmupExample], warmup: Warmup, step: int, steps: int
) -> None:
    """Learn from examples: maximise the mean over examples of a response's mean log-likelihood, its end included."""
    prompts = [Prompt(f"{step}/{place}", example.prompt, "") for place, example in enumerate(examples)]
    answers = tuple(
        TermAnswer(prompt.id, _encode_response(engine, example.response, warmup.chat), advantage=1.0)
        for prompt, example in zip(prompts, examples, strict=True)
    )
    schedule = warmup.schedule
    optimisation = Optimisation(
        learning_rate=schedule.rate(step, steps),
        betas=schedule.betas,
        weight_decay=schedule.weight_decay,
        clip_norm=schedule.clip_norm,
        max_tokens=max(answer.tokens.size for answer in answers),
    )
    engine.update(prompts, [Term("start", "own", IMITATION, answers)], optimisation)


def _encode_response(engine: EmbeddedEngine, text: str, chat: bool | Mapping[str, Any]) -> np.ndarray:
    """Encode a response with its end. A chat template ends with its own separator, so no blank is added."""
    ids = engine.tokenizer.encode(text.lstrip() if chat else text, add_special_tokens=False)
    return np.array([*ids, *engine.closing], dtype=np.int32)


Row = tuple[Int64[np.ndarray, "T"], int]
"""Ids of prompt, response and EOS; where the response begins."""


class Pretrainer:
    """Sorts examples by length within a pool, against padding."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        examples: Iterator[WarmupExample],
        schedule: RateSchedule,
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._examples = examples
        self._schedule = schedule
        self._rng = Random(0)
        self._optimiser = torch.optim.AdamW(
            model.parameters(),
            lr=schedule.learning_rate,
            betas=schedule.betas,
            weight_decay=schedule.weight_decay,
            fused=True,
        )

    def run(self, steps: int, done: Callable[[int], None]) -> None:
        """Take so many steps of supervised learning. done: is told the steps that are done."""
        self._model.train()
        for step, (rows, scale) in enumerate(islice(self._draw_batches(), steps)):
            for group in self._optimiser.param_groups:
                group["lr"] = self._schedule.rate(step, steps)
            (self._sum_loss(rows) * scale).backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._schedule.clip_norm)
            self._optimiser.step()
            self._optimiser.zero_grad(set_to_none=True)
            done(step + 1)
        self._model.train(False)

    def _draw_batches(self) -> Iterator[tuple[list[Row], float]]:
        """Yield batches, and the factor that makes a summed loss the pool's token mean."""
        batch = self._schedule.batch
        pool = self._schedule.pool
        while True:
            rows = sorted(
                self._encode_examples(list(islice(self._examples, batch * pool))), key=lambda row: row[0].size
            )
            scale = pool / sum(ids.size - start for ids, start in rows)
            cuts = list(range(0, len(rows), batch))
            self._rng.shuffle(cuts)
            for cut in cuts:
                yield rows[cut : cut + batch], scale

    def _encode_examples(self, examples: list[WarmupExample]) -> list[Row]:
        """Return the ids of prompt and response with their end, and the length of the prompt."""
        texts = [example.prompt for example in examples] + [example.response for example in examples]
        encoded = self._tokenizer.backend_tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        end = [self._tokenizer.eos_token_id]
        pairs = zip(encoded[: len(examples)], encoded[len(examples) :], strict=True)
        return [(np.array(p.ids + r.ids + end, dtype=np.int64), len(p.ids)) for p, r in pairs]

    def _sum_loss(self, rows: list[Row]) -> Tensor:
        """Return the summed cross-entropy of the responses' tokens, in nats."""
        width = max(ids.size for ids, _ in rows) - 1
        inputs = np.full((len(rows), width), self._tokenizer.eos_token_id, dtype=np.int64)
        labels = np.full((len(rows), width), _IGNORED, dtype=np.int64)
        for index, (ids, start) in enumerate(rows):
            inputs[index, : ids.size - 1] = ids[:-1]
            labels[index, start - 1 : ids.size - 1] = ids[start:]
        hidden = self._model.base_model(input_ids=torch.from_numpy(inputs), use_cache=False).last_hidden_state
        taken = torch.from_numpy(labels != _IGNORED)
        logits = self._model.get_output_embeddings()(hidden[taken])  # type: ignore[no-untyped-call]
        return cross_entropy(logits, torch.from_numpy(labels)[taken], reduction="sum")
