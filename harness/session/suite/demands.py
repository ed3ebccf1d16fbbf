"""What a suite asks of machines: its evaluation's answers and its regimes' loads. Imports without torch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from harness.allocation.cells_as_demand import Asked, RegimeLoad, demand, regime_load
from harness.allocation.demand import CellDemand
from harness.engines.catalogue import engines_of
from harness.learning import registry
from harness.suite.cells import Cell
from harness.suite.schema import Evaluation, Suite
from harness.tasks.registry import get_task


def asked(evaluation: Evaluation) -> Asked:
    """What the evaluation of one policy asks for: of each task's questions, up to `limit`, a greedy answer and `k` samples; with
    `k: null` a greedy one and as many as the task's own k."""
    tasks = [get_task(name) for name in evaluation.tasks]
    answers = 0
    for task in tasks:
        size = evaluation.limit or 0 if task.size is None else task.size
        questions = size if evaluation.limit is None else min(size, evaluation.limit)
        answers += questions * (1 + task.k if evaluation.k is None else int(evaluation.greedy) + evaluation.k)
    return Asked(answers, evaluation.max_new_tokens or max(task.max_new_tokens for task in tasks))


def loads(suite: Suite) -> Mapping[str, RegimeLoad]:
    """What each variant adds to a step."""
    found = {}
    for variant in suite.regimes:
        regime = registry.build(variant.regime, variant.options)
        found[variant.name] = regime_load({kind.__name__ for kind in regime.shares}, {str(n) for n in regime.needs})
    return found


def demand_of(cell: Cell, load: RegimeLoad) -> CellDemand:
    """One cell as the planner sees it. Raises UsageError."""
    precision = partial(engines_of(cell.engine).precision, options=cell.engine_options)
    return demand(cell, load, asked(cell.evaluation), precision)
