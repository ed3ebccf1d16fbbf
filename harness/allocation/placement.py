"""Where the policies of one cell go on so many GPUs.

Three arrangements are tried:

  colocated  each policy has GPUs of its own, on which its trainer and its rollout engine take turns (or stand side by side
             where both fit); shares in proportion to predicted work, so that the policies finish a step together.
  split      each policy has some GPUs for the trainer and others for rollouts; pays off only when experience may be stale, for
             then both work at once.
  stacked    all policies take turns on all GPUs of the cell, in lockstep: where nothing else fits, or the suite wants it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Literal

import msgspec

from harness.allocation.demand import CellDemand
from harness.allocation.gangs import Bundle
from harness.allocation.layout import Gpu, PolicyLayout, least_gpus, policy_layout, split_layout
from harness.allocation.shares import apportion
from harness.allocation.size import checkpoint_bytes
from harness.allocation.work import DISK, HOST_LINK, Phases, measure_seconds, rollout_seconds

Arrangement = Literal["colocated", "split", "stacked"]
CORES = 1
"""Cores per GPU: what the engine's placement groups reserve."""
START_SECONDS = 120.0
"""Loading models and starting engines of a cell on GPUs: a prior."""


class CellLayout(msgspec.Struct, frozen=True):
    """One kind of cell: its policies' places, the step they make together, and the resources that it reserves. phases: of the
    whole cell, whose sum is `seconds`."""

    arrangement: Arrangement
    gpus: int
    policies: tuple[PolicyLayout, ...]
    step_seconds: float
    memory_bytes: int
    phases: Phases = Phases()

    @property
    def seconds(self) -> float:
        return self.phases.total

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
    step = replace(cell.workload, steps=1, measured=0, evaluated=0, evaluation_tokens=0, curves=0, curve=0, saves=0)
    layout = _one_step(replace(cell, key="", kind="", workload=step), gpus, gpu)
    return layout and _whole(layout, cell, gpu)


@lru_cache(maxsize=65536)
def _one_step(cell: CellDemand, gpus: int, gpu: Gpu) -> CellLayout | None:
    """Without what surrounds the steps, so that cells that differ in that only are laid out once."""
    apart = [] if cell.shared and len(cell.policies) > 1 else [_colocated(cell, gpus, gpu), _split(cell, gpus, gpu)]
    found = [layout for layout in apart if layout is not None]
    if not found and cell.shared is not False:
        return _stacked(cell, gpus, gpu)
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
    asleep = 2 * gpu.context * (len(cell.policies) - 1)
    fixed = max((policy.devices for policy in cell.policies if policy.devices is not None), default=gpus)
    if fixed > gpus:
        return None
    gpus = fixed
    layouts = []
    for policy in cell.policies:
        layout = policy_layout(policy, cell.workload, gpus, gpu, asleep)
        if layout is None:
            return None
        states = (layout.memory.states + layout.memory.rollout_weights) * gpus
        if not layout.sleeps:
            away = 2 * states / (gpus * HOST_LINK)
            moved = msgspec.structs.replace(layout.seconds, move=layout.seconds.move + away)
            layout = msgspec.structs.replace(layout, host=layout.host + gpu.pinned * states, seconds=moved)
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
    return CellLayout(arrangement, gpus, layouts, step, device_bytes + host)


def _whole(layout: CellLayout, cell: CellDemand, gpu: Gpu) -> CellLayout:
    """With all steps and what surrounds them. The slowest policy of a step sets its pace; of each other phase likewise."""
    work = cell.workload
    together = sum if layout.arrangement == "stacked" else max
    places = list(zip(cell.policies, layout.policies, strict=True))

    def generate(answers: int, tokens: int) -> float:
        asked = replace(
            work, answer_tokens=tokens, mean_answer_tokens=tokens * work.mean_answer_tokens / work.answer_tokens
        )
        return together(
            rollout_seconds(p, asked, answers, at.engines, at.tensor_parallel, at.concurrent, gpu.device)
            if answers
            else 0.0
            for p, at in places
        )

    slowest = max(layout.policies, key=lambda p: p.seconds.total).seconds
    scale = work.steps * layout.step_seconds / slowest.total if slowest.total else 0.0
    phases = Phases(
        start=START_SECONDS,
        generate=scale * slowest.rollout,
        score=scale * slowest.score,
        train=scale * slowest.train,
        move=scale * slowest.move,
        measure=work.measured * together(measure_seconds(p, work, at.gpus, gpu.device) for p, at in places),
        curve=generate(work.curve, work.answer_tokens),
        evaluate=generate(work.evaluated, work.evaluation_tokens or work.answer_tokens),
        save=work.saves * sum(checkpoint_bytes(p.model, p.precision).whole for p in cell.policies) / DISK,
    )
    return msgspec.structs.replace(layout, phases=phases)
