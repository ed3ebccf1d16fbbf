"""Mixed training by task: what each policy was rewarded for, and who taught whom on what."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import msgspec

from harness.store.read import Snapshot

# Of the steps, at either end, whose rewards are averaged
_END = 5


class TaskReward(msgspec.Struct, frozen=True, kw_only=True):
    """A policy on one task of a variant, over its seeds, as shares. first, last: right answers in the first and the last fifth of
    the steps. all_wrong: questions of which it solved none; rescued: of these, such as a peer solved. curve_first, curve_last:
    held-out accuracy, None where the task has no curve."""

    group: str
    regime: str
    policy: str
    task: str
    first: float | None
    last: float | None
    all_wrong: float | None
    rescued: float | None
    curve_first: float | None = None
    curve_last: float | None = None


class TaskHelp(msgspec.Struct, frozen=True, kw_only=True):
    """What one policy was sent by another on one task, over a variant's seeds. received: records that were let in. right: of
    these, with a right answer. used: of these, behind a nonzero gradient."""

    group: str
    regime: str
    receiver: str
    author: str
    task: str
    received: int
    right: int
    used: int


_STEPS = """
SELECT c.group_name AS "group", c.regime, policy, task, step, sum("right") AS "right", sum("right" + wrong) AS judged,
    sum(prompts) AS prompts, sum(prompts_all_wrong) AS failed, sum(prompts_rescued) AS rescued
FROM task_steps JOIN current_cells c USING (suite, cell)
WHERE suite = ? AND c.kind = 'cell' AND c.state = 'done'
GROUP BY ALL ORDER BY ALL
"""
_CURVES = """
SELECT c.group_name AS "group", c.regime, policy, task, step, avg(accuracy) AS accuracy
FROM task_curves JOIN current_cells c USING (suite, cell)
WHERE suite = ? AND c.kind = 'cell' AND c.state = 'done' AND isfinite(accuracy)
GROUP BY ALL ORDER BY ALL
"""
# A mixture's prompt ids begin with the task's name (`tasks.mixed.task_of_id`); of other cells nothing is asked here
_HELP = """
SELECT c.group_name AS "group", c.regime, receiver, author, split_part(prompt_id, '/', 1) AS task,
    count(*) AS received, count(*) FILTER (verdict = 'right') AS "right", count(*) FILTER (used) AS used
FROM exchanges JOIN current_cells c USING (suite, cell)
WHERE suite = ? AND c.kind = 'cell' AND c.state = 'done' AND accepted AND messages > 0
    AND (suite, cell) IN (SELECT suite, cell FROM task_steps)
GROUP BY ALL ORDER BY ALL
"""


def read_task_rewards(snapshot: Snapshot, suite: str) -> list[TaskReward]:
    """Read each policy's rewards and curves by task; nothing of cells with one task."""

    def key(row: dict[str, Any]) -> tuple[str, ...]:
        return row["group"], row["regime"], row["policy"], row["task"]

    points = snapshot.query(_CURVES, [suite]).to_pylist()
    steps = snapshot.query(_STEPS, [suite]).to_pylist()
    curves = {of: [point["accuracy"] for point in own] for of, own in groupby(points, key=key)}
    rewards = []
    for of, rows in groupby(steps, key=key):
        own = list(rows)
        size = max(1, len(own) // _END)
        curve = curves.get(of, [])
        group, regime, policy, task = of
        reward = TaskReward(
            group=group,
            regime=regime,
            policy=policy,
            task=task,
            first=_share_of_sums(own[:size], "right", "judged"),
            last=_share_of_sums(own[-size:], "right", "judged"),
            all_wrong=_share_of_sums(own, "failed", "prompts"),
            rescued=_share_of_sums(own, "rescued", "failed"),
            curve_first=curve[0] if curve else None,
            curve_last=curve[-1] if curve else None,
        )
        rewards.append(reward)
    return rewards


def read_task_help(snapshot: Snapshot, suite: str) -> list[TaskHelp]:
    """Read who was sent what by whom, by task; nothing of cells with one task."""
    return [TaskHelp(**row) for row in snapshot.query(_HELP, [suite]).to_pylist()]


def _share_of_sums(rows: Sequence[dict[str, Any]], part: str, whole: str) -> float | None:
    """Return the share of some rows' sums; None of nothing."""
    total = sum(row[whole] for row in rows)
    return float(sum(row[part] for row in rows) / total) if total else None
