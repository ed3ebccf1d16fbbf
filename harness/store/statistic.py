"""What the table says of a regime: one declaration per statistic, which every view reads.

A statistic is a function below: its name is the field of `ShowRow` (JSON, CSV), what it returns the field's type, its docstring
the help sentence, and `statistic` says how and where it is shown. Nothing else in the harness or the leaderboard names it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_type_hints

import numpy as np

from harness.statistics import Comparison, Estimate, seeds_to_detect
from harness.store.comparisons import Spent
from harness.store.sentences import verdict_mark
from harness.store.text import visible

__all__ = ["STATISTICS", "Statistic", "TableRow", "Unit", "View", "bounds", "number", "shown", "statistic"]

Pair = tuple[float, float]
View = Literal["terminal", "markdown", "page"]
"""`page` is the ranking page of the leaderboard and the static report."""
LAST = 1000
"""The place of a column that does not mind where it stands: behind those with a place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """How a value is written. name: of the unit, for titles. factor: from the stored value. mark: behind each value where the
    head does not name the unit."""

    name: str = ""
    factor: float = 1.0
    digits: int = 0
    signed: bool = False
    mark: str = ""

    def text(self, value: float | None, mark: bool = True) -> str:
        """E.g. `57.5`; a dash where there is none."""
        if value is None or value != value:
            return "–"
        written = f"{self.factor * value:{'+' if self.signed else ''}z,.{self.digits}f}"
        return written.replace("-", "−") + self.mark * mark

    def interval(self, pair: Pair | None, form: str = "[{}, {}]") -> str:
        """E.g. `[55.0, 60.0]`; empty where there is none."""
        return form.format(*(replace(self, signed=False).text(end, mark=False) for end in pair)) if pair else ""

    def with_interval(self, value: float | None, pair: Pair | None) -> str:
        """E.g. `57.5 [55.0, 60.0]`."""
        return f"{self.text(value)} {self.interval(pair)}".rstrip()


WORDS = Unit()
NUMBER = Unit()
PERCENT = Unit(name="%", factor=100, digits=1)
POINTS = Unit(name="points", factor=100, digits=1, signed=True)
SHARE = Unit(name="%", factor=100, mark="%")
TIMES = Unit(name="× baseline", digits=2)
RATE = Unit(name="points", factor=100, digits=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """What a statistic is made from: one regime on one group, policy, task and metric.

    found: the family's comparison, in which the regime stands at `place`. reference: the regime that gains are over. base: by
    seed, accuracy before training. spent: sum over `seeds` seeds; None where costs do not belong to the row. against: the
    reference's, mean per seed. policies: how many the line is the mean of; `spent` is theirs together.
    """

    found: Comparison
    place: int
    reference: str | None
    base: Sequence[float] = ()
    spent: Sequence[Spent] = ()
    against: Sequence[Spent] = ()
    budget: str = ""
    policies: int = 1

    def mean(self, what: str) -> float:
        """Per seed, a field of `Spent`."""
        return self.total(what) / len(self.spent)

    def total(self, what: str) -> float:
        """Over all seeds."""
        return float(sum(getattr(seed, what) for seed in self.spent))


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistic:
    """A declared statistic. head: over a narrow column. better: which values are, where that can be said. places: its column's
    in each view; absent where it has none. interval_of: the statistic whose 95 % interval it is, and beside whose values it
    stands where there is no room for a column. tinted: takes the colour of the verdict."""

    name: str
    kind: Any
    of: Callable[[TableRow], Any]
    title: str
    head: str
    help: str
    unit: Unit
    better: Literal["", "higher", "lower"]
    places: Mapping[View, int]
    interval_of: str
    tinted: bool

    @property
    def numeric(self) -> bool:
        """Whether its values are numbers."""
        return self.kind in (int, float, int | None, float | None)

    @property
    def full_title(self) -> str:
        """With the unit, e.g. `Gain, points`."""
        return f"{self.title}, {self.unit.name}" if self.unit.name and not self.interval_of else self.title

    @property
    def interval(self) -> Statistic | None:
        """The one that holds its 95 % interval."""
        return next((s for s in STATISTICS.values() if s.interval_of == self.name), None)

    def text(self, value: Any, margin: float) -> str:
        """A value as people read it; `margin` is that of the verdicts, and other words stay."""
        if self.interval_of:
            return STATISTICS[self.interval_of].unit.interval(value) or "–"
        if self.numeric:
            return self.unit.text(value)
        return visible(verdict_mark(value, margin)) if value else ""


STATISTICS: dict[str, Statistic] = {}
"""By name, in the order of the fields of `ShowRow`."""


def statistic(
    title: str,
    unit: Unit = WORDS,
    *,
    head: str = "",
    better: Literal["", "higher", "lower"] = "",
    terminal: int | None = LAST,
    markdown: int | None = LAST,
    page: int | None = LAST,
    interval_of: str = "",
    tinted: bool = False,
) -> Callable[[Callable[[TableRow], Any]], Callable[[TableRow], Any]]:
    """Declare the decorated function of a `TableRow` as a statistic. terminal, markdown, page: its column's place in that view,
    None for none; programs get every statistic."""

    def declare(of: Callable[[TableRow], Any]) -> Callable[[TableRow], Any]:
        asked: dict[View, int | None] = {"terminal": terminal, "markdown": markdown, "page": page}
        STATISTICS[of.__name__] = Statistic(
            name=of.__name__,
            kind=get_type_hints(of)["return"],
            of=of,
            title=title,
            head=head or title.lower(),
            help=inspect.getdoc(of) or "",
            unit=unit,
            better=better,
            places={view: place for view, place in asked.items() if place is not None},
            interval_of=interval_of,
            tinted=tinted,
        )
        return of

    return declare


def shown(view: View) -> list[Statistic]:
    """The columns of a view, in order."""
    return sorted((s for s in STATISTICS.values() if view in s.places), key=lambda s: s.places[view])


def number(value: float | np.floating | np.ndarray) -> float | None:
    """NaN is None."""
    return None if np.isnan(value) else float(value)


def bounds(estimate: Estimate, within: Pair = (-np.inf, np.inf)) -> Pair | None:
    """The interval of one mean, as far as it lies in what is possible; None where there is none."""
    low, high = (number(np.clip(end, *within)) for end in (estimate.low, estimate.high))
    return None if low is None or high is None else (low, high)


@statistic("Seeds", NUMBER, terminal=8, markdown=1, page=9)
def seeds(row: TableRow) -> int:
    """How many have finished."""
    return int(row.found.own.n[row.place])


@statistic("Before", PERCENT, head="base", terminal=6, markdown=2, page=8)
def base(row: TableRow) -> float | None:
    """Accuracy of the base checkpoint, before training."""
    return number(np.mean(row.base))


@statistic("Accuracy", PERCENT, better="higher", terminal=4, markdown=3, page=6)
def accuracy(row: TableRow) -> float:
    """Mean over seeds."""
    return float(row.found.own.mean[row.place])


@statistic("95 % interval", head="interval", terminal=None, markdown=None, page=7, interval_of="accuracy")
def interval(row: TableRow) -> Pair | None:
    """Student t over seeds; none for a single one."""
    return bounds(row.found.own[row.place], within=(0.0, 1.0))


@statistic("Gain", POINTS, better="higher", terminal=1, markdown=4, page=1, tinted=True)
def gain(row: TableRow) -> float | None:
    """Over the baseline at the same rollout budget, paired by seed."""
    return number(row.found.gains.mean[row.place])


@statistic("95 % interval of the gain", head="gain interval", terminal=None, markdown=None, page=2, interval_of="gain")
def gain_interval(row: TableRow) -> Pair | None:
    """Student t over the seeds that both have, by itself: *no effect* is said where it lies within the margin."""
    return bounds(row.found.gains[row.place])


@statistic("Compared with", head="baseline", terminal=None, markdown=None, page=16)
def baseline(row: TableRow) -> str | None:
    """The baseline variant at the same rollout budget."""
    return row.reference if row.found.gains.n[row.place] else None


@statistic("Peer data used", SHARE, head="used", terminal=7, markdown=7, page=10)
def peer_used(row: TableRow) -> float | None:
    """Share of the received peer answers that gave a nonzero gradient."""
    received = row.total("received")
    return row.total("used") / received if received else None


@statistic("Rollouts", NUMBER, better="lower", terminal=10, markdown=8, page=11)
def rollouts(row: TableRow) -> float:
    """Mean per seed; of all policies where the line is their mean."""
    return row.mean("rollouts")


@statistic("Tokens", NUMBER, better="lower", terminal=None, markdown=None, page=None)
def tokens(row: TableRow) -> float:
    """Generated ones, mean per seed."""
    return row.mean("tokens")


@statistic("CPU-s", NUMBER, head="CPU-s", better="lower", terminal=9, markdown=9, page=12)
def cpu_seconds(row: TableRow) -> float:
    """Mean per seed, repeated work included; of the whole cell where the line is the policies' mean."""
    return row.mean("cpu")


@statistic("GPU-s", NUMBER, head="GPU-s", better="lower", terminal=None, markdown=None, page=13)
def gpu_seconds(row: TableRow) -> float:
    """As CPU-seconds."""
    return row.mean("gpu")


@statistic("Corrected interval", head="corrected", terminal=2, markdown=4, page=2, interval_of="gain")
def gain_corrected_interval(row: TableRow) -> Pair | None:
    """The same, corrected for all that is compared: it leaves out 0 exactly where the test finds a gain or a loss."""
    low, high = (number(end) for end in row.found.corrected[:, row.place])
    return None if low is None or high is None else (low, high)


@statistic("Paired seeds", NUMBER, terminal=None, markdown=None, page=None)
def paired_seeds(row: TableRow) -> int:
    """How many the regime and its baseline both have; 0 where there is none."""
    return int(row.found.gains.n[row.place])


@statistic("Cost", TIMES, head="cost", better="lower", terminal=None, markdown=None, page=4)
def cost(row: TableRow) -> float | None:
    """CPU-seconds over those of the baseline at the same rollout budget; GPU-seconds where the baseline used GPUs."""
    what = "gpu" if any(seed.gpu for seed in row.against) else "cpu"
    theirs = sum(getattr(seed, what) for seed in row.against)
    return row.mean(what) / (theirs / len(row.against)) if theirs else None


@statistic("Budget", terminal=None, markdown=None, page=None)
def budget(row: TableRow) -> str:
    """Rollouts as a multiple of the suite's, and what a second round adds."""
    return row.budget


@statistic("Tie group", head="tie", terminal=5, markdown=5, page=5)
def tie_group(row: TableRow) -> str:
    """Regimes that share a letter cannot be told apart; those that share none can."""
    return row.found.groups[row.place]


@statistic("Best", terminal=None, markdown=None, page=None)
def best(row: TableRow) -> bool:
    """Cannot be told from the best mean."""
    return row.found.best[row.place]


@statistic("p of the gain", terminal=None, markdown=None, page=None)
def gain_p(row: TableRow) -> float | None:
    """Corrected within the family of all tests of one policy and metric."""
    return number(row.found.gain_p[row.place])


@statistic("Detectable gain", POINTS, better="lower", terminal=None, markdown=None, page=None)
def detectable(row: TableRow) -> float | None:
    """The smallest gain that the paired seeds would have shown with 80 % power."""
    return number(row.found.detectable[row.place])


@statistic("Seeds needed", NUMBER, head="needed", better="lower", terminal=None, markdown=None, page=15)
def seeds_needed(row: TableRow) -> int | None:
    """So many would show a gain as large as the margin with 80 % power, if seeds go on to differ as these do."""
    found, error = row.found, row.found.gains.error[row.place]
    if np.isnan(error + found.level[row.place]) or found.margin <= 0:
        return None
    level = float(found.level[row.place])
    return seeds_to_detect(float(error * np.sqrt(found.gains.n[row.place])), found.margin, level=level)


@statistic("Verdict", terminal=3, markdown=6, page=3, tinted=True)
def verdict(row: TableRow) -> str:
    """Whether the difference from the baseline is real."""
    return row.found.verdicts[row.place]


@statistic("Gain per 1,000 rollouts", RATE, head="per 1000", better="higher", terminal=None, markdown=None, page=14)
def gain_per_1000_rollouts(row: TableRow) -> float | None:
    """Of one policy; where the line is the policies' mean, mean gain over their mean rollouts."""
    return _per(row, "rollouts", 1000)


@statistic("Gain per GPU-second", RATE, better="higher", terminal=None, markdown=None, page=None)
def gain_per_gpu_second(row: TableRow) -> float | None:
    """Of one policy, as per 1,000 rollouts; none where no GPU was used."""
    return _per(row, "gpu", 1)


def _per(row: TableRow, what: str, size: int) -> float | None:
    spent = row.mean(what) / row.policies
    return number(row.found.gains.mean[row.place] * size / spent) if spent > 0 else None
