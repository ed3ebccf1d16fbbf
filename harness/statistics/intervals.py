"""Means over seeds with Student t intervals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike
from scipy.special import stdtr, stdtrit

Array = Float[np.ndarray, "..."]


@dataclass(frozen=True, slots=True, eq=False)
class Estimate:
    """Means of n values with an interval and a two-sided p-value against 0; arrays of one batch shape.

    `low`, `high`, `p` are NaN where n < 2; `error` is the standard error, `n - 1` the degrees of freedom.
    """

    mean: Array
    low: Array
    high: Array
    error: Array
    p: Array
    n: Int[np.ndarray, "..."]

    @property
    def separate(self) -> np.ndarray:
        """Where the interval leaves 0 out."""
        return (self.low > 0) | (self.high < 0)


def mean_interval(values: ArrayLike, level: float = 0.95) -> Estimate:
    """Mean and Student t interval with n - 1 degrees of freedom over the last axis; NaN entries are missing.

    Values that are all equal have an interval of no width: n seeds then say nothing of the spread but that it is small.
    """
    x = np.asarray(values, dtype=np.float64)
    present = ~np.isnan(x)
    n = present.sum(axis=-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(present, x, 0.0).sum(axis=-1) / n
        # values that are all equal must give an error of exactly 0, which the rounding of their mean would spoil
        first = np.take_along_axis(x, present.argmax(axis=-1, keepdims=True), axis=-1) if x.shape[-1] else x
        shifted = np.where(present, x - first, 0.0) if x.shape[-1] else x
        centre = shifted.sum(axis=-1) / n
        squares = np.where(present, (shifted - centre[..., None]) ** 2, 0.0).sum(axis=-1)
        error = np.where(n > 1, np.sqrt(squares / (n - 1) / n), np.nan)
        half = stdtrit(np.maximum(n - 1, 1), 0.5 + level / 2) * error
        t = np.abs(mean) / error
        p = np.where(error == 0, np.where(mean == 0, 1.0, 0.0), 2 * stdtr(np.maximum(n - 1, 1), -t))
    return Estimate(mean, mean - half, mean + half, error, np.where(n > 1, p, np.nan), n)
