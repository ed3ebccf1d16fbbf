"""Numbers of a whole learning curve, and what a gain costs."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from harness.statistics.intervals import Array


def area_under_curve(steps: Float[np.ndarray, "points"], accuracy: Float[np.ndarray, "... points"]) -> Array:
    """Mean height of the curves between the first and last step (trapezoids): accuracy averaged over training.

    A single point is its own mean. NaN points make the curve's area NaN.

    Parameters
    ----------
    steps
        (points,) in any order.
    accuracy
        (..., points).
    """
    x, y = np.asarray(steps, dtype=np.float64), np.asarray(accuracy, dtype=np.float64)
    order = np.argsort(x, kind="stable")
    x, y = x[order], y[..., order]
    if x.size == 1:
        return y[..., 0]
    return np.asarray(np.trapezoid(y, x, axis=-1) / (x[-1] - x[0]))


def per_unit(gain: ArrayLike, cost: ArrayLike, unit: float = 1.0) -> Array:
    """Gain per unit of cost, e.g. per 1,000 rollouts or per GPU-second.

    Parameters
    ----------
    gain
        In accuracy.
    cost
        Of one shape with `gain`.
    unit
        As many units of `cost` count as one.

    Returns
    -------
    :
        NaN where nothing was spent.
    """
    spent = np.asarray(cost, dtype=np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(spent > 0, np.asarray(gain, dtype=np.float64) * unit / spent, np.nan)
