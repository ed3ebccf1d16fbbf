"""Base checkpoints of the micro families: trained once, gated on competence, cached by content.

A base must be able to reason before RL can make it choose to. The gate is its accuracy *given chain of thought*: on
held-out prompts that ask for steps, sampled at temperature 1, in each skill group. Training goes on in rounds until the
gate holds, up to a bound.

The cache lies in the user's cache folder, or in `HARNESS_CACHE`. An entry's key hashes everything that determines the
weights: the spec, the schedule, the results versions of task and stage 0, and the versions of the libraries.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from types import MappingProxyType

import msgspec
import numpy as np
import tokenizers
import torch
import transformers

from harness.cache import cache_folder
from harness.engines import checkpoint
from harness.engines.embedded import families
from harness.engines.embedded.engine import EmbeddedEngine
from harness.engines.embedded.mixture import draw_examples
from harness.engines.embedded.presets import PRESETS, Mixture
from harness.engines.embedded.pretraining import Pretrainer, Schedule, one_thread
from harness.engines.protocol import Sample, Sampling
from harness.errors import CellError, CheckpointError, DiskFullError, UsageError
from harness.experience.answers import Prompt
from harness.files import is_full, lock
from harness.phases import halt, inside
from harness.tasks.micro import GROUPS, evaluation_prompts
from harness.versions import versions

Progress = Callable[[float, str], None]
"""(share done, a few words)"""

STEPS: Mapping[str, int] = MappingProxyType({"llama": 2000, "qwen": 2000, "neox": 2000, "gpt2": 2000})
"""Optimiser steps that bring a family through the gate (measured, docs/micro.md)."""
REPORT = "stage0.json"
_LOOK_SECONDS = 0.5
_BOXED = re.compile(r"\\boxed\{(-?\d+)\}")


@dataclass(frozen=True, slots=True)
class MicroSpec:
    """One base checkpoint: family, preset of the mixture, the group that the policy is strong in, base seed.

    steps: of the first round (None: the family's own budget); each of at most `rounds` further ones has a quarter of it.
    gate: least accuracy given chain of thought, in every skill group. probes: held-out prompts per skill that measure it.
    """

    family: str
    strong: str
    preset: str = "trap"
    seed: int = 0
    steps: int | None = None
    rounds: int = 4
    gate: float = 0.65
    probes: int = 40
    schedule: Schedule = field(default_factory=Schedule)

    def __post_init__(self) -> None:
        for kind, name, known in (
            ("micro family", self.family, STEPS),
            ("stage 0 preset", self.preset, PRESETS),
            ("skill group", self.strong, GROUPS),
        ):
            if name not in known:
                raise UsageError(f"unknown {kind} {name!r}; there are {', '.join(known)}")

    @property
    def mixture(self) -> Mixture:
        return PRESETS[self.preset]

    @property
    def budget(self) -> int:
        return STEPS[self.family] if self.steps is None else self.steps

    @property
    def key(self) -> str:
        """Content hash of everything that determines the weights."""
        parts = {
            "spec": asdict(self) | {"steps": self.budget, "mixture": asdict(self.mixture)},
            "code": versions(("stage0", "tasks")),
            "versions": [str(library.__version__) for library in (torch, transformers, tokenizers)],
        }
        digest = hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()
        return f"{self.family}-{self.strong}-{self.preset}-{self.seed}-{digest[:20]}"


class Accuracy(msgspec.Struct, frozen=True):
    """Held-out accuracy by skill group, and the mean of all prompts."""

    groups: dict[str, float]
    mean: float

    @property
    def least(self) -> float:
        """That of the worst group."""
        return min(self.groups.values())


class Report(msgspec.Struct, frozen=True):
    """`stage0.json`: given_cot at temperature 1 on prompts that ask for steps; sampled (temperature 1) and greedy on plain
    ones. cot_share: of the plain samples, those with steps. cpu_seconds: training and measuring."""

    spec: dict[str, object]
    steps: int
    given_cot: Accuracy
    sampled: Accuracy
    greedy: Accuracy
    cot_share: Accuracy
    cpu_seconds: float


def base_checkpoint(spec: MicroSpec, progress: Progress | None = None, *, deadline: float = 3600.0) -> Path:
    """The Hugging Face folder of a base checkpoint: from the cache, or trained now.

    Several processes may ask for the same one: the first trains, the others wait up to `deadline` seconds and use its
    result. A damaged entry is trained anew.

    Raises
    ------
    CellError
        The gate does not hold after all rounds, or another process did not finish in time.
    DiskFullError
        No room for the checkpoint.
    """
    return kept(spec.key, lambda new: _build(spec, new, progress or _silent), deadline)


def kept(key: str, build: Callable[[Path], None], deadline: float) -> Path:
    """The cache's folder of that key, which `build` fills where it is not there whole. Raises as `base_checkpoint`; Interrupted
    where this process is asked to stop while another one has it."""
    folder = cache_folder() / "stage0" / key
    if _whole(folder, key):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with (folder.parent / f"{key}.lock").open("ab") as file:
            try:
                alone = lock(file.fileno(), deadline, _LOOK_SECONDS, _wait)
            except TimeoutError:
                raise CellError(f"stage 0 of {key}: another process has been at it for over {deadline:.0f} s") from None
            if not _whole(folder, key):
                for leftover in folder.parent.glob(f".{key}.*") if alone else ():
                    shutil.rmtree(leftover, ignore_errors=True)
                checkpoint.write(folder, key, 0, build)
    except OSError as error:
        if is_full(error):
            raise DiskFullError(f"no room for the base checkpoint {folder}") from error
        raise CellError(f"cannot write the base checkpoint {folder}: {error.strerror}") from error
    return folder


def _wait() -> None:
    """Between two looks at a base that another process makes, whoever of this one waits for it."""
    halt()
    inside("another process is training it")


def _silent(share: float, words: str) -> None:
    """No progress asked for."""


def tell(progress: Progress, words: str, planned: int, done: int) -> None:
    progress(done / planned, words)


def read_report(folder: Path) -> Report:
    """What stage 0 measured of a base checkpoint."""
    return msgspec.json.decode((folder / REPORT).read_bytes(), type=Report)


def _whole(folder: Path, key: str) -> bool:
    try:
        checkpoint.check(folder, key)
    except CheckpointError:
        return False
    return True


def _build(spec: MicroSpec, folder: Path, progress: Progress) -> None:
    """Train until the gate holds, and leave model, tokenizer and report in `folder`."""
    started, steps = time.process_time(), 0
    name = f"base {spec.family} ({spec.preset}, strong in {spec.strong})"
    tokenizer = families.build_tokenizer(spec.family)
    model = families.build_model(spec.family, spec.seed, tokenizer)
    examples = draw_examples(spec.mixture, spec.strong, Random(spec.seed))
    pretrainer = Pretrainer(model, tokenizer, examples, spec.schedule)
    tokenizer.save_pretrained(folder)
    for extra in range(spec.rounds + 1):
        planned = spec.budget if extra == 0 else max(1, spec.budget // 4)
        words = f"{name}: training" if extra == 0 else f"{name}: training, extra round {extra} of {spec.rounds}"
        pretrainer.run(planned, partial(tell, progress, words, planned))
        steps += planned
        model.save_pretrained(folder)
        with one_thread():
            probe = Probe(EmbeddedEngine("stage0", folder, device="cpu"), _right)
            given_cot = probe.accuracy(evaluation_prompts(spec.probes, hinted=True), temperature=1.0, samples=2)
        if given_cot.least >= spec.gate:
            break
    else:
        raise CellError(
            f"{name}: accuracy given chain of thought is {given_cot.groups} after {steps} steps; RL needs {spec.gate}"
        )
    with one_thread():
        plain = evaluation_prompts(spec.probes)
        report = Report(
            spec=asdict(spec),
            steps=steps,
            given_cot=given_cot,
            sampled=probe.accuracy(plain, temperature=1.0, samples=2),
            greedy=probe.accuracy(plain, temperature=0.0, samples=1),
            cot_share=probe.share(plain, lambda prompt, sample: "=" in sample.text, temperature=1.0, samples=2),
            cpu_seconds=time.process_time() - started,
        )
    (folder / REPORT).write_bytes(msgspec.json.format(msgspec.json.encode(report)))


class Probe:
    """Measures a base checkpoint with the engine that RL will use, and with fixed seeds. right: whether an answer is."""

    def __init__(self, engine: EmbeddedEngine, right: Callable[[Prompt, Sample], bool]) -> None:
        self._engine, self._right = engine, right

    def accuracy(self, prompts: Sequence[Prompt], *, temperature: float, samples: int) -> Accuracy:
        """Share of right answers."""
        return self.share(prompts, self._right, temperature=temperature, samples=samples)

    def share(
        self,
        prompts: Sequence[Prompt],
        holds: Callable[[Prompt, Sample], bool],
        *,
        temperature: float,
        samples: int,
    ) -> Accuracy:
        """Share of answers for which `holds`, by the prompts' group and over all."""
        seeds = np.arange(len(prompts) * samples, dtype=np.uint64).reshape(len(prompts), samples)
        drawn = self._engine.sample(prompts, seeds, Sampling(temperature=temperature))
        groups: dict[str, list[bool]] = {}
        for prompt, row in zip(prompts, drawn, strict=True):
            groups.setdefault(prompt.labels["group"], []).extend(holds(prompt, sample) for sample in row)
        flat = [value for values in groups.values() for value in values]
        return Accuracy({group: float(np.mean(values)) for group, values in groups.items()}, float(np.mean(flat)))


def _right(prompt: Prompt, sample: Sample) -> bool:
    """It finishes, and boxes exactly the right number."""
    return sample.finished and _BOXED.findall(sample.text) == [prompt.gold]
