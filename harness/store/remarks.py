"""Remarks on a suite's table: missing cells, different processors, what a supervised start changed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import product

import msgspec

from harness.store.database import BASE, BASE_LABEL, LABEL
from harness.store.read import Snapshot
from harness.store.rows import PUBLISHED
from harness.store.starts import UNPAIRED
from harness.verification.verdict import RIGHT_AS_IT_STANDS

# The state of a cell whose row is of other settings or code
STALE = "stale"
_NAMED = 3


class Missing(msgspec.Struct, frozen=True, kw_only=True):
    """A cell that is in no row, or is there STALE; or a base checkpoint that is UNPAIRED (`store.starts`). key: empty where
    unknown. fault: of `errors.Fault`."""

    cell: str
    key: str
    state: str
    fault: str | None = None
    reason: str = ""


def missing_cells(snapshot: Snapshot, suite: str) -> list[Missing]:
    """Return the cells of a suite that are in no row, and base checkpoints that are not paired, by their labels."""
    planned = _list_planned(snapshot, suite)
    rows = snapshot.query(
        f"SELECT CASE kind WHEN 'base' THEN {BASE_LABEL} ELSE {LABEL} END AS cell, cell AS key, state, fault, reason "
        "FROM current_cells WHERE suite = ? AND (kind = 'cell' OR state = ?)",
        [suite, UNPAIRED],
    )
    labels = {key: label for label, key in planned}
    there = []
    for cell in msgspec.convert(rows.to_pylist(), list[Missing]):
        label = labels.get(cell.key, cell.cell)
        there.append(msgspec.structs.replace(cell, cell=label))
    began = {cell.cell for cell in there}
    missing = [cell for cell in there if cell.state != "done"]
    for label, key in planned:
        if label not in began:
            missing.append(Missing(cell=label, key=key, state="pending"))
    return sorted(missing, key=lambda cell: cell.cell)


def _list_planned(snapshot: Snapshot, suite: str) -> list[tuple[str, str]]:
    """Return label and key of each cell of a suite as it was described last; keys are empty where they are not known."""
    query = "SELECT groups, seeds, variants, cells, config FROM suites WHERE suite = ?"
    described = snapshot.query(query, [suite]).to_pylist()
    if not described:
        return []
    groups, seeds, variants, keys, config = described[0].values()
    limited = _groups_of_variants(config)
    labels = []
    # in the order of `suite.cells.expand_cells`
    for group, seed, regime in product(groups, seeds, variants):
        if group in limited.get(regime, (group,)):
            labels.append(f"{group}/{regime}/{seed}")
    if len(keys) != len(labels):
        keys = [""] * len(labels)
    return list(zip(labels, keys, strict=True))


def _groups_of_variants(config: str) -> dict[str, list[str]]:
    """Return the groups of each variant that does not run in all of them. config: the suite's, as JSON; empty where unknown."""
    variants = json.loads(config).get("regimes", []) if config else []
    return {variant["name"]: variant["only_in"] for variant in variants if variant.get("only_in")}


def describe_unpaired(snapshot: Snapshot, suite: str) -> list[str]:
    """Return a line for each reason why cells or base checkpoints of a suite are in no comparison."""
    missing = missing_cells(snapshot, suite)
    return _describe_alike(cell for cell in missing if cell.state == UNPAIRED)


def _describe_alike(gaps: Iterable[Missing]) -> list[str]:
    """Return a line for each state and reason, with the cells that have both."""
    alike: dict[tuple[str, str], list[str]] = {}
    for gap in gaps:
        why = f"{gap.fault}: {gap.reason}" if gap.fault else gap.reason
        alike.setdefault((gap.state, why), []).append(gap.cell)
    lines = []
    for (state, why), cells in alike.items():
        named = ", ".join(cells[:_NAMED])
        left = len(cells) - _NAMED
        more = f" and {left:,} more" if left > 0 else ""
        reason = f" ({why})" if why else ""
        lines.append(f"{named}{more} {state}{reason}")
    return lines


def describe_gaps(gaps: Sequence[Missing]) -> dict[str, list[str]]:
    """Return lines on missing cells and on those of other settings or code, under a head that counts them."""
    absent = [gap for gap in gaps if gap.state != STALE]
    stale = [gap for gap in gaps if gap.state == STALE]
    parts = {
        "Missing from these numbers": absent,
        "In these numbers, but of other settings or code than now": stale,
    }
    described = {}
    for head, part in parts.items():
        if part:
            plural = "s" if len(part) > 1 else ""
            described[f"{head}: {len(part):,} cell{plural}"] = _describe_alike(part)
    return described


def count_states(snapshot: Snapshot, suite: str, gaps: Iterable[Missing]) -> str:
    """Say how many cells are in which state, e.g. `4 done, 2 pending`. gaps: of `missing_cells`, or with stale cells too."""
    done = snapshot.query(
        "SELECT count(*) AS n FROM current_cells WHERE suite = ? AND kind = 'cell' AND state = 'done'", [suite]
    )
    states = Counter(gap.state for gap in gaps if not gap.cell.startswith(BASE))
    states["done"] = done["n"][0].as_py() - states[STALE]
    order = ("done", STALE, UNPAIRED, "running", "cut off", "failed", "pending")
    return ", ".join(f"{states[state]:,} {state}" for state in order if states[state])


def describe_mixed_processors(cells: Iterable[tuple[str, int | None, Mapping[str, str]]]) -> str:
    """Say where regimes of one group and seed ran on different processors; empty where they ran alike.

    cells: group, seed and machine of each.
    """
    kinds: dict[tuple[str, int | None], set[str]] = {}
    for group, seed, machine in cells:
        if machine.get("processor"):
            threads = f"{machine['threads']} threads" if "threads" in machine else ""
            parts = (machine["processor"], machine.get("gpu"), threads)
            own = " with ".join(filter(None, parts))
            kinds.setdefault((group, seed), set()).add(own)
    several = {block: own for block, own in kinds.items() if len(own) > 1}
    if not several:
        return ""
    named = ", ".join(f"{group}/{seed}" for group, seed in [*several][:_NAMED])
    more = f" and {len(several) - _NAMED} more" if len(several) > _NAMED else ""
    every_kind = set().union(*several.values())
    unlike = "; ".join(sorted(every_kind))
    return (
        f"mixed processors: the regimes of {named}{more} ran on different ones ({unlike}), "
        "which round differently: a part of their paired differences may be the machines'"
    )


def mixed_in(snapshot: Snapshot, suite: str) -> str:
    """Say of finished cells where processors are mixed, or else whether micro models had numerics: fast."""
    rows = snapshot.query(
        "SELECT DISTINCT group_name, seed, machine, config->>'$.group.policies[0].model' LIKE 'micro/%' AS micro "
        "FROM current_cells WHERE suite = ? AND kind = 'cell' AND state = 'done' "
        "AND config->>'$.engine_options.numerics' IS DISTINCT FROM 'portable' ORDER BY ALL",
        [suite],
    ).to_pylist()
    cells = [(row["group_name"], row["seed"], json.loads(row["machine"] or "{}")) for row in rows]
    remark = describe_mixed_processors(cells)
    if remark:
        return remark
    return "numerics: fast; rows repeat on one kind of CPU only" if any(row["micro"] for row in rows) else ""


UNSTARTED, STARTED = "before its start", "after its start"
STRICT = (
    "strict: finished, boxed and right. lenient: the right answer in any form, or as the last number, of answers cut off as they "
    "stand. What a start moves is mostly form. Elsewhere an answer counts as right where it has ended and the verifier finds it."
)
_MOMENTS = rf"""
WITH judged AS (
    SELECT c.group_name, c.seed, s.policy, s.task, s.metric, s.verdict, s.finished, s.text, s.gold, s.repeat, s.reason,
        CASE WHEN c.kind = 'cell' THEN c.regime WHEN s.checkpoint_step = {PUBLISHED} THEN '{UNSTARTED}' ELSE '{STARTED}' END
            AS moment,
        CASE WHEN c.kind = 'cell' THEN 2 ELSE (s.checkpoint_step <> {PUBLISHED})::INT END AS place,
        list_last(regexp_extract_all(s.text, '-?\d[\d,]*(?:\.\d+)?')) AS number
    FROM current_cells c JOIN samples s USING (suite, cell)
    WHERE c.suite = ? AND c.state = 'done' AND s.verdict <> 'invalid'
), own AS (
    SELECT DISTINCT group_name, policy FROM judged WHERE moment = '{UNSTARTED}' AND place = 0
), counted AS (
    SELECT group_name, policy, task, metric, moment, place, seed,
        avg((verdict = 'right' AND finished AND contains(text, '\boxed{{'))::INT) AS strict,
        avg((verdict = 'right' OR reason = '{RIGHT_AS_IT_STANDS}'
            OR coalesce(TRY_CAST(replace(number, ',', '') AS DOUBLE) = TRY_CAST(gold AS DOUBLE), false))::INT) AS lenient,
        count(*) AS answers, max(repeat) + 1 AS repeats
    FROM judged SEMI JOIN own USING (group_name, policy) GROUP BY ALL
)
SELECT group_name AS 'group', policy, task, CASE metric WHEN 'sampled' THEN 'avg@' || max(repeats) ELSE metric END AS metric,
    moment, avg(strict ORDER BY seed) AS strict, avg(lenient ORDER BY seed) AS lenient, sum(answers)::BIGINT AS answers,
    count(*) AS seeds
FROM counted GROUP BY group_name, policy, task, metric, moment, place ORDER BY 1, 3, 4, 2, place, moment
"""


class TrainingMoment(msgspec.Struct, frozen=True, kw_only=True):
    """A pretrained policy before its supervised start, after it, or after RL by a regime; shares of answers (STRICT)."""

    group: str
    policy: str
    task: str
    metric: str
    moment: str
    strict: float
    lenient: float
    answers: int
    seeds: int


def read_moments(snapshot: Snapshot, suite: str) -> list[TrainingMoment]:
    """Return what a suite's pretrained policies answered before their supervised start, after it, and after training."""
    there = snapshot.query("SELECT 1 FROM samples WHERE suite = ? AND checkpoint_step = ? LIMIT 1", [suite, PUBLISHED])
    if not there.num_rows:
        return []
    moments = snapshot.query(_MOMENTS, [suite])
    return msgspec.convert(moments.to_pylist(), list[TrainingMoment])
