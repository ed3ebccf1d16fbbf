"""Whether a regime helps one policy of a group and harms, or does not help, another: what the mean of both hides.

On each group the gains of the policies are compared with their mean, as gains on several groups are (`compute_spread_p`). The tests
of all groups and regimes are a family of their own, corrected by Holm's method: of twenty tables without any effect at most one
says that policies differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from harness.statistics.comparison import ALPHA, compute_spread_p, correct_by_holm, place_comparisons


@dataclass(frozen=True, slots=True, eq=False)
class MemberScores:
    """The accuracies of a group's policies by regime and seed, NaN where missing, and their `sampling_variance`."""

    accuracy: Float[np.ndarray, "policies regimes seeds"]
    noise: Float[np.ndarray, "policies regimes seeds"]


def find_policy_differences(
    groups: Sequence[MemberScores | None], references: Sequence[int | None], margin: float
) -> list[Bool[np.ndarray, "regimes"]]:
    """Say for each group of which regimes the gains differ between its policies, by a corrected test and by more than the margin.

    groups: None for one without two policies. references: of each regime the place of the one it is compared with.
    """
    ours, theirs = place_comparisons(references)
    p = np.full((len(groups), len(references)), np.nan)
    wide = np.zeros(p.shape, dtype=bool)
    for place, members in enumerate(groups):
        if members is None or not ours.size:
            continue
        p[place, ours] = compute_spread_p(members.accuracy, members.noise, ours, theirs)
        gains = members.accuracy[:, ours] - members.accuracy[:, theirs]  # (policies, compared, seeds)
        wide[place, ours] = _spread_of_gains(gains) > margin
    corrected, _ = correct_by_holm(p.ravel())
    told_apart = corrected.reshape(p.shape) <= ALPHA
    differ = told_apart & wide
    return list(differ)


def _spread_of_gains(gains: Float[np.ndarray, "policies compared seeds"]) -> Float[np.ndarray, "compared"]:
    """Return by how much the policies' mean gains differ, over the seeds that all policies have."""
    paired = ~np.isnan(gains).any(axis=0)  # (compared, seeds)
    count = np.maximum(paired.sum(axis=-1), 1)
    sums = np.where(paired, gains, 0.0).sum(axis=-1)
    means = sums / count  # (policies, compared)
    largest, smallest = means.max(axis=0), means.min(axis=0)
    return np.asarray(largest - smallest)
