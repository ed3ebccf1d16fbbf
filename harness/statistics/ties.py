"""Tie groups: ranks that claim no more than the data can tell apart."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int
from scipy.special import stdtr

from harness.statistics.compare import holm


def tie_groups(scores: Float[np.ndarray, "regimes seeds"], alpha: float = 0.05) -> Int[np.ndarray, "regimes"]:
    """Rank groups from 1 (best); regimes that the data cannot tell from a group's leader share its rank.

    All pairs are tested with Holm's correction over the whole family (`pairwise`). The best mean leads group 1; the best
    one that differs from it leads group 2, and so on. "Cannot be told apart" is not transitive, so a member may differ from
    another member: the promise is about leaders only. Regimes without scores get 0; a single seed ties everything.
    """
    x = np.asarray(scores, dtype=np.float64)
    groups = np.zeros(len(x), dtype=np.int64)
    known = np.flatnonzero(~np.isnan(x).all(axis=1)) if x.size else np.empty(0, dtype=np.int64)
    if not known.size:
        return groups
    means, p = pairwise(x[known])
    first, second = np.triu_indices(known.size, 1)
    distinct = np.zeros((known.size, known.size), dtype=bool)
    with np.errstate(invalid="ignore"):
        distinct[first, second] = distinct[second, first] = holm(p[first, second]) <= alpha
    left = [int(i) for i in np.argsort(-means, kind="stable")]
    while left:
        members = [i for i in left if not distinct[left[0], i]]
        groups[known[members]] = groups.max() + 1
        left = [i for i in left if i not in set(members)]
    return groups


def pairwise(
    scores: Float[np.ndarray, "regimes seeds"],
) -> tuple[Float[np.ndarray, "regimes"], Float[np.ndarray, "regimes regimes"]]:
    """Adjusted means, and two-sided p-values of all differences, paired by seed with one pooled error.

    Additive model score = regime + seed + noise by least squares (two-way analysis of variance), so missing seeds are
    allowed for, and the few seeds of one pair borrow the error of all. For two regimes it is the paired t test. It takes the
    regimes for equally noisy: where some are twice as noisy as others, 7 % of the families of nine equal regimes are split
    instead of 5 % (simulated).
    """
    regimes, seeds = scores.shape
    row, column = np.nonzero(~np.isnan(scores))
    design = np.zeros((row.size, regimes + seeds))
    design[np.arange(row.size), row] = 1.0
    design[np.arange(row.size), regimes + column] = 1.0
    inverse = np.linalg.pinv(design.T @ design, hermitian=True)
    effects = inverse @ design.T @ scores[row, column]
    residuals = scores[row, column] - design @ effects
    freedom = row.size - np.linalg.matrix_rank(design)
    means = effects[:regimes] + effects[regimes:].mean()
    if freedom < 1:
        return means, np.full((regimes, regimes), np.nan)
    noise = max(float(residuals @ residuals) / freedom, 0.0)
    block = inverse[:regimes, :regimes]
    spread = np.diag(block)[:, None] + np.diag(block)[None] - 2 * block
    error = np.sqrt(np.maximum(noise * spread, 0.0))
    gap = np.abs(means[:, None] - means[None])
    with np.errstate(invalid="ignore", divide="ignore"):
        t = np.where(error > 1e-12, gap / error, np.where(gap > 1e-9, np.inf, 0.0))
    return means, 2 * stdtr(freedom, -t)
