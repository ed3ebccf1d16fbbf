"""Whether there is anything left to measure: these ends of a training are failures, not low scores, for a mean over them would say
that the regime was measured. All are read from the journal, so a resumed run is judged as any other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.errors import Fault, TrainingError
from harness.store.journal import read_journal
from harness.store.rows import Row, StepRow, TermRow
from harness.store.symptoms import ADVICE, LAST_SHARE, Trouble, judge, late

EXPLODED_LOSS = 1e4
"""Of either sign. A surrogate loss is of the order of advantage times ratio; an imitation loss of a uniform guess is 12."""
LEAST_ANSWERS = 64
"""Of a policy in these steps. Of fewer nothing is said."""
WATCHED_ANSWERS = 32
"""Of a policy, before anything is said of it while it trains."""
CHANCE = 1e-6
"""Below this probability the loss of all right answers is no bad luck."""


class Watch:
    """What is wrong with a policy while it trains, each thing once."""

    def __init__(self) -> None:
        self._steps: dict[str, list[StepRow]] = {}
        self._terms: dict[str, list[TermRow]] = {}
        self._told: set[tuple[str, Trouble]] = set()

    def hear(self, row: StepRow, details: Sequence[Row]) -> list[tuple[str, str]]:
        """What a policy's newest step adds, as (who and what, the sentence). details: with its terms."""
        steps = self._steps.setdefault(row.policy, [])
        terms = self._terms.setdefault(row.policy, [])
        steps.append(row)
        terms += [one for one in details if isinstance(one, TermRow)]
        sums = late(steps, terms, WATCHED_ANSWERS)
        if sums.answers < WATCHED_ANSWERS:
            return []
        new = [(trouble, words) for trouble, words in judge(sums) if (row.policy, trouble) not in self._told]
        self._told |= {(row.policy, trouble) for trouble, _ in new}
        return [(at := f"{row.policy}: {trouble}", f"{at}: {words}; {ADVICE[trouble]}") for trouble, words in new]


def check_loss(policy: str, step: int, loss: float) -> None:
    """Raises TrainingError for a loss that is no number or far out."""
    if not math.isfinite(loss):
        raise TrainingError(Fault.NOT_FINITE, f"{policy}: the loss is {loss} at step {step}")
    if abs(loss) > EXPLODED_LOSS:
        raise TrainingError(
            Fault.EXPLODED, f"{policy}: the loss is {loss:.3g} at step {step}, beyond {EXPLODED_LOSS:g}"
        )


def check_trained(folder: Path) -> None:
    """Judge the trained cell in `folder` by its journal. Raises TrainingError."""
    table = read_journal(folder).tables.get("steps")
    rows = sorted(table.to_pylist() if table is not None else [], key=lambda row: row["step"])
    for policy in dict.fromkeys(row["policy"] for row in rows):
        _judge(policy, [row for row in rows if row["policy"] == policy])


def _judge(policy: str, rows: Sequence[Mapping[str, Any]]) -> None:
    size = max(1, math.ceil(LAST_SHARE * len(rows)))
    last, earlier = rows[-size:], rows[:-size]
    answers, truncated = _sum(last, "answers"), _sum(last, "truncated")
    if answers < LEAST_ANSWERS:
        return
    where = f"in steps {last[0]['step']} to {last[-1]['step']}"
    right, valid = _sum(last, "right"), _sum(last, "right") + _sum(last, "wrong")
    best = max((_rate(earlier[at : at + size]) for at in range(0, len(earlier), size)), default=0.0)
    if right == 0 and valid and (best >= 1 or valid * math.log1p(-best) < math.log(CHANCE)):
        cut = f", {truncated} were cut off" if truncated else ""
        raise TrainingError(
            Fault.COLLAPSED,
            f"{policy}: the reward collapsed: none of {valid} answers {where} is right{cut}, {best:.1%} once were",
        )
    if truncated == answers:
        raise TrainingError(
            Fault.TRUNCATED, f"{policy}: all {answers} answers {where} were cut off at training.max_new_tokens"
        )


def _rate(rows: Sequence[Mapping[str, Any]]) -> float:
    return _sum(rows, "right") / max(1, _sum(rows, "right") + _sum(rows, "wrong"))


def _sum(rows: Sequence[Mapping[str, Any]], column: str) -> int:
    return sum(row[column] for row in rows)
