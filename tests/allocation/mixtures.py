"""A discrete-event simulator of a cluster, to try the scheduler on: random mixtures, an independent judge, a naive rival.

The judge keeps its own account of what is reserved and who waits, and shares nothing with the scheduler but the requests.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from harness.allocation.estimates import Estimates
from harness.allocation.gangs import Bundle, Placement, capacity, give, place, take
from harness.allocation.inventory import Inventory, Node
from harness.allocation.scheduler import Action, Request, Scheduler, Start, Stop

GB = 10**9


@dataclass(frozen=True, slots=True)
class Attempt:
    """What happens when a job runs: it ends after `seconds`, well or not; infinite seconds hang until it is stopped."""

    seconds: float
    succeeds: bool = True


@dataclass(frozen=True, slots=True)
class Job:
    """A request that arrives, and its scripted attempts: a failed one is submitted again, to the back of the queue."""

    request: Request
    arrival: float
    attempts: tuple[Attempt, ...]


@dataclass(frozen=True, slots=True)
class Mixture:
    """One case: what there is, what arrives, what breaks."""

    inventory: Inventory
    jobs: tuple[Job, ...]
    longest_limit: float
    stop_within: float
    prior: dict[str, float]


@dataclass(slots=True)
class Outcome:
    """What the judge saw. `violations` is empty when every promise was kept."""

    finished: int = 0
    failed: int = 0
    refused: int = 0
    starts: int = 0
    makespan: float = 0.0
    deadlock: bool = False
    worst_wait: float = 0.0
    """Largest wait as a share of its bound."""
    violations: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Wait:
    since: float
    ahead: int


class _Judge:
    """Follows the events and keeps the account."""

    def __init__(self, mixture: Mixture, patience: float) -> None:
        self.mixture, self.patience = mixture, patience
        self.jobs = {job.request.key: job for job in mixture.jobs}
        self.tries = dict.fromkeys(self.jobs, 0)
        self.alive = capacity(mixture.inventory)
        self.free = dict(self.alive)
        self.held: dict[str, Placement] = {}
        self.waits: dict[str, _Wait] = {}
        self.outcome = Outcome()
        self.now = 0.0

    def submitted(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.waits[key] = _Wait(self.now, len(self.waits))

    def started(self, start: Start) -> None:
        request, wait = self.jobs[start.key].request, self.waits.pop(start.key)
        take(self.free, request.bundles, start.placement)
        self.held[start.key] = start.placement
        self.outcome.starts += 1
        if not all(room.legal for room in self.free.values()):
            self.outcome.violations.append(f"{start.key}: reserved more than there is")
        for bundle, name in zip(request.bundles, start.placement, strict=True):
            if bundle.gpus and self.alive[name].gpu_memory < bundle.gpu_memory:
                self.outcome.violations.append(f"{start.key}: placed on GPUs that are too small")
        hold = self.mixture.longest_limit + self.mixture.stop_within
        bound = self.patience + (wait.ahead + 1) * hold
        waited = self.now - wait.since
        self.outcome.worst_wait = max(self.outcome.worst_wait, waited / bound)
        if waited > bound * (1 + 1e-9):
            self.outcome.violations.append(f"{start.key}: waited {waited:.0f} s, bound {bound:.0f} s")

    def ended(self, key: str) -> None:
        give(self.free, self.jobs[key].request.bundles, self.held.pop(key))
        self.outcome.makespan = self.now


def run(mixture: Mixture, patience: float | None = None, scheduler: Callable[..., Scheduler] = Scheduler) -> Outcome:
    """Play a mixture through the scheduler and judge it."""
    subject = scheduler(
        mixture.inventory,
        mixture.longest_limit,
        patience=patience,
        stop_within=mixture.stop_within,
        estimates=Estimates(dict(mixture.prior)),
    )
    judge = _Judge(mixture, subject.bound() - subject.hold)
    events: list[tuple[float, int, str, str]] = []
    numbers = iter(range(10**9))

    def post(time: float, what: str, key: str) -> None:
        heapq.heappush(events, (time, next(numbers), what, key))

    for job in mixture.jobs:
        post(job.arrival, "arrive", job.request.key)
    epoch: dict[str, int] = {}

    def act(actions: Sequence[Action]) -> None:
        for action in actions:
            key = action.key
            if isinstance(action, Start):
                judge.started(action)
                epoch[key] = epoch.get(key, 0) + 1
                attempt = judge.jobs[key].attempts[judge.tries[key]]
                if attempt.seconds < float("inf"):
                    post(judge.now + attempt.seconds, "end", f"{key} {epoch[key]}")
            elif isinstance(action, Stop):
                post(judge.now + 0.9 * mixture.stop_within, "killed", f"{key} {epoch[key]}")
            else:
                judge.waits.pop(key, None)
                judge.outcome.refused += 1

    def submit(keys: Sequence[str]) -> None:
        judge.submitted(keys)
        act(subject.submit([judge.jobs[key].request for key in keys], judge.now))

    def fail(key: str) -> None:
        judge.ended(key)
        judge.tries[key] += 1
        act(subject.failed(key, judge.now))
        if judge.tries[key] < len(judge.jobs[key].attempts):
            submit([key])
        else:
            judge.outcome.failed += 1

    while events or subject.wake < float("inf"):
        if not events or subject.wake < events[0][0]:
            judge.now = subject.wake
            act(subject.tick(judge.now))
            continue
        time, _, what, key = heapq.heappop(events)
        judge.now = time
        if what == "arrive":
            batch = [key]
            while events and events[0][0] == time and events[0][2] == "arrive":
                batch.append(heapq.heappop(events)[3])
            submit(batch)
        else:
            key, number = key.split()
            if key not in judge.held or epoch[key] != int(number):
                continue
            attempt = judge.jobs[key].attempts[judge.tries[key]]
            if what == "end" and attempt.succeeds:
                judge.ended(key)
                judge.outcome.finished += 1
                act(subject.finished(key, judge.now))
            else:
                fail(key)
    outcome = judge.outcome
    outcome.deadlock = bool(judge.waits or judge.held)
    if outcome.deadlock:
        outcome.violations.append(f"{len(judge.waits)} wait and {len(judge.held)} hold with nothing left to happen")
    if outcome.finished + outcome.failed + outcome.refused != len(mixture.jobs) and not outcome.deadlock:
        outcome.violations.append("some job was neither finished, failed nor refused")
    return outcome


# What a mixture allows ------------------------------------------------------------------------------------------------


def occupied(mixture: Mixture, job: Job) -> float:
    """Seconds that a job holds its resources over all its attempts, whatever the schedule."""
    hang = job.request.limit + 0.9 * mixture.stop_within
    return sum(hang if attempt.seconds > job.request.limit else attempt.seconds for attempt in job.attempts)


def work_bound(mixture: Mixture) -> float:
    """Work over capacity: no schedule of the feasible jobs ends before this, in seconds after time 0."""
    whole = capacity(mixture.inventory)
    jobs = [j for j in mixture.jobs if place(j.request.bundles, whole) is not None]
    bounds = [0.0]
    for has, of in (
        (mixture.inventory.gpus, "gpus"),
        (mixture.inventory.cores, "cores"),
        (mixture.inventory.memory, "memory"),
    ):
        if has:
            bounds.append(
                sum(occupied(mixture, j) * sum(getattr(b, of) for b in j.request.bundles) for j in jobs) / has
            )
    return max(bounds)


def allows(mixture: Mixture, utilisation: float = 0.9) -> bool:
    """Whether every schedule that never idles the oldest waiting job reaches this share of `work_bound`: exact arithmetic on the
    mixture alone.

    Let one resource be scarce (GPUs; cores where there are none), the others never in the way: every node offers at least as
    much of them per unit as any bundle asks, and no bundle asks for larger GPUs than all nodes have. With m units on N nodes,
    q the greatest common divisor of all bundles and nodes, b the largest bundle and w the largest job: a job that cannot be
    placed leaves at most b - q idle on each node and w - q placed in vain, so while any waits at most
    i = N (b - q) + w - q  units are idle; or, where all bundles are of the size q and so fit into any gap, at most
    i = w - (greatest common divisor of m and all jobs' widths). Nobody waits only while the last to end runs, at most d, the
    longest occupation. So with everything there at the start, makespan <= W / (1 - i/m) + d, W being the work
    bound. The mixture allows a utilisation u where this is at most W / u.
    """
    inventory = mixture.inventory
    nodes = inventory.nodes
    unit = "gpus" if inventory.gpus else "cores"
    jobs = [j for j in mixture.jobs if place(j.request.bundles, capacity(inventory)) is not None]
    bundles = {b for j in jobs for b in j.request.bundles}
    if not bundles or any(j.arrival for j in jobs):
        return False
    sizes = [getattr(b, unit) for b in bundles]
    if min(sizes) < 1 or any(b.gpus and b.gpu_memory > node.gpu_memory for b in bundles for node in nodes):
        return False
    for other in ("cores", "memory"):
        asked = max(getattr(b, other) / getattr(b, unit) for b in bundles)
        if asked > min(getattr(n, other) / getattr(n, unit) for n in nodes):
            return False
    units = sum(getattr(n, unit) for n in nodes)
    grain = math.gcd(*sizes, *(getattr(n, unit) for n in nodes))
    widest = max(sum(getattr(b, unit) for b in j.request.bundles) for j in jobs)
    if max(sizes) == grain:
        idle = widest - math.gcd(units, *(sum(getattr(b, unit) for b in j.request.bundles) for j in jobs))
    else:
        idle = len(nodes) * (max(sizes) - grain) + widest - grain
    work = sum(occupied(mixture, j) * sum(getattr(b, unit) for b in j.request.bundles) for j in jobs) / units
    longest = max(occupied(mixture, j) for j in jobs)
    return bool(idle < units and work / (1 - idle / units) + longest <= work / utilisation)


# The naive rival ------------------------------------------------------------------------------------------------------


def naive_deadlocks(mixture: Mixture) -> bool:
    """Whether one-after-another reservation deadlocks: each job takes a bundle as soon as it fits and holds it while it waits
    for the next, as actors created one by one do. Failures are left out, which only helps it."""
    free = capacity(mixture.inventory)
    feasible = [j for j in mixture.jobs if place(j.request.bundles, free) is not None]
    waiting = sorted(feasible, key=lambda j: j.arrival)
    got: dict[str, list[str]] = {j.request.key: [] for j in waiting}
    running: list[tuple[float, str, Job]] = []
    now = 0.0
    while waiting:
        progress = True
        while progress:
            progress = False
            hopeless: set[Bundle] = set()
            for job in [j for j in waiting if j.arrival <= now]:
                have = got[job.request.key]
                bundle = job.request.bundles[len(have)]
                spot = place([bundle], free) if bundle not in hopeless else None
                if spot is None:
                    hopeless.add(bundle)
                    continue
                take(free, [bundle], spot)
                have.append(spot[0])
                progress = True
                if len(have) == len(job.request.bundles):
                    waiting.remove(job)
                    heapq.heappush(running, (now + occupied(mixture, job), job.request.key, job))
        arrivals = [j.arrival for j in waiting if j.arrival > now]
        if running and running[0][0] <= min(arrivals, default=float("inf")):
            now, key, job = heapq.heappop(running)
            give(free, job.request.bundles, tuple(got[key]))
        elif arrivals:
            now = min(arrivals)
        elif waiting:
            return True
    return False


# Random mixtures ------------------------------------------------------------------------------------------------------


def mixtures(seed: int, count: int) -> Iterator[Mixture]:
    """`count` random mixtures, the i-th a function of (seed, i) alone."""
    for index in range(count):
        yield random_mixture(random.Random(f"{seed}/{index}"))


def random_mixture(rng: random.Random) -> Mixture:
    """Clusters of 1 to 6 nodes (GPUs of one or two sizes, or none), 1 to 400 jobs of 1 to 4 policies each, arriving at once or
    over time; a third of the mixtures has failures and hangs. A fifth is fine-grained: many workers of one size."""
    fine = rng.random() < 0.2
    gpus = rng.choice([0, 8, 8]) if fine else rng.choice([0, 1, 2, 4, 8, 8])
    sizes = [80 * GB] if fine or rng.random() < 0.8 else [80 * GB, 40 * GB]
    count = rng.choice([1, 1, 2, 3, 4]) if fine else rng.randint(1, 6)
    nodes = tuple(
        Node(f"node{i}", 16 * max(1, gpus), 128 * GB * max(1, gpus), gpus, rng.choice(sizes) if gpus else 0)
        for i in range(count)
    )
    kinds = {f"kind{i}": rng.uniform(1800 if fine else 60, 7200) for i in range(rng.randint(1, 6))}
    worker, widths = _random_worker(rng, gpus), rng.choice([[1], [2], [4], [1, 2]])
    shapes = {kind: (worker,) * rng.choice(widths) if fine else _random_bundles(rng, gpus) for kind in kinds}
    troubled = rng.random() < (0.15 if fine else 1 / 3)
    spread = 0.0 if rng.random() < (0.9 if fine else 0.7) else rng.uniform(1, 40) * 3600
    jobs = []
    for index in range(rng.choice([150, 250, 400]) if fine else rng.choice([1, 3, 10, 30, 60, 100, 160])):
        kind = rng.choice(list(kinds))
        bundles = shapes[kind] if fine or rng.random() < 0.9 else _random_bundles(rng, gpus)
        limit = 3 * kinds[kind]
        attempts: list[Attempt] = []
        while troubled and rng.random() < 0.15 and len(attempts) < 2:
            attempts.append(Attempt(float("inf") if rng.random() < 0.3 else rng.uniform(0, limit), succeeds=False))
        attempts.append(Attempt(min(kinds[kind] * rng.lognormvariate(0, 0.2), 0.999 * limit)))
        arrival = rng.uniform(0, spread) if spread else 0.0
        jobs.append(Job(Request(f"job{index}", kind, bundles, limit), arrival, tuple(attempts)))
    longest, stop_within = 3 * max(kinds.values()), 30.0
    return Mixture(Inventory(nodes), tuple(jobs), longest, stop_within, kinds)


def _random_worker(rng: random.Random, gpus: int) -> Bundle:
    if not gpus:
        return Bundle(0, rng.choice([1, 1, 2, 4]), rng.randint(1, 8) * GB)
    each = rng.choice([1, 1, 1, 2, 4]) if gpus >= 4 else 1
    return Bundle(each, 2 * each, rng.randint(4, 64) * GB * each, rng.choice([40, 40, 80]) * GB)


def _random_bundles(rng: random.Random, gpus: int) -> tuple[Bundle, ...]:
    """One bundle per worker of each policy of a cell, policies of unlike sizes; sometimes more than the cluster has."""
    bundles: list[Bundle] = []
    for _ in range(rng.choice([1, 2, 2, 2, 3, 4])):
        bundles += [_random_worker(rng, gpus)] * (rng.choice([1, 1, 2, 3, 4]) if gpus else 1)
    return tuple(bundles)
