"""What a tuned suite's trials, cells of `<suite>-tuning` and `<suite>-check`, gave: `results/<suite>/tuning.json`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from harness.errors import StoreError
from harness.files import write_atomic
from harness.store.manifest import EVALUATIONS, MARK, SuiteFile, read_sealed, read_suite, suite_file_name, suite_folder


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """variant: its name in `<suite>-tuning`, where it got furthest: `steps`. score: mean accuracy there, or None with a
    `fault`."""

    number: int
    variant: str
    settings: dict[str, Any]
    steps: int
    score: float | None
    fault: str = ""


class Tuned(msgspec.Struct, frozen=True, kw_only=True):
    """chosen: the best trial that ran to the end; 0 is the variant with its defaults. on: the tuning group that chose; ""
    for all. final: the chosen setting's name in the table. checked, checked_published: scores on the check's seeds."""

    variant: str
    final: str
    chosen: int
    trials: tuple[Trial, ...]
    checked: float | None = None
    checked_published: float | None = None
    rollouts: float = 0.0
    cpu_seconds: float = 0.0
    gpu_seconds: float = 0.0
    on: str = ""

    @property
    def label(self) -> str:
        return tuned_label(self.variant, self.on) if self.on else self.variant


class Tuning(msgspec.Struct, frozen=True, kw_only=True):
    """What a search chose. trials_in: the suite of its trials. task, metric: by which it chose. steps: of the longest trials."""

    suite: str
    trials_in: str
    task: str
    metric: str
    steps: int
    baseline: str
    variants: tuple[Tuned, ...]


def tuned_label(variant: str, on: str) -> str:
    """Return the name of a tuned line: `sgt, tuned`, or `sgt, tuned on trap`. No variant's name has a comma."""
    return f"{variant}, tuned" + (f" on {on}" if on else "")


def tuning_path(results: Path, file: SuiteFile) -> Path:
    """Beside the suite's own file, or that of an altered run."""
    return results / file.name / tuning_name(suite_file_name(file))


def tuning_name(suite_file: str) -> str:
    return suite_file.replace("suite", "tuning").replace("altered", "tuning")


def list_chosen(tuning: Tuning | None) -> list[list[str]]:
    return [[t.variant, t.final, t.on] for t in (tuning.variants if tuning else ())]


def write_tuning(results: Path, file: SuiteFile, tuning: Tuning) -> None:
    """Write a suite's tuning into its folder. Raises DiskFullError, StoreError."""
    write_atomic(tuning_path(results, file), msgspec.json.format(msgspec.json.encode(tuning), indent=1) + b"\n")


def read_tuning(results: Path, suite: str, file: SuiteFile | None = None) -> Tuning | None:
    """Read the tuning of the folder's run, or of `file`; None for a suite that is not tuned. Raises StoreError."""
    try:
        folder = suite_folder(results, suite)
        path = folder / tuning_path(results, file or read_suite(folder)).name
    except StoreError:
        return None
    if not path.is_file():
        return None
    tuning = read_sealed(path, Tuning)
    return msgspec.structs.replace(tuning, suite=suite) if suite.endswith(MARK) else tuning


def without_trials(suites: Sequence[str]) -> list[str]:
    """Those with a table: not the trials or checks of another one, nor checkpoints' evaluations."""
    stems = {}
    for suite in suites:
        name, mark, lab = suite.partition("@")
        stems[suite] = name.removesuffix("-tuning").removesuffix("-check") + mark + lab
    named = [suite for suite, stem in stems.items() if stem == suite or stem not in suites]
    return [suite for suite in named if suite != EVALUATIONS] or named
