"""Where the policies of one cell go on so many GPUs.

Three arrangements are tried:

  colocated  each policy has GPUs of its own, on which its trainer and its rollout engine take turns (or stand side by side
             where both fit); shares in proportion to predicted work, so that the policies finish a step together.
  split      each policy has some GPUs for the trainer and others for rollouts; pays off only when experience may be stale, for
             then both work at once.
  stacked    all policies take turns on all GPUs of the cell: for fewer GPUs than policies.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Literal

import msgspec

from harness.allocation.demand import CellDemand
from harness.allocation.layout import Gpu, PolicyLayout, least_gpus, policy_layout, split_layout
from harness.allocation.packing import Bundle
from harness.allocation.shares import apportion
from harness.allocation.work import HOST_LINK, rollout_seconds

Arrangement = Literal["colocated", "split", "stacked"]
CORES = 1
"""Cores per GPU: what the engine's placement groups reserve."""
START_SECONDS = 120.0
"""Loading models and starting engines of a cell on GPUs: a prior."""


class CellLayout(msgspec.Struct, frozen=True):
    """One kind of cell: its policies' places, the step they make together, and the resources that it reserves."""

    arrangement: Arrangement
    gpus: int
    policies: tuple[PolicyLayout, ...]
    step_seconds: float
    seconds: float
    evaluation_seconds: float
    memory_bytes: int

    @property
    def host(self) -> int:
        return sum(p.host for p in self.policies)

    def bundles(self, gpu: Gpu) -> tuple[Bundle, ...]:
        """What to reserve. One bundle per tensor-parallel group, which must not cross nodes, and per other GPU."""
        if self.arrangement == "stacked":
            widest = max(p.tensor_parallel for p in self.policies)
            groups = [widest] * (self.gpus // widest) + [1] * (self.gpus % widest)
            ram = self.host // self.gpus
            return tuple(Bundle(n, CORES * n, ram * n, gpu.memory) for n in groups)
        return tuple(bundle for p in self.policies for bundle in policy_bundles(p))


def policy_bundles(p: PolicyLayout) -> tuple[Bundle, ...]:
    """What one policy alone takes of a cell's reservation."""
    total = p.gpus + p.rollout_gpus if p.split else max(p.gpus, p.rollout_gpus)
    groups = [p.tensor_parallel] * p.engines + [1] * (total - p.engines * p.tensor_parallel)
    return tuple(Bundle(n, CORES * n, p.host // total * n, p.capacity) for n in groups)


def cell_layout(cell: CellDemand, gpus: int, gpu: Gpu) -> CellLayout | None:
    """The fastest arrangement of a cell on at most `gpus` GPUs, or None if it does not fit."""
    layout = _one_step(replace(cell, key="", kind="", workload=replace(cell.workload, steps=1, evaluated=0)), gpus, gpu)
    return layout and _whole(layout, cell, gpu)


@lru_cache(maxsize=65536)
def _one_step(cell: CellDemand, gpus: int, gpu: Gpu) -> CellLayout | None:
    """Without what surrounds the steps, so that cells that differ in that only are laid out once."""
    found = [
        layout
        for layout in (_colocated(cell, gpus, gpu), _split(cell, gpus, gpu), _stacked(cell, gpus, gpu))
        if layout is not None
    ]
    return min(found, key=lambda layout: layout.step_seconds, default=None)


def _colocated(cell: CellDemand, gpus: int, gpu: Gpu) -> CellLayout | None:
    least = {}
    for policy in cell.policies:
        number = least_gpus(policy, cell.workload, gpu, gpus)
        if number is None:
            return None
        least[policy.name] = number
    by_name = {p.name: p for p in cell.policies}

    def seconds(name: str, n: int) -> float:
        layout = policy_layout(by_name[name], cell.workload, n, gpu)
        return layout.seconds.total if layout is not None else float("inf")

    share = apportion(least, gpus, seconds)
    if share is None:
        return None
    layouts = [policy_layout(p, cell.workload, share[p.name], gpu) for p in cell.policies]
    fitted = tuple(layout for layout in layouts if layout is not None)
    return _cell("colocated", cell, fitted, sum(share.values()), max(p.seconds.total for p in fitted), gpu)


def _split(cell: CellDemand, gpus: int, gpu: Gpu) -> CellLayout | None:
    if cell.workload.staleness == 0 or gpus < 2 * len(cell.policies):
        return None
    by_name = {p.name: p for p in cell.policies}

    def seconds(name: str, n: int) -> float:
        layout = split_layout(by_name[name], cell.workload, n, gpu)
        return layout.seconds.total if layout is not None else float("inf")

    least = {}
    for policy in cell.policies:
        number = next((n for n in range(2, gpus + 1) if seconds(policy.name, n) < float("inf")), None)
        if number is None:
            return None
        least[policy.name] = number
    share = apportion(least, gpus, seconds)
    if share is None:
        return None
    layouts = [split_layout(p, cell.workload, share[p.name], gpu) for p in cell.policies]
    fitted = tuple(layout for layout in layouts if layout is not None)
    return _cell("split", cell, fitted, sum(share.values()), max(p.seconds.total for p in fitted), gpu)


def _stacked(cell: CellDemand, gpus: int, gpu: Gpu) -> CellLayout | None:
    if len(cell.policies) < 2 or not (gpu.stacks and gpu.sleeps):
        return None
    asleep = gpu.context * (len(cell.policies) - 1)
    layouts = []
    for policy in cell.policies:
        layout = policy_layout(policy, cell.workload, gpus, gpu, asleep)
        if layout is None:
            return None
        states = (
            layout.memory.weights + layout.memory.gradients + layout.memory.optimiser + layout.memory.rollout_weights
        ) * gpus
        if not layout.sleeps:
            away = 2 * states / (gpus * HOST_LINK)
            moved = msgspec.structs.replace(layout.seconds, move=layout.seconds.move + away)
            layout = msgspec.structs.replace(layout, host=layout.host + states, seconds=moved)
        layouts.append(layout)
    return _cell("stacked", cell, tuple(layouts), gpus, sum(p.seconds.total for p in layouts), gpu)


def _cell(
    arrangement: Arrangement, cell: CellDemand, layouts: tuple[PolicyLayout, ...], gpus: int, step: float, gpu: Gpu
) -> CellLayout:
    device_bytes = (
        max(p.peak for p in layouts) * gpus
        if arrangement == "stacked"
        else sum(p.peak * (p.gpus + p.rollout_gpus if arrangement == "split" else p.gpus) for p in layouts)
    )
    host = sum(p.host for p in layouts)
    return CellLayout(arrangement, gpus, layouts, step, step, 0.0, device_bytes + host)


def _whole(layout: CellLayout, cell: CellDemand, gpu: Gpu) -> CellLayout:
    """With all steps, the start and the evaluation."""
    work = cell.workload
    turns = [
        rollout_seconds(policy, work, work.evaluated, p.engines, p.tensor_parallel, p.concurrent, gpu.device)
        for policy, p in zip(cell.policies, layout.policies, strict=True)
        if work.evaluated
    ]
    evaluation = (sum(turns) if layout.arrangement == "stacked" else max(turns)) if turns else 0.0
    seconds = START_SECONDS + work.steps * layout.step_seconds + evaluation
    return msgspec.structs.replace(layout, seconds=seconds, evaluation_seconds=evaluation)
