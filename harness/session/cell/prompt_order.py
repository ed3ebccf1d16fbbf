"""The training prompts of a step, and the held-out ones of a learning curve."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from harness.experience.answers import Prompt
from harness.store.manifest import Pool
from harness.suite.cells import Cell
from harness.suite.schema import FileTask, Policy, Training
from harness.suite.seeds import derive
from harness.verification.verifier import Verifier


def training_prompts(cell: Cell, step: int) -> list[Prompt]:
    """The same for every regime and policy of a (group, seed)."""
    seed = derive(cell.seed, cell.variant.sampling_stream, "prompts", cell.group.name, step)
    from harness.tasks.registry import training_source

    training = cell.training
    source = training_source(training.task)
    return source.draw(seed, training.prompts, min_level=training.min_level, part=training.part)


def as_asked(prompts: Sequence[Prompt], task: str | FileTask, policy: Policy) -> list[Prompt]:
    """A task's training prompts in the style in which the policy is asked."""
    if policy.style is None:
        return list(prompts)
    from harness.tasks.registry import get_task

    known = get_task(task)
    return [replace(p, text=known.render(p, policy.style)) for p in prompts]


def pool_entry(training: Training) -> Pool | None:
    """What the manifest says of the training pool; None where code makes the prompts. Raises DataError."""
    from harness.tasks.registry import training_source
    from harness.tasks.source import part_of

    source = training_source(training.task)
    if source.generated:
        return None
    pool = part_of(source.pool(training.min_level), training.part)
    dropped = Counter(overlap.evaluation_set for overlap in pool.overlaps)
    return Pool(pool.name, len(pool.prompts), pool.digest(), dict(dropped), len(pool.ambiguous), pool.below_level)


def curve_prompts(cell: Cell, policy: Policy) -> list[Prompt]:
    """A fair part of the first evaluation task's prompts, as the policy is asked; the same in every cell of a suite."""
    from harness.tasks.registry import get_task
    from harness.tasks.source import fair_part

    task = get_task(cell.evaluation.tasks[0])
    prompts = fair_part(task.documents(None), cell.evaluation.curve_prompts)
    return [replace(p, text=task.render(p, policy.style or task.styles[0])) for p in prompts]


def trained_by(cell: Cell, verifier: Verifier) -> Verifier:
    """The verifier as the training task's scorer. Raises PluginError."""
    from harness.scoring.catalogue import called
    from harness.tasks.registry import get_task

    return verifier.by(called(get_task(cell.training.task).scorer))


def curve_verifier(cell: Cell, verifier: Verifier) -> Verifier:
    """The verifier as the scorer of the learning curve's task. Raises PluginError."""
    from harness.scoring.catalogue import called
    from harness.tasks.registry import get_task

    return verifier.by(called(get_task(cell.evaluation.tasks[0]).scorer))
