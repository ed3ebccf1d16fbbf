"""What the table says of a regime's pace, of its end, and of what it costs: statistics as in `store.statistic`."""

from __future__ import annotations

from collections.abc import Mapping
from math import isnan

from harness.statistics import Estimate
from harness.store.pace import Pace
from harness.store.statistic import (
    CLOCK,
    CLOCKS_COST,
    OWN_ROLLOUTS,
    POINTS,
    RATE,
    SHARE,
    TIMES,
    Pair,
    TableRow,
    statistic,
    to_bounds,
    to_number,
)

GREEDY = "greedy"
_NO_PACE = Pace(clock="", curve="")


def _pace_of(row: TableRow) -> Pace:
    """Return the row's pace; an empty one, of which nothing is known, for a row that is compared with no clock."""
    return row.pace or _NO_PACE


@statistic("Pace", CLOCK, head="kappa", better="higher", terminal=None, markdown=4, page=3)
def kappa(row: TableRow) -> float | None:
    """The speed of its clock over that of independent training at the same learning rate: at 1.2 it learns in 100 steps what that
    learns in 120. The pace is fitted to the whole curve together with the end; there is none where the two cannot be told apart."""
    return _pace_of(row).kappa


@statistic(
    "95 % interval of the pace", head="kappa interval", terminal=None, markdown=None, page=3, interval_of="kappa"
)
def kappa_interval(row: TableRow) -> Pair | None:
    """Student t over the jackknife of seeds, on a logarithmic scale; not corrected."""
    return _pace_of(row).kappa_interval


@statistic("Reach", POINTS, head="reach", better="higher", terminal=None, markdown=4, page=3)
def reach(row: TableRow) -> float | None:
    """By how much its curve ends higher than independent training's once everything is learnt; none while that still rises."""
    return _pace_of(row).reach


@statistic(
    "95 % interval of the reach", head="reach interval", terminal=None, markdown=None, page=3, interval_of="reach"
)
def reach_interval(row: TableRow) -> Pair | None:
    """Student t over the jackknife of seeds; not corrected."""
    return _pace_of(row).reach_interval


@statistic("Pace and reach are", head="pace is", terminal=None, markdown=4, page=3)
def pace_status(row: TableRow) -> str:
    """Why one of both is missing: `not identified`, `still rising`, `too few points`, `no baseline at its rate` or
    `chosen prompts`."""
    return _pace_of(row).status


@statistic("Why", terminal=None, markdown=None, page=None)
def pace_reason(row: TableRow) -> str:
    """Why one of pace and reach is missing, in a sentence."""
    return _pace_of(row).reason


@statistic("Curve", terminal=None, markdown=None, page=None)
def pace_curve(row: TableRow) -> str:
    """What pace and reach are fitted to: held-out curves, or training rewards where a suite has too few points of those."""
    return _pace_of(row).curve


@statistic("Fit explains", SHARE, terminal=None, markdown=None, page=None)
def fit_explained(row: TableRow) -> float | None:
    """Share of the baseline's variance over steps that a logistic explains; below 80 % nothing is said of pace and reach."""
    fit = _pace_of(row).fit
    return to_number(fit.explained) if fit else None


@statistic("Error of the reach", RATE, terminal=None, markdown=None, page=None)
def reach_error(row: TableRow) -> float | None:
    """Standard error of the reach, also where it is not identified because this is above the margin."""
    fit = _pace_of(row).fit
    return to_number(fit.delta_error) if fit else None


@statistic("Remark", head="remark", terminal=None, markdown=9, page=17)
def remark(row: TableRow) -> str:
    """What one must know of the line's settings."""
    return row.remark


@statistic("Clock", terminal=None, markdown=None, page=None)
def pace_clock(row: TableRow) -> str:
    """The line of independent training whose clock it is."""
    return _pace_of(row).clock


@statistic("Worth", OWN_ROLLOUTS, head="worth", better="higher", terminal=None, markdown=None, page=3)
def worth(row: TableRow) -> float | None:
    """Rollouts of one's own that would give the same pace, as a multiple of the suite's, by independent training at other
    budgets. Where the pace lies beyond these, the last of them."""
    own = _pace_of(row).worth
    return own.rollouts if own else None


@statistic(
    "95 % interval of the worth", head="worth interval", terminal=None, markdown=None, page=3, interval_of="worth"
)
def worth_interval(row: TableRow) -> Pair | None:
    """Student t over the jackknife of seeds; none beyond the budgets that were run."""
    own = _pace_of(row).worth
    if own is None or isnan(own.low):
        return None
    return own.low, own.high


@statistic("Worth is beyond", terminal=None, markdown=None, page=None)
def worth_beyond(row: TableRow) -> str:
    """`<` or `>` where the pace lies beyond the budgets that were run."""
    own = _pace_of(row).worth
    return own.beyond if own else ""


@statistic("Pace per cost", CLOCK, head="kappa per cost", better="higher", terminal=None, markdown=None, page=None)
def kappa_per_cost(row: TableRow) -> float | None:
    """The pace with measured seconds in place of steps: kappa over the cost of a run, both against the same clock (GPU-seconds
    where the clock used GPUs)."""
    relative = row.clock_cost("gpu" if any(seed.gpu for seed in row.on_clock) else "cpu")
    pace = _pace_of(row).kappa
    if pace is None or relative is None:
        return None
    return pace / relative


@statistic("Counted cost", TIMES, head="counted cost", better="lower", terminal=None, markdown=8, page=4)
def counted_cost(row: TableRow) -> float | None:
    """Sampled, scored and trained tokens, each times one calibration of its phase, over the baseline's at the same rollout budget:
    the same on every machine."""
    return row.relative_cost("counted")


@statistic(
    "Cost beside the clock", CLOCKS_COST, head="cost on clock", better="lower", terminal=None, markdown=None, page=None
)
def cost_on_clock(row: TableRow) -> float | None:
    """Counted cost over that of the line whose clock the pace is measured on: independent training at the suite's own rollout
    budget. It belongs beside the pace. The counted cost is over the baseline at the line's own budget, which costs more where a
    line samples more."""
    return row.clock_cost("counted")


@statistic("Gain at equal cost", POINTS, head="at equal cost", better="higher", terminal=None, markdown=5, page=4)
def equal_cost_gain(row: TableRow) -> float | None:
    """The gain over the line of independent training whose counted cost is nearest, at any rollout budget and learning rate of the
    suite."""
    return to_number(row.rivals.over_nearest.mean) if row.rivals else None


@statistic(
    "95 % interval at equal cost",
    head="equal-cost interval",
    terminal=None,
    markdown=None,
    page=4,
    interval_of="equal_cost_gain",
)
def equal_cost_interval(row: TableRow) -> Pair | None:
    """Student t over the seeds that both have; not corrected."""
    return to_bounds(row.rivals.over_nearest) if row.rivals else None


@statistic("Nearest cost", head="nearest cost", terminal=None, markdown=5, page=4)
def equal_cost_baseline(row: TableRow) -> str:
    """The line of independent training whose counted cost is nearest."""
    return row.rivals.nearest if row.rivals else ""


@statistic("Its cost", TIMES, head="its cost", terminal=None, markdown=None, page=None)
def equal_cost_ratio(row: TableRow) -> float | None:
    """Counted cost of the line of nearest cost over the line's own; far from 1 the suite has no baseline of equal cost."""
    return row.rivals.nearest_cost if row.rivals else None


@statistic("Gain at its best rate", POINTS, head="at best rate", better="higher", terminal=None, markdown=None, page=4)
def best_rate_gain(row: TableRow) -> float | None:
    """The gain over independent training with the same rollouts, at that of the suite's learning rates which suits it best."""
    return to_number(row.rivals.over_best_rate.mean) if row.rivals else None


@statistic(
    "95 % interval at its best rate",
    head="best-rate interval",
    terminal=None,
    markdown=None,
    page=4,
    interval_of="best_rate_gain",
)
def best_rate_interval(row: TableRow) -> Pair | None:
    """Student t over the seeds that both have; not corrected."""
    return to_bounds(row.rivals.over_best_rate) if row.rivals else None


@statistic("Best rate of", head="best rate of", terminal=None, markdown=None, page=None)
def best_rate_baseline(row: TableRow) -> str:
    """The line of independent training at its best learning rate."""
    return row.rivals.best_rate if row.rivals else ""


@statistic("Learning rates", terminal=None, markdown=None, page=None)
def baseline_rates(row: TableRow) -> int:
    """Learning rates of independent training that the suite has at these rollouts. One alone: whether a gain holds at the rate that
    suits the baseline best is not known."""
    return row.rivals.rates if row.rivals else 0


@statistic("Found", head="found", terminal=None, markdown=6, page=4)
def found(row: TableRow) -> str:
    """Whether a gain also holds at equal cost and over the baseline at its best rate in the suite, or where it does not."""
    return row.rivals.found if row.rivals else ""


@statistic("Greedy gain", POINTS, head="greedy", better="higher", terminal=None, markdown=5, page=2)
def greedy_gain(row: TableRow) -> float | None:
    """The gain of greedy answers: avg@k also pays for answers that are alike."""
    return _gain_beside(row.beside, GREEDY)


@statistic(
    "95 % interval of the greedy gain",
    head="greedy interval",
    terminal=None,
    markdown=None,
    page=2,
    interval_of="greedy_gain",
)
def greedy_gain_interval(row: TableRow) -> Pair | None:
    """Student t over seeds; not corrected."""
    return _interval_beside(row.beside, GREEDY)


@statistic("Gain of best@k", POINTS, head="best@k", better="higher", terminal=None, markdown=5, page=2)
def best_of_k_gain(row: TableRow) -> float | None:
    """The gain in the share of questions to which one of k answers is right: it falls where a policy's answers become alike."""
    return _gain_beside(row.beside, "best@")


@statistic(
    "95 % interval of the gain of best@k",
    head="best@k interval",
    terminal=None,
    markdown=None,
    page=2,
    interval_of="best_of_k_gain",
)
def best_of_k_gain_interval(row: TableRow) -> Pair | None:
    """Student t over seeds; not corrected."""
    return _interval_beside(row.beside, "best@")


@statistic(
    "Interval for other questions", head="other questions", terminal=None, markdown=None, page=2, interval_of="gain"
)
def gain_questions_interval(row: TableRow) -> Pair | None:
    """95 % interval of the gain for other seeds and other questions of the same kind, two-way; of the policies' mean, by avg@k. The
    other intervals are for the questions that were asked."""
    if row.crossed is None or isnan(row.crossed.error):
        return None
    return row.crossed.low, row.crossed.high


def _gain_beside(beside: Mapping[str, Estimate], metric: str) -> float | None:
    """Return the mean of the gain by the metric whose name begins so; None where it was not measured."""
    for name, gain in beside.items():
        if name.startswith(metric):
            return to_number(gain.mean)
    return None


def _interval_beside(beside: Mapping[str, Estimate], metric: str) -> Pair | None:
    """Return the interval of the gain by the metric whose name begins so; None where it was not measured."""
    for name, gain in beside.items():
        if name.startswith(metric):
            return to_bounds(gain)
    return None
