"""The scheduler of cells: pure logic, fed with events, answering with actions.

A driver submits requests, starts and stops what it is told, and reports what happened. Time is whatever the driver passes as
`now` (seconds, never decreasing).

**No deadlock.** A request's bundles are reserved all at once or not at all, and no request is ever given a second reservation,
so nothing is held while waiting for more. Whatever runs ends at its limit at the latest (`tick` says Stop), and a request that
could not run on the empty cluster is refused at once with the shortfall, so the oldest waiting request always can run later.

**No starvation.** Requests age from their submission. The oldest waiting one is the *head*. Once its age exceeds `patience`, it
gets a reservation in the future: nodes for its bundles (the target) and the time T by which all that occupies them ends at the
latest, every limit included. From then on a younger request starts only if its own limit ends by T or the target still fits
beside it and all else that may outlast T. So at T the head fits, and it starts then or earlier.

  Bound.  Let L be the longest hold (`longest_limit` + `stop_within`) and k the number of requests that wait when ours is submitted.
  Then   wait <= patience + (k + 1) L.
  Proof.  All k elders and ours are older than `patience` from `patience` after our submission on, and the younger never become
  head before us. From then on each head's T is at most L after the moment it is fixed, because it is the end of a running hold.
  When one head starts, the next one's T is fixed in the same event. At most k + 1 heads, ours the last, hence the bound. []

  It supposes that a stopped request is reported ended within `stop_within`.

**No waste.** Whatever fits starts, the widest and longest first (left to the end they would idle the rest), except for what the
head's reservation forbids. So while anything waits, at least the head does not fit into what is idle: benchmarks/mixtures.py draws
from this which mixtures must reach a given utilisation.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from harness.allocation.estimates import Estimates
from harness.allocation.gangs import Bundle, Free, Placement, capacity, give, missing, place, take
from harness.allocation.inventory import Inventory

LONGEST_SECONDS = 30 * 86400.0
"""Limit of every cell of a suite; what hangs is found by its silence, long before."""
PATIENCE_SECONDS = 1800.0
"""After so long a waiting cell that fits nowhere gets a reservation in the future."""


@dataclass(frozen=True, slots=True)
class Request:
    """One gang. kind: what `Estimates` learns by. limit: seconds after which it is stopped, a deadline and no estimate."""

    key: str
    kind: str
    bundles: tuple[Bundle, ...]
    limit: float


@dataclass(frozen=True, slots=True)
class Start:
    """Start `key` on these nodes, one per bundle; it has until `deadline`."""

    key: str
    placement: Placement
    deadline: float


@dataclass(frozen=True, slots=True)
class Stop:
    """End `key` now and report `failed`; its resources stay reserved until then."""

    key: str
    reason: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """`key` cannot run here; `reason` says what is short and by how much."""

    key: str
    reason: str


Action = Start | Stop | Refuse


@dataclass(slots=True)
class _Waiting:
    request: Request
    number: int
    since: float
    width: float
    """Share of the whole inventory that it takes, of its scarcest resource."""
    shape: int
    """Equal for equal bundles; cheaper to compare."""
    gpus: int
    cores: int


@dataclass(slots=True)
class _Running:
    request: Request
    placement: Placement
    start: float
    ends: float
    stopped: bool = False


@dataclass(frozen=True, slots=True)
class _Target:
    number: int
    placement: Placement
    time: float


@dataclass
class Scheduler:
    """See the module's docstring. Deterministic: equal events give equal actions."""

    inventory: Inventory
    longest_limit: float
    patience: float | None = None
    stop_within: float = 30.0
    estimates: Estimates = field(default_factory=Estimates)

    def __post_init__(self) -> None:
        if self.patience is None:
            self.patience = self.longest_limit
        self._capacity = capacity(self.inventory)
        self._free = dict(self._capacity)
        self._waiting: list[_Waiting] = []
        self._running: dict[str, _Running] = {}
        self._target: _Target | None = None
        self._numbers = 0
        self._shapes: dict[tuple[Bundle, ...], int] = {}
        self._now = float("-inf")

    @property
    def hold(self) -> float:
        """L of the bound: the longest time that anything keeps its reservation."""
        return self.longest_limit + self.stop_within

    @property
    def waiting(self) -> tuple[str, ...]:
        """Keys in order of age."""
        return tuple(w.request.key for w in self._waiting)

    @property
    def running(self) -> dict[str, Placement]:
        return {key: r.placement for key, r in self._running.items()}

    @property
    def free(self) -> dict[str, Free]:
        return dict(self._free)

    def bound(self) -> float:
        """The longest that a request submitted now can wait."""
        return self._patience + (len(self._waiting) + 1) * self.hold

    @property
    def _patience(self) -> float:
        return self.patience if self.patience is not None else self.longest_limit

    # Events -----------------------------------------------------------------------------------------------------------

    def submit(self, requests: Sequence[Request], now: float) -> list[Action]:
        """New requests, in order of seniority; a failed one may be submitted again and queues as new."""
        self._advance(now)
        actions: list[Action] = []
        known = {w.request.key for w in self._waiting}
        for request in requests:
            if request.key in self._running or request.key in known:
                raise ValueError(f"{request.key}: already submitted")
            known.add(request.key)
            if not 0 < request.limit <= self.longest_limit:
                raise ValueError(f"{request.key}: its limit must lie in (0, {self.longest_limit}]")
            whole = capacity(self.inventory)
            if place(request.bundles, whole) is None:
                actions.append(Refuse(request.key, missing(request.bundles, whole)))
                continue
            self._numbers += 1
            gpus, cores = sum(b.gpus for b in request.bundles), sum(b.cores for b in request.bundles)
            width = max(gpus / max(1, self.inventory.gpus), cores / max(1, self.inventory.cores))
            shape = self._shapes.setdefault(request.bundles, len(self._shapes))
            self._waiting.append(_Waiting(request, self._numbers, now, width, shape, gpus, cores))
        return actions + self._schedule(now)

    def finished(self, key: str, now: float) -> list[Action]:
        """`key` ended well; its duration is learnt."""
        self._advance(now)
        run = self._release(key)
        if run is not None and now > run.start:
            self.estimates.observe(run.request.kind, now - run.start)
        return self._schedule(now)

    def failed(self, key: str, now: float) -> list[Action]:
        """`key` ended badly or was stopped; whether to submit it again is the driver's choice."""
        self._advance(now)
        self._release(key)
        return self._schedule(now)

    def tick(self, now: float) -> list[Action]:
        """Time passed; call it at `wake` at the latest."""
        self._advance(now)
        actions: list[Action] = []
        for key, run in self._running.items():
            if not run.stopped and now >= run.start + run.request.limit:
                run.stopped = True
                actions.append(Stop(key, f"did not end within its limit of {run.request.limit:.0f} s"))
        return actions + self._schedule(now)

    @property
    def wake(self) -> float:
        """When the driver must call `tick`, if nothing happens before."""
        times = [r.start + r.request.limit for r in self._running.values() if not r.stopped]
        head = self._head()
        if head is not None and self._target is None:
            times.append(head.since + self._patience)
        return min((t for t in times if t > self._now), default=float("inf"))

    # Inside -----------------------------------------------------------------------------------------------------------

    def _advance(self, now: float) -> None:
        if now < self._now:
            raise ValueError(f"time runs backwards: {now} after {self._now}")
        self._now = now

    def _release(self, key: str) -> _Running | None:
        run = self._running.pop(key, None)
        if run is not None:
            give(self._free, run.request.bundles, run.placement)
        return run

    def _schedule(self, now: float) -> list[Action]:
        actions: list[Action] = []
        while True:
            self._fix_target(now)
            head = self._head() if self._target is not None else None
            placement = self._head_placement(head.request) if head is not None else None
            if head is None or placement is None:
                break
            self._target = None
            actions.append(self._start(head, placement, now))
        return actions + [self._start(waiting, placement, now) for waiting, placement in self._fill(now)]

    def _head(self) -> _Waiting | None:
        return self._waiting[0] if self._waiting else None

    def _head_placement(self, request: Request) -> Placement | None:
        """Any place, else the reserved one: `place` is a heuristic and may miss on freer nodes what it found before."""
        assert self._target is not None
        placement = place(request.bundles, self._free)
        if placement is not None:
            return placement
        room = dict(self._free)
        take(room, request.bundles, self._target.placement)
        return self._target.placement if all(left.legal for left in room.values()) else None

    def _fill(self, now: float) -> list[tuple[_Waiting, Placement]]:
        """What starts now: all that fits and leaves the head's reservation standing, the widest first, then the longest."""
        seconds = {kind: self.estimates.seconds(kind) for kind in {w.request.kind for w in self._waiting}}
        order = sorted(self._waiting, key=lambda w: (-w.width, -seconds[w.request.kind], w.number))
        free = dict(self._free)
        # What ends before the head's reservation begins may take all that is free; what outlasts that moment takes only what the
        # reservation spares as well.
        spared = self._beside_target()
        common = {name: free[name].meet(spared[name]) for name in free} if spared is not None else free
        chosen = []
        idle_gpus, idle_cores = sum(room.gpus for room in free.values()), sum(room.cores for room in free.values())
        hopeless: set[tuple[int, bool]] = set()  # shapes that have found no place: room only shrinks
        for waiting in order:
            if waiting.gpus > idle_gpus or waiting.cores > idle_cores:
                continue
            bundles = waiting.request.bundles
            outlasts = self._target is not None and now + waiting.request.limit + self.stop_within > self._target.time
            if (waiting.shape, outlasts) in hopeless:
                continue
            placement = place(bundles, common if outlasts else free)
            if placement is None:
                hopeless.add((waiting.shape, outlasts))
                continue
            take(free, bundles, placement)
            idle_gpus, idle_cores = idle_gpus - waiting.gpus, idle_cores - waiting.cores
            if spared is not None:
                if outlasts:
                    take(spared, bundles, placement)
                for name in placement:
                    common[name] = free[name].meet(spared[name])
            chosen.append((waiting, placement))
        return chosen

    def _start(self, waiting: _Waiting, placement: Placement, now: float) -> Start:
        request = waiting.request
        self._waiting.remove(waiting)
        take(self._free, request.bundles, placement)
        ends = now + request.limit + self.stop_within
        self._running[request.key] = _Running(request, placement, now, ends)
        return Start(request.key, placement, now + request.limit)

    def _beside_target(self) -> dict[str, Free] | None:
        """What remains at the target's time beside the target and all that may still run then."""
        head, target = self._head(), self._target
        if head is None or target is None:
            return None
        room = dict(self._capacity)
        for run in self._running.values():
            if run.ends > target.time:
                take(room, run.request.bundles, run.placement)
        take(room, head.request.bundles, target.placement)
        return room

    def _fix_target(self, now: float) -> None:
        """Give the head its reservation once it has aged, unless it has one."""
        head = self._head()
        if head is None:
            self._target = None
            return
        if self._target is not None and self._target.number == head.number:
            return
        self._target = None
        if now < head.since + self._patience:
            return
        room = dict(self._free)
        time = now
        ends = [(run.ends, key) for key, run in self._running.items()]
        heapq.heapify(ends)
        while (placement := place(head.request.bundles, room)) is None:
            time, key = heapq.heappop(ends)
            run = self._running[key]
            give(room, run.request.bundles, run.placement)
        self._target = _Target(head.number, placement, time)
