"""Training prompts: MATH train and GSM8K train without what the evaluation sets repeat; micro arithmetic and the ladder without
limit."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from random import Random
from zlib import crc32

import msgspec

from harness.errors import DataError, PluginError
from harness.experience.answers import Prompt
from harness.tasks import ladder, micro
from harness.tasks.data import folder_in_use, load
from harness.tasks.overlap import Overlap, pinned
from harness.tasks.registry import as_prompt, get_task, is_generated
from harness.tasks.sets import SETS

SOURCES = {"math": "math_train", "gsm8k": "gsm8k_train"}


@dataclass(frozen=True, slots=True)
class TrainingPool:
    """The prompts of one training set after all filters, in the set's order, and what was left out and why. Prompts carry the
    instruction with which the evaluation task of the same name asks.

    overlaps: dropped because an evaluation set repeats them. ambiguous: dropped because the solution boxes several answers.
    """

    name: str
    prompts: tuple[Prompt, ...]
    overlaps: tuple[Overlap, ...]
    ambiguous: tuple[str, ...]
    below_level: int

    def draw(self, step_seed: int, count: int) -> list[Prompt]:
        """`count` distinct prompts, the same for the same `step_seed`. Raises DataError if the pool is smaller."""
        if not 1 <= count <= len(self.prompts):
            raise DataError(f"{self.name}: {count} prompts a step asked for; the pool holds {len(self.prompts)}")
        return Random(step_seed).sample(self.prompts, count)

    def digest(self) -> str:
        """Of all prompts: ids, texts and golds in order."""
        parts = [[prompt.id, prompt.text, prompt.gold] for prompt in self.prompts]
        return hashlib.blake2b(msgspec.json.encode(parts), digest_size=8).hexdigest()


def training_pool(name: str, *, min_level: int | None = None, data_dir: Path | None = None) -> TrainingPool:
    """MATH train (`math`) or GSM8K train (`gsm8k`), less what any evaluation set repeats (`overlaps.json`).

    min_level: MATH problems below it, and those without a level, are left out.

    Raises
    ------
    PluginError
        Unknown name.
    DataError
        The set is absent or altered, or `min_level` is given for a set without levels.
    """
    if name not in SOURCES:
        raise PluginError(f"unknown training task {name!r}; there are micro, ladder, {', '.join(SOURCES)}")
    full = _checked(name, folder_in_use(data_dir))
    if min_level is None:
        return full
    if not any("level" in prompt.labels for prompt in full.prompts):
        raise DataError(f"{name} has no levels; leave min_level out")
    chosen = tuple(prompt for prompt in full.prompts if int(prompt.labels.get("level", 0)) >= min_level)
    return replace(full, prompts=chosen, below_level=len(full.prompts) - len(chosen))


@lru_cache(maxsize=4)
def _checked(name: str, data_dir: Path | None) -> TrainingPool:
    rows = load(SOURCES[name], data_dir)
    overlaps = pinned().overlaps[SOURCES[name]]
    repeated = {overlap.training for overlap in overlaps}
    ambiguous = tuple(row.id for row in rows if row.multi_boxed and row.id not in repeated)
    dropped = repeated | set(ambiguous)
    task = get_task(name)
    prompts = (as_prompt(row) for row in rows if row.id not in dropped)
    return TrainingPool(
        name=name,
        prompts=tuple(replace(prompt, text=task.render(prompt, "zero-shot")) for prompt in prompts),
        overlaps=tuple(overlaps),
        ambiguous=ambiguous,
        below_level=0,
    )


def pool_digest(task: str) -> str:
    """What identifies a training pool before `min_level`: its set's checksum and what is dropped. Needs no data; empty where the
    code makes the prompts. Raises PluginError."""
    if is_generated(task):
        get_task(task)
        return ""
    if task not in SOURCES:
        raise PluginError(f"unknown training task {task!r}; there are micro, ladder, {', '.join(SOURCES)}")
    source = SOURCES[task]
    parts = [source, SETS[source].sha256, pinned().overlaps[source]]
    return hashlib.blake2b(msgspec.json.encode(parts), digest_size=8).hexdigest()


def draw(
    task: str,
    step_seed: int,
    count: int,
    *,
    min_level: int | None = None,
    part: str = "all",
    data_dir: Path | None = None,
) -> list[Prompt]:
    """One step's training prompts of any training task: `micro`, `ladder`, `math` or `gsm8k`. Raises as `training_pool` does.

    part: `tuning` and `final` have no prompt in common; a prompt's part is decided by its text. The ladder has none.
    """
    if task == "micro":
        return micro.training_prompts(step_seed, count, part=part)
    if ladder.is_ladder(task):
        if part != "all":
            raise DataError(f"{task}: its prompts have no part {part!r}; tune on micro, math or gsm8k")
        return ladder.training_prompts(step_seed, count, ladder.levels_of(task))
    return part_of(training_pool(task, min_level=min_level, data_dir=data_dir), part).draw(step_seed, count)


def part_of(pool: TrainingPool, part: str) -> TrainingPool:
    """A quarter of the pool for `tuning`, the rest for `final`."""
    if part == "all":
        return pool
    chosen = tuple(p for p in pool.prompts if (crc32(p.text.encode()) % 4 == 0) == (part == "tuning"))
    return replace(pool, prompts=chosen)
