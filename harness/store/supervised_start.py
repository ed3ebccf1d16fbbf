"""Pretrained policies before their supervised start, after it, and after RL: how much of a gain is form and how much is skill."""

from __future__ import annotations

import msgspec

from harness.store.read import Snapshot
from harness.store.rows import PUBLISHED

AS_PUBLISHED, STARTED = "as published", "after its start"
STRICT = (
    "strict: finished, boxed and right. lenient: the right answer in any form, or as the last number. What a start moves is mostly "
    "form. Elsewhere an answer counts as right where the verifier finds it."
)
_MOMENTS = rf"""
WITH judged AS (
    SELECT c.group_name, c.seed, s.policy, s.task, s.metric, s.verdict, s.finished, s.text, s.gold, s.repeat,
        CASE WHEN c.kind = 'cell' THEN c.regime WHEN s.checkpoint_step = {PUBLISHED} THEN '{AS_PUBLISHED}' ELSE '{STARTED}' END
            AS moment,
        CASE WHEN c.kind = 'cell' THEN 2 ELSE (s.checkpoint_step <> {PUBLISHED})::INT END AS place,
        list_last(regexp_extract_all(s.text, '-?\d[\d,]*(?:\.\d+)?')) AS number
    FROM current_cells c JOIN samples s USING (suite, cell)
    WHERE c.suite = ? AND c.state = 'done' AND s.verdict <> 'invalid'
), own AS (
    SELECT DISTINCT group_name, policy FROM judged WHERE moment = '{AS_PUBLISHED}' AND place = 0
), counted AS (
    SELECT group_name, policy, task, metric, moment, place, seed,
        avg((verdict = 'right' AND finished AND contains(text, '\boxed{{'))::INT) AS strict,
        avg((verdict = 'right' OR coalesce(TRY_CAST(replace(number, ',', '') AS DOUBLE) = TRY_CAST(gold AS DOUBLE), false))::INT)
            AS lenient,
        count(*) AS answers, max(repeat) + 1 AS repeats
    FROM judged SEMI JOIN own USING (group_name, policy) GROUP BY ALL
)
SELECT group_name AS 'group', policy, task, CASE metric WHEN 'sampled' THEN 'avg@' || max(repeats) ELSE metric END AS metric,
    moment, avg(strict) AS strict, avg(lenient) AS lenient, sum(answers)::BIGINT AS answers, count(*) AS seeds
FROM counted GROUP BY group_name, policy, task, metric, moment, place ORDER BY 1, 3, 4, 2, place, moment
"""


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """One policy at one moment: as published, after its start, or after RL by a regime, whose name `moment` is then.

    strict: share of answers that are finished, boxed and right. lenient: share in which the verifier finds the right answer in any
    form, or the last number is right, finished or not. Both are means over seeds, where there are several.
    """

    group: str
    policy: str
    task: str
    metric: str
    moment: str
    strict: float
    lenient: float
    answers: int
    seeds: int


def stages(snapshot: Snapshot, suite: str) -> list[Stage]:
    """Of every policy that was measured before its start; empty for a suite without starts."""
    there = snapshot.query("SELECT 1 FROM samples WHERE suite = ? AND checkpoint_step = ? LIMIT 1", [suite, PUBLISHED])
    if not there.num_rows:
        return []
    return msgspec.convert(snapshot.query(_MOMENTS, [suite]).to_pylist(), list[Stage])
