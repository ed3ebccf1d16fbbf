"""What is wrong with a run, in words, from what it has stored: `harness doctor RUN`. It can be asked while the run goes on.

A policy is judged by the last quarter of its steps so far (`LAST_SHARE`), the exchange by all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from enum import StrEnum
from typing import Any

import msgspec

from harness.errors import Fault
from harness.store.read import Snapshot

LAST_SHARE = 0.25
TRUNCATED_SHARE = 0.5
"""From so many answers on, what is learnt is mostly to be cut off."""
IDLE_SHARE = 0.9
"""From so many own answers without a gradient on, most of the sampling is for nothing."""
ENTROPY_GONE = 0.01
"""Nats per token: 99 of 100 tokens are as good as certain."""
INVALID_SHARE = 0.01


class Trouble(StrEnum):
    """The word for a finding."""

    MISSING = "missing"
    DAMAGED = "damaged"
    ALL_FAIL = "all fail"
    ALL_PASS = "all pass"
    ZERO_VARIANCE = "zero variance"
    ENTROPY = "entropy gone"
    TRUNCATION = "truncation"
    INVALID = "invalid verdicts"
    UNSENT = "nothing sent"
    REFUSED = "all refused"
    UNUSED = "peer data never used"


ADVICE = {
    Trouble.DAMAGED: "remove the cell's folder and run the suite again",
    Trouble.ALL_FAIL: "easier prompts, a stronger base, or more rollouts: without a success nothing is learnt",
    Trouble.ALL_PASS: "harder prompts: where every answer is right nothing is learnt",
    Trouble.ZERO_VARIANCE: "more rollouts a prompt, or prompts that are neither solved nor hopeless",
    Trouble.ENTROPY: "a smaller training.learning_rate, or training.kl above 0: the policy says one thing only",
    Trouble.TRUNCATION: "a larger training.max_new_tokens: a truncated answer is wrong",
    Trouble.INVALID: "the verifier's fault, not the policy's: look at `samples.reason`",
    Trouble.UNSENT: "a baseline with another name: look at `sharing.direction` and at what the regime shares",
    Trouble.REFUSED: "look at sharing.max_staleness and the residual limits, and at the tokenizers",
    Trouble.UNUSED: "the regime's gate, or zero advantages: a baseline at a higher price",
}
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
    for row in _counted(snapshot, _STEPS, [*where, LAST_SHARE]):
        yield from _policy(row)
    for row in _counted(snapshot, _EXCHANGES, where):
        yield from _exchange(row, len(cell["policies"]))


def _counted(snapshot: Snapshot, query: str, where: list[Any]) -> list[dict[str, Any]]:
    """Rows with sums of integers as integers."""
    rows = snapshot.query(query, where).to_pylist()
    return [{name: int(v) if isinstance(v, Decimal) else v for name, v in row.items()} for row in rows]


def _policy(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    policy, span = row["policy"], f"in steps {row['first']} to {row['last']}"
    valid = row["right"] + row["wrong"]
    if row["truncated"] >= TRUNCATED_SHARE * row["answers"] > 0:
        share = row["truncated"] / row["answers"]
        yield _told(policy, Trouble.TRUNCATION, f"{share:.0%} of {row['answers']} answers {span} were cut off")
    if valid and row["right"] == 0:
        yield _told(policy, Trouble.ALL_FAIL, f"none of {valid} answers {span} is right")
    elif valid and row["wrong"] == 0:
        yield _told(policy, Trouble.ALL_PASS, f"all {valid} answers {span} are right")
    elif row["own"] and row["active"] <= (1 - IDLE_SHARE) * row["own"]:
        share = 1 - row["active"] / row["own"]
        yield _told(
            policy,
            Trouble.ZERO_VARIANCE,
            f"{share:.0%} of {row['own']} own answers {span} gave no gradient: groups of equal reward",
        )
    if row["entropy"] is not None and row["entropy"] < ENTROPY_GONE:
        yield _told(
            policy, Trouble.ENTROPY, f"{row['entropy']:.2g} nats per token {span}, {row['entropy_first']:.2g} at first"
        )
    if row["invalid"] > INVALID_SHARE * row["answers"]:
        yield _told(policy, Trouble.INVALID, f"{row['invalid']} of {row['answers']} verdicts {span}")


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
    sum(invalid) AS invalid, sum(truncated) AS truncated, avg(entropy) AS entropy,
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
