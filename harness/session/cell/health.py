"""Trainings that fail, rather than score low, by the journal."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import Fault, TrainingError
from harness.store.journal import read_journal
from harness.store.rows import Row, StepRow, TermRow
from harness.store.symptoms import ADVICE, LAST_SHARE, Sums, Trouble, find_troubles

if TYPE_CHECKING:
    import pandas as pd

# A surrogate loss is of the order of advantage times ratio; an imitation loss of a uniform guess is 12.
EXPLODED_LOSS = 1e4
# Of a policy in the last steps, to be judged
LEAST_ANSWERS = 64
# The same while it trains
WATCHED_ANSWERS = 32
# Below it the loss of all right answers is no bad luck
CHANCE = 1e-6


class _Running:
    """`sum_last_steps` of one policy's steps so far, without its rows: of every step a few sums of all steps up to it are kept,
    so that those of any window are a difference, and a step takes as long after ten thousand others as at first."""

    COUNTS = ("answers", "right", "wrong", "invalid", "truncated", "empty", "unboxed")

    def __init__(self) -> None:
        self.steps = array("q")
        self.sums = {name: array("q", [0]) for name in (*self.COUNTS, "own", "active", "known")}
        self.entropy = array("d", [0.0])
        self.first: float | None = None

    def add(self, row: StepRow, terms: Iterable[TermRow]) -> None:
        """Take up a step: its counts are added to the sums of all steps before it."""
        own = [t for t in terms if t.source == "own" and t.name != "kl"]
        known = row.entropy == row.entropy
        if not self.steps:
            self.first = row.entropy
        self.steps.append(row.step)
        for name in self.COUNTS:
            self.sums[name].append(self.sums[name][-1] + getattr(row, name))
        self.sums["own"].append(self.sums["own"][-1] + sum(t.answers for t in own))
        self.sums["active"].append(self.sums["active"][-1] + sum(t.active for t in own))
        self.sums["known"].append(self.sums["known"][-1] + known)
        self.entropy.append(self.entropy[-1] + (row.entropy if known else 0.0))

    def late(self, policy: str, least: int) -> Sums:
        """Return the recent figures, as `symptoms.sum_last_steps` has it: the last quarter of the steps, or more until there are
        `least` answers."""
        count = len(self.steps)
        answers = self.sums["answers"]
        begin = count - max(1, math.ceil(LAST_SHARE * count))
        # The latest beginning with enough answers behind it, where the quarter has not.
        begin = min(begin, max(0, bisect_right(answers, answers[-1] - least) - 1))
        within = {name: sums[-1] - sums[begin] for name, sums in self.sums.items()}
        known = within.pop("known")
        mean = (self.entropy[-1] - self.entropy[begin]) / known if known else None
        return Sums(
            policy=policy,
            first=self.steps[begin],
            last=self.steps[-1],
            entropy=mean,
            entropy_first=self.first,
            **within,
        )


class Watch:
    """A policy's troubles while it trains, each once."""

    def __init__(self) -> None:
        self._running: dict[str, _Running] = {}
        self._told: set[tuple[str, Trouble]] = set()

    def hear(self, row: StepRow, details: Sequence[Row]) -> list[tuple[str, str]]:
        """Return what a policy's newest step adds: (who and what, the sentence)."""
        running = self._running.setdefault(row.policy, _Running())
        running.add(row, [one for one in details if isinstance(one, TermRow)])
        sums = running.late(row.policy, WATCHED_ANSWERS)
        if sums.answers < WATCHED_ANSWERS:
            return []
        told = []
        for trouble, words in find_troubles(sums):
            if (row.policy, trouble) in self._told:
                continue
            self._told.add((row.policy, trouble))
            topic = f"{row.policy}: {trouble}"
            told.append((topic, f"{topic}: {words}; {ADVICE[trouble]}"))
        return told


def check_loss(policy: str, step: int, loss: float) -> None:
    """Check a step's loss. Raises TrainingError for a loss that is no number or far out."""
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
        last = rows[-size:]
        earlier = rows[:-size]
        answers, right, wrong, truncated = (int(last[name].sum()) for name in columns[2:])
        if answers < LEAST_ANSWERS:
            continue
        where = f"in steps {last['step'].iloc[0]} to {last['step'].iloc[-1]}"
        valid = right + wrong
        best = _best_share(earlier, size)
        if right == 0 and valid and _is_beyond_chance(valid, best):
            cut = f", {truncated} were cut off" if truncated else ""
            words = f"the reward collapsed: none of {valid} answers {where} is right{cut}, {best:.1%} once were"
            raise TrainingError(Fault.COLLAPSED, f"{policy}: {words}")
        if truncated == answers:
            words = f"all {answers} answers {where} were cut off at training.max_new_tokens"
            raise TrainingError(Fault.TRUNCATED, f"{policy}: {words}")


def _best_share(rows: pd.DataFrame, size: int) -> float:
    """Return the largest share of right answers in so many steps one after another; 0 without steps."""
    best = 0.0
    for start in range(0, len(rows), size):
        part = rows[start : start + size][["right", "wrong"]].sum()
        best = max(best, float(part["right"] / max(1, part.sum())))
    return best


def _is_beyond_chance(answers: int, share: float) -> bool:
    """Whether none right of so many answers is less likely than `CHANCE` where each is right with this probability."""
    return share >= 1 or answers * math.log1p(-share) < math.log(CHANCE)
