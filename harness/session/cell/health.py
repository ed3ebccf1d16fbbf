"""Trainings that fail, rather than score low, by the journal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from harness.errors import Fault, TrainingError
from harness.store.journal import read_journal
from harness.store.rows import Row, StepRow, TermRow
from harness.store.symptoms import ADVICE, LAST_SHARE, Trouble, judge, late

# A surrogate loss is of the order of advantage times ratio; an imitation loss of a uniform guess is 12.
EXPLODED_LOSS = 1e4
# Of a policy in the last steps, to be judged
LEAST_ANSWERS = 64
# The same while it trains
WATCHED_ANSWERS = 32
# Below it the loss of all right answers is no bad luck
CHANCE = 1e-6


class Watch:
    """A policy's troubles while it trains, each once."""

    def __init__(self) -> None:
        self._steps: dict[str, list[StepRow]] = {}
        self._terms: dict[str, list[TermRow]] = {}
        self._told: set[tuple[str, Trouble]] = set()

    def hear(self, row: StepRow, details: Sequence[Row]) -> list[tuple[str, str]]:
        """What a policy's newest step adds: (who and what, the sentence)."""
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
    if table is None:
        return
    columns = ["step", "policy", "answers", "right", "wrong", "truncated"]
    for policy, rows in table.select(columns).to_pandas().sort_values("step").groupby("policy", sort=False):
        size = max(1, math.ceil(LAST_SHARE * len(rows)))
        last, earlier = rows[-size:], rows[:-size]
        answers, right, wrong, truncated = (int(last[name].sum()) for name in columns[2:])
        if answers < LEAST_ANSWERS:
            continue
        where, valid = f"in steps {last['step'].iloc[0]} to {last['step'].iloc[-1]}", right + wrong
        parts = (earlier[at : at + size][["right", "wrong"]].sum() for at in range(0, len(earlier), size))
        best = max((float(part["right"] / max(1, part.sum())) for part in parts), default=0.0)
        if right == 0 and valid and (best >= 1 or valid * math.log1p(-best) < math.log(CHANCE)):
            cut = f", {truncated} were cut off" if truncated else ""
            words = f"the reward collapsed: none of {valid} answers {where} is right{cut}, {best:.1%} once were"
            raise TrainingError(Fault.COLLAPSED, f"{policy}: {words}")
        if truncated == answers:
            words = f"all {answers} answers {where} were cut off at training.max_new_tokens"
            raise TrainingError(Fault.TRUNCATED, f"{policy}: {words}")
