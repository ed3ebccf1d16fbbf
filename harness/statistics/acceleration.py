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
logarithmic scale.
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
# Rates and middles of the logistic that are tried, as multiples of the run and of its inverse
_RATES = np.geomspace(2.0, 60.0, 25)
_MIDDLES = np.linspace(-0.5, 1.0, 31)


@dataclass(frozen=True, slots=True, eq=False)
class BaselineCurve:
    """f of each seed: level + height / (1 + exp(-rate (t - middle))). rate: per step. middle: in steps. level, height: accuracies.
    explained: share of the variance over steps."""

    rate: float
    middle: float
    level: Float[np.ndarray, "S"]
    height: Float[np.ndarray, "S"]
    explained: float

    def at(self, steps: Float[np.ndarray, "... N"]) -> Float[np.ndarray, "S N"]:
        """Return each seed's accuracy at these steps."""
        accuracies: Float[np.ndarray, "S N"] = self.level[:, None] + self.height[:, None] * self._rise(steps)
        return accuracies

    def learnt(self, steps: Float[np.ndarray, "N"]) -> Float[np.ndarray, "N"]:
        """Return (f(t) - f(0)) / (f(inf) - f(0)), the share of all that can be learnt; the same for every seed."""
        begun = float(self._rise(np.zeros(1))[0])
        share: Float[np.ndarray, "N"] = (self._rise(steps) - begun) / (1.0 - begun)
        return share

    def _rise(self, steps: Float[np.ndarray, "N"]) -> Float[np.ndarray, "N"]:
        return _logistic(self.rate * (steps - self.middle))


@dataclass(frozen=True, slots=True)
class Acceleration:
    """kappa: pace, with the ends of its interval. delta: difference of the ends in accuracy, likewise. problem: why neither counts;
    empty where both do. n: seeds."""

    kappa: float
    kappa_low: float
    kappa_high: float
    delta: float
    delta_low: float
    delta_high: float
    n: int
    problem: str = ""


def fit_acceleration(
    steps: ArrayLike, baseline: ArrayLike, regime: ArrayLike, *, margin: float = 0.02, level: float = 0.95
) -> Acceleration:
    """Fit kappa and delta of a regime against its baseline.

    steps: (N,) at which both were measured, rising to the end of the run. baseline, regime: (S, N) accuracies of the same S seeds
    in [0, 1], without gaps. margin: a standard error of delta above it is no identification. level: of the intervals.
    Raises ValueError for other shapes.
    """
    t, base, other = _checked_curves(steps, baseline, regime)
    seeds = base.shape[0]
    if seeds < MIN_SEEDS or t.size < MIN_POINTS:
        few = f"{seeds} seeds with {t.size} points; needs {MIN_SEEDS} with {MIN_POINTS}"
        return Acceleration(nan, nan, nan, nan, nan, nan, seeds, few)
    curve = fit_baseline(t, base)
    kappa, delta = _fit_pace(curve, t, other)
    left_out = [_fit_without(seed, t, base, other) for seed in range(seeds)]
    kappa_error = _jackknife_error(np.log([pace for pace, _ in left_out]))
    delta_error = _jackknife_error(np.array([end for _, end in left_out]))
    width = _student_quantile(level, seeds - 1)
    problem = _find_problem(curve, kappa, delta_error, margin)
    return Acceleration(
        kappa=kappa,
        kappa_low=float(kappa * np.exp(-width * kappa_error)),
        kappa_high=float(kappa * np.exp(width * kappa_error)),
        delta=delta,
        delta_low=delta - width * delta_error,
        delta_high=delta + width * delta_error,
        n=seeds,
        problem=problem,
    )


def fit_baseline(steps: Float[np.ndarray, "N"], accuracies: Float[np.ndarray, "S N"]) -> BaselineCurve:
    """Fit the baseline's curve by least squares: a grid of shapes, refined from the best one."""
    from scipy.optimize import minimize

    run = float(steps[-1])
    shapes = [(rate, middle) for rate in _RATES for middle in _MIDDLES]
    losses = [_loss_of_shape(shape, steps / run, accuracies) for shape in shapes]
    begin = np.array(shapes[int(np.argmin(losses))])
    refined = minimize(
        _loss_of_shape, begin, args=(steps / run, accuracies), method="Nelder-Mead", options={"xatol": 1e-4}
    )
    rate, middle = np.clip(refined.x, [_RATES[0], _MIDDLES[0]], [_RATES[-1], _MIDDLES[-1]])
    level, height = _levels_of_shape((rate, middle), steps / run, accuracies)
    spread = accuracies - accuracies.mean(axis=1, keepdims=True)
    loss = _loss_of_shape((rate, middle), steps / run, accuracies)
    explained = 1.0 - loss / max(float((spread**2).sum()), 1e-12)
    return BaselineCurve(float(rate) / run, float(middle) * run, level, height, explained)


def _checked_curves(
    steps: ArrayLike, baseline: ArrayLike, regime: ArrayLike
) -> tuple[Float[np.ndarray, "N"], Float[np.ndarray, "S N"], Float[np.ndarray, "S N"]]:
    t = np.asarray(steps, dtype=np.float64)
    base = np.asarray(baseline, dtype=np.float64)
    other = np.asarray(regime, dtype=np.float64)
    if base.shape != other.shape or base.ndim != 2 or base.shape[1:] != t.shape:
        raise ValueError(
            f"curves of shapes {base.shape} and {other.shape} at {t.shape} steps; expected twice (seeds, steps)"
        )
    if t.size and (t[0] < 0 or np.any(np.diff(t) <= 0)):
        raise ValueError("steps must rise from 0 or later")
    if not (np.isfinite(base).all() and np.isfinite(other).all()):
        raise ValueError("curves with gaps; leave out seeds that lack a point")
    return t, base, other


def _logistic(x: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    risen: Float[np.ndarray, "..."] = 1.0 / (1.0 + np.exp(-np.clip(x, -60.0, 60.0)))
    return risen


def _levels_of_shape(
    shape: Sequence[float], share: Float[np.ndarray, "N"], accuracies: Float[np.ndarray, "S N"]
) -> tuple[Float[np.ndarray, "S"], Float[np.ndarray, "S"]]:
    """Each seed's level and height by least squares, a height of at least a thousandth: the curve rises."""
    rise = _logistic(shape[0] * (share - shape[1]))
    centred = rise - rise.mean()
    height = np.maximum(accuracies @ centred / max(float(centred @ centred), 1e-12), 1e-3)
    return accuracies.mean(axis=1) - height * rise.mean(), height


def _loss_of_shape(
    shape: Sequence[float], share: Float[np.ndarray, "N"], accuracies: Float[np.ndarray, "S N"]
) -> float:
    """Squared residuals of the best levels. share: of the run that each point has served."""
    bounded = np.clip(shape, [_RATES[0], _MIDDLES[0]], [_RATES[-1], _MIDDLES[-1]]).tolist()
    level, height = _levels_of_shape(bounded, share, accuracies)
    fitted = level[:, None] + height[:, None] * _logistic(bounded[0] * (share - bounded[1]))
    return float(((accuracies - fitted) ** 2).sum())


def _fit_pace(
    curve: BaselineCurve, steps: Float[np.ndarray, "N"], accuracies: Float[np.ndarray, "S N"]
) -> tuple[float, float]:
    """The pace with the least mean squared residual, between grid points by a parabola, and its delta."""
    paces = np.geomspace(SLOWEST, FASTEST, PACES)
    losses = np.array([_loss_of_pace(pace, curve, steps, accuracies)[0] for pace in paces])
    best = int(np.argmin(losses))
    pace = float(paces[best])
    if 0 < best < PACES - 1:
        below, least, above = losses[best - 1 : best + 2]
        bend = below - 2 * least + above
        if bend > 0:
            shift = 0.5 * (below - above) / bend
            pace *= float((paces[best + 1] / paces[best]) ** shift)
    return pace, _loss_of_pace(pace, curve, steps, accuracies)[1]


def _loss_of_pace(
    pace: float, curve: BaselineCurve, steps: Float[np.ndarray, "N"], accuracies: Float[np.ndarray, "S N"]
) -> tuple[float, float]:
    """The mean squared residual at a pace with its best delta, over points that lie within the baseline's run; and that delta.

    A point fades out over one interval before its time on the baseline's clock reaches the end of the run. Where points dropped
    out at once, the loss would jump, and paces just behind a jump would be preferred.
    """
    spacing = np.diff(steps, append=2 * steps[-1] - steps[-2])
    weights = np.clip((steps[-1] / pace - steps) / spacing, 0.0, 1.0)
    served = np.minimum(pace * steps, steps[-1])  # beyond it the weight is 0
    learnt = curve.learnt(served)
    beyond = accuracies - curve.at(served)
    explained = float(weights @ learnt**2) * accuracies.shape[0]
    delta = float((beyond @ (weights * learnt)).sum()) / max(explained, 1e-12)
    residual = (beyond - delta * learnt) ** 2
    return float((residual @ weights).mean()) / float(weights.sum()), delta


def _fit_without(
    seed: int, steps: Float[np.ndarray, "N"], baseline: Float[np.ndarray, "S N"], regime: Float[np.ndarray, "S N"]
) -> tuple[float, float]:
    """kappa and delta without one seed."""
    curve = fit_baseline(steps, np.delete(baseline, seed, axis=0))
    return _fit_pace(curve, steps, np.delete(regime, seed, axis=0))


def _jackknife_error(left_out: Float[np.ndarray, "S"]) -> float:
    """The standard error of an estimate from those that leave out a seed each (Efron and Stein, 1981)."""
    n = left_out.size
    return float(np.sqrt((n - 1) / n * ((left_out - left_out.mean()) ** 2).sum()))


def _student_quantile(level: float, freedom: int) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.5 + level / 2))


def _find_problem(curve: BaselineCurve, kappa: float, delta_error: float, margin: float) -> str:
    if curve.explained < MIN_EXPLAINED:
        return (
            f"the baseline's curve is no logistic: it explains {100 * curve.explained:.0f}% of the variance over steps"
        )
    if not SLOWEST * 1.01 < kappa < FASTEST / 1.01:
        return f"kappa lies outside [{SLOWEST}, {FASTEST}]"
    if delta_error > margin:
        return (
            f"not identified: the standard error of delta is {100 * delta_error:.1f} points, above the margin of "
            f"{100 * margin:g}; the baseline's curve must flatten inside the run"
        )
    return ""
