"""The training prompts of a step, and the held-out ones of a learning curve."""

from __future__ import annotations

from dataclasses import replace

from harness.learning.experience import Prompt
from harness.suite.cells import Cell
from harness.suite.seeds import derive


def training_prompts(cell: Cell, step: int) -> list[Prompt]:
    """The same for every regime and policy of a (group, seed)."""
    seed = derive(cell.seed, cell.variant.sampling_stream, "prompts", cell.group.name, step)
    from harness.tasks.training import draw

    return draw(cell.training.task, seed, cell.training.prompts, min_level=cell.training.min_level)


def curve_prompts(cell: Cell) -> list[Prompt]:
    """Evenly spaced held-out prompts of the first evaluation task; the same in every cell of a suite."""
    from harness.tasks.registry import get_task

    task = get_task(cell.evaluation.tasks[0])
    prompts = [replace(p, text=task.render(p, task.styles[0])) for p in task.documents(None)]
    count = min(cell.evaluation.curve_prompts, len(prompts))
    return [prompts[i * len(prompts) // count] for i in range(count)]
