"""Training prompts: MATH train and GSM8K train without what the evaluation sets repeat, and any task's by its name."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from harness.errors import DataError, PluginError
from harness.experience.answers import Prompt
from harness.suite.schema import FileTask
from harness.tasks.data import folder_in_use, load
from harness.tasks.dataset_problems import as_prompt
from harness.tasks.overlap import pinned
from harness.tasks.sets import SETS
from harness.tasks.source import TrainingPool, part_of

__all__ = ["SETS", "SOURCES", "TrainingPool", "draw", "part_of", "pinned", "pool_digest", "training_pool"]

SOURCES = {"math": "math_train", "gsm8k": "gsm8k_train"}


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
    from harness.tasks.registry import get_task

    task = get_task(name)
    prompts = (as_prompt(row) for row in rows if row.id not in dropped)
    return TrainingPool(
        name=name,
        prompts=tuple(replace(prompt, text=task.render(prompt, "zero-shot")) for prompt in prompts),
        overlaps=tuple(overlaps),
        ambiguous=ambiguous,
        below_level=0,
    )


def pool_digest(task: str | FileTask) -> str:
    """What identifies a training pool before `min_level`; empty where the code makes the prompts. Raises PluginError, DataError."""
    from harness.tasks.registry import training_source

    return training_source(task).pool_digest()


def draw(
    task: str | FileTask,
    step_seed: int,
    count: int,
    *,
    min_level: int | None = None,
    part: str = "all",
    data_dir: Path | None = None,
) -> list[Prompt]:
    """One step's training prompts of any training task. Raises PluginError, DataError.

    part: `tuning` and `final` have no prompt in common; a prompt's part is decided by its text. The ladder has none.
    """
    from harness.tasks.registry import training_source

    return training_source(task).draw(step_seed, count, min_level=min_level, part=part, data_dir=data_dir)
