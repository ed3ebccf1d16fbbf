"""What is wrong with a stored run: a policy is judged by the last quarter of its steps, the exchange by all of them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from harness.errors import DiskFullError, Fault, StoreError
from harness.store.database import LABEL, store_path
from harness.store.ingest import ingest_journals
from harness.store.read import Snapshot
from harness.store.symptoms import ADVICE, LAST_SHARE, Sums, Trouble, describe_figures, find_troubles

CURES = {
    Fault.NOT_FINITE: "a smaller training.learning_rate; that number came from the settings, it comes again",
    Fault.EXPLODED: "a smaller training.learning_rate or clip_norm",
    Fault.COLLAPSED: "a smaller training.learning_rate, or training.kl above 0",
    Fault.TRUNCATED: ADVICE[Trouble.TRUNCATION],
    Fault.MEMORY: "fewer --jobs, a smaller engine option micro_tokens, or fewer rollouts; it was tried twice, alone at last",
    Fault.KILLED: "it was killed twice, perhaps because memory ran out: run again, with fewer --jobs",
    Fault.SILENT: "its log says where it hung; a larger --silence where it was only slow",
}


class SuiteFinding(msgspec.Struct, frozen=True):
    """cell: group/regime/seed; policy: empty for the whole cell. advice: a half-sentence."""

    cell: str
    key: str
    policy: str
    trouble: Trouble
    words: str
    advice: str


class Damage(msgspec.Struct, frozen=True):
    """What cannot be read of some cells, and what to do about it."""

    cells: list[str]
    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.problem}; {self.remedy}"


def diagnose_suite(snapshot: Snapshot, suite: str, key: str | None = None, at: str = "") -> list[SuiteFinding]:
    """Find what is wrong with a suite's cells, or with one. at: `--results` of the commands that are advised."""
    query = f"SELECT cell AS key, {LABEL} AS cell, state, fault, reason FROM cells WHERE {_MINE} ORDER BY 2"
    cells = snapshot.query(query, [suite, key]).to_pylist()
    labels = {cell["key"]: cell["cell"] for cell in cells}
    findings = []
    damaged = list_damages(snapshot, suite, key)
    unread = set[str]()
    for damage in damaged:
        name = damage.cells[0] if len(damage.cells) == 1 else ""
        label = labels.get(name, name) or suite
        findings.append(SuiteFinding(label, name, "", Trouble.DAMAGED, damage.problem, damage.remedy))
        unread.update(damage.cells)
    late = _read_last_steps(snapshot, suite, key)
    exchanges = _read_by_cell(snapshot, _EXCHANGES, suite, key)
    for cell in cells:
        name = cell["key"]
        if cell["state"] == "failed" and name not in unread:
            words = f"{cell['fault'] or 'failed'}: {cell['reason']}"
            cure = CURES.get(cell["fault"], f"its log says more: harness logs {name}{at}")
            findings.append(SuiteFinding(cell["cell"], name, "", Trouble.MISSING, words, cure))
        told = []
        for sums in late.get(name, ()):
            told += [(sums.policy, trouble, words) for trouble, words in find_troubles(sums)]
        for row in exchanges.get(name, ()):
            told.append((row["policy"], Trouble(row["trouble"]), row["words"]))
        for policy, trouble, words in told:
            findings.append(SuiteFinding(cell["cell"], name, policy, trouble, words, ADVICE[trouble]))
    return findings


def list_damages(snapshot: Snapshot, suite: str | None = None, key: str | None = None) -> list[Damage]:
    """Return what the table needs and cannot be read: of one suite, of all, or of one cell."""
    rows = snapshot.query(
        "SELECT list(cell ORDER BY cell) AS cells, problem, remedy FROM problems "
        "WHERE ($1 IS NULL OR suite = $1) AND (cell = $2 OR $2 IS NULL AND "
        "(cell = '' OR (suite, cell) IN (SELECT suite, cell FROM current_cells))) "
        "GROUP BY suite, problem, remedy ORDER BY ALL",
        [suite, key],
    )
    return msgspec.convert(rows.to_pylist(), list[Damage])


def read_damages(results: Path, suite: str) -> tuple[dict[str, str], bool]:
    """Bring the store up to date and return what it knows of a suite's damages, as `damages_by_key`, and True. Where the disk is
    full or another process writes the store, what was found before counts, and False is returned."""
    current = False
    with suppress(DiskFullError, StoreError):
        ingest_journals(results, deadline=10.0)
        current = True
    if not store_path(results).exists():
        return {}, current
    with Snapshot(results) as snapshot:
        return damages_by_key(snapshot, suite), current


def damages_by_key(snapshot: Snapshot, suite: str) -> dict[str, str]:
    """Return why a cell's folder cannot be read and what to do, by the cell's key; by the empty key for the suite's own file."""
    rows = snapshot.query("SELECT cell, problem, remedy FROM problems WHERE suite = ? ORDER BY ALL", [suite])
    return {row["cell"]: f"{row['problem']}; {row['remedy']}" for row in rows.to_pylist()}


def summarise_training(snapshot: Snapshot, suite: str) -> list[str]:
    """Return a line for each policy on the end of its training, and what is wrong in how many cells."""
    late = _read_last_steps(snapshot, suite)
    by_policy: dict[tuple[str, str], list[Sums]] = {}
    query = f"SELECT cell, group_name FROM cells WHERE {_MINE} ORDER BY group_name, cell"
    for row in snapshot.query(query, [suite, None]).to_pylist():
        for sums in late.get(row["cell"], ()):
            of_policy = by_policy.setdefault((row["group_name"], sums.policy), [])
            of_policy.append(sums)
    findings: dict[tuple[str, str], dict[Trouble, list[SuiteFinding]]] = {}
    for finding in diagnose_suite(snapshot, suite):
        group, _, _ = finding.cell.partition("/")
        by_trouble = findings.setdefault((group, finding.policy), {})
        by_trouble.setdefault(finding.trouble, []).append(finding)
    lines = []
    for (group, policy), each in by_policy.items():
        figures = describe_figures(_add_sums(each))
        lines.append(f"{group}/{policy}: {figures}")
        for trouble, same in findings.get((group, policy), {}).items():
            first = same[0]
            where = first.cell if len(same) == 1 else f"{len(same)} cells, e.g. {first.cell}"
            lines.append(f"  {trouble} ({where}): {first.words}; {first.advice}")
    return lines


def _add_sums(each: Sequence[Sums]) -> Sums:
    """Add up the counts of one policy over its cells; all else is the first cell's."""
    totals = {}
    for name in ("answers", "right", "wrong", "invalid", "truncated", "empty", "unboxed", "own", "active"):
        totals[name] = sum(getattr(sums, name) for sums in each)
    return msgspec.structs.replace(each[0], **totals)


def _read_last_steps(snapshot: Snapshot, suite: str, key: str | None = None) -> dict[str, list[Sums]]:
    """Return by cell the sums of each policy over the last quarter of its steps."""
    by_cell = _read_by_cell(snapshot, _STEPS, suite, key)
    return {cell: [Sums(**row) for row in rows] for cell, rows in by_cell.items()}


def _read_by_cell(snapshot: Snapshot, query: str, suite: str, key: str | None) -> dict[str, list[dict[str, Any]]]:
    """Return the rows that a query gives of a suite, or of one of its cells, by cell."""
    by_cell: dict[str, list[dict[str, Any]]] = {}
    for row in snapshot.query(query, [suite, key]).to_pylist():
        of_cell = by_cell.setdefault(row.pop("cell"), [])
        of_cell.append(row)
    return by_cell


# All cells are read at once, for thousands of small queries would take minutes
_MINE = (
    "suite = $1 AND kind = 'cell' AND "
    "(cell = $2 OR $2 IS NULL AND cell IN (SELECT cell FROM current_cells WHERE suite = $1))"
)
_OF_MINE = f"suite = $1 AND cell IN (SELECT cell FROM cells WHERE {_MINE})"
_STEPS = f"""
WITH mine AS (
    SELECT cell, policy, step, answers, "right", wrong, invalid, truncated, empty, unboxed, entropy FROM steps WHERE {_OF_MINE}
),
spans AS (
    SELECT cell, policy, max(step) - greatest(1, ceil({LAST_SHARE} * count(*))) AS after, arg_min(entropy, step) AS entropy_first
    FROM mine GROUP BY cell, policy
),
late AS (SELECT mine.*, entropy_first FROM mine JOIN spans USING (cell, policy) WHERE step > after),
own AS (
    SELECT cell, policy, sum(terms.answers) AS own, sum(active) AS active
    FROM terms JOIN (SELECT cell, policy, step FROM late) USING (cell, policy, step)
    WHERE suite = $1 AND source = 'own' AND name <> 'kl' GROUP BY cell, policy
)
SELECT cell, policy, min(step) AS first, max(step) AS last, sum(answers)::BIGINT AS answers, sum("right")::BIGINT AS "right",
    sum(wrong)::BIGINT AS wrong, sum(invalid)::BIGINT AS invalid, sum(truncated)::BIGINT AS truncated,
    coalesce(sum(empty), 0)::BIGINT AS empty, coalesce(sum(unboxed), 0)::BIGINT AS unboxed,
    avg(entropy) AS entropy, any_value(entropy_first) AS entropy_first,
    coalesce(any_value(own.own), 0)::BIGINT AS own, coalesce(any_value(own.active), 0)::BIGINT AS active
FROM late LEFT JOIN own USING (cell, policy) GROUP BY cell, policy ORDER BY cell, policy
"""
_EXCHANGES = f"""
WITH mine AS (SELECT cell, receiver, messages, accepted, reason, kind, used FROM exchanges WHERE {_OF_MINE}),
sharing AS (SELECT DISTINCT cell FROM mine),
due AS (
    SELECT cell, CASE WHEN coalesce(config ->> '$.sharing.direction', 'all') <> 'all' THEN config ->> '$.sharing.edges[*][1]'
        WHEN len(policies) > 1 THEN policies END AS receivers FROM cells WHERE {_MINE}
),
counted AS (
    SELECT trained.cell AS cell, policy, trained.cell IN (FROM sharing) AS shares, coalesce(sum(messages), 0)::BIGINT AS records,
        coalesce(sum(messages) FILTER (accepted), 0)::BIGINT AS accepted, mode(reason) FILTER (NOT accepted) AS reason,
        coalesce(sum(messages) FILTER (accepted AND kind NOT IN ('value', 'draft')), 0)::BIGINT AS answers,
        coalesce(sum(messages) FILTER (used), 0)::BIGINT AS used
    FROM (SELECT DISTINCT cell, policy FROM steps WHERE {_OF_MINE}) AS trained LEFT JOIN mine
        ON mine.cell = trained.cell AND receiver = policy
    GROUP BY trained.cell, policy
)
SELECT cell, policy,
    CASE WHEN records = 0 THEN '{Trouble.UNSENT}' WHEN accepted = 0 THEN '{Trouble.REFUSED}' ELSE '{Trouble.UNUSED}' END AS trouble,
    CASE WHEN records = 0 THEN 'no peer sent it a record'
        WHEN accepted = 0 THEN 'none of ' || records || ' records of its peers was accepted (most often refused as '
            || coalesce(reason, 'None') || ')'
        ELSE answers || ' peer answers were accepted, none gave a gradient' END AS words
FROM counted LEFT JOIN due USING (cell)
WHERE CASE WHEN records = 0 THEN shares AND list_contains(receivers, policy) ELSE accepted = 0 OR answers > 0 AND used = 0 END
ORDER BY cell, policy
"""
