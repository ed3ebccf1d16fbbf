"""How much a reported number gains by the choice of its checkpoint.

Tables report the last checkpoint. Papers often report the best one, chosen on the questions that are reported: that is a maximum
over noisy numbers, so it lies above what the model would show on other questions. Every held-out curve lets one measure by how
much. Three choices stand side by side, each reported by its accuracy on the curve's questions:

    last                  the last point
    best_on_validation    the point before which the rewards of training were highest; no reported question takes part
    best_on_test          the highest point itself

The name `best_on_validation` is that of stored and printed tables. There is no set of validation questions: the rewards of training
are what a user has to choose by without one.

What stands beside `best_on_test` is not a result: it is the size of the error that choosing on the test set makes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import msgspec
import numpy as np
from jaxtyping import Float, Int

from harness.store.read import Snapshot


class CheckpointRow(msgspec.Struct, frozen=True, kw_only=True):
    """Mean accuracies of a variant in a group over its policies and seeds, as shares, by the choice of the checkpoint.

    best_on_validation: chosen by the rewards of training. flattered: by how much `best_on_test` lies above `last`. points: of each
    curve, the start left out. curves: of all policies and seeds."""

    group: str
    regime: str
    last: float
    best_on_validation: float
    best_on_test: float
    flattered: float
    points: int
    curves: int


class CheckpointChoice(msgspec.Struct, frozen=True):
    """The accuracy of one policy's curve at the checkpoint of each choice. best_on_validation: chosen by the rewards of training.
    points: of the curve, the start left out."""

    last: float
    best_on_validation: float
    best_on_test: float
    points: int


# The curve's points of each policy of a finished cell, the start left out
_CURVES = """
SELECT c.group_name, c.regime, cell, policy, step, accuracy
FROM curves JOIN current_cells c USING (suite, cell)
WHERE suite = ? AND c.kind = 'cell' AND c.state = 'done' AND step > 0 AND isfinite(accuracy)
ORDER BY c.group_name, c.regime, cell, policy, step
"""
# What training rewarded up to each step
_REWARDS = """
SELECT cell, policy, step, "right", "right" + wrong AS judged
FROM steps JOIN current_cells c USING (suite, cell)
WHERE suite = ? AND c.kind = 'cell' AND c.state = 'done'
ORDER BY cell, policy, step
"""


def read_checkpoint_choices(snapshot: Snapshot, suite: str) -> list[CheckpointRow]:
    """Read what each variant of a suite would report by each choice; nothing for variants without a curve of two points."""
    rewards = _read_rewards(snapshot, suite)
    rows = []
    points = snapshot.query(_CURVES, [suite]).to_pylist()
    for (group, regime), of_variant in groupby(points, key=lambda point: (point["group_name"], point["regime"])):
        choices = []
        for curve, of_curve in groupby(of_variant, key=lambda point: (point["cell"], point["policy"])):
            own = list(of_curve)
            if len(own) > 1 and curve in rewards:
                steps = np.array([point["step"] for point in own])
                accuracies = np.array([point["accuracy"] for point in own])
                choices.append(choose_checkpoint(steps, accuracies, *rewards[curve]))
        if choices:
            rows.append(_summarise_choices(group, regime, choices))
    return rows


def choose_checkpoint(
    steps: Int[np.ndarray, "P"],
    accuracies: Float[np.ndarray, "P"],
    rewarded: Int[np.ndarray, "S"],
    rewards: Float[np.ndarray, "S"],
) -> CheckpointChoice:
    """Return what a curve says by each choice. steps, accuracies: of its points, the start left out. rewarded, rewards: steps of
    training in order, from 1, and the share of right answers at each.

    A point's validation is the mean reward since the point before it: those answers were sampled while the weights were between
    the two. Of equals the later is chosen, as somebody would who trains on."""
    ends = rewarded.searchsorted(steps, side="right")
    begins = np.concatenate([[0], ends[:-1]])
    validation = np.full(len(steps), -np.inf)
    for i, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        if end > begin:
            validation[i] = rewards[begin:end].mean()
    chosen = len(steps) - 1 - int(np.argmax(validation[::-1]))
    return CheckpointChoice(
        last=float(accuracies[-1]),
        best_on_validation=float(accuracies[chosen]),
        best_on_test=float(accuracies.max()),
        points=len(steps),
    )


def _read_rewards(snapshot: Snapshot, suite: str) -> dict[tuple[str, str], tuple[np.ndarray, np.ndarray]]:
    """Read the steps of training, and the share of right answers at each, by cell and policy; none of steps without a verdict."""
    rewards = {}
    rows = snapshot.query(_REWARDS, [suite]).to_pylist()
    for curve, of_curve in groupby(rows, key=lambda row: (row["cell"], row["policy"])):
        judged = [row for row in of_curve if row["judged"]]
        steps = np.array([row["step"] for row in judged])
        shares = np.array([row["right"] / row["judged"] for row in judged])
        rewards[curve] = steps, shares
    return rewards


def _summarise_choices(group: str, regime: str, choices: Sequence[CheckpointChoice]) -> CheckpointRow:
    """Make a variant's row of the choices on each of its curves."""
    last = float(np.mean([choice.last for choice in choices]))
    best_on_validation = float(np.mean([choice.best_on_validation for choice in choices]))
    best_on_test = float(np.mean([choice.best_on_test for choice in choices]))
    return CheckpointRow(
        group=group,
        regime=regime,
        last=last,
        best_on_validation=best_on_validation,
        best_on_test=best_on_test,
        flattered=best_on_test - last,
        points=max(choice.points for choice in choices),
        curves=len(choices),
    )
