"""How the policies of one cell share GPUs: the fastest way that fits.

colocated: each policy has its own GPUs; shares are those of the shortest step, so that the policies finish it together.
stacked: all policies take turns on all GPUs, where that is faster, or the suite wants it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Literal, NamedTuple, TypeVar

import msgspec

from harness.allocation.cost_model import (
    DISK,
    CellDemand,
    Device,
    PhaseSeconds,
    PolicyDemand,
    Workload,
    checkpoint_bytes,
)
from harness.allocation.inventory import Bundle
from harness.allocation.layout import (
    STACKED_COST,
    START_SECONDS,
    BesideSteps,
    Gpu,
    PolicyLayout,
    places_up_to,
    policy_layouts,
    seconds_beside_steps,
    sizes_to_try,
)


class CellLayout(msgspec.Struct, frozen=True):
    """Where a cell's policies go. memory_bytes: of GPUs and hosts together. phases: seconds of the whole cell."""

    arrangement: Literal["colocated", "stacked"]
    gpus: int
    policies: tuple[PolicyLayout, ...]
    step_seconds: float
    memory_bytes: int
    phases: PhaseSeconds = PhaseSeconds()

    @property
    def seconds(self) -> float:
        return self.phases.total

    @property
    def host(self) -> int:
        return sum(p.host for p in self.policies)

    @property
    def bundles(self) -> tuple[Bundle, ...]:
        """One per tensor-parallel group, as a policy's."""
        if self.arrangement != "stacked":
            return tuple(bundle for p in self.policies for bundle in p.bundles)
        widest = max(p.tensor_parallel for p in self.policies)
        groups = [widest] * (self.gpus // widest) + [1] * (self.gpus % widest)
        return tuple(Bundle(n, n, self.host // self.gpus * n, self.policies[0].capacity) for n in groups)


@lru_cache(maxsize=65536)
def cell_layout(cell: CellDemand, gpus: int, gpu: Gpu) -> CellLayout | None:
    """Find the fastest way on at most so many GPUs and in the RAM beside them, or None."""
    found = _find_layouts(cell, gpu, _Limit(gpus, gpu.ram, gpu.ram_each))
    return min(found, key=lambda layout: layout.seconds, default=None)


def frugal_layout(cell: CellDemand, gpus: int, gpu: Gpu) -> CellLayout | None:
    """Find the way that takes least RAM on at most so many GPUs, however much there is; or None where GPUs are what lacks."""
    least = None
    found = _find_layouts(cell, gpu, _Limit(gpus))
    while found:  # something takes less
        least = min(found, key=lambda layout: layout.host)
        found = _find_layouts(cell, gpu, _Limit(gpus, ram=least.host - 1))
    return least


class _Limit(NamedTuple):
    """What a cell may take at most. ram: bytes for the whole cell; each: bytes beside each GPU; None for no limit."""

    gpus: int
    ram: int | None = None
    each: int | None = None


def _find_layouts(cell: CellDemand, gpu: Gpu, limit: _Limit) -> list[CellLayout]:
    """Find layouts of a cell on GPUs of one kind, within a limit: the fastest on GPUs of their own, and those in turns."""
    several = len(cell.policies) > 1
    found = list[CellLayout]()
    gpu = replace(gpu, ram=None, ram_each=None)  # from here on the limit says it
    if not (cell.shared and several):
        options = [_on_own_gpus(policy, cell.workload, limit, gpu) for policy in cell.policies]
        places = fastest_together(options, cell.workload.steps, limit.gpus, limit.ram)
        if places:
            taken = sum(place.gpus for place in places)
            found.append(_combine_policies(cell, taken, places, gpu.on, stacked=False))
    if several and cell.shared is not False and gpu.stacks:
        found += _in_turns(cell, limit, gpu)
    return found


def _on_own_gpus(policy: PolicyDemand, work: Workload, limit: _Limit, gpu: Gpu) -> list[PolicyLayout]:
    """List ways to place a policy on GPUs of its own, within a limit."""
    found = list[PolicyLayout]()
    for gpus in sizes_to_try(policy):
        if gpus > limit.gpus:
            break
        found += policy_layouts(policy, work, gpus, gpu)[0]
    return [place for place in found if limit.each is None or place.host <= limit.each * place.gpus]


def _in_turns(cell: CellDemand, limit: _Limit, gpu: Gpu) -> Iterator[CellLayout]:
    """Yield, for each number of GPUs, the fastest way in which all policies take turns on all of them."""
    others = len(cell.policies) - 1
    stated = cell.policies[0].devices
    for gpus in (stated,) if stated else places_up_to(limit.gpus):
        if gpus > limit.gpus:
            break
        ram = limit.ram if limit.each is None else limit.each * gpus
        options = [policy_layouts(policy, cell.workload, gpus, gpu, others)[0] for policy in cell.policies]
        # Their seconds and their RAM add up: of the first policies' ways only those are kept that no other beats in both.
        kept: list[tuple[float, int, list[PolicyLayout]]] = [(0.0, 0, [])]
        for own in options:
            longer: list[tuple[float, int, list[PolicyLayout]]] = []
            for seconds, host, places in kept:
                for place in own:
                    together = seconds + cell.workload.steps * place.seconds.total + place.rest
                    longer.append((together, host + place.host, [*places, place]))
            fitting = [way for way in longer if ram is None or way[1] <= ram]
            kept = _keep_unbeaten(fitting)
        if kept:
            yield _combine_policies(cell, gpus, kept[0][2], gpu.on, stacked=True)


_Costs = TypeVar("_Costs", bound=float)


def _keep_unbeaten(ways: list[tuple[_Costs, int, list[PolicyLayout]]]) -> list[tuple[_Costs, int, list[PolicyLayout]]]:
    """Keep the ways that no other beats in both of their first two figures, the least of the first one first."""
    kept = list[tuple[_Costs, int, list[PolicyLayout]]]()
    for way in sorted(ways, key=lambda way: way[:2]):
        if not kept or way[1] < kept[-1][1]:
            kept.append(way)
    return kept


def fastest_together(
    options: Sequence[Sequence[PolicyLayout]], steps: int, gpus: int, ram: int | None = None
) -> list[PolicyLayout]:
    """Choose one of each policy's options, for the shortest cell on so many GPUs and in so much RAM (bytes); none where they do
    not fit together.

    A step is as long as its slowest policy's, and so is the rest of a cell. For each pace of a step, from the fastest,
    the shortest rest is searched that fits; so nothing that fits is faster, and more of anything is never slower."""
    if not all(options):
        return []
    paces = sorted({place.seconds.total for own in options for place in own})
    rests = sorted({place.rest for own in options for place in own})
    least_rests = [min(place.rest for place in own) for own in options]
    least_rest = max(least_rests)

    def fit(pace: float, rest: float) -> list[PolicyLayout]:
        able = []
        for own in options:
            able.append([place for place in own if place.seconds.total <= pace and place.rest <= rest])
        return _fewest_gpus(able, gpus, ram)

    first = bisect_left(paces, True, key=lambda pace: bool(fit(pace, rests[-1])))
    best = list[PolicyLayout]()
    shortest = float("inf")
    for pace in paces[first:]:
        if steps * pace + least_rest >= shortest:
            break
        rest = rests[bisect_left(rests, True, key=lambda rest: bool(fit(pace, rest)))]
        if steps * pace + rest < shortest:
            best = fit(pace, rest)
            shortest = steps * pace + rest
    return best


def _fewest_gpus(options: Sequence[Sequence[PolicyLayout]], gpus: int, ram: int | None) -> list[PolicyLayout]:
    """Choose one of each policy's options so that all together take the fewest GPUs, at most so many, and no more RAM than there
    is; none where they do not fit. Ways that another beats in both are dropped policy by policy, since both add up."""
    kept: list[tuple[int, int, list[PolicyLayout]]] = [(0, 0, [])]
    for own in options:
        alone = _keep_unbeaten([(place.gpus, place.host, [place]) for place in own])
        longer: list[tuple[int, int, list[PolicyLayout]]] = []
        for used_gpus, host, places in kept:
            for more_gpus, more_host, place in alone:
                longer.append((used_gpus + more_gpus, host + more_host, [*places, *place]))
        fitting = [way for way in longer if way[0] <= gpus and (ram is None or way[1] <= ram)]
        kept = _keep_unbeaten(fitting)
    return kept[0][2] if kept else []


def _combine_policies(cell: CellDemand, gpus: int, places: list[PolicyLayout], on: Device, stacked: bool) -> CellLayout:
    """Put the policies' layouts together to that of a cell. gpus: of all. stacked: policies take turns on the same ones.

    The slowest policy sets the pace of a step, and of what follows; of policies that take turns all count. Phases of a step have
    the slowest policy's proportions: `scale` multiplies its seconds of one step, so that its phases add up to all of the cell's
    steps, which in turns are longer than its own."""
    work = cell.workload
    slowest = max((place.seconds for place in places), key=lambda seconds: seconds.total)
    step = sum(place.seconds.total for place in places) if stacked else slowest.total
    scale = work.steps * step / slowest.total if slowest.total else 0.0
    rest = _beside_steps(cell, places, on, stacked)
    checkpoints = [checkpoint_bytes(p.model, p.precision, adapters=p.adapters).whole for p in cell.policies]
    phases = PhaseSeconds(
        start=START_SECONDS * (len(places) if stacked else 1),  # on the same GPUs one after the other
        generate=scale * slowest.rollout,
        score=scale * slowest.score,
        train=scale * slowest.train,
        move=scale * slowest.move,
        measure=rest.measure,
        curve=rest.curve,
        evaluate=rest.evaluate,
        save=work.saves * sum(checkpoints) / DISK,
    )
    peaks = [place.peak * place.gpus for place in places]
    on_gpus = max(peaks) if stacked else sum(peaks)
    memory = on_gpus + sum(place.host for place in places)
    arrangement: Literal["colocated", "stacked"] = "stacked" if stacked else "colocated"
    return CellLayout(arrangement, gpus, tuple(places), step, memory, phases)


def _beside_steps(cell: CellDemand, places: Sequence[PolicyLayout], on: Device, stacked: bool) -> BesideSteps:
    """Predict the seconds of a cell beside its steps: of the slowest policy, or of all, one after the other with what turns
    cost."""
    each: list[BesideSteps] = []
    for policy, place in zip(cell.policies, places, strict=True):
        spread = place.engines, place.tensor_parallel, place.concurrent
        each.append(seconds_beside_steps(policy, cell.workload, place.gpus, *spread, on))
    if not stacked:
        return max(each, key=sum)
    in_turns = [(1 + STACKED_COST) * sum(part) for part in zip(*each, strict=True)]
    return BesideSteps(*in_turns)
