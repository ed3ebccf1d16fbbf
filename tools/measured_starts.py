"""The record of what micro starts do when asked for the skill that they lack: written by tools/measure_starts.py, read by
tools/results_page.py, in results/starts/<suite>.json."""

from __future__ import annotations

from pathlib import Path

import msgspec

from harness.files import write_atomic


class MeasuredStart(msgspec.Struct, frozen=True):
    """What one start does when asked for the skill that it lacks. base: key of the base checkpoint. lacks: the skill group.
    reasoned, mass: shares of `answers`, the second of those that are right too."""

    base: str
    family: str
    lacks: str
    seed: int
    answers: int
    reasoned: float
    mass: float


class MeasuredStarts(msgspec.Struct, frozen=True):
    """starts: by key of the base checkpoint. policies: by `group/policy/seed`, the key of its start."""

    starts: dict[str, MeasuredStart] = {}
    policies: dict[str, str] = {}


def read_measured(file: Path) -> MeasuredStarts:
    """Read what was measured before; nothing where there is no file."""
    return msgspec.json.decode(file.read_bytes(), type=MeasuredStarts) if file.is_file() else MeasuredStarts()


def write_measured(file: Path, measured: MeasuredStarts) -> None:
    """Write the record in the place of an earlier one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(file, msgspec.json.format(msgspec.json.encode(measured), indent=1) + b"\n")
