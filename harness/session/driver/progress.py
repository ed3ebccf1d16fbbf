"""Progress on stderr: bars on a terminal, plain lines elsewhere. Always with rate and time left."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from harness.phases import words

LINE_SECONDS = 15.0
SHOWN = 4
"""Running jobs that one line names."""


class Meter:
    """Work in steps. For the bar a base checkpoint counts as much as `BASE_CELLS` cells; rate and time left are those of the steps
    that this run makes of cells, as neither a base nor what an earlier run has left says how long a step takes."""

    BASE_CELLS = 2.5

    def __init__(self, bases: int, cells: int, steps: int) -> None:
        self.steps = max(1, steps)
        self.total = (cells + bases * self.BASE_CELLS) * self.steps
        self.cells, self.cells_done = cells, 0
        self._at: dict[str, float] = {}
        self._heard: dict[str, float] = {}
        self._made = 0.0
        self._began: float | None = None

    def begin(self, label: str) -> None:
        """A start of this job."""
        if self._began is None and not _is_base(label):
            self._began = time.monotonic()
        self._heard.pop(label, None)

    def set(self, label: str, share: float) -> None:
        """The first report of a start says where it begins: nothing was made until then."""
        self._at[label] = at = share * self.steps * (self.BASE_CELLS if _is_base(label) else 1.0)
        if not _is_base(label):
            self._made += at - self._heard.get(label, at)
            self._heard[label] = at

    def end(self, label: str, outcome: str) -> None:
        """Done or failed, there is nothing left of it to do; any other outcome is for a later start."""
        if outcome in {"done", "failed"}:
            self._at[label] = self.steps * (self.BASE_CELLS if _is_base(label) else 1.0)
            self.cells_done += outcome == "done" and not _is_base(label)

    @property
    def done(self) -> float:
        return sum(self._at.values())

    def words(self) -> str:
        """`4/15 cells, 5.2 steps/s, about 3 min left`"""
        elapsed = 0.0 if self._began is None else time.monotonic() - self._began
        rate = self._made / elapsed if elapsed > 0 else 0.0
        seconds = (self.total - self.done) / rate if rate else 0.0
        left = f", about {_duration(seconds)} left" if seconds >= 1 and elapsed > 5 else ""
        speed = "" if not rate else f", {rate:.1f} steps/s" if rate >= 1 else f", {1 / rate:.0f} s a step"
        return f"{self.cells_done}/{self.cells} cells{speed}{left}"


def _is_base(label: str) -> bool:
    return label.startswith("base ")


class Reporter:
    """Says on stderr what a run does: bars, one for the whole and one for each running job, where that is a terminal; one line per
    finished job, and one every `LINE_SECONDS` elsewhere."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._bars = Progress(
            TextColumn("{task.description}", markup=False), BarColumn(bar_width=28),
            TextColumn("{task.percentage:>3.0f}%"), TextColumn("{task.fields[words]}", markup=False), TimeElapsedColumn(),
            console=self._console, transient=True, disable=not self._console.is_terminal,
        )  # fmt: skip
        self._tasks: dict[str, TaskID] = {}
        self._meter = Meter(0, 0, 1)
        self._all = self._bars.add_task("all", words="")
        self._said = time.monotonic()

    def start(self, bases: int, cells: int, steps: int) -> None:
        self._meter = Meter(bases, cells, steps)
        self._bars.start()
        self._bars.update(self._all, total=self._meter.total)
        base = f" and {bases} base checkpoint{'s' * (bases != 1)}" if bases else ""
        self.message(f"{cells} cell{'s' * (cells != 1)}{base} to do")

    def begin(self, label: str) -> None:
        self._meter.begin(label)
        self._tasks[label] = self._bars.add_task(label, total=1.0, words="starting")

    def progress(self, label: str, done: float, total: float, words: str) -> None:
        share = done / total if total else 1.0
        self._meter.set(label, share)
        if label in self._tasks:
            self._bars.update(self._tasks[label], completed=share)
        self.phase(label, f"step {done:.0f}/{total:.0f}  {words}" if words and total > 1 else words)

    def phase(self, label: str, words: str) -> None:
        if label in self._tasks and words:
            self._bars.update(self._tasks[label], words=words)
        self.tick()

    def end(self, label: str, outcome: str, reason: str, cpu_seconds: float) -> None:
        self._meter.end(label, outcome)
        if label in self._tasks:
            self._bars.remove_task(self._tasks.pop(label))
        words = f"{cpu_seconds:.0f} CPU-s" if outcome == "done" else reason
        style = {"done": "green", "failed": "red"}.get(outcome, "")
        self.message(f"{label}: {outcome}{f', {words}' if words else ''}  [{self._meter.words()}]", style)

    def message(self, text: str, style: str = "") -> None:
        self._said = time.monotonic()
        self._console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    def tick(self) -> None:
        """Time has passed."""
        self._bars.update(self._all, completed=self._meter.done, words=self._meter.words())
        if self._bars.disable and time.monotonic() - self._said >= LINE_SECONDS:
            running = [
                f"{task.description}: {task.fields['words']}" for task in self._bars.tasks if task.id != self._all
            ]
            more = f", and {len(running) - SHOWN} more" if len(running) > SHOWN else ""
            self.message("; ".join([self._meter.words(), *running[:SHOWN]]) + more)

    def stop(self) -> None:
        self._bars.stop()


@contextmanager
def watched(first: str) -> Iterator[None]:
    """Says what this process does, and how far it is, while the block runs: a line that changes on a terminal, else one every
    `LINE_SECONDS`. first: words until there is a phase."""
    ended = threading.Event()
    console = Console(stderr=True)
    with console.status(escape(first)) if console.is_terminal else nullcontext() as status:

        def look() -> None:
            while not ended.wait(0.5 if status else LINE_SECONDS):
                text = words() or first
                if status:
                    status.update(escape(text))
                else:
                    print(text, file=sys.stderr, flush=True)

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(timeout=1.0)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
