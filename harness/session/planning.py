"""What a prepared suite needs, against what a machine or cluster has. Imports without torch.

The embedded engine's priors are CPU-seconds measured on one core of an x86-64 machine (docs/micro.md); finished cells of the
same results folder replace them, so that a plan gets better as a suite goes on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from msgspec.structs import replace

from harness.allocation import inventory as machines
from harness.allocation.arrangement import START_SECONDS, policy_bundles
from harness.allocation.estimates import Estimates
from harness.allocation.inventory import Inventory
from harness.allocation.models import load_shape
from harness.allocation.packing import Bundle
from harness.allocation.planner import KindPlan, Plan, WorkerDemand, plan_workers
from harness.allocation.report import describe
from harness.allocation.suites import kind_of, longest_sequence, plan_suite, regime_load
from harness.engines import catalogue
from harness.engines.catalogue import EngineInfo
from harness.engines.openrlhf.settings import settings_of
from harness.errors import InfeasibleError, StoreError, UsageError
from harness.learning import registry
from harness.session.manifests import Base, state_of
from harness.session.prepare import Prepared
from harness.store.journal import read_journal
from harness.suite.cells import Cell
from harness.tasks.registry import get_task

ROLLOUT_SECONDS = {
    "independent": 1.8e-3,
    "xgrpo": 2.0e-3,
    "sgt": 2.1e-3,
    "graft": 2.4e-3,
    "hacpo": 3.3e-3,
    "prp": 3.3e-3,
}
"""CPU-seconds per rollout of a micro policy, training included, by regime."""
OTHER_ROLLOUT_SECONDS = 4.5e-3
ANSWER_SECONDS = 6e-4
BASE_SECONDS = 75.0
DEFAULT_K = 8
WORKER_BYTES = 1 << 30
MICRO_PARAMETERS = 4e5
BYTES_PER_PARAMETER = 20
"""fp32 weights, gradients and two moments, and a frozen reference: 4 + 4 + 8 + 4."""


LAYOUT = frozenset({"trainers", "rollout_engines", "tensor_parallel", "colocate"})
"""Engine options with which a suite takes the layout into its own hands."""


@dataclass(frozen=True, slots=True)
class Place:
    """What one job reserves, and the engine options that the plan has chosen for it, by policy."""

    bundles: tuple[Bundle, ...]
    layout: Mapping[str, Mapping[str, int | float | bool]]


def plan_for(prepared: Prepared, inventory: str | None, jobs: int | None = None) -> Plan:
    """The plan of a suite on a stated inventory, or on what there is. Raises UsageError."""
    machine = machines.parse(inventory) if inventory else _here(prepared.suite.engine)
    if prepared.suite.engine == "embedded":
        return _workers(prepared, machine, jobs)
    loads = {}
    for variant in prepared.suite.regimes:
        regime = registry.build(variant.regime, variant.options)
        loads[variant.name] = regime_load({kind.__name__ for kind in regime.shares}, {str(n) for n in regime.needs})
    questions = sum(get_task(name).size or 0 for name in prepared.suite.evaluation.tasks)
    pending = {c.key for c in prepared.pending()}
    options = prepared.suite.engine_options
    devices = settings_of(options, prepared.source).devices if LAYOUT & options.keys() else None
    plan = plan_suite(
        prepared.cells,
        machine,
        loads=loads,
        questions=questions,
        pending=pending,
        devices=devices,
        estimates=_estimates(prepared),
    )
    workers = min(jobs or plan.resources.workers, plan.resources.workers)
    return replace(plan, resources=replace(plan.resources, workers=workers))


def place_of_cell(plan: Plan, cell: Cell) -> Place:
    """Of a pending cell."""
    kind = next(k for k in plan.kinds if k.kind == kind_of(cell))
    return Place(kind.bundles, _layout(kind, cell.engine_options, cell.training.max_new_tokens))


def place_of_base(plan: Plan, base: Base) -> Place:
    """Of a base checkpoint of a pending cell: where its policy will be."""
    kind = next(k for k in plan.kinds if k.kind.startswith(f"{base.group.name}/"))
    if kind.layout is None:
        return Place((Bundle(0, 1, WORKER_BYTES),), {})
    own = next(p for p in kind.layout.policies if p.policy == base.policy.name)
    return Place(policy_bundles(own), _layout(kind, base.suite.engine_options, base.suite.training.max_new_tokens))


def _layout(
    kind: KindPlan, options: Mapping[str, Any], max_new_tokens: int
) -> Mapping[str, Mapping[str, int | float | bool]]:
    if kind.layout is None or LAYOUT & options.keys():
        return {}
    longest = longest_sequence(options, max_new_tokens)
    return {p.policy: p.engine_options(longest) for p in kind.layout.policies}


def _here(engine: str) -> Inventory:
    """The Ray cluster that `RAY_ADDRESS` names where the engine takes it, else this machine."""
    if engine == "openrlhf" and os.environ.get("RAY_ADDRESS") and not _info(engine).missing:
        from harness.engines.openrlhf.cluster import inventory

        return inventory()
    return machines.local()


def _info(engine: str) -> EngineInfo:
    return next(e for e in catalogue.listing() if e.name == engine)


def describe_plan(prepared: Prepared, plan: Plan) -> str:
    """The plan for people."""
    return f"{prepared.suite.name} on the {prepared.suite.engine} engine\n{describe(plan)}"


def check_feasible(prepared: Prepared, jobs: int | None) -> Plan:
    """The plan, or a refusal in one sentence before anything is written. Raises InfeasibleError."""
    engine = _info(prepared.suite.engine)
    plan = plan_for(prepared, None, jobs)
    wants = f"the {engine.name} engine" + (f" (missing: {engine.missing})" if engine.missing else "")
    if not plan.feasible or not engine.available:
        first, *more = (plan.shortfall or f"{engine.name} is not installed").split("; ")
        reason = first + (f" (and {len(more)} more)" if more else "")
        raise InfeasibleError(
            f"{prepared.suite.name} cannot run here: {reason}. It needs {wants}; this machine has "
            f"{plan.resources.inventory}. `harness run quickstart` would run here, `harness plan {prepared.suite.name} "
            "--inventory 8xH100-80G` shows what this suite takes."
        )
    return plan


def predicted_seconds(cell: Cell) -> float:
    """CPU-seconds of one cell from the priors, in proportion to rollouts and to parameters above a micro model's."""
    t, e = cell.training, cell.evaluation
    rate = ROLLOUT_SECONDS.get(cell.variant.regime, OTHER_ROLLOUT_SECONDS)
    total = 0.0
    for i, policy in enumerate(cell.group.policies):
        size = max(1.0, _parameters(policy.model) / MICRO_PARAMETERS)
        answers = (e.limit or 240) * (int(e.greedy) + (DEFAULT_K if e.k is None else e.k)) * len(e.tasks)
        total += size * (t.steps * t.prompts * cell.rollouts(i) * rate + answers * ANSWER_SECONDS)
    return total


def _workers(prepared: Prepared, machine: Inventory, jobs: int | None) -> Plan:
    status = prepared.status()
    measured = _measured(prepared, [s.cell for s in status if s.state == "done"])
    pending = [s.cell for s in status if s.state != "done"]
    needed = {b.key: b for c in pending for b in prepared.bases_of(c)}
    bases = [b for b in needed.values() if state_of(prepared.folder / b.key)[0] != "done"]
    return plan_workers(
        len(prepared.cells),
        [WorkerDemand(c.key, kind_of(c), measured.get(kind_of(c), predicted_seconds(c)), _bytes(c)) for c in pending],
        machine,
        first=[WorkerDemand(b.key, "base", BASE_SECONDS, WORKER_BYTES) for b in bases],
        workers=jobs,
    )


def _measured(prepared: Prepared, done: list[Cell]) -> dict[str, float]:
    """Mean CPU-seconds of finished cells by kind."""
    found: dict[str, list[float]] = {}
    for cell, costs in _costs(prepared, done):
        found.setdefault(kind_of(cell), []).append(float(costs["cpu_seconds"].sum()))
    return {name: float(np.mean(values)) for name, values in found.items()}


def _estimates(prepared: Prepared) -> Estimates:
    """What finished cells took by the clock: their policies work side by side, so the slowest one counts."""
    estimates = Estimates()
    for cell, costs in _costs(prepared, [s.cell for s in prepared.status() if s.state == "done"]):
        estimates.observe(kind_of(cell), float(costs.groupby("policy")["wall_seconds"].sum().max()) + START_SECONDS)
    return estimates


def _costs(prepared: Prepared, done: list[Cell]) -> Iterator[tuple[Cell, pd.DataFrame]]:
    """The cost ledgers of finished cells, as far as they can be read."""
    for cell in done:
        try:
            costs = read_journal(prepared.folder / cell.key).tables.get("costs")
        except StoreError:
            continue
        if costs is not None:
            yield cell, costs.to_pandas()


def _bytes(cell: Cell) -> int:
    """Memory of one process that trains all policies of a cell."""
    return WORKER_BYTES + int(sum(_parameters(p.model) * BYTES_PER_PARAMETER for p in cell.group.policies))


def _parameters(model: str) -> float:
    """Parameters; a micro model's for one whose shape is not known here (opening it tells)."""
    if model.startswith("micro/"):
        return MICRO_PARAMETERS
    try:
        return float(load_shape(model).parameters)
    except UsageError:
        return MICRO_PARAMETERS
