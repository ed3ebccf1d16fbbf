"""How much faster a regime learns (kappa) and where it ends (delta), fitted together from learning curves [our definition].

A gain at one step is the height of a difference at the moment somebody stopped: a regime that only learns faster shows a large
gain in the middle of a run and none at its end. Two numbers tell both apart. With the baseline's learning curve f,

    R(t) = f(kappa t) + delta (f(kappa t) - f(0)) / (f(inf) - f(0)),

so kappa is the pace of the regime's clock, 1 for the baseline's own, and delta what it gains (in accuracy) once everything is
learnt. Fitted alone, kappa is wrong wherever the ends differ, since a higher end looks like a faster clock.

f is a logistic in steps, of one rate and one middle for all seeds of a group, with a level and a height of each seed's own: points
of one seed do not fix a shape. Only points with kappa t within the baseline's run count, the last ones less; nothing is
extrapolated. Both numbers are identified only where the baseline's curve flattens inside the run: elsewhere the standard error of
delta is large, and the fit is refused (`Acceleration.problem`). Intervals are Student t over the jackknife of seeds, kappa's on a
logarithmic scale. A few seeds may agree far closer by chance than their points allow: errors are at least those of least squares.

One baseline serves many regimes: `fit_clock` fits its curve once, `compare_with_clock` a regime against it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

# Paces that are tried; one at the edge is no estimate. A faster one would leave fewer than six tenths of a run to compare
SLOWEST, FASTEST, PACES = 0.4, 1.7, 181
# The fewest seeds and points for which a fit is tried
MIN_SEEDS, MIN_POINTS = 3, 5
# The least share of a baseline's variance over steps that its curve must explain
MIN_EXPLAINED = 0.8
# The last part of a run, in which a curve that has flattened rises by less than the margin
LAST_PART = 0.2
# Rates and middles of the logistic that are tried, as multiples of the run and of its inverse
_RATES = np.geomspace(2.0, 60.0, 25)
_MIDDLES = np.linspace(-0.5, 1.0, 31)
# A curve that does not rise has no clock: heights are at least this
_LEAST_HEIGHT = 1e-3


# The arrays of this module: N points of a run, S seeds, P paces that are tried; accuracies in [0, 1], times in steps
Points = Float[np.ndarray, "N"]
BySeed = Float[np.ndarray, "S"]
Curves = Float[np.ndarray, "S N"]
Times = Float[np.ndarray, "*paces N"]
ByPace = Float[np.ndarray, "P"]
Weights = Float[np.ndarray, "P N"]
# Squared residuals of each seed for every shape of the logistic that is tried
Losses = Float[np.ndarray, "shapes S"]


@dataclass(frozen=True, slots=True, eq=False)
class BaselineCurve:
    """f of each seed: level + height / (1 + exp(-rate (t - middle))). rate: per step. middle: in steps. level, height: accuracies.
    explained: share of the variance over steps."""

    rate: float
    middle: float
    level: BySeed
    height: BySeed
    explained: float

    def predict_accuracy(self, steps: Times) -> Float[np.ndarray, "S *paces N"]:
        """Return each seed's accuracy at these steps."""
        rise = self._logistic_at(steps)
        over_seeds = (-1, *[1] * rise.ndim)
        level = self.level.reshape(over_seeds)  # (S, 1, ...), as many axes as the result
        height = self.height.reshape(over_seeds)
        accuracy: Float[np.ndarray, "S *paces N"] = level + height * rise
        return accuracy

    def share_learnt(self, steps: Times) -> Times:
        """Return (f(t) - f(0)) / (f(inf) - f(0)), the share of all that can be learnt; the same for every seed."""
        at_begin = self._logistic_at(np.zeros(1))
        begun = float(at_begin[0])
        risen = self._logistic_at(steps)
        share: Times = (risen - begun) / (1.0 - begun)
        return share

    def rise_at_the_end(self, run: float) -> float:
        """Return by how much the mean accuracy rises over the last part of a run of so many steps."""
        ends_of_part = np.array([(1 - LAST_PART) * run, run])
        before, at_end = self._logistic_at(ends_of_part)
        mean_height = self.height.mean()
        return float(mean_height * (at_end - before))

    def _logistic_at(self, steps: Times) -> Times:
        return _logistic(self.rate * (steps - self.middle))


@dataclass(frozen=True, slots=True, eq=False)
class BaselineClock:
    """A baseline's curve. steps: at which it was measured. whole: fitted from all seeds. without: from all seeds but each."""

    steps: Points
    whole: BaselineCurve
    without: tuple[BaselineCurve, ...]


@dataclass(frozen=True, slots=True)
class Acceleration:
    """kappa: pace, with the ends of its interval. delta: difference of the ends in accuracy, likewise. n: seeds.

    problem: why neither counts; empty where both do. rising: whether the baseline's own curve still rises by more than the margin
    in the last fifth of its run, so that nothing is known of the ends. paces, ends: kappa and delta without each seed, in the
    order of the seeds; empty where no fit was tried. explained: share of the baseline's variance over steps that its curve
    explains. kappa_error, delta_error: standard errors of kappa's logarithm and of delta; least_kappa_error, least_delta_error: by
    least squares with the baseline's curve given, below which the former never are.
    """

    kappa: float
    kappa_low: float
    kappa_high: float
    delta: float
    delta_low: float
    delta_high: float
    n: int
    problem: str = ""
    rising: bool = False
    paces: tuple[float, ...] = ()
    ends: tuple[float, ...] = ()
    explained: float = nan
    kappa_error: float = nan
    delta_error: float = nan
    least_kappa_error: float = nan
    least_delta_error: float = nan


def fit_acceleration(
    steps: ArrayLike, baseline: ArrayLike, regime: ArrayLike, *, margin: float = 0.02, level: float = 0.95
) -> Acceleration:
    """Fit kappa and delta of a regime against its baseline.

    steps: (N,) at which both were measured, rising to the end of the run. baseline, regime: (S, N) accuracies of the same S seeds
    in [0, 1], without gaps. margin: a standard error of delta above it is no identification. level: of the intervals.
    Raises ValueError for other shapes.
    """
    t, base, other = _checked_curves(steps, baseline, regime)
    few = describe_too_few(*base.shape)
    if few:
        return refused_fit(base.shape[0], few)
    return compare_with_clock(fit_clock(t, base), other, margin=margin, level=level)


def describe_too_few(seeds: int, points: int) -> str:
    """Say that there are too few seeds or points for a fit; empty where there are enough."""
    if seeds >= MIN_SEEDS and points >= MIN_POINTS:
        return ""
    counted = "1 seed" if seeds == 1 else f"{seeds} seeds"
    return f"{counted} with {points} points; needs {MIN_SEEDS} with {MIN_POINTS}"


def refused_fit(seeds: int, why: str) -> Acceleration:
    """Return a fit that was not tried."""
    return Acceleration(nan, nan, nan, nan, nan, nan, seeds, why)


def fit_clock(steps: Points, baseline: Curves) -> BaselineClock:
    """Fit the baseline's curve from all seeds, and from all but each, for the jackknife.

    steps: rising to the end of the run. baseline: accuracies in [0, 1], without gaps.
    """
    share_of_run = steps / steps[-1]  # (N,)
    losses = _losses_of_grid(share_of_run, baseline)
    loss_of_all = losses.sum(axis=1)  # (shapes,)
    whole = _refine_curve(steps, baseline, loss_of_all)
    without = []
    for seed in range(len(baseline)):
        others = np.delete(baseline, seed, axis=0)  # (S - 1, N)
        loss_of_others = loss_of_all - losses[:, seed]
        without.append(_refine_curve(steps, others, loss_of_others))
    return BaselineClock(steps, whole, tuple(without))


def fit_baseline(steps: Points, accuracies: Curves) -> BaselineCurve:
    """Fit the baseline's curve by least squares: a grid of shapes, refined from the best one."""
    share_of_run = steps / steps[-1]  # (N,)
    losses = _losses_of_grid(share_of_run, accuracies)
    return _refine_curve(steps, accuracies, losses.sum(axis=1))


def compare_with_clock(
    clock: BaselineClock, regime: Curves, *, margin: float = 0.02, level: float = 0.95
) -> Acceleration:
    """Fit kappa and delta of a regime against a baseline whose curve is fitted.

    regime: accuracies of the clock's seeds, in their order, at its steps. margin, level: as for `fit_acceleration`.
    """
    baseline = clock.whole
    seeds = len(regime)
    kappa, delta = _fit_pace(baseline, clock.steps, regime)
    paces, ends = _fit_without_each_seed(clock, regime)
    least_kappa_error, least_delta_error = _least_errors(clock, regime, kappa, delta)
    # kappa is a ratio, so that its error and its interval are those of its logarithm
    log_paces = np.log(paces)
    kappa_error = max(jackknife_error(log_paces), least_kappa_error)
    delta_error = max(jackknife_error(np.array(ends)), least_delta_error)
    width = student_quantile(level, seeds - 1)
    kappa_low = kappa * np.exp(-width * kappa_error)
    with np.errstate(over="ignore"):  # an error so large leaves no upper end
        kappa_high = kappa * np.exp(width * kappa_error)
    run = float(clock.steps[-1])
    last_rise = baseline.rise_at_the_end(run)
    problem = _find_problem(baseline, kappa, delta_error, margin)
    return Acceleration(
        kappa=kappa,
        kappa_low=float(kappa_low),
        kappa_high=float(kappa_high),
        delta=delta,
        delta_low=delta - width * delta_error,
        delta_high=delta + width * delta_error,
        n=seeds,
        problem=problem,
        rising=last_rise > margin,
        paces=paces,
        ends=ends,
        explained=baseline.explained,
        kappa_error=kappa_error,
        delta_error=delta_error,
        least_kappa_error=least_kappa_error,
        least_delta_error=least_delta_error,
    )


def _fit_without_each_seed(clock: BaselineClock, regime: Curves) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the paces and the deltas that are fitted without each seed, in the order of the seeds, for the jackknife."""
    paces, ends = [], []
    for seed, baseline in enumerate(clock.without):
        others = np.delete(regime, seed, axis=0)  # (S - 1, N)
        pace, end = _fit_pace(baseline, clock.steps, others)
        paces.append(pace)
        ends.append(end)
    return tuple(paces), tuple(ends)


def jackknife_error(left_out: BySeed) -> float:
    """Return the standard error of an estimate from those that leave out a seed each (Efron and Stein, 1981)."""
    n = left_out.size
    deviations = left_out - left_out.mean()
    squares = (deviations**2).sum()
    return float(np.sqrt((n - 1) / n * squares))


def student_quantile(level: float, freedom: float) -> float:
    """Return how many standard errors a two-sided interval of this level reaches to either side."""
    from scipy.special import stdtrit

    upper_end = 0.5 + level / 2
    return float(stdtrit(freedom, upper_end))


def _checked_curves(steps: ArrayLike, baseline: ArrayLike, regime: ArrayLike) -> tuple[Points, Curves, Curves]:
    """Return the curves as arrays. Raises ValueError where they are not alike, have gaps, or where steps do not rise."""
    t = np.asarray(steps, dtype=np.float64)
    base = np.asarray(baseline, dtype=np.float64)
    other = np.asarray(regime, dtype=np.float64)
    alike = base.shape == other.shape
    if not alike or base.ndim != 2 or base.shape[1:] != t.shape:
        raise ValueError(
            f"curves of shapes {base.shape} and {other.shape} at {t.shape} steps; expected twice (seeds, steps)"
        )
    spacing = np.diff(t)
    if t.size and (t[0] < 0 or np.any(spacing <= 0)):
        raise ValueError("steps must rise from 0 or later")
    complete = np.isfinite(base).all() and np.isfinite(other).all()
    if not complete:
        raise ValueError("curves with gaps; leave out seeds that lack a point")
    return t, base, other


def _logistic(x: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    # beyond 60 the curve is flat to the last bit, and its exponential would overflow
    bounded = np.clip(x, -60.0, 60.0)
    risen: Float[np.ndarray, "..."] = 1.0 / (1.0 + np.exp(-bounded))
    return risen


# The baseline's curve -------------------------------------------------------------------------------------------------


def _losses_of_grid(share: Points, accuracies: Curves) -> Losses:
    """Return each seed's squared residuals for every shape of the grid, rates outside, with its best level and height.

    share: of the run that each point has served. Seeds have levels and heights of their own, so that the loss of some seeds is
    the sum of theirs: leaving one out needs no second grid.
    """
    rates = np.repeat(_RATES, _MIDDLES.size)[:, None]  # (shapes, 1)
    middles = np.tile(_MIDDLES, _RATES.size)[:, None]  # (shapes, 1)
    rise = _logistic(rates * (share - middles))  # (shapes, N)
    mean_rise = rise.mean(axis=1, keepdims=True)
    centred_rise = rise - mean_rise
    rise_squares = (centred_rise**2).sum(axis=1, keepdims=True)  # (shapes, 1)
    rise_squares = np.maximum(rise_squares, 1e-12)
    mean_accuracy = accuracies.mean(axis=1, keepdims=True)
    centred = accuracies - mean_accuracy  # (S, N)
    products = centred_rise @ centred.T  # (shapes, S)
    height = np.maximum(products / rise_squares, _LEAST_HEIGHT)
    # |y - h r|^2 = |y|^2 - 2 h r.y + h^2 |r|^2, where the best level has taken the means out of y and r
    squares = (centred**2).sum(axis=1)  # (S,)
    crossed = 2 * height * products
    of_rise = height**2 * rise_squares
    losses: Losses = squares - crossed + of_rise
    return losses


def _refine_curve(steps: Points, accuracies: Curves, losses: Float[np.ndarray, "shapes"]) -> BaselineCurve:
    """Return the best curve, searched from the shape of the grid with the least loss."""
    from scipy.optimize import minimize

    run = float(steps[-1])
    share = steps / run  # (N,)
    best = int(losses.argmin())
    rate_place, middle_place = divmod(best, _MIDDLES.size)
    begin = np.array([_RATES[rate_place], _MIDDLES[middle_place]])
    options = {"xatol": 1e-4}
    refined = minimize(_loss_of_shape, begin, args=(share, accuracies), method="Nelder-Mead", options=options)
    rate, middle = _bound_shape(refined.x)
    level, height = _levels_of_shape(rate, middle, share, accuracies)
    loss = _loss_of_shape((rate, middle), share, accuracies)
    mean_accuracy = accuracies.mean(axis=1, keepdims=True)  # (S, 1)
    deviations = accuracies - mean_accuracy
    spread = float((deviations**2).sum())
    explained = 1.0 - loss / max(spread, 1e-12)
    # the search ran in shares of the run; the curve is in steps
    return BaselineCurve(rate / run, middle * run, level, height, explained)


def _bound_shape(shape: Sequence[float]) -> tuple[float, float]:
    """Return rate and middle, moved onto the grid's edge where they lie outside."""
    rate, middle = shape
    bounded_rate = np.clip(rate, _RATES[0], _RATES[-1])
    bounded_middle = np.clip(middle, _MIDDLES[0], _MIDDLES[-1])
    return float(bounded_rate), float(bounded_middle)


def _levels_of_shape(rate: float, middle: float, share: Points, accuracies: Curves) -> tuple[BySeed, BySeed]:
    """Return each seed's level and height by least squares."""
    rise = _logistic(rate * (share - middle))
    mean_rise = rise.mean()
    centred = rise - mean_rise  # (N,)
    squares = max(float(centred @ centred), 1e-12)
    slopes = accuracies @ centred / squares  # (S,)
    height = np.maximum(slopes, _LEAST_HEIGHT)
    level = accuracies.mean(axis=1) - height * mean_rise
    return level, height


def _loss_of_shape(shape: Sequence[float], share: Points, accuracies: Curves) -> float:
    """Return the squared residuals of the best levels. share: of the run that each point has served."""
    rate, middle = _bound_shape(shape)
    level, height = _levels_of_shape(rate, middle, share, accuracies)
    rise = _logistic(rate * (share - middle))  # (N,)
    fitted = level[:, None] + height[:, None] * rise  # (S, N)
    residuals = accuracies - fitted
    return float((residuals**2).sum())


# The regime's pace ----------------------------------------------------------------------------------------------------


def _fit_pace(curve: BaselineCurve, steps: Points, accuracies: Curves) -> tuple[float, float]:
    """Return the pace with the least mean squared residual, between grid points by a parabola, and its delta."""
    paces = np.geomspace(SLOWEST, FASTEST, PACES)
    losses, _ = _losses_of_paces(paces, curve, steps, accuracies)
    best = int(losses.argmin())
    pace = float(paces[best])
    if 0 < best < PACES - 1:
        below, least, above = losses[best - 1 : best + 2]
        bend = below - 2 * least + above
        if bend > 0:
            # the vertex of the parabola through three points, in grid points from the middle one
            shift = 0.5 * (below - above) / bend
            ratio = paces[best + 1] / paces[best]
            pace *= float(ratio**shift)
    _, deltas = _losses_of_paces(np.array([pace]), curve, steps, accuracies)
    return pace, float(deltas[0])


def _losses_of_paces(
    paces: ByPace,
    curve: BaselineCurve,
    steps: Points,
    accuracies: Curves,
) -> tuple[ByPace, ByPace]:
    """Return the mean squared residual at each pace with its best delta, over points within the baseline's run; and the deltas.

    A point fades out over one interval before its time on the baseline's clock reaches the end of the run, smoothly: where points
    dropped out at once the loss would jump, and where their weights had a kink the same pace would be best without whichever seed,
    so that its interval would come out far too narrow.
    """
    run = steps[-1]
    weights = _weights_of_points(paces, steps)
    times = paces[:, None] * steps
    served = np.minimum(times, run)  # (P, N); beyond it the weight is 0
    learnt = curve.share_learnt(served)  # (P, N)
    at_pace = curve.predict_accuracy(served)  # (S, P, N)
    beyond = accuracies[:, None, :] - at_pace
    # delta by weighted least squares over all seeds and points: the share learnt explains what is beyond the curve
    weighted_learnt = weights * learnt
    learnt_squares = (weighted_learnt * learnt).sum(axis=1)  # (P,)
    explained = len(accuracies) * learnt_squares
    products = (beyond * weighted_learnt).sum(axis=(0, 2))  # (P,)
    deltas = products / np.maximum(explained, 1e-12)
    residuals = beyond - deltas[:, None] * learnt  # (S, P, N)
    squares = (residuals**2 * weights).sum(axis=2)  # (S, P)
    losses = squares.mean(axis=0) / weights.sum(axis=1)
    return losses, deltas


def _weights_of_points(paces: ByPace, steps: Points) -> Weights:
    """Return how much each point counts at each pace: 1 well inside the baseline's run, 0 beyond it."""
    run = steps[-1]
    next_step = 2 * run - steps[-2]
    spacing = np.diff(steps, append=next_step)  # (N,)
    last_step = run / paces[:, None]  # (P, 1), at which the baseline's run is over
    intervals_left = (last_step - steps) / spacing  # (P, N)
    inside = np.clip(intervals_left, 0.0, 1.0)
    # falls from 1 to 0 without a kink at either end
    weights: Weights = inside**2 * (3.0 - 2.0 * inside)
    return weights


def _least_errors(clock: BaselineClock, regime: Curves, kappa: float, delta: float) -> tuple[float, float]:
    """Return the standard errors of kappa's logarithm and of delta by least squares, with the baseline's curve given.

    dR/d(log kappa) = f'(kappa t) kappa t, to first order; dR/d(delta) is the share learnt. The residuals' variance is theirs.
    """
    curve = clock.whole
    weights_at_pace = _weights_of_points(np.array([kappa]), clock.steps)[0]  # (N,)
    weights = np.broadcast_to(weights_at_pace, regime.shape)  # (S, N)
    served = np.minimum(kappa * clock.steps, clock.steps[-1])  # (N,)
    # both derivatives, (S, N)
    risen = _logistic(curve.rate * (served - curve.middle))
    slope = risen * (1.0 - risen) * curve.rate * served
    by_pace = curve.height[:, None] * slope
    by_end = np.broadcast_to(curve.share_learnt(served), regime.shape)
    at_pace = curve.predict_accuracy(served)
    residuals = regime - at_pace - delta * by_end
    squares = float((weights * residuals**2).sum())
    freedom = max(float(weights.sum()) - 2.0, 1.0)
    variance = squares / freedom
    # the covariance of both numbers is variance (X' W X)^-1
    columns = np.stack([by_pace.ravel(), by_end.ravel()], axis=1)  # (S N, 2)
    weighted = columns * weights.ravel()[:, None]
    information = weighted.T @ columns  # (2, 2)
    covariance = np.linalg.pinv(information)
    errors = np.sqrt(variance * np.diag(covariance))
    return float(errors[0]), float(errors[1])


def _find_problem(curve: BaselineCurve, kappa: float, delta_error: float, margin: float) -> str:
    """Say why a fit does not count; empty where it does."""
    if curve.explained < MIN_EXPLAINED:
        return f"the baseline's curve is no logistic, which explains less than {100 * MIN_EXPLAINED:g} % of it"
    if not SLOWEST * 1.01 < kappa < FASTEST / 1.01:
        return f"kappa lies outside [{SLOWEST}, {FASTEST}]"
    if delta_error > margin:
        too_wide = f"the standard error of the reach is above {100 * margin:g} points"
        return f"{too_wide}: the baseline's curve must flatten inside the run"
    return ""
