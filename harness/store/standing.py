"""Every regime in every setting of all suites, for the leaderboard."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby, permutations
from typing import Any, Literal, NamedTuple

import msgspec

from harness.statistics import MARGIN
from harness.statistics.comparison import GAINS
from harness.store.finished import ShowRow, TableLine, is_independent_training, read_finished
from harness.store.manifest import MARK
from harness.store.read import Snapshot
from harness.store.roles import RoleRow, role_rows
from harness.store.sentences import joined
from harness.store.starts import UNPAIRED
from harness.store.statistic import Pair
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
    rate: the suite's learning rate; steps, prompts, rollouts: of training; None where the suite's file does not say it. rates: at
    which independent training ran on the group. alone: the baseline's accuracy. tiny: micro models alone."""

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
    rates: tuple[float, ...] = ()
    steps: int | None = None
    prompts: int | None = None
    rollouts: int | None = None
    alone: float | None = None

    @property
    def title(self) -> str:
        """Return the pair's name, of more policies their number."""
        if len(self.policies) < 3:
            return " × ".join(self.policies)
        return f"{len(self.policies)} families"

    @property
    def pair(self) -> tuple[object, ...]:
        """Return what is the same for settings of the same models with the same kind of starts on the same benchmark."""
        return self.kind, self.task, *sorted(self.models)

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Return how much training there was, and from what kind of bases."""
        return self.steps, self.prompts, self.rollouts, self.own_bases

    @property
    def names(self) -> str:
        """Return the names of its suites."""
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
        """Return the settings of all sections."""
        every: list[Setting] = []
        for section in self.sections:
            every += section.settings
        return tuple(every)

    def list_gains(self, kind: Kind | None = None) -> list[tuple[str, Setting, ShowRow]]:
        """Return regime and gain in each setting of that kind, or of all."""
        gains: list[tuple[str, Setting, ShowRow]] = []
        for section in self._select_sections(kind):
            for line in section.standings:
                for setting, cell in zip(section.settings, line.cells, strict=True):
                    if not isinstance(cell, str):
                        gains.append((line.regime, setting, cell))
        return gains

    def list_roles(self, kind: Kind) -> list[tuple[str, Setting, RoleRow]]:
        """Return regime and gains by role in each setting of that kind in which they are known."""
        roles: list[tuple[str, Setting, RoleRow]] = []
        for section in self._select_sections(kind):
            for line in section.standings:
                for setting, role in zip(section.settings, line.roles, strict=True):
                    if role is not None:
                        roles.append((line.regime, setting, role))
        return roles

    def _select_sections(self, kind: Kind | None) -> list[Section]:
        return [section for section in self.sections if kind in (None, section.kind)]


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
    # one's own suites before reference results: the first of equal settings stays
    suites = sorted(described, key=lambda name: (name.endswith(MARK), name))
    for name in without_trials(suites):
        config = json.loads(described[name]["config"])
        suite = _Suite(name, described[name]["baseline"], config)
        for one in _hold_suite(snapshot, suite, ran, which, margin, taught):
            _add_setting(held, one)
    sections = []
    for kind in KINDS:
        of_kind = [one for one in held if one.setting.kind == kind]
        section = _make_section(kind, of_kind, which)
        if section.settings:
            sections.append(section)
    return Board(tuple(sections), _find_unlike(held))


class _Suite(NamedTuple):
    """A suite as it is stored. config: its file, with all defaults."""

    name: str
    baseline: str
    config: Mapping[str, Any]

    @property
    def variants(self) -> dict[str, Mapping[str, Any]]:
        """Return its regimes by their names."""
        return {variant["name"]: variant for variant in self.config.get("regimes", ())}

    def has_plain_baseline(self) -> bool:
        """Say whether the baseline's objective is GRPO's, or not known."""
        baseline = self.variants.get(self.baseline, {"options": {}})
        return bool(baseline["options"].get("objective", "grpo") == "grpo")


def _hold_suite(
    snapshot: Snapshot,
    suite: _Suite,
    ran: Mapping[tuple[str, str], dict[str, _Variant]],
    which: Settings,
    margin: float,
    taught: Taught | None,
) -> Iterator[_Held]:
    """Yield the settings of one suite, by its first metric; none where its baseline has another objective than GRPO's."""
    if not suite.has_plain_baseline():
        return
    cells = read_finished(snapshot, suite.name)
    metric = next((row.metric for row in cells.rows if row.policy == MEAN), "")
    if not metric:
        return
    training = suite.config.get("training", {})
    shapes = _find_shapes(suite.config, training, taught)
    choosers = _find_shapes(suite.config.get("tune") or {}, training, taught)
    roles = {(role.group, role.task, role.regime): role for role in role_rows(cells, metric)}
    rows = make_rows(MEAN, metric, cells, margin)
    for (group, task), own in groupby(rows, key=lambda row: (row.group, row.task)):
        lines = list(own)
        if group not in shapes:
            continue
        shape = shapes[group]
        kept = _select_lines(lines, suite.variants, which, choosers, shape.kind)
        if not kept:
            continue
        seeds = max(row.seeds for row in kept.values())
        alone = next((row.accuracy for row in lines if row.regime == suite.baseline), None)
        rates = _find_rates(lines, cells.lines)
        setting = msgspec.structs.replace(shape, suites=(suite.name,), task=task, seeds=seeds, rates=rates, alone=alone)
        there = ran.get((suite.name, group), {})
        keys = frozenset(there.get(suite.baseline, _NOTHING).keys)
        tuned = {row.regime.partition(", tuned")[0] for row in lines if ", tuned" in row.regime}
        own_roles = {}
        for name, row in kept.items():
            place = group, task, row.regime
            if place in roles:
                own_roles[name] = roles[place]
        yield _Held(setting, kept, own_roles, keys, there, tuned)


def _find_rates(rows: Sequence[ShowRow], lines: Mapping[str, TableLine]) -> tuple[float, ...]:
    """Return the learning rates at which independent training ran, as far as they are known."""
    rates = set()
    for row in rows:
        line = lines[row.regime]
        if line.trained.rate is not None and is_independent_training(line, lines):
            rates.add(line.trained.rate)
    return tuple(sorted(rates))


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
    for row in snapshot.query(query).to_pylist():
        suite, group, regime, kind, key, state = row.values()
        of_group = ran.setdefault((suite, group), {})
        variant = of_group.setdefault(regime, _Variant(kind))
        variant.keys.add(key)
        variant.states.add(state)
    return ran


def _add_setting(held: list[_Held], new: _Held) -> None:
    """Add a setting: beside the others, or to one whose baseline has the same cells, if both have the same numbers of what both
    have."""
    for old in held:
        if _hold_the_same(old, new):
            _merge_setting(old, new)
            return
    held.append(new)


def _hold_the_same(one: _Held, other: _Held) -> bool:
    """Say whether both are one setting: the baseline's cells are the same, and so are the numbers of what both have."""
    place = one.setting.group, one.setting.task, one.same
    if place != (other.setting.group, other.setting.task, other.same):
        return False
    both = one.rows.keys() & other.rows.keys()
    return all(_compared_numbers(one.rows[name]) == _compared_numbers(other.rows[name]) for name in both)


def _merge_setting(old: _Held, new: _Held) -> None:
    """Add what another suite holds of the same setting."""
    for name, row in new.rows.items():
        # corrected for what each suite compares: the most cautious one
        old.rows[name] = max(old.rows.get(name, row), row, key=_interval_width)
    old.roles = {**new.roles, **old.roles}
    old.ran = {**new.ran, **old.ran}
    old.tuned = old.tuned | new.tuned
    suites = (*old.setting.suites, *new.setting.suites)
    rates = {*old.setting.rates, *new.setting.rates}
    old.setting = msgspec.structs.replace(old.setting, suites=suites, rates=tuple(sorted(rates)))


def _compared_numbers(row: ShowRow) -> tuple[object, ...]:
    return row.accuracy, row.gain, row.gain_interval


def _interval_width(row: ShowRow) -> float:
    low, high = row.gain_corrected_interval or (0.0, 0.0)
    return float(high - low)


def _make_section(kind: Kind, held: Sequence[_Held], which: Settings) -> Section:
    """Put the settings of one kind side by side, with a line for each regime that ran in one of them."""

    def place_column(one: _Held) -> tuple[object, ...]:
        """Return what a column is sorted by: small pairs first, settings of one pair beside each other."""
        own = one.setting
        return not own.tiny, len(own.models), sorted(own.models), own.task, own.steps or 0, own.rate or 0.0, own.suites

    columns = sorted(held, key=place_column)
    names = set[str]()
    for column in columns:
        names.update(column.rows)
        names.update(_find_unpaired(column, which))
    standings = []
    for name in sorted(names):
        cells = tuple(column.rows.get(name) or _explain_absence(name, column, which) for column in columns)
        costs = [cell.cost for cell in cells if not isinstance(cell, str) and cell.cost is not None]
        roles = tuple(column.roles.get(name) for column in columns)
        spread = (min(costs), max(costs)) if costs else None
        standings.append(Standing(regime=name, cells=cells, costs=spread, roles=roles))
    return Section(kind, tuple(column.setting for column in columns), tuple(standings))


def _find_unpaired(column: _Held, which: Settings) -> list[str]:
    """Return the lines of which every finished cell is left out, because it started from other weights than the baseline's."""
    unpaired = []
    for name, ran in column.ran.items():
        wanted = which == "all" or (which == "defaults" and ran.kind == name)
        if wanted and UNPAIRED in ran.states and "done" not in ran.states:
            unpaired.append(name)
    return unpaired


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
    """Return the gains that are not seen where each seed has a base checkpoint of its own, the largest first."""
    unlike = []
    for one, other in permutations(held, 2):
        alone, own = one.setting, other.setting
        if alone.pair != own.pair or alone.rate != own.rate:
            continue
        if alone.own_bases or not own.own_bases:
            continue
        for name, row in one.rows.items():
            there = other.rows.get(name)
            if there and row.verdict == GAINS != there.verdict:
                unlike.append(OneBase(alone, row, own, there))
    return tuple(sorted(unlike, key=lambda each: -each.gain.gain))


def _make_setting(group: Mapping[str, Any], training: Mapping[str, Any], taught: Taught | None) -> Setting | None:
    """Return the setting that a group is, None for a control: a bad peer, or a copy of the same model."""
    policies = group["policies"]
    # a model's name is the end of its path
    models = tuple(policy["model"].rstrip("/").rpartition("/")[2] for policy in policies)
    all_differ = len(models) > 1 and len(set(models)) == len(models)
    if not all_differ or any(policy.get("condition") for policy in policies):
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
    tasks = {start.get("task") for start in starts}
    same_questions = len(tasks) == 1
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
        least, most = min(own), max(own)
        if least <= _LACKS * most and most > 0:
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
    for row in rows:
        if row.gain is None:
            continue
        regime, tuned, on = row.regime.partition(", tuned")
        if which == "all":
            kept[row.regime] = row
        elif which == "defaults":
            # a variant under another name has options of its own
            if not tuned and regime == variants.get(regime, {}).get("regime"):
                kept[regime] = row
        elif tuned:
            chooser = choosers.get(on.removeprefix(" on "))
            if not on or (chooser is not None and chooser.kind == kind):
                kept[regime] = row
    return kept
