"""CPU-, wall- and GPU-seconds per phase of one policy, so that every table can say what sharing cost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

PHASES = ("generate", "verify", "exchange", "score", "train", "measure", "curve", "evaluate", "save")


@dataclass(slots=True)
class Spent:
    """Seconds of one phase."""

    cpu: float = 0.0
    wall: float = 0.0
    gpu: float = 0.0


@dataclass(slots=True)
class Clock:
    """Adds up phases. CPU time is this process's; GPU time is the wall time of a phase whose engine runs on a GPU."""

    on_gpu: bool = False
    step: dict[str, Spent] = field(default_factory=dict)
    total: dict[str, Spent] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        cpu, wall = time.process_time(), time.perf_counter()
        try:
            yield
        finally:
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            gpu = (
                wall if self.on_gpu and name in {"generate", "score", "train", "measure", "curve", "evaluate"} else 0.0
            )
            for book in (self.step, self.total):
                spent = book.setdefault(name, Spent())
                spent.cpu += cpu
                spent.wall += wall
                spent.gpu += gpu

    def cpu(self, name: str) -> float:
        """CPU-seconds of a phase in this step; NaN where it did not occur."""
        return self.step[name].cpu if name in self.step else float("nan")

    def next_step(self) -> None:
        self.step = {}

    def take(self) -> dict[str, Spent]:
        """Totals since the last `take`."""
        total, self.total = self.total, {}
        return total
