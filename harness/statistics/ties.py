"""Tie groups: ranks that claim no more than the data can tell apart."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from harness.statistics.compare import holm, paired


def tie_groups(scores: Float[np.ndarray, "regimes seeds"], alpha: float = 0.05) -> Int[np.ndarray, "regimes"]:
    """Rank groups from 1 (best); regimes that the paired test cannot tell from a group's leader share its rank.

    All pairs are tested by seed with Holm's correction over the whole family. The best mean leads group 1; the best one
    that differs from it leads group 2, and so on. "Cannot be told apart" is not transitive, so a member may well differ
    from another member: the promise is about leaders only. Regimes without scores get 0; a single seed ties everything.
    """
    x = np.asarray(scores, dtype=np.float64)
    counts = (~np.isnan(x)).sum(axis=1)
    with np.errstate(invalid="ignore"):
        means = np.nansum(x, axis=1) / np.where(counts, counts, np.nan)
    first, second = np.triu_indices(len(x), 1)
    distinct = np.zeros((len(x), len(x)), dtype=bool)
    with np.errstate(invalid="ignore"):
        different = holm(paired(x[first], x[second]).p) <= alpha
    distinct[first, second] = distinct[second, first] = different
    groups = np.zeros(len(x), dtype=np.int64)
    left = [int(i) for i in np.argsort(-np.nan_to_num(means, nan=-np.inf), kind="stable") if not np.isnan(means[i])]
    while left:
        leader = left[0]
        members = [i for i in left if not distinct[leader, i]]
        groups[members] = groups.max() + 1
        left = [i for i in left if i not in set(members)]
    return groups
