"""Gains at the steps between, for the results page: what a reader would have been told who had stopped the runs earlier."""

from __future__ import annotations

from collections.abc import Sequence

from harness.statistics import Estimate
from harness.statistics.comparison import estimate_paired_difference
from harness.store.finished import read_finished
from harness.store.learning_curves import HELD_OUT, MEAN, LearningCurves, SeedCurves, read_curves, stack_curves
from harness.store.read import Snapshot


def read_held_out_curves(snapshot: Snapshot, suite: str) -> LearningCurves:
    """Read the held-out curves of a suite, also of the mean of each group's policies. Raises ValueError where it has none."""
    curves = read_curves(snapshot, suite, read_finished(snapshot, suite).policies)
    if curves.kind != HELD_OUT:
        raise ValueError(f"{suite}: no held-out curves")
    return curves


def estimate_gains_by_step(
    curves: LearningCurves, group: str, regime: str, baseline: str, steps: Sequence[int]
) -> list[Estimate]:
    """Estimate a line's gain over the baseline in the mean of the group's policies, paired over the seeds that both have.

    steps: updates served; each must be a point of every curve. Returns an estimate a step, as shares."""
    ours, theirs = curves.of(group, MEAN, regime), curves.of(group, MEAN, baseline)
    seeds = sorted(ours.keys() & theirs.keys())
    points = [float(step) for step in steps]
    our_accuracies = stack_curves(ours, seeds, points)
    their_accuracies = stack_curves(theirs, seeds, points)
    return [
        estimate_paired_difference(our_accuracies[:, place], their_accuracies[:, place]) for place in range(len(steps))
    ]


def average_accuracies(curves: SeedCurves, steps: Sequence[int]) -> list[float]:
    """Return the mean accuracy over seeds at each of these steps, as shares."""
    points = [float(step) for step in steps]
    return [float(mean) for mean in stack_curves(curves, sorted(curves), points).mean(axis=0)]
