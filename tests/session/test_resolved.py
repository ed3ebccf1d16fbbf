"""A suite is resolved once: what it names is looked up once for all that a command asks of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from harness.session.suite import resolved
from harness.session.suite.planning import plan_for
from harness.session.suite.preflight import check_before_run
from harness.session.suite.prepare import prepare_named
from harness.suite.schema import FileTask
from harness.tasks import registry
from harness.tasks.source import TaskSource
from harness.tasks.task import Task


def test_a_plan_looks_each_task_and_model_up_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan of cross_family made tasks 817 times."""
    made: Counter[str] = Counter()
    shapes: Counter[tuple[str, str | None]] = Counter()

    def counting(name: str | FileTask, *, source: TaskSource | None = None, **parameters: int) -> Task:
        made[str(name)] += 1
        return registry.get_task(name, source=source, **parameters)

    def reading(model: str, revision: str | None = None) -> object:
        shapes[model, revision] += 1
        return load(model, revision)

    load = resolved.load_shape
    monkeypatch.setattr(resolved, "get_task", counting)
    monkeypatch.setattr(resolved, "load_shape", reading)
    prepared = prepare_named("cross_family", tmp_path).with_states()
    check_before_run(prepared, about_to_run=False, elsewhere=True)
    plan = plan_for(prepared, "8xH100-80G")
    assert plan.feasible
    tasks = [str(task) for task in (prepared.suite.training.task, *prepared.suite.evaluation.tasks)]
    assert made == Counter(tasks)
    assert set(shapes.values()) == {1}
    assert {model for model, _ in shapes} == {p.model for group in prepared.suite.groups for p in group.policies}


def test_a_resolved_suite_holds_what_its_cells_need(tmp_path: Path) -> None:
    prepared = prepare_named("quickstart", tmp_path)
    whole = prepared.resolved
    assert whole.training.name == prepared.suite.training.task
    assert [str(task.name) for task in whole.evaluation] == [str(task) for task in prepared.suite.evaluation.tasks]
    for cell in prepared.cells:
        assert type(whole.regime_of(cell)).__name__
        assert whole.regimes[cell.variant.name] is whole.regime_of(cell)
        shares = whole.regime_of(cell).shares
        assert whole.records_shared(cell) == (shares if cell.sharing.direction != "none" else frozenset())
        for policy in cell.group.policies:
            assert whole.shape_of(policy) is whole.shape_of(policy)
