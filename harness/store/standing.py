"""The place of each regime over all suites, for the leaderboard."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Literal

import msgspec

from harness.statistics import MARGIN, mean_interval
from harness.statistics.comparison import EQUIVALENT, GAINS, LOSES
from harness.store.read import Snapshot
from harness.store.sentences import joined
from harness.store.statistic import POINTS, Pair
from harness.store.table import MEAN, ShowRow, choice_rows, finished
from harness.store.tuning import without_trials

Kind = Literal["built", "alike", "real"]
Settings = Literal["published", "tuned", "all"]
KINDS: dict[Kind, str] = {
    "built": "Built so that sharing must help",
    "alike": "Tiny models, statistics as of real pairs",
    "real": "Real models",
}


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """A suite's group on a benchmark, by the suite's first metric."""

    suite: str
    group: str
    task: str
    kind: Kind
    policies: tuple[str, ...]
    models: tuple[str, ...]
    seeds: int
    own_bases: bool

    @property
    def title(self) -> str:
        return " × ".join(self.policies) if len(self.policies) < 3 else f"{len(self.policies)} families"


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """A regime's line in each setting, None where it was not run. gain: mean over the settings not built to gain, with
    a 95 % interval over them (Student t). cost: mean over all settings, over the baseline's."""

    regime: str
    cells: tuple[ShowRow | None, ...]
    gain: float | None
    interval: Pair | None
    cost: float | None

    def count(self, verdict: str) -> int:
        return sum(cell is not None and cell.verdict == verdict for cell in self.cells)


class OneBase(msgspec.Struct, frozen=True):
    """A regime gains where all seeds share a family's base checkpoint, and not in the column of the same models."""

    alone: Setting
    gain: ShowRow
    column: Setting
    there: ShowRow


class Board(msgspec.Struct, frozen=True):
    """settings: by kind. standings: the largest mean gain first, those without one last. unlike: largest gain first."""

    settings: tuple[Setting, ...]
    standings: tuple[Standing, ...]
    unlike: tuple[OneBase, ...] = ()

    def of(self, kind: Kind) -> list[tuple[str, ShowRow]]:
        """Regime and gain in each setting of that kind."""
        return [
            (line.regime, cell)
            for line in self.standings
            for setting, cell in zip(self.settings, line.cells, strict=True)
            if setting.kind == kind and cell
        ]


def board(snapshot: Snapshot, which: Settings = "published", margin: float = MARGIN) -> Board:
    """Every suite's groups of well-behaved peers of different kinds, over a plain baseline. Of groups of the same
    models and kind the one with most seeds counts, own base checkpoints before shared ones."""
    stored = snapshot.query("SELECT suite, baseline, config FROM suites WHERE config <> '' ORDER BY suite").to_pylist()
    suites = {row["suite"]: (row["baseline"], json.loads(row["config"])) for row in stored}
    settings: dict[Setting, dict[str, ShowRow]] = {}
    for suite in without_trials(list(suites)):
        baseline, config = suites[suite]
        variants = {v["name"]: v for v in config.get("regimes", ())}
        if variants.get(baseline, {"options": {}})["options"].get("objective", "grpo") != "grpo":
            continue
        cells = finished(snapshot, suite)
        metric = next((row.metric for row in cells.rows if row.policy == MEAN), "")
        if not metric:
            continue
        rows = choice_rows(MEAN, metric, cells, margin)
        shapes, choosers = (
            {group["name"]: shape for group in part.get("groups", ()) if (shape := _shape(group))}
            for part in (config, config.get("tune") or {})
        )
        for (group, task), lines in groupby(rows, key=lambda row: (row.group, row.task)):
            if group in shapes and (kept := _kept(list(lines), variants, which, choosers, shapes[group].kind)):
                seeds = max(row.seeds for row in kept.values())
                settings[msgspec.structs.replace(shapes[group], suite=suite, task=task, seeds=seeds)] = kept
    best: dict[tuple[str, ...], Setting] = {}
    unlike: list[OneBase] = []
    for setting in sorted(settings, key=lambda s: (s.own_bases, s.seeds, len(settings[s])), reverse=True):
        column = best.setdefault((setting.kind, setting.task, *sorted(setting.models)), setting)
        for name, row in settings[setting].items() if column.own_bases > setting.own_bases else ():
            there = settings[column].get(name)
            if there and row.verdict == GAINS != there.verdict:
                unlike.append(OneBase(setting, row, column, there))
    columns = sorted(best.values(), key=lambda s: (list(KINDS).index(s.kind), len(s.models), s.models))
    names = dict.fromkeys(name for column in columns for name in settings[column])
    standings = [_standing(name, columns, settings) for name in names]
    standings.sort(key=lambda s: (s.gain is None, -(s.gain or 0.0)))
    return Board(tuple(columns), tuple(standings), tuple(sorted(unlike, key=lambda u: -u.gain.gain)))


def _shape(group: Mapping[str, Any]) -> Setting | None:
    """None for a control: a bad peer, or a copy of the same model."""
    policies = group["policies"]
    models = tuple(policy["model"].rstrip("/").rpartition("/")[2] for policy in policies)
    if len(set(models)) < max(2, len(models)) or any(policy.get("condition") for policy in policies):
        return None
    starts = [policy.get("stage0") or {} for policy in policies]
    if any(not policy["model"].startswith("micro/") for policy in policies):
        kind: Kind = "real" if all(start.get("preset", "format") == "format" for start in starts) else "built"
    else:
        kind = "alike" if all(start.get("preset") == "matched" for start in starts) else "built"
    return Setting(
        suite="",
        group=group["name"],
        task="",
        kind=kind,
        policies=tuple(policy["name"] for policy in policies),
        models=models,
        seeds=0,
        own_bases=any(start.get("per_seed") for start in starts),
    )


def _kept(
    rows: Sequence[ShowRow],
    variants: Mapping[str, Mapping[str, Any]],
    which: Settings,
    choosers: Mapping[str, Setting],
    kind: Kind,
) -> dict[str, ShowRow]:
    """By line: as published, or as tuned on a group of the same kind where several chose."""
    kept: dict[str, ShowRow] = {}
    for row in (row for row in rows if row.gain is not None):
        regime, tuned, on = row.regime.partition(", tuned")
        chooser = choosers.get(on.removeprefix(" on "))
        wanted = {
            "all": True,
            "published": not tuned and regime == variants.get(regime, {}).get("regime"),
            "tuned": tuned and (not on or (chooser is not None and chooser.kind == kind)),
        }
        if wanted[which]:
            kept[row.regime if which == "all" else regime] = row
    return kept


def _standing(name: str, columns: Sequence[Setting], settings: Mapping[Setting, Mapping[str, ShowRow]]) -> Standing:
    cells = tuple(settings[column].get(name) for column in columns)
    gains = [cell.gain for column, cell in zip(columns, cells, strict=True) if cell and column.kind != "built"]
    costs = [cell.cost for cell in cells if cell and cell.cost is not None]
    mean = sum(gains) / len(gains) if gains else None
    over = mean_interval(gains) if len(gains) > 2 else None
    interval = (float(over.low), float(over.high)) if over else None
    cost = sum(costs) / len(costs) if costs else None
    return Standing(regime=name, cells=cells, gain=mean, interval=interval, cost=cost)


def answer(published: Board, tuned: Board) -> list[str]:
    verdicts = {cell.verdict for shown in (published, tuned) for row in shown.standings for cell in row.cells if cell}
    parts = ["It depends on the pair and the settings." if GAINS in verdicts else "No regime is shown to gain."]
    if ahead := [s for s in published.standings if s.gain is not None and s.interval][:2]:
        each = joined([f"{s.regime} {POINTS.with_interval(s.gain, s.interval)} points{_at(s.cost)}" for s in ahead])
        parts.append(f"Largest mean gains as published, on pairs that were not built to gain: {each}.")
    for kind in KINDS:
        cells = published.of(kind)
        if not cells:
            continue
        gains = sorted({name for name, cell in cells if cell.verdict == GAINS})
        loses = sorted({name for name, cell in cells if cell.verdict == LOSES})
        nothing = sum(cell.verdict == EQUIVALENT for _, cell in cells)
        low, high = (POINTS.text(f(cell.gain for _, cell in cells)) for f in (min, max))
        also = sorted({name for name, cell in tuned.of(kind) if cell.verdict == GAINS} - set(gains))
        said = f"{_who(gains, 'gain') or 'no regime gains'} as published"
        said += f", {joined(also)} when tuned" if also else ""
        said += f"; {_who(loses, 'lose')}" if loses else ""
        parts.append(
            f"{_WHERE[kind]} {said} (gains from {low} to {high} points; in {nothing} of {len(cells)} comparisons no effect)."
        )
    for one in published.unlike[:1]:
        alone, there = (POINTS.with_interval(row.gain, row.gain_interval) for row in (one.gain, one.there))
        parts.append(
            f"{one.gain.regime} gains {alone} points on {one.alone.title} in {one.alone.suite}, where all seeds start from one "
            f"base checkpoint a family. Over {one.column.seeds} base checkpoints a family, as in the table, it is {there}: "
            "no gain is shown there."
        )
    return parts


def _at(cost: float | None) -> str:
    return "" if cost is None else f" at {cost:.1f} times the cost of independent training"


def _who(names: Sequence[str], verb: str) -> str:
    return f"{joined(names)} {verb}{'s' * (len(names) == 1)}" if names else ""


_WHERE: dict[Kind, str] = {
    "built": "Where each policy was taught what the other lacks,",
    "alike": "On tiny models with the statistics of real pairs,",
    "real": "On real models,",
}
