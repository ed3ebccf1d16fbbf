"""Means over seeds with Student t intervals."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

Array = Float[np.ndarray, "..."]


@dataclass(frozen=True, slots=True, eq=False)
class Estimate:
    """Means of n values with an interval and a two-sided p-value against 0; arrays of one batch shape.

    Attributes
    ----------
    mean
        Of the values that are there.
    low, high
        Ends of the Student t interval; NaN where n < 2.
    error
        Standard error of the mean; NaN where n < 2.
    p
        NaN where n < 2.
    n
        Values; `n - 1` are the degrees of freedom.
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

    def __getitem__(self, index: Any) -> Estimate:
        """Some of the means, as numpy indexes them."""
        return Estimate(*(getattr(self, field.name)[index] for field in fields(self)))


LUCK = 0.07
"""How improbable a small spread may be before it is taken for luck (`mean_interval`)."""


def mean_interval(values: ArrayLike, level: float = 0.95, noise: ArrayLike | None = None) -> Estimate:
    """Mean and Student t interval with n - 1 degrees of freedom over the last axis.

    A few seeds may agree by chance far closer than their noise allows, and three equal values would claim to know the mean
    exactly. So a variance over seeds is taken for at least

        w chi2(LUCK, n - 1) / (n - 1),    w the mean of the noise,

    the lower 7 % quantile of what n seeds show where the noise is all there is: less is luck. w itself would be too much of a
    floor: Student's t has paid for small spreads already, and intervals of three seeds would then nearly always cover. With
    this one they cover at most 97 % (simulated), in the worst case of nothing but noise, and 95 % where seeds differ more
    (our reading).

    Parameters
    ----------
    values
        (..., n); NaN entries are missing.
    level
        Of the interval, in (0, 1).
    noise
        Of the shape of `values`: a variance that each value is known to have (`sampling_variance`). Without it, values that are
        all equal have an interval of no width.
    """
    from scipy.special import chdtri, stdtr, stdtrit

    x = np.asarray(values, dtype=np.float64)
    present = ~np.isnan(x)
    n = present.sum(axis=-1)
    freedom = np.maximum(n - 1, 1).astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(present, x, 0.0).sum(axis=-1) / n
        # values that are all equal must give an error of exactly 0, which the rounding of their mean would spoil
        first = np.take_along_axis(x, present.argmax(axis=-1, keepdims=True), axis=-1) if x.shape[-1] else x
        shifted = np.where(present, x - first, 0.0) if x.shape[-1] else x
        centre = shifted.sum(axis=-1) / n
        variance = np.where(present, (shifted - centre[..., None]) ** 2, 0.0).sum(axis=-1) / (n - 1)
        if noise is not None:
            known = np.where(present, np.asarray(noise, dtype=np.float64), 0.0).sum(axis=-1) / n
            variance = np.maximum(variance, known * chdtri(freedom, 1 - LUCK) / freedom)
        error = np.where(n > 1, np.sqrt(variance / n), np.nan)
        half = stdtrit(freedom, 0.5 + level / 2) * error
        p = np.where(error == 0, np.where(mean == 0, 1.0, 0.0), 2 * stdtr(freedom, -np.abs(mean) / error))
    return Estimate(mean, mean - half, mean + half, error, np.where(n > 1, p, np.nan), n)
