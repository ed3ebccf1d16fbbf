"""What is wrong with a run, in words, from what it has stored: `harness doctor RUN`. It can be asked while the run goes on.

A policy is judged by the last quarter of its steps so far (`symptoms`), the exchange by all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import msgspec

from harness.errors import Fault
from harness.store.read import Snapshot
from harness.store.symptoms import ADVICE, LAST_SHARE, Sums, Trouble, figures, judge

CURES = {
    Fault.NOT_FINITE: "a smaller training.learning_rate; that number came from the settings, it comes again",
    Fault.EXPLODED: "a smaller training.learning_rate or clip_norm",
    Fault.COLLAPSED: "a smaller training.learning_rate, or training.kl above 0",
    Fault.TRUNCATED: ADVICE[Trouble.TRUNCATION],
    Fault.MEMORY: "fewer --jobs, a smaller engine option micro_tokens, or fewer rollouts; it was tried twice, alone at last",
    Fault.KILLED: "somebody, or the system for want of memory, killed it twice: run again, with fewer --jobs",
    Fault.SILENT: "its log says where it hung; a larger --silence where it was only slow",
    Fault.DAMAGED: ADVICE[Trouble.DAMAGED],
}


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong. cell: group/regime/seed; policy: empty for the whole cell. advice: what to do, a half-sentence."""

    cell: str
    key: str
    policy: str
    trouble: Trouble
    words: str
    advice: str


def diagnose(snapshot: Snapshot, suite: str, key: str | None = None) -> list[Finding]:
    """Everything that is wrong with a suite's cells, or with one of them; empty where nothing is."""
    wanted = "suite = ? AND kind = 'cell'" + (" AND cell = ?" if key else "")
    where = [suite, *([key] if key else [])]
    cells = snapshot.query(
        "SELECT cell, group_name || '/' || regime || coalesce('/' || seed, '') AS label, state, fault, reason, policies "
        f"FROM {'cells' if key else 'current_cells'} WHERE {wanted} ORDER BY label",
        where,
    )
    found = []
    for cell in cells.to_pylist():
        place = {"cell": cell["label"], "key": cell["cell"]}
        found += [Finding(**place, **told) for told in _cell(snapshot, suite, cell)]
    return found


def _cell(snapshot: Snapshot, suite: str, cell: dict[str, Any]) -> Iterator[dict[str, Any]]:
    where = [suite, cell["cell"]]
    problems = snapshot.query("SELECT problem FROM problems WHERE suite = ? AND cell = ?", where)
    if problems.num_rows:
        yield _told("", Trouble.DAMAGED, "; ".join(problems["problem"].to_pylist()))
    elif cell["state"] == "failed":
        cure = CURES.get(cell["fault"], "its log says more: harness logs " + cell["cell"])
        word = cell["fault"] or "failed"
        yield {"policy": "", "trouble": Trouble.MISSING, "words": f"{word}: {cell['reason']}", "advice": cure}
    for sums in _late(snapshot, where):
        yield from (_told(sums.policy, trouble, words) for trouble, words in judge(sums))
    for row in _counted(snapshot, _EXCHANGES, where):
        yield from _exchange(row, len(cell["policies"]))


def summary(snapshot: Snapshot, suite: str) -> list[str]:
    """A line for each policy on how it did at the end of its training, over all cells, and below it what is wrong in how many."""
    found = health(snapshot, suite)
    findings = diagnose(snapshot, suite)
    lines = []
    for (group, policy), sums in found.items():
        lines.append(f"{group}/{policy}: {figures(sums)}")
        own = [f for f in findings if f.policy == policy and f.cell.startswith(f"{group}/")]
        for trouble in dict.fromkeys(f.trouble for f in own):
            same = [f for f in own if f.trouble == trouble]
            where = same[0].cell if len(same) == 1 else f"{len(same)} cells, e.g. {same[0].cell}"
            lines.append(f"  {trouble} ({where}): {same[0].words}; {same[0].advice}")
    return lines


def health(snapshot: Snapshot, suite: str) -> dict[tuple[str, str], Sums]:
    """By (group, policy): the last quarters of all of a suite's cells together."""
    cells = snapshot.query(
        "SELECT cell, group_name FROM current_cells WHERE suite = ? AND kind = 'cell' ORDER BY group_name, cell",
        [suite],
    )
    found: dict[tuple[str, str], Sums] = {}
    for cell in cells.to_pylist():
        for sums in _late(snapshot, [suite, cell["cell"]]):
            at = cell["group_name"], sums.policy
            found[at] = _together(found[at], sums) if at in found else sums
    return found


def _together(one: Sums, other: Sums) -> Sums:
    counts = ("answers", "right", "wrong", "invalid", "truncated", "empty", "unboxed", "own", "active")
    return msgspec.structs.replace(one, **{name: getattr(one, name) + getattr(other, name) for name in counts})


def _late(snapshot: Snapshot, where: list[Any]) -> list[Sums]:
    return [Sums(**row) for row in _counted(snapshot, _STEPS, [*where, LAST_SHARE])]


def _counted(snapshot: Snapshot, query: str, where: list[Any]) -> list[dict[str, Any]]:
    """Rows with sums of integers as integers."""
    rows = snapshot.query(query, where).to_pylist()
    return [{name: int(v) if isinstance(v, Decimal) else v for name, v in row.items()} for row in rows]


def _exchange(row: dict[str, Any], policies: int) -> Iterator[dict[str, Any]]:
    policy = row["policy"]
    if not row["records"]:
        if policies > 1 and row["shares"]:
            yield _told(policy, Trouble.UNSENT, "no peer sent it anything")
    elif not row["accepted"]:
        yield _told(
            policy, Trouble.REFUSED, f"none of {row['records']} records of its peers was let in ({row['reason']})"
        )
    elif row["answers"] and not row["used"]:
        yield _told(policy, Trouble.UNUSED, f"{row['answers']} peer answers were let in, none gave a gradient")


def _told(policy: str, trouble: Trouble, words: str) -> dict[str, Any]:
    return {"policy": policy, "trouble": trouble, "words": words, "advice": ADVICE[trouble]}


_STEPS = """
WITH mine AS (SELECT * FROM steps WHERE suite = $1 AND cell = $2),
spans AS (SELECT policy, max(step) - greatest(1, ceil($3 * count(*))) AS after FROM mine GROUP BY policy),
late AS (SELECT mine.* FROM mine JOIN spans USING (policy) WHERE step > after),
own AS (
    SELECT policy, sum(terms.answers) AS own, sum(active) AS active FROM terms JOIN late USING (suite, cell, policy, step)
    WHERE source = 'own' AND name <> 'kl' GROUP BY policy
)
SELECT policy, min(step) AS first, max(step) AS last, sum(answers) AS answers, sum("right") AS "right", sum(wrong) AS wrong,
    sum(invalid) AS invalid, sum(truncated) AS truncated,
    coalesce(sum(empty), 0) AS empty, coalesce(sum(unboxed), 0) AS unboxed,
    avg(entropy) AS entropy,
    (SELECT arg_min(m.entropy, m.step) FROM mine m WHERE m.policy = late.policy) AS entropy_first,
    coalesce(any_value(own.own), 0) AS own, coalesce(any_value(own.active), 0) AS active
FROM late LEFT JOIN own USING (policy) GROUP BY policy ORDER BY policy
"""
_EXCHANGES = """
WITH mine AS (SELECT * FROM exchanges WHERE suite = $1 AND cell = $2)
SELECT policy, (SELECT count(*) FROM mine) > 0 AS shares, coalesce(sum(messages), 0) AS records,
    coalesce(sum(messages) FILTER (accepted), 0) AS accepted, mode(reason) FILTER (NOT accepted) AS reason,
    coalesce(sum(messages) FILTER (accepted AND kind <> 'value'), 0) AS answers, coalesce(sum(messages) FILTER (used), 0) AS used
FROM (SELECT DISTINCT policy FROM steps WHERE suite = $1 AND cell = $2) LEFT JOIN mine ON receiver = policy
GROUP BY policy ORDER BY policy
"""
