"""What the table says of a regime. A statistic is a function below: its name and return type are those of the field of
`ShowRow`, its docstring the help sentence."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from operator import attrgetter
from typing import Any, Literal, NamedTuple, get_type_hints

import numpy as np

from harness.statistics import Comparison, Estimate, seeds_to_detect
from harness.statistics.comparison import MIN_TIE_SEEDS
from harness.statistics.crossed import CrossedEstimate
from harness.store.counted_cost import count_cost
from harness.store.equal_cost import Rivals
from harness.store.pace import Pace
from harness.store.sentences import NO_TIES, verdict_mark
from harness.store.text import visible

__all__ = [
    "STATISTICS",
    "SeedCost",
    "Statistic",
    "TableRow",
    "Unit",
    "View",
    "select_columns",
    "statistic",
    "to_bounds",
    "to_number",
]

Pair = tuple[float, float]
View = Literal["terminal", "markdown", "page"]
# The place of a column that has none
LAST = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """name: for titles. factor: from the stored value. mark: behind values where the head has no unit."""

    name: str = ""
    factor: float = 1.0
    digits: int = 0
    signed: bool = False
    mark: str = ""

    def text(self, value: float | None, mark: bool = True) -> str:
        if value is None or value != value:
            return "–"
        written = f"{self.factor * value:{'+' if self.signed else ''}z,.{self.digits}f}"
        return written.replace("-", "−") + self.mark * mark

    def interval(self, pair: Pair | None, form: str = "[{}, {}]") -> str:
        if pair:
            return form.format(*(replace(self, signed=False).text(end, mark=False) for end in pair))
        return ""

    def with_interval(self, value: float | None, pair: Pair | None) -> str:
        return f"{self.text(value)} {self.interval(pair)}".rstrip()


NUMBER = Unit()
PERCENT = Unit(name="%", factor=100, digits=1)
POINTS = Unit(name="points", factor=100, digits=1, signed=True)
SHARE = Unit(name="%", factor=100, mark="%")
TIMES = Unit(name="× baseline", digits=2)
CLOCK = Unit(name="× baseline's clock", digits=2)
CLOCKS_COST = Unit(name="× the clock's cost", digits=2)
OWN_ROLLOUTS = Unit(name="× own rollouts", digits=2)
RATE = Unit(name="points", factor=100, digits=2)


class SeedCost(NamedTuple):
    """What one seed cost, and the peer answers that it received and used. tokens: sampled ones; scored, trained: those of these
    phases. offered: answers that the group's other policies sampled; where there are none, as in a replay of another run, those
    received."""

    rollouts: float
    tokens: float
    scored: float
    trained: float
    cpu: float
    gpu: float
    received: float
    used: float
    offered: float

    @property
    def counted(self) -> float:
        """What it cost by its tokens (`store.counted_cost`)."""
        return count_cost(self.tokens, self.scored, self.trained)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """A regime on one group, policy, task and metric. comparison: the family's comparison; place: the regime's in it. base:
    by seed, accuracy before training. spent, against, on_clock: costs by seed, its own, its reference's, and those of the line
    whose clock its pace is measured on. policies: how many the line is the mean of; `spent` is their sum. pace: None where nothing
    was measured. rivals: None where there is no other baseline. beside: the gain by other metrics of the same answers, by metric.
    crossed: the gain for other questions too; None where it was not asked for."""

    comparison: Comparison
    place: int
    reference: str | None
    base: Sequence[float] = ()
    spent: Sequence[SeedCost] = ()
    against: Sequence[SeedCost] = ()
    on_clock: Sequence[SeedCost] = ()
    budget: str = ""
    policies: int = 1
    pace: Pace | None = None
    rivals: Rivals | None = None
    beside: Mapping[str, Estimate] = field(default_factory=dict)
    crossed: CrossedEstimate | None = None
    remark: str = ""

    def mean(self, what: str) -> float:
        return float(sum(getattr(seed, what) for seed in self.spent)) / len(self.spent)

    def relative_cost(self, what: str) -> float | None:
        """Return the mean of this part of the cost over the reference's; None where the reference has none. what: of `SeedCost`."""
        return self._cost_over(self.against, what)

    def clock_cost(self, what: str) -> float | None:
        """Return the mean of this part of the cost over that of the pace's clock; None where it has none."""
        return self._cost_over(self.on_clock, what)

    def _cost_over(self, others: Sequence[SeedCost], what: str) -> float | None:
        theirs: float = sum(getattr(seed, what) for seed in others)
        if theirs:
            return self.mean(what) / (theirs / len(others))
        return None


Measure = Callable[[TableRow], Any]


@dataclass(slots=True)
class Statistic:
    """Decorates the function that computes it. head: over a narrow column. terminal, markdown, page: its column's place
    in that view, None for none. interval_of: the statistic whose 95 % interval it is, shown beside its value where
    there is no column. tinted: takes the verdict's colour."""

    title: str
    unit: Unit = NUMBER
    _: KW_ONLY
    head: str = ""
    better: Literal["", "higher", "lower"] = ""
    terminal: int | None = LAST
    markdown: int | None = LAST
    page: int | None = LAST
    interval_of: str = ""
    tinted: bool = False
    of: Measure = field(init=False)
    name: str = field(init=False)
    kind: Any = field(init=False)
    help: str = field(init=False)

    def __call__(self, of: Measure) -> Measure:
        """Declare it under the function's name."""
        self.of = of
        self.name = of.__name__
        self.kind = get_type_hints(of)["return"]
        self.head = self.head or self.title.lower()
        self.help = inspect.getdoc(of) or ""
        STATISTICS[self.name] = self
        return of

    @property
    def numeric(self) -> bool:
        return self.kind in (int, float, int | None, float | None)

    @property
    def full_title(self) -> str:
        """With the unit, e.g. `Gain, points`."""
        if self.unit.name and not self.interval_of:
            return f"{self.title}, {self.unit.name}"
        return self.title

    @property
    def interval(self) -> Statistic | None:
        return next((s for s in STATISTICS.values() if s.interval_of == self.name), None)

    def text(self, value: Any, margin: float) -> str:
        if self.interval_of:
            return STATISTICS[self.interval_of].unit.interval(value) or "–"
        if self.numeric:
            return self.unit.text(value)
        return visible(verdict_mark(value, margin)) if value else ""


# By name, in the order of the fields of `ShowRow`
STATISTICS: dict[str, Statistic] = {}


statistic = Statistic


def select_columns(view: View) -> list[Statistic]:
    """Return the columns of a view, in order."""
    return sorted((s for s in STATISTICS.values() if getattr(s, view) is not None), key=attrgetter(view))


def to_number(value: float | np.floating | np.ndarray) -> float | None:
    """Return a number as a float, and NaN as None."""
    return None if np.isnan(value) else float(value)


def to_bounds(estimate: Estimate, within: Pair = (-np.inf, np.inf)) -> Pair | None:
    low, high = (to_number(np.clip(end, *within)) for end in (estimate.low, estimate.high))
    return None if low is None or high is None else (low, high)


@statistic("Seeds", NUMBER, terminal=8, markdown=1, page=9)
def seeds(row: TableRow) -> int:
    """How many have finished."""
    return int(row.comparison.own.n[row.place])


@statistic("Before", PERCENT, head="base", terminal=6, markdown=2, page=8)
def base(row: TableRow) -> float | None:
    """Accuracy of the base checkpoint, before training."""
    return to_number(np.mean(row.base))


@statistic("Accuracy", PERCENT, better="higher", terminal=4, markdown=3, page=6)
def accuracy(row: TableRow) -> float:
    """Mean over seeds."""
    return float(row.comparison.own.mean[row.place])


@statistic("95 % interval", head="interval", terminal=None, markdown=None, page=7, interval_of="accuracy")
def interval(row: TableRow) -> Pair | None:
    """Student t over seeds; none for a single one."""
    return to_bounds(row.comparison.own[row.place], within=(0.0, 1.0))


@statistic("Gain", POINTS, better="higher", terminal=1, markdown=4, page=1, tinted=True)
def gain(row: TableRow) -> float | None:
    """Over the baseline at the same rollout budget, paired by seed."""
    return to_number(row.comparison.gains.mean[row.place])


@statistic("95 % interval of the gain", head="gain interval", terminal=None, markdown=None, page=2, interval_of="gain")
def gain_interval(row: TableRow) -> Pair | None:
    """Student t over the seeds that both have, by itself: *no effect* is said where it lies within the margin."""
    return to_bounds(row.comparison.gains[row.place])


@statistic("Compared with", head="baseline", terminal=None, markdown=None, page=16)
def baseline(row: TableRow) -> str | None:
    """The baseline variant at the same rollout budget."""
    return row.reference if row.comparison.gains.n[row.place] else None


@statistic("Peers' answers used", SHARE, head="used", terminal=7, markdown=7, page=10)
def peer_used(row: TableRow) -> float | None:
    """Share of the other policies' answers that gave a nonzero gradient. Answers that were not sent, or refused, count as not
    used; one that arrived several times counts once."""
    if not any(seed.received for seed in row.spent):
        return None
    return float(sum(seed.used for seed in row.spent)) / sum(seed.offered for seed in row.spent)


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
    low, high = (to_number(end) for end in row.comparison.corrected[:, row.place])
    return None if low is None or high is None else (low, high)


@statistic("Paired seeds", NUMBER, terminal=None, markdown=None, page=None)
def paired_seeds(row: TableRow) -> int:
    """How many the regime and its baseline both have; 0 where there is none."""
    return int(row.comparison.gains.n[row.place])


@statistic("Cost", TIMES, head="cost", better="lower", terminal=None, markdown=None, page=4)
def cost(row: TableRow) -> float | None:
    """CPU-seconds over those of the baseline at the same rollout budget; GPU-seconds where the baseline used GPUs."""
    return row.relative_cost("gpu" if any(seed.gpu for seed in row.against) else "cpu")


@statistic("Budget", terminal=None, markdown=None, page=None)
def budget(row: TableRow) -> str:
    """Rollouts as a multiple of the suite's, and what a second round adds."""
    return row.budget


@statistic("Tie group", head="tie", terminal=5, markdown=5, page=5)
def tie_group(row: TableRow) -> str:
    """Regimes that share a letter cannot be told apart; regimes without a common letter can. A dash below five seeds."""
    return row.comparison.groups[row.place] if _shows_ties(row) else NO_TIES


@statistic("Best", terminal=None, markdown=None, page=None)
def best(row: TableRow) -> bool:
    """Cannot be told from the best mean, with five seeds or more."""
    return _shows_ties(row) and row.comparison.best[row.place]


def _shows_ties(row: TableRow) -> bool:
    return int(row.comparison.own.n[row.place]) >= MIN_TIE_SEEDS


@statistic("p of the gain", terminal=None, markdown=None, page=None)
def gain_p(row: TableRow) -> float | None:
    """Corrected within the family of all tests of one policy and metric."""
    return to_number(row.comparison.gain_p[row.place])


@statistic("Detectable gain", POINTS, better="lower", terminal=None, markdown=None, page=None)
def detectable(row: TableRow) -> float | None:
    """The smallest gain that the paired seeds would have shown with 80 % power."""
    return to_number(row.comparison.detectable[row.place])


@statistic("Seeds needed", NUMBER, head="needed", better="lower", terminal=None, markdown=None, page=15)
def seeds_needed(row: TableRow) -> int | None:
    """So many would show a gain as large as the margin with 80 % power, if seeds go on to differ as these do."""
    comparison = row.comparison
    error = row.comparison.gains.error[row.place]
    if np.isnan(error + comparison.planned_level[row.place]) or comparison.margin <= 0:
        return None
    level = float(comparison.planned_level[row.place])
    return seeds_to_detect(float(error * np.sqrt(comparison.gains.n[row.place])), comparison.margin, level=level)


@statistic("Verdict", terminal=3, markdown=6, page=3, tinted=True)
def verdict(row: TableRow) -> str:
    """Whether the difference from the baseline is real."""
    return row.comparison.verdicts[row.place]


@statistic("Gain per 1,000 rollouts", RATE, head="per 1000", better="higher", terminal=None, markdown=None, page=14)
def gain_per_1000_rollouts(row: TableRow) -> float | None:
    """Of one policy; where the line is the policies' mean, mean gain over their mean rollouts."""
    return _gain_per(row, "rollouts", 1000)


@statistic("Gain per GPU-second", RATE, better="higher", terminal=None, markdown=None, page=None)
def gain_per_gpu_second(row: TableRow) -> float | None:
    """Of one policy, as per 1,000 rollouts; none where no GPU was used."""
    return _gain_per(row, "gpu", 1)


def _gain_per(row: TableRow, what: str, size: int) -> float | None:
    spent = row.mean(what) / row.policies
    if spent > 0:
        return to_number(row.comparison.gains.mean[row.place] * size / spent)
    return None
