"""In which order the jobs of a run start, and how long they take together."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from harness.allocation.inventory import (
    Bundle,
    Inventory,
    capacity_of,
    place_bundles,
)


class JobRequest(NamedTuple):
    """bundles: reserved all at once. seconds: predicted, for the order alone. layout: the plan's engine options, by policy.
    turn: lower ones start first. on_gpus: bytes that it takes on its GPUs."""

    key: str
    bundles: tuple[Bundle, ...]
    seconds: float
    layout: Mapping[str, Mapping[str, int | float | bool]] = {}
    turn: int = 0
    on_gpus: int = 0


class Scheduler:
    """Which of a batch of jobs run now. A job gets all of its bundles at once or none; a waiting job reserves nothing. Every
    job that fits starts, by turn, of one turn the widest first, then the longest, so each starts when all others have ended at
    the latest. most: jobs at once."""

    def __init__(self, inventory: Inventory, most: int | None = None) -> None:
        self._inventory = inventory
        self.free = capacity_of(inventory)
        self._most = most
        self.waiting: list[JobRequest] = []
        self.running: dict[str, tuple[JobRequest, tuple[str, ...]]] = {}

    def submit(self, jobs: Sequence[JobRequest]) -> list[str]:
        """Return the keys of those that start now. Each fits the empty inventory (`explain_shortage`)."""
        self.waiting = sorted(
            [*self.waiting, *jobs], key=lambda job: (job.turn, -self._share_of_inventory(job), -job.seconds)
        )
        return self._start_waiting()

    def end(self, key: str) -> list[str]:
        """Note that a job has ended, however it did; return the keys of those that start now."""
        job, nodes = self.running.pop(key, (None, ()))
        for bundle, node in zip(job.bundles if job else (), nodes, strict=True):
            self.free[node] = self.free[node].plus(bundle)
        return self._start_waiting()

    def _share_of_inventory(self, job: JobRequest) -> float:
        """Return the share of the inventory that a request takes."""
        gpus = sum(b.gpus for b in job.bundles)
        cores = sum(b.cores for b in job.bundles)
        return max(gpus / max(1, self._inventory.gpus), cores / max(1, self._inventory.cores))

    def _start_waiting(self) -> list[str]:
        """Start the waiting requests that fit now; their keys."""
        started = []
        refused = set[tuple[Bundle, ...]]()
        for job in self.waiting:
            if self._most is not None and len(self.running) >= self._most:
                break
            placed = place_bundles(job.bundles, self.free) if job.bundles not in refused else None
            if placed is None:
                refused.add(job.bundles)
                continue
            self.free, nodes = placed
            self.running[job.key] = job, nodes
            started.append(job.key)
        self.waiting = [job for job in self.waiting if job.key not in self.running]
        return started


class Timetable(NamedTuple):
    """bound: no schedule is shorter. The last four: at the fullest moments; memory: of hosts and GPUs together."""

    seconds: float = 0.0
    bound: float = 0.0
    core_seconds: float = 0.0
    gpu_seconds: float = 0.0
    together: int = 0
    cores: int = 0
    gpus: int = 0
    memory: int = 0


def play_schedule(
    jobs: Sequence[JobRequest], inventory: Inventory, parts: int = 1, most: int | None = None
) -> Timetable:
    """Play jobs of predicted length through a run's scheduler.

    parts: of each GPU, which are spread over all. most: jobs at once. The bound is the longest of the longest job and of each
    resource's work by as much of it as there is: no schedule takes less."""
    scheduler = Scheduler(inventory, most)
    ends = list[tuple[float, str]]()
    total = {"cores": inventory.cores, "gpus": inventory.gpus, "memory": inventory.memory}
    taken: dict[str, dict[str, int]] = {}
    held: dict[str, dict[str, int]] = {}
    for job in jobs:
        own = {name: sum(getattr(bundle, name) for bundle in job.bundles) for name in total}
        taken[job.key] = own
        held[job.key] = {**own, "memory": own["memory"] + job.on_gpus}
    seconds = {job.key: job.seconds for job in jobs}
    now = 0.0
    together = 0
    peak = dict.fromkeys(total, 0)
    gpu_seconds = 0.0
    started = scheduler.submit(jobs)
    while started or ends:
        for key in started:
            heapq.heappush(ends, (now + seconds[key], key))
        together = max(together, len(ends))
        for name in peak:
            in_use = sum(held[key][name] for _, key in ends)
            peak[name] = max(peak[name], in_use)
        busy = min(inventory.gpus // parts, sum(taken[key]["gpus"] for _, key in ends))
        before = now
        (now, ended) = heapq.heappop(ends)
        gpu_seconds += busy * (now - before)
        started = scheduler.end(ended)
    work: dict[str, float] = {}
    for name in total:
        work[name] = sum(seconds[key] * own[name] for key, own in taken.items())
    least_by_resource = [work[name] / total[name] for name in total if total[name]]
    bound = max([*seconds.values(), *least_by_resource], default=0.0)
    return Timetable(now, bound, work["cores"], gpu_seconds, together, **peak)
