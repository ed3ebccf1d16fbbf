"""What a tuned suite's trials gave: `results/<suite>/tuning.json`, and what its table adds up to.

The trials themselves are cells of the suites `<suite>-tuning` and `<suite>-check`; this file says which is which.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from harness.errors import StoreError
from harness.files import write_atomic
from harness.reading import read_bytes
from harness.statistics import paired
from harness.store.comparisons import MEAN, BySeed, Finished, Score, Spent, finished
from harness.store.manifest import MAX_BYTES, SuiteFile, read_suite, suite_file_name
from harness.store.read import Snapshot

Pair = tuple[float, float]


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One setting. variant: its name in `<suite>-tuning`, where it got furthest. steps: how far that is. score: mean accuracy
    there; None where training came to nothing, and then `fault` says so."""

    number: int
    variant: str
    settings: dict[str, Any]
    steps: int
    score: float | None
    fault: str = ""


class Tuned(msgspec.Struct, frozen=True, kw_only=True):
    """A variant's tuning. chosen: the trial with the best score of those that ran to the end; 0 is the variant as published.

    final: the name in the table of the chosen setting. checked, checked_published: scores of the chosen and of the published
    setting on the check's seeds; None without a check. rollouts, cpu_seconds, gpu_seconds: of all trials.
    """

    variant: str
    final: str
    chosen: int
    trials: tuple[Trial, ...]
    checked: float | None = None
    checked_published: float | None = None
    rollouts: float = 0.0
    cpu_seconds: float = 0.0
    gpu_seconds: float = 0.0


class Tuning(msgspec.Struct, frozen=True, kw_only=True):
    """A suite's tuning. task, metric: of the scores."""

    suite: str
    trials_in: str
    task: str
    metric: str
    steps: int
    baseline: str
    variants: tuple[Tuned, ...]


class TuningRow(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the table: one variant on one group; accuracies and differences are fractions.

    published, tuned: mean accuracies. published_gain: over the baseline as published; tuned_gain: over the *tuned* baseline.
    change: tuned less published. Intervals: paired by seed, Student t. lowest, highest, deviation: of the scores of the trials
    that ran to the end. promised: the best trial's lead over the published setting; kept: the same on the check's seeds.
    """

    group: str
    variant: str
    published: float
    published_gain: float | None
    published_interval: Pair | None
    tuned: float
    tuned_gain: float | None
    tuned_interval: Pair | None
    change: float
    change_interval: Pair | None
    trials: int
    failed: int
    lowest: float
    highest: float
    deviation: float
    promised: float
    kept: float | None
    rollouts: float
    cpu_seconds: float
    gpu_seconds: float
    settings: dict[str, Any]


def tuning_path(results: Path, file: SuiteFile) -> Path:
    """Beside the suite's own file, or that of an altered run."""
    name = suite_file_name(file)
    return results / file.name / name.replace("suite", "tuning").replace("altered", "tuning")


def write_tuning(results: Path, file: SuiteFile, tuning: Tuning) -> None:
    """Raises DiskFullError, StoreError."""
    write_atomic(tuning_path(results, file), msgspec.json.format(msgspec.json.encode(tuning), indent=1) + b"\n")


def read_tuning(results: Path, suite: str, file: SuiteFile | None = None) -> Tuning | None:
    """Of the run that stands for the suite's folder, or of `file`; None for a suite that is not tuned. Raises StoreError."""
    try:
        path = tuning_path(results, file or read_suite(results / suite))
    except StoreError:
        return None
    if not path.is_file():
        return None
    try:
        return msgspec.json.decode(read_bytes(path, MAX_BYTES), type=Tuning)
    except (OSError, msgspec.MsgspecError) as error:
        raise StoreError(f"{path}: {error}") from error


class Scores(msgspec.Struct, frozen=True):
    """Of a suite's finished variants, the mean over groups and seeds of the mean over policies."""

    task: str
    metric: str
    score: dict[str, float]
    rollouts: dict[str, float]
    cpu: dict[str, float]
    gpu: dict[str, float]


def scores(snapshot: Snapshot, suite: str, task: str, cells: int) -> Scores:
    """cells: groups x seeds; a variant that has fewer of them is left out."""
    found = finished(snapshot, suite)
    metric = metric_of(found, task)
    values: dict[str, list[float]] = {}
    spent: dict[str, np.ndarray] = {}
    for (group, policy, of, kind), family in found.families.items():
        if of != task or kind != metric or policy != whole(found, group):
            continue
        for name, by_seed in family.scores.items():
            values.setdefault(name, []).extend(by_seed[seed].accuracy for seed in sorted(by_seed))
            total = Spent(*np.sum(family.costs[name], axis=0))
            cost = np.array([total.rollouts, total.cpu, total.gpu])
            spent[name] = spent.get(name, np.zeros(3)) + cost
    full = {name: round(float(np.mean(each)), 12) for name, each in values.items() if len(each) == cells}
    rollouts, cpu, gpu = ({name: float(cost[i]) for name, cost in spent.items()} for i in range(3))
    return Scores(task, metric, full, rollouts, cpu, gpu)


def metric_of(found: Finished, task: str) -> str:
    """What a comparison goes by: answers sampled at temperature 1 where there are any, else greedy ones."""
    metrics = [metric for _, _, of, metric in found.families if of == task]
    return next((m for m in metrics if m.startswith("avg@")), "greedy")


def whole(found: Finished, group: str) -> str:
    """Under which name a group's own score stands: its mean, or its only policy."""
    policies = found.policies[group]
    return MEAN if len(policies) > 1 else policies[0]


def tuning_rows(snapshot: Snapshot, tuning: Tuning) -> list[TuningRow]:
    """The table, as far as its cells are finished, by group."""
    found = finished(snapshot, tuning.suite)
    tasks = list(dict.fromkeys(task for _, _, task, _ in found.families))
    final = {v.variant: v.final for v in tuning.variants}
    rows = []
    for (group, policy, task, kind), family in found.families.items():
        if not tasks or task != tasks[0] or kind != metric_of(found, task) or policy != whole(found, group):
            continue
        for variant in tuning.variants:
            ours, theirs = family.scores.get(variant.variant), family.scores.get(variant.final)
            if ours and theirs:
                base, tuned = (family.scores.get(name, {}) for name in (tuning.baseline, final[tuning.baseline]))
                rows.append(_row(group, variant, ours, theirs, base, tuned, variant.variant == tuning.baseline))
    return rows


def _row(
    group: str, tuned: Tuned, ours: BySeed, theirs: BySeed, base: BySeed, tuned_base: BySeed, is_baseline: bool
) -> TuningRow:
    ended = [t.score for t in tuned.trials if t.score is not None and t.steps == max(t.steps for t in tuned.trials)]
    first, best = (next(t.score for t in tuned.trials if t.number == n) for n in (0, tuned.chosen))
    gain, gain_interval = (None, None) if is_baseline else difference(ours, base)
    tuned_gain, tuned_interval = (None, None) if is_baseline else difference(theirs, tuned_base)
    change, change_interval = difference(theirs, ours)
    checked = None not in (tuned.checked, tuned.checked_published)
    return TuningRow(
        group=group, variant=tuned.variant, published=_mean(ours), published_gain=gain, published_interval=gain_interval,
        tuned=_mean(theirs), tuned_gain=tuned_gain, tuned_interval=tuned_interval, change=change or 0.0,
        change_interval=change_interval if tuned.chosen else None, trials=len(tuned.trials),
        failed=sum(t.score is None for t in tuned.trials), lowest=min(ended), highest=max(ended),
        deviation=float(np.std(ended, ddof=1)) if len(ended) > 1 else 0.0,
        promised=(best or 0.0) - (first if first is not None else best or 0.0),
        kept=(tuned.checked or 0.0) - (tuned.checked_published or 0.0) if checked else None,
        rollouts=tuned.rollouts, cpu_seconds=tuned.cpu_seconds, gpu_seconds=tuned.gpu_seconds,
        settings=next(t.settings for t in tuned.trials if t.number == tuned.chosen),
    )  # fmt: skip


def difference(ours: BySeed, theirs: BySeed) -> tuple[float | None, Pair | None]:
    """Mean difference over the seeds that both have, and its interval where there are two or more."""
    seeds = sorted(ours.keys() & theirs.keys())
    if not seeds:
        return None, None
    a, b = (np.array([[*by_seed[s]] for s in seeds]) for by_seed in (ours, theirs))
    found = paired(a[:, 0], b[:, 0], noise=a[:, 1] + b[:, 1])
    return float(found.mean), None if len(seeds) < 2 else (float(found.low), float(found.high))


def _mean(by_seed: BySeed) -> float:
    values: Sequence[Score] = [*by_seed.values()]
    return float(np.mean([s.accuracy for s in values]))


def with_tuning(text: str, tuning: Tuning, rows: Sequence[TuningRow], form: str) -> str:
    """A suite's table in the given form of `harness show`, and what tuning changed below it (in JSON: under `tuning`)."""
    if form == "json":
        return msgspec.json.encode({**msgspec.json.decode(text), "tuning": {"trials": tuning, "rows": rows}}).decode()
    if form not in ("table", "markdown") or not rows:
        return text
    lines = [
        f"Tuned under an equal budget: {len(tuning.variants[0].trials)} trials each, {tuning.metric} of {tuning.task}",
        "",
    ]
    for group in dict.fromkeys(r.group for r in rows):
        own = [r for r in rows if r.group == group]
        cells = [_HEADS, *(_cells(r) for r in own)]
        widths = [max(len(row[i]) for row in cells) for i in range(len(_HEADS))]
        padded = [[value.ljust(w) if i == 0 else value.rjust(w) for i, (value, w) in enumerate(zip(row, widths, strict=True))]
                  for row in cells]  # fmt: skip
        if form == "markdown":
            padded.insert(1, ["-" * w for w in widths])
            lines += [f"**{group}**", "", *(f"| {' | '.join(row)} |" for row in padded), ""]
        else:
            lines += [group, *("  " + "  ".join(row).rstrip() for row in padded), ""]
    for row in (r for r in rows if r.group == rows[0].group):
        chosen = next(v for v in tuning.variants if v.variant == row.variant)
        first = next(t.settings for t in chosen.trials if t.number == 0)
        changed = ", ".join(f"{k} {first[k]} -> {v}" for k, v in row.settings.items() if v != first[k])
        lines.append(f"{row.variant}: {f'trial {chosen.chosen}: {changed}' if changed else 'as published was best'}")
    lines += ["", _NOTE.format(trials=tuning.trials_in)]
    return text.rstrip("\n") + "\n\n" + "\n".join(lines) + "\n"


_HEADS = ["regime", "as published", "gain", "tuned", "gain", "change", "over trials", "lead: promised", "kept", "CPU-s"]
_NOTE = (
    "gain: over the baseline as published, and of tuned regimes over the *tuned* baseline; change: tuned less published. Over\n"
    "trials: lowest to highest score on the tuning groups. Lead of the best trial over the published setting: promised by the\n"
    "trials, and kept on seeds that chose nothing. Points; trials are cells: harness show {trials}"
)


def _cells(row: TuningRow) -> list[str]:
    return [
        row.variant, _points(row.published), _with(row.published_gain, row.published_interval), _points(row.tuned),
        _with(row.tuned_gain, row.tuned_interval), _with(row.change, row.change_interval),
        f"{_points(row.lowest)} to {_points(row.highest)}" + (f", {row.failed} failed" if row.failed else ""),
        _points(row.promised, True), "–" if row.kept is None else _points(row.kept, True), f"{row.cpu_seconds:,.0f}",
    ]  # fmt: skip


def _points(value: float, signed: bool = False) -> str:
    return f"{100 * value:{'+' if signed else ''}.1f}".replace("-", "−")


def _with(value: float | None, interval: Pair | None) -> str:
    if value is None:
        return "–"
    return _points(value, True) + (f" [{_points(interval[0])}, {_points(interval[1])}]" if interval else "")
