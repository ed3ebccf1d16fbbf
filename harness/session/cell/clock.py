"""CPU-, wall- and GPU-seconds per phase of one policy, so that every table can say what sharing cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from harness import phases
from harness.verification.pool import asked_seconds

PHASES = ("generate", "verify", "exchange", "score", "train", "measure", "curve", "evaluate", "save")
DOING = {
    "generate": "sampling", "verify": "verifying", "exchange": "exchanging", "score": "scoring", "train": "learning",
    "measure": "measuring", "curve": "sampling", "evaluate": "evaluating", "save": "saving",
}  # fmt: skip
"""What who watches reads."""
_BESIDE = frozenset({"verify", "exchange"})
"""Phases that do not touch the engine."""


@dataclass(slots=True)
class Spent:
    """Seconds of one phase."""

    cpu: float = 0.0
    wall: float = 0.0
    gpu: float = 0.0


@dataclass(slots=True)
class Clock:
    """Adds up one policy's phases.

    meter: CPU-seconds that its engine has used so far, wherever that runs; phases that do not touch the engine count this
    thread's. To either comes what the verifier's processes used for this thread. gpus: that the engine holds; they count by wall
    time while it works.
    """

    meter: Callable[[], float] = time.process_time
    gpus: int = 0
    policy: str = ""
    step: dict[str, Spent] = field(default_factory=dict)
    total: dict[str, Spent] = field(default_factory=dict)
    ever: float = 0.0
    """CPU-seconds of all phases so far."""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        engine = name not in _BESIDE
        own = self.meter if engine else time.thread_time
        cpu, wall = own() + asked_seconds(), time.perf_counter()
        try:
            with phases.phase(f"{self.policy} {DOING.get(name, name)}".strip(), quiet=True):
                yield
        finally:
            wall, cpu = time.perf_counter() - wall, own() + asked_seconds() - cpu
            self.ever += cpu
            for book in (self.step, self.total):
                spent = book.setdefault(name, Spent())
                spent.cpu += cpu
                spent.wall += wall
                spent.gpu += wall * self.gpus * engine

    def cpu(self, name: str) -> float:
        """CPU-seconds of a phase in this step; NaN where it did not occur."""
        return self.step[name].cpu if name in self.step else float("nan")

    def next_step(self) -> None:
        self.step = {}

    def take(self) -> dict[str, Spent]:
        """Totals since the last `take`."""
        total, self.total = self.total, {}
        return total
