"""What a prepared suite needs on the embedded engine, against what a machine has: cores, memory, disk, time.

The priors are CPU-seconds measured on one core of an x86-64 machine (docs/micro.md); finished cells of the same results
folder replace them, so that a plan gets better as a suite goes on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.allocation import inventory as machines
from harness.allocation.inventory import Inventory
from harness.allocation.models import load_shape
from harness.errors import StoreError, UsageError
from harness.session.matrix import WORKER_BYTES, default_jobs
from harness.session.prepare import Prepared
from harness.store.journal import read_journal
from harness.suite.cells import Cell

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
START_SECONDS = 8.0
MICRO_PARAMETERS = 4e5
BYTES_PER_PARAMETER = 20
"""fp32 weights, gradients and two moments, and a frozen reference: 4 + 4 + 8 + 4."""


@dataclass(frozen=True, slots=True)
class SuitePlan:
    """A plan for one suite. `shortfall` says in words what is missing, empty where it fits."""

    suite: str
    engine: str
    inventory: Inventory
    shortfall: str
    cells: int
    pending: int
    bases: int
    jobs: int
    cpu_seconds: float
    gpu_seconds: float
    wall_seconds: float
    memory_bytes: int
    lines: tuple[str, ...] = ()

    @property
    def feasible(self) -> bool:
        return not self.shortfall

    def as_json(self) -> dict[str, Any]:
        """The document that other programs rely on."""
        return {
            "suite": self.suite,
            "engine": self.engine,
            "feasible": self.feasible,
            "shortfall": self.shortfall or None,
            "cells": self.cells,
            "pending": self.pending,
            "resources": {
                "cores": self.inventory.cores,
                "memory_bytes": self.inventory.memory,
                "gpus": self.inventory.gpus,
                "workers": self.jobs,
                "inventory": self.inventory.describe(),
            },
            "predicted": {
                "cpu_seconds": self.cpu_seconds,
                "gpu_seconds": self.gpu_seconds,
                "wall_seconds": self.wall_seconds,
                "memory_bytes": self.memory_bytes,
            },
        }

    def describe(self) -> str:
        """The plan for people."""
        lines = [
            f"{self.suite} on the {self.engine} engine",
            f"  machine    {self.inventory.describe()}",
            f"  cells      {self.cells}, {self.pending} to do, {self.bases} base checkpoints to make or evaluate",
            *(f"  {line}" for line in self.lines),
        ]
        if not self.feasible:
            return "\n".join([*lines, f"  does not fit: {self.shortfall}"])
        lines.append(f"  workers    {self.jobs}, {self.memory_bytes / 1e9:.1f} GB together")
        lines.append(f"  predicted  {self.cpu_seconds:.0f} CPU-s, about {self.wall_seconds / 60:.1f} min on idle cores")
        return "\n".join(lines)


def plan_for(prepared: Prepared, inventory: str | None) -> SuitePlan:
    """The plan of a suite on a stated inventory, or on this machine. Raises UsageError."""
    machine = machines.parse(inventory) if inventory else machines.local()
    status = prepared.status()
    pending = [s.cell for s in status if s.state != "done"]
    measured = _measured(prepared, [s.cell for s in status if s.state == "done"])
    seconds = [measured.get(c.variant.name, predicted_seconds(c)) for c in pending]
    bases = [b for b in prepared.bases if not (prepared.folder / b.key).exists()] if pending else []
    cpu = sum(seconds) + len(bases) * BASE_SECONDS
    worker = max((_worker_bytes(c) for c in prepared.cells), default=WORKER_BYTES)
    jobs = max(1, min(machine.cores, default_jobs() if inventory is None else machine.cores, machine.memory // worker))
    jobs = min(jobs, max(1, len(pending)))
    shortfall = ""
    if worker > machine.memory:
        shortfall = (
            f"one cell needs {worker / 1e9:.1f} GB of memory in one process, {machine.memory / 1e9:.1f} GB are there: "
            f"{(worker - machine.memory) / 1e9:.1f} GB short"
        )
    wall = max(max(seconds, default=0.0), cpu / jobs) + (START_SECONDS if pending else 0.0)
    return SuitePlan(
        prepared.suite.name, prepared.suite.engine, machine, shortfall, len(prepared.cells), len(pending), len(bases),
        jobs, cpu, 0.0, wall, jobs * worker,
    )  # fmt: skip


def predicted_seconds(cell: Cell) -> float:
    """CPU-seconds of one cell from the priors, in proportion to rollouts and to parameters above a micro model's."""
    t, e = cell.training, cell.evaluation
    rate = ROLLOUT_SECONDS.get(cell.variant.regime, OTHER_ROLLOUT_SECONDS)
    total = 0.0
    for i, policy in enumerate(cell.group.policies):
        size = max(1.0, _parameters(policy.model) / MICRO_PARAMETERS)
        answers = (e.limit or 240) * (int(e.greedy) + e.k) * len(e.tasks)
        total += size * (t.steps * t.prompts * cell.rollouts(i) * rate + answers * ANSWER_SECONDS)
    return total


def _measured(prepared: Prepared, done: list[Cell]) -> dict[str, float]:
    """Mean CPU-seconds of finished cells by variant."""
    found: dict[str, list[float]] = {}
    for cell in done:
        try:
            costs = read_journal(prepared.folder / cell.key).tables.get("costs")
        except StoreError:
            continue
        if costs is not None:
            found.setdefault(cell.variant.name, []).append(float(np.sum(costs["cpu_seconds"].to_numpy())))
    return {name: float(np.mean(values)) for name, values in found.items()}


def _worker_bytes(cell: Cell) -> int:
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
