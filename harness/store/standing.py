"""Every regime in every setting of all suites, for the leaderboard."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby, permutations
from typing import Any, Literal

import msgspec

from harness.statistics import MARGIN
from harness.statistics.comparison import EQUIVALENT, GAINS, LOSES
from harness.store.finished import ShowRow, read_finished
from harness.store.manifest import MARK
from harness.store.read import Snapshot
from harness.store.roles import RoleRow, role_rows
from harness.store.sentences import joined, verdict_mark, write_rate
from harness.store.starts import UNPAIRED
from harness.store.statistic import PERCENT, POINTS, Pair
from harness.store.table import MEAN, make_rows
from harness.store.tuning import without_trials

Kind = Literal["built", "alike", "real"]
# Every regime with its defaults (which its paper gives, or we), tuned, or every variant of the suites
Settings = Literal["defaults", "tuned", "all"]
# Of a supervised start (as in a suite), by skill group: the share of its examples that were answered by steps; None where unknown
Taught = Callable[[Mapping[str, Any]], Mapping[str, float] | None]
# Where one start was taught a skill group at most this share as much as another start, the pair was built to need sharing
_LACKS = 0.5
# Whose defaults a regime has, where the caller does not say it
DEFAULTS = "with defaults"
KINDS: dict[Kind, str] = {
    "alike": "Tiny models, statistics as of real pairs",
    "real": "Real models",
    "built": "Positive controls, built so that sharing must help",
}


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """A group on a benchmark, by its suite's first metric, under one set of settings. suites: that hold its cells, all the same.
    rate: the suite's learning rate; steps, prompts, rollouts: of training; None where the suite's file does not say it. alone:
    the baseline's accuracy. tiny: micro models alone."""

    suites: tuple[str, ...]
    group: str
    task: str
    kind: Kind
    policies: tuple[str, ...]
    models: tuple[str, ...]
    seeds: int
    own_bases: bool
    tiny: bool = False
    rate: float | None = None
    steps: int | None = None
    prompts: int | None = None
    rollouts: int | None = None
    alone: float | None = None

    @property
    def title(self) -> str:
        if len(self.policies) < 3:
            return " × ".join(self.policies)
        return f"{len(self.policies)} families"

    @property
    def pair(self) -> tuple[object, ...]:
        """The same for settings of the same models with the same kind of starts on the same benchmark."""
        return self.kind, self.task, *sorted(self.models)

    @property
    def shape(self) -> tuple[int | None, ...]:
        """How much training, and from what kind of bases."""
        return self.steps, self.prompts, self.rollouts, self.own_bases

    @property
    def names(self) -> str:
        return joined([suite.removesuffix(MARK) for suite in self.suites])


# A row of the store, or in words why there is none
Entry = ShowRow | str


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """A regime's line in each setting of one kind. roles: its gains by role at the start, None where they are not known. costs:
    smallest and largest, over the baseline's."""

    regime: str
    cells: tuple[Entry, ...]
    costs: Pair | None
    roles: tuple[RoleRow | None, ...] = ()


class Section(msgspec.Struct, frozen=True):
    """The settings of one kind, those of the same pair side by side, and a line for each regime that ran in one, by name. There is
    no mean over settings: they differ in models, settings and regimes, and some hold others (a pair, the same with a third)."""

    kind: Kind
    settings: tuple[Setting, ...]
    standings: tuple[Standing, ...]


class OneBase(msgspec.Struct, frozen=True):
    """A regime gains where all seeds share a family's base checkpoint, and not in the setting of the same models where each seed
    has its own."""

    alone: Setting
    gain: ShowRow
    own: Setting
    there: ShowRow


class Board(msgspec.Struct, frozen=True):
    """unlike: largest gain first."""

    sections: tuple[Section, ...]
    unlike: tuple[OneBase, ...] = ()

    @property
    def settings(self) -> tuple[Setting, ...]:
        return tuple(setting for section in self.sections for setting in section.settings)

    def of(self, kind: Kind | None = None) -> list[tuple[str, Setting, ShowRow]]:
        """Regime and gain in each setting of that kind, or of all."""
        return [
            (line.regime, setting, cell)
            for section in self.sections
            for line in section.standings
            for setting, cell in zip(section.settings, line.cells, strict=True)
            if kind in (None, section.kind) and not isinstance(cell, str)
        ]

    def by_role(self, kind: Kind) -> list[tuple[str, Setting, RoleRow]]:
        """Regime and gains by role in each setting of that kind in which they are known."""
        return [
            (line.regime, setting, role)
            for section in self.sections
            for line in section.standings
            for setting, role in zip(section.settings, line.roles, strict=True)
            if section.kind == kind and role is not None
        ]


class _Variant(msgspec.Struct):
    """What a group's cells of one variant are: the regime's type, their keys and states."""

    kind: str = ""
    keys: set[str] = msgspec.field(default_factory=set)
    states: set[str] = msgspec.field(default_factory=set)


class _Held(msgspec.Struct):
    """A setting as its suites hold it. rows, roles: of the lines that are shown; same: of its baseline's cells, the keys; ran: what
    ran of each variant; tuned: variants that have a tuned line."""

    setting: Setting
    rows: dict[str, ShowRow]
    roles: dict[str, RoleRow]
    same: frozenset[str]
    ran: dict[str, _Variant]
    tuned: set[str]


def make_board(
    snapshot: Snapshot, which: Settings = "defaults", margin: float = MARGIN, taught: Taught | None = None
) -> Board:
    """Make the board of every suite's groups of well-behaved peers of different kinds, over a plain baseline.

    Each group is a setting of its own, but for those that several suites hold with the same cells. which: regimes with their
    defaults, as tuned, or all lines. margin: of the verdicts. taught: tells tiny pairs that are alike from built ones; without it
    every tiny pair counts as built.
    """
    stored = snapshot.query("SELECT suite, baseline, config FROM suites WHERE config <> ''").to_pylist()
    described = {row["suite"]: row for row in stored}
    ran = _find_variants(snapshot)
    held: list[_Held] = []
    for suite in without_trials(sorted(described, key=lambda name: (name.endswith(MARK), name))):
        config = json.loads(described[suite]["config"])
        for one in _hold_suite(snapshot, suite, described[suite]["baseline"], config, ran, which, margin, taught):
            _add_setting(held, one)
    sections = [_make_section(kind, [one for one in held if one.setting.kind == kind], which) for kind in KINDS]
    return Board(tuple(section for section in sections if section.settings), _find_unlike(held))


def _hold_suite(
    snapshot: Snapshot,
    suite: str,
    baseline: str,
    config: Mapping[str, Any],
    ran: Mapping[tuple[str, str], dict[str, _Variant]],
    which: Settings,
    margin: float,
    taught: Taught | None,
) -> Iterator[_Held]:
    """Yield the settings of one suite, by its first metric; none where its baseline has another objective than GRPO's."""
    variants = {variant["name"]: variant for variant in config.get("regimes", ())}
    if variants.get(baseline, {"options": {}})["options"].get("objective", "grpo") != "grpo":
        return
    cells = read_finished(snapshot, suite)
    metric = next((row.metric for row in cells.rows if row.policy == MEAN), "")
    if not metric:
        return
    training = config.get("training", {})
    shapes = _find_shapes(config, training, taught)
    choosers = _find_shapes(config.get("tune") or {}, training, taught)
    roles = {(role.group, role.task, role.regime): role for role in role_rows(cells, metric)}
    rows = make_rows(MEAN, metric, cells, margin)
    for (group, task), own in groupby(rows, key=lambda row: (row.group, row.task)):
        lines = list(own)
        if group not in shapes:
            continue
        kept = _select_lines(lines, variants, which, choosers, shapes[group].kind)
        if not kept:
            continue
        setting = msgspec.structs.replace(
            shapes[group],
            suites=(suite,),
            task=task,
            seeds=max(row.seeds for row in kept.values()),
            alone=next((row.accuracy for row in lines if row.regime == baseline), None),
        )
        there = ran.get((suite, group), {})
        keys = frozenset(there.get(baseline, _NOTHING).keys)
        tuned = {row.regime.partition(", tuned")[0] for row in lines if ", tuned" in row.regime}
        own_roles = {
            name: roles[group, task, row.regime] for name, row in kept.items() if (group, task, row.regime) in roles
        }
        yield _Held(setting, kept, own_roles, keys, there, tuned)


def _find_shapes(part: Mapping[str, Any], training: Mapping[str, Any], taught: Taught | None) -> dict[str, Setting]:
    """Return by group of a part of the configuration the setting that it is, without controls."""
    shapes: dict[str, Setting] = {}
    for group in part.get("groups", ()):
        shape = _make_setting(group, training, taught)
        if shape:
            shapes[group["name"]] = shape
    return shapes


_NOTHING = _Variant()


def _find_variants(snapshot: Snapshot) -> dict[tuple[str, str], dict[str, _Variant]]:
    """Return what ran, by suite and group, then by variant."""
    ran: dict[tuple[str, str], dict[str, _Variant]] = {}
    query = "SELECT suite, group_name, regime, regime_type, cell, state FROM current_cells WHERE kind = 'cell'"
    for suite, group, regime, kind, key, state in (row.values() for row in snapshot.query(query).to_pylist()):
        variant = ran.setdefault((suite, group), {}).setdefault(regime, _Variant(kind))
        variant.keys.add(key)
        variant.states.add(state)
    return ran


def _add_setting(held: list[_Held], new: _Held) -> None:
    """Add a setting: beside the others, or to one whose baseline has the same cells, if both have the same numbers of what both
    have."""
    for old in held:
        alike = (old.setting.group, old.setting.task, old.same) == (new.setting.group, new.setting.task, new.same)
        both = old.rows.keys() & new.rows.keys()
        if alike and all(_compared_numbers(old.rows[name]) == _compared_numbers(new.rows[name]) for name in both):
            for name, row in new.rows.items():
                # corrected for what each suite compares: the most cautious one
                old.rows[name] = max(old.rows.get(name, row), row, key=_interval_width)
            old.roles = {**new.roles, **old.roles}
            old.ran = {**new.ran, **old.ran}
            old.tuned = old.tuned | new.tuned
            old.setting = msgspec.structs.replace(old.setting, suites=(*old.setting.suites, *new.setting.suites))
            return
    held.append(new)


def _compared_numbers(row: ShowRow) -> tuple[object, ...]:
    return row.accuracy, row.gain, row.gain_interval


def _interval_width(row: ShowRow) -> float:
    low, high = row.gain_corrected_interval or (0.0, 0.0)
    return float(high - low)


def _make_section(kind: Kind, held: Sequence[_Held], which: Settings) -> Section:
    def place(one: _Held) -> tuple[object, ...]:
        s = one.setting
        return not s.tiny, len(s.models), sorted(s.models), s.task, s.steps or 0, s.rate or 0.0, s.suites

    columns = sorted(held, key=place)
    names = sorted({name for column in columns for name in (*column.rows, *_find_unpaired(column, which))})
    standings = []
    for name in names:
        cells = tuple(column.rows.get(name) or _explain_absence(name, column, which) for column in columns)
        costs = [cell.cost for cell in cells if not isinstance(cell, str) and cell.cost is not None]
        roles = tuple(column.roles.get(name) for column in columns)
        spread = (min(costs), max(costs)) if costs else None
        standings.append(Standing(regime=name, cells=cells, costs=spread, roles=roles))
    return Section(kind, tuple(column.setting for column in columns), tuple(standings))


def _find_unpaired(column: _Held, which: Settings) -> list[str]:
    """Return the lines of which every finished cell is left out, because it started from other weights than the baseline's."""
    wanted = {
        name: ran.states
        for name, ran in column.ran.items()
        if which == "all" or (which == "defaults" and ran.kind == name)
    }
    return [name for name, states in wanted.items() if UNPAIRED in states and "done" not in states]


def _explain_absence(name: str, column: _Held, which: Settings) -> str:
    """Say why a setting has no number of that line; only where nothing of the regime ran it was not run."""
    variant, tuned, _ = name.partition(", tuned")
    others = sorted(other for other, ran in column.ran.items() if ran.kind == variant and other != variant)
    if variant in column.ran and (tuned or which == "tuned"):
        return "tuned elsewhere" if variant in column.tuned else "not tuned"
    if variant in column.ran:
        states = column.ran[variant].states
        if "done" in states:
            return "no baseline"
        return "not paired" if UNPAIRED in states else "not finished"
    if others:
        if len(others) == 1:
            return f"only as {others[0]}"
        return f"only as {len(others)} variants"
    return "not run"


def _find_unlike(held: Sequence[_Held]) -> tuple[OneBase, ...]:
    unlike = []
    for one, other in permutations(held, 2):
        if one.setting.pair != other.setting.pair or one.setting.own_bases or not other.setting.own_bases:
            continue
        if one.setting.rate != other.setting.rate:
            continue
        for name, row in one.rows.items():
            there = other.rows.get(name)
            if there and row.verdict == GAINS != there.verdict:
                unlike.append(OneBase(one.setting, row, other.setting, there))
    return tuple(sorted(unlike, key=lambda each: -each.gain.gain))


def _make_setting(group: Mapping[str, Any], training: Mapping[str, Any], taught: Taught | None) -> Setting | None:
    """Return the setting that a group is, None for a control: a bad peer, or a copy of the same model."""
    policies = group["policies"]
    models = tuple(policy["model"].rstrip("/").rpartition("/")[2] for policy in policies)
    if len(set(models)) < max(2, len(models)) or any(policy.get("condition") for policy in policies):
        return None
    starts = [policy.get("stage0") or {} for policy in policies]
    return Setting(
        suites=(),
        group=group["name"],
        task="",
        kind=_classify_setting(policies, starts, taught),
        policies=tuple(policy["name"] for policy in policies),
        models=models,
        seeds=0,
        own_bases=any(start.get("per_seed") for start in starts),
        tiny=_are_tiny(policies),
        rate=training.get("learning_rate"),
        steps=training.get("steps"),
        prompts=training.get("prompts"),
        rollouts=training.get("rollouts"),
    )


def _classify_setting(
    policies: Sequence[Mapping[str, Any]], starts: Sequence[Mapping[str, Any]], taught: Taught | None
) -> Kind:
    """Return the kind by what the starts were taught: *built* where one was taught what another lacks, whatever the models are."""
    tiny = _are_tiny(policies)
    same_questions = len({start.get("task") for start in starts}) == 1
    if same_questions and _were_taught_alike(starts, tiny, taught):
        return "alike" if tiny else "real"
    return "built"


def _were_taught_alike(starts: Sequence[Mapping[str, Any]], tiny: bool, taught: Taught | None) -> bool:
    """Say whether no start was taught a skill group much less than another; a real model without a start was taught nothing."""
    if not tiny and not any(starts):
        return True
    if taught is None:
        return not tiny
    shares = [taught(start) for start in starts if start or tiny]
    known = [share for share in shares if share is not None]
    if len(known) < len(shares):
        return False
    for skill in known[0]:
        own = [share[skill] for share in known]
        if min(own) <= _LACKS * max(own) and max(own) > 0:
            return False
    return True


def _are_tiny(policies: Sequence[Mapping[str, Any]]) -> bool:
    return all(policy["model"].startswith("micro/") for policy in policies)


def _select_lines(
    rows: Sequence[ShowRow],
    variants: Mapping[str, Mapping[str, Any]],
    which: Settings,
    choosers: Mapping[str, Setting],
    kind: Kind,
) -> dict[str, ShowRow]:
    """Return the rows by line: with defaults, or as tuned on a group of the same kind where several chose."""
    kept: dict[str, ShowRow] = {}
    for row in (row for row in rows if row.gain is not None):
        regime, tuned, on = row.regime.partition(", tuned")
        chooser = choosers.get(on.removeprefix(" on "))
        wanted = {
            "all": True,
            "defaults": not tuned and regime == variants.get(regime, {}).get("regime"),
            "tuned": tuned and (not on or (chooser is not None and chooser.kind == kind)),
        }
        if wanted[which]:
            kept[row.regime if which == "all" else regime] = row
    return kept


# In sentences ---------------------------------------------------------------------------------------------------------


def summarise_board(
    defaults: Board, tuned: Board, margin: float = MARGIN, statuses: Mapping[str, str] | None = None
) -> list[str]:
    """Say what the settings show together, the first sentence with a pair at two learning rates where there is one.

    statuses: by regime, whose defaults it has: `published`, or `with defaults of ours`.
    """
    verdicts = {cell.verdict for shown in (defaults, tuned) for _, _, cell in shown.of()}
    opening = "It depends on the pair and the settings" if GAINS in verdicts else "No regime is shown to gain"
    rates = _at_two_rates(defaults, margin)
    parts = [f"{opening}: {rates}" if rates else f"{opening}."]
    for kind in KINDS:
        cells = [(name, cell) for name, _, cell in defaults.of(kind)]
        if not cells:
            continue
        gains = sorted({name for name, cell in cells if cell.verdict == GAINS})
        loses = sorted({name for name, cell in cells if cell.verdict == LOSES})
        nothing = sum(cell.verdict == EQUIVALENT for _, cell in cells)
        low, high = (POINTS.text(f(cell.gain for _, cell in cells)) for f in (min, max))
        also = sorted({name for name, _, cell in tuned.of(kind) if cell.verdict == GAINS} - set(gains))
        said = _name_by_status(gains, statuses or {}) or "no regime gains with its defaults"
        said += f", {joined(also)} when tuned" if also else ""
        said += f"; {_name_regimes(loses, 'lose')}" if loses else ""
        parts.append(
            f"{_WHERE[kind]} {said} (gains from {low} to {high} points; in {nothing} of {len(cells)} comparisons no effect)."
        )
    single = _at_one_rate(defaults)
    if single:
        parts.append(f"At one learning rate alone ran {single}: whether their gains hold at another is not known.")
    for one in defaults.unlike[:1]:
        alone, there = (POINTS.with_interval(row.gain, row.gain_interval) for row in (one.gain, one.there))
        parts.append(
            f"{one.gain.regime} gains {alone} points on {one.alone.title} in {one.alone.names}, where all seeds start from one "
            f"base checkpoint a family. Over {one.own.seeds} base checkpoints a family, in {one.own.names}, it is {there}: "
            "no gain is shown there."
        )
    return parts


def _name_by_status(names: Sequence[str], statuses: Mapping[str, str]) -> str:
    """Say which regimes gain, those with published defaults apart from those with ours; empty where none does."""
    by_status: dict[str, list[str]] = {}
    for name in names:
        by_status.setdefault(statuses.get(name, DEFAULTS), []).append(name)
    parts = []
    for status in sorted(by_status):
        parts.append(f"{_name_regimes(by_status[status], 'gain')} ({status})")
    return " and ".join(parts)


def _at_two_rates(defaults: Board, margin: float) -> str:
    """The largest gain of a regime that ran on the same pair at two learning rates, at both, if possible after as much training;
    not of a positive control where there is another pair."""
    by_pair: dict[tuple[object, ...], list[tuple[Setting, ShowRow]]] = {}
    for name, setting, row in defaults.of():
        if setting.rate is not None:
            by_pair.setdefault((name, *setting.pair), []).append((setting, row))
    best: tuple[bool, bool, float] | None = None
    both: list[tuple[Setting, ShowRow]] = []
    for cells in by_pair.values():
        for first, second in permutations(cells, 2):
            (setting, row) = first
            (other, _) = second
            worth = setting.kind != "built", setting.shape == other.shape, float(row.gain)
            if setting.rate != other.rate and (best is None or worth > best):
                best = worth
                both = [first, second]
    if not both:
        return ""
    (setting, row), _ = both
    at = [_at_a_rate(one, cell, margin) for one, cell in both]
    return f"on {setting.title} the gain of {row.regime} is {at[0]} and {at[1]}."


def _at_a_rate(setting: Setting, row: ShowRow, margin: float) -> str:
    corrected = "" if row.verdict == EQUIVALENT else "95 % by itself; corrected for all that is compared: "
    alone = f"; independent training ends at {PERCENT.text(setting.alone)} %"
    return (
        f"{POINTS.with_interval(row.gain, row.gain_interval)} points at learning rate {write_rate(setting.rate or 0.0)} in "
        f"{setting.names} ({corrected}{verdict_mark(row.verdict, margin)}{alone if setting.alone is not None else ''})"
    )


def _at_one_rate(defaults: Board) -> str:
    """Pairs that were not built to gain."""
    rates: dict[tuple[object, ...], set[float | None]] = {}
    titles: dict[tuple[object, ...], str] = {}
    for setting in (setting for setting in defaults.settings if setting.kind != "built"):
        rates.setdefault(setting.pair, set()).add(setting.rate)
        titles[setting.pair] = setting.title
    single = [titles[pair] for pair, known in rates.items() if len(known) == 1 and None not in known]
    return joined(single) if single else ""


def _name_regimes(names: Sequence[str], verb: str) -> str:
    if names:
        return f"{joined(names)} {verb}{'s' * (len(names) == 1)}"
    return ""


_WHERE: dict[Kind, str] = {
    "built": "Where each policy was taught what the other lacks,",
    "alike": "On tiny models with the statistics of real pairs,",
    "real": "On real models,",
}
