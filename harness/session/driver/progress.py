"""Progress on stderr: bars on a terminal, plain lines elsewhere. Always with rate and time left."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Protocol

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from harness.phases import words

LINE_SECONDS = 15.0
SHOWN = 4
"""Running jobs that one line names."""


class Reporter(Protocol):
    """Hears of everything that a run does."""

    def start(self, bases: int, cells: Sequence[str], steps: int) -> None: ...
    def begin(self, label: str) -> None: ...
    def progress(self, label: str, done: float, total: float, words: str) -> None: ...
    def phase(self, label: str, words: str) -> None: ...
    def end(self, label: str, outcome: str, reason: str, cpu_seconds: float) -> None: ...
    def message(self, text: str) -> None: ...
    def tick(self) -> None: ...
    def stop(self) -> None: ...


class Meter:
    """Finished work in steps. For the bar a base checkpoint counts as much as `BASE_CELLS` cells; rate and time left are those of
    cells alone, and come with their first step, as a base says nothing of how long a cell takes."""

    BASE_CELLS = 2.5

    def __init__(self, bases: int, cells: Sequence[str], steps: int) -> None:
        self.steps = max(1, steps)
        self.total = len(cells) * self.steps + bases * self.BASE_CELLS * self.steps
        self.cells, self.cells_done = len(cells), 0
        self._part: dict[str, float] = {}
        self._began: float | None = None

    def begin(self, label: str) -> None:
        if self._began is None and not _is_base(label):
            self._began = time.monotonic()

    def set(self, label: str, share: float) -> None:
        self.begin(label)
        weight = self.steps * (self.BASE_CELLS if _is_base(label) else 1.0)
        self._part[label] = max(self._part.get(label, 0.0), min(1.0, share) * weight)

    @property
    def done(self) -> float:
        return sum(self._part.values())

    def words(self) -> str:
        """`4/15 cells, 5.2 steps/s, about 3 min left`"""
        elapsed = 0.0 if self._began is None else time.monotonic() - self._began
        stepped = sum(part for label, part in self._part.items() if not _is_base(label))
        rate = stepped / elapsed if elapsed > 0 else 0.0
        seconds = (self.total - self.done) / rate if rate else 0.0
        left = f", about {_duration(seconds)} left" if seconds >= 1 and elapsed > 5 else ""
        speed = "" if not rate else f", {rate:.1f} steps/s" if rate >= 1 else f", {1 / rate:.0f} s a step"
        return f"{self.cells_done}/{self.cells} cells{speed}{left}"


def _is_base(label: str) -> bool:
    return label.startswith("base ")


class Plain:
    """One line per finished job, and one every `LINE_SECONDS`."""

    def __init__(self) -> None:
        self._meter = Meter(0, (), 1)
        self._last = time.monotonic()
        self._running: dict[str, str] = {}

    def start(self, bases: int, cells: Sequence[str], steps: int) -> None:
        self._meter = Meter(bases, cells, steps)
        base = f" and {bases} base checkpoint{'s' * (bases != 1)}" if bases else ""
        self.message(f"{len(cells)} cell{'s' * (len(cells) != 1)}{base} to do")

    def begin(self, label: str) -> None:
        self._meter.begin(label)
        self._running[label] = "starting"

    def progress(self, label: str, done: float, total: float, words: str) -> None:
        self._meter.set(label, done / total if total else 1.0)
        self.tick()

    def phase(self, label: str, words: str) -> None:
        if label in self._running:
            self._running[label] = words
        self.tick()

    def end(self, label: str, outcome: str, reason: str, cpu_seconds: float) -> None:
        self._meter.set(label, 1.0)
        self._running.pop(label, None)
        self._meter.cells_done += outcome == "done" and not _is_base(label)
        words = {"done": f"{cpu_seconds:.0f} CPU-s"}.get(outcome, reason)
        self.message(f"{label}: {outcome}{f', {words}' if words else ''}  [{self._meter.words()}]")

    def message(self, text: str) -> None:
        self._last = time.monotonic()
        print(text, file=sys.stderr, flush=True)

    def tick(self) -> None:
        if time.monotonic() - self._last >= LINE_SECONDS:
            running = [f"{label}: {words}" for label, words in self._running.items() if words]
            more = f", and {len(running) - SHOWN} more" if len(running) > SHOWN else ""
            self.message("; ".join([self._meter.words(), *running[:SHOWN]]) + more)

    def stop(self) -> None:
        pass


class Bars:
    """A bar for the whole run and one for each running job."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars = Progress(
            TextColumn("{task.description}"), BarColumn(bar_width=28), TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[words]}"), TimeElapsedColumn(), console=console, transient=True,
        )  # fmt: skip
        self._tasks: dict[str, TaskID] = {}
        self._meter = Meter(0, (), 1)

    def start(self, bases: int, cells: Sequence[str], steps: int) -> None:
        self._meter = Meter(bases, cells, steps)
        self._bars.start()
        self._all = self._bars.add_task("[bold]all", total=self._meter.total, words=self._meter.words())

    def begin(self, label: str) -> None:
        self._meter.begin(label)
        self._tasks[label] = self._bars.add_task(escape(label), total=1.0, words="")

    def progress(self, label: str, done: float, total: float, words: str) -> None:
        share = done / total if total else 1.0
        self._meter.set(label, share)
        if label in self._tasks:
            self._bars.update(self._tasks[label], completed=share, words=escape(words))
        self.tick()

    def phase(self, label: str, words: str) -> None:
        if label in self._tasks and words:
            self._bars.update(self._tasks[label], words=escape(words))
        self.tick()

    def end(self, label: str, outcome: str, reason: str, cpu_seconds: float) -> None:
        self._meter.set(label, 1.0)
        self._meter.cells_done += outcome == "done" and not _is_base(label)
        if label in self._tasks:
            self._bars.remove_task(self._tasks.pop(label))
        mark = {"done": "[green]done[/]", "failed": "[red]failed[/]"}.get(outcome, outcome)
        self._bars.print(f"{mark}  {escape(label)}  {escape(reason) or f'{cpu_seconds:.0f} CPU-s'}", highlight=False)
        self.tick()

    def message(self, text: str) -> None:
        self._bars.print(escape(text), highlight=False)

    def tick(self) -> None:
        self._bars.update(self._all, completed=self._meter.done, words=self._meter.words())

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


def reporter() -> Reporter:
    """Bars where stderr is a terminal, plain lines otherwise."""
    console = Console(stderr=True)
    return Bars(console) if console.is_terminal else Plain()


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
