"""Progress on stderr: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from harness.phases import describe_phases

LINE_SECONDS = 15.0
# A base checkpoint counts as so many cells
BASE_CELLS = 2.5
JOBS_A_LINE = 4


class _Stderr(Console):
    """Its loss ends nothing."""

    def print(self, *objects: Any, **options: Any) -> None:
        with suppress(OSError):
            super().print(*objects, **options)

    def on_broken_pipe(self) -> None:
        self.quiet = True


class Reporter:
    """Rate and time left count this run's steps, while cells run."""

    def __init__(self) -> None:
        self._console = _Stderr(stderr=True)
        self._bars = Progress(
            TextColumn("{task.description}", markup=False), BarColumn(bar_width=28),
            TextColumn("{task.percentage:>3.0f}%"), TextColumn("{task.fields[words]}", markup=False), TimeElapsedColumn(),
            console=self._console, transient=True, disable=not self._console.is_terminal,
        )  # fmt: skip
        self._all = self._bars.add_task("all", words="")
        self._tasks: dict[str, TaskID] = {}
        self._steps = 1.0
        self._total = 0.0
        self._cells = self._cells_done = 0
        self._at: dict[str, float] = {}
        self._heard: dict[str, float] = {}
        self._made = 0.0
        self._began: float | None = None
        self._paused: float | None = None
        self._said = time.monotonic()

    def start(self, bases: int, cells: int, steps: float, most: int, where: str) -> None:
        """Say how much there is to do. steps: of a cell. most: jobs at a time. where: they run."""
        self._steps = max(1.0, steps)
        self._cells = cells
        self._total = (cells + bases * BASE_CELLS) * self._steps
        self._bars.start()
        self._bars.update(self._all, total=self._total)
        base = f" and {bases} base checkpoint{'s' * (bases != 1)}" if bases else ""
        self.message(f"{cells} cell{'s' * (cells != 1)}{base} to do, {most} at a time ({where})")

    def begin(self, label: str) -> None:
        """Note that a job begins. Time in which no cell runs does not count for the pace."""
        if not label.startswith("base "):
            now = time.monotonic()
            self._began = now if self._began is None else self._began + now - (self._paused or now)
            self._paused = None
        self._heard.pop(label, None)
        self._tasks[label] = self._bars.add_task(label, total=1.0, words="starting")

    def progress(self, label: str, done: float, total: float, words: str) -> None:
        """Take up a report of a job's progress. The first report of a start says where it begins."""
        share = done / total if total else 1.0
        self._at[label] = at = share * self._whole_steps(label)
        if not label.startswith("base "):
            self._made += at - self._heard.get(label, at)
            self._heard[label] = at
        if label in self._tasks:
            self._bars.update(self._tasks[label], completed=share)
        self.phase(label, f"step {done:.0f}/{total:.0f}  {words}" if words and total > 1 else words)

    def phase(self, label: str, words: str) -> None:
        if label in self._tasks and words:
            self._bars.update(self._tasks[label], words=words)
        self.tick()

    def end(self, label: str, outcome: str, reason: str, cpu_seconds: float) -> None:
        """Note that a job has ended. After another outcome than done or failed a later start goes on."""
        if outcome in {"done", "failed"}:
            self._at[label] = self._whole_steps(label)
            self._cells_done += outcome == "done" and not label.startswith("base ")
        if label in self._tasks:
            self._bars.remove_task(self._tasks.pop(label))
            if self._paused is None and all(other.startswith("base ") for other in self._tasks):
                self._paused = time.monotonic()
        words = f"{cpu_seconds:.0f} CPU-s" if outcome == "done" else reason
        style = {"done": "green", "failed": "red"}.get(outcome, "")
        self.message(f"{label}: {outcome}{f', {words}' if words else ''}  [{self.words()}]", style)

    def words(self) -> str:
        """Say how far the run is: `4/15 cells, 5.2 steps/s, about 3 min left`"""
        elapsed = 0.0 if self._began is None else (self._paused or time.monotonic()) - self._began
        rate = self._made / elapsed if elapsed > 0 else 0.0
        seconds = (self._total - sum(self._at.values())) / rate if rate else 0.0
        left = f", about {_rough_time(seconds)} left" if seconds >= 1 and elapsed > 5 else ""
        speed = ""
        if rate >= 1:
            speed = f", {rate:.1f} steps/s"
        elif rate:
            speed = f", {1 / rate:.0f} s a step"
        return f"{self._cells_done}/{self._cells} cells{speed}{left}"

    def message(self, text: str, style: str = "") -> None:
        self._said = time.monotonic()
        self._console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    def tick(self) -> None:
        self._bars.update(self._all, completed=sum(self._at.values()), words=self.words())
        if self._bars.disable and time.monotonic() - self._said >= LINE_SECONDS:
            running = [f"{t.description}: {t.fields['words']}" for t in self._bars.tasks if t.id != self._all]
            more = f", and {len(running) - JOBS_A_LINE} more" if len(running) > JOBS_A_LINE else ""
            self.message("; ".join([self.words(), *running[:JOBS_A_LINE]]) + more)

    def stop(self) -> None:
        self._bars.stop()

    def _whole_steps(self, label: str) -> float:
        return self._steps * (BASE_CELLS if label.startswith("base ") else 1.0)


def _rough_time(seconds: float) -> str:
    """Write a time that is guessed: no tenths, and seconds in tens."""
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(1.0, seconds / 10):.0f}0 s"


@contextmanager
def show_phases(first: str) -> Iterator[None]:
    """Show on stderr what this process does. first: words until a phase."""
    ended = threading.Event()
    console = _Stderr(stderr=True)
    status = console.status("")

    def look() -> None:
        while not ended.wait(0.5 if console.is_terminal else LINE_SECONDS):
            text = describe_phases() or first
            if console.is_terminal:
                status.update(text.replace("[", r"\["))
            else:
                console.print(text, markup=False, highlight=False, soft_wrap=True)

    thread = threading.Thread(target=look, daemon=True)
    with status:
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(timeout=1.0)
