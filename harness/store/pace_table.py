"""The table "pace and end" of a suite, and the sentences below it: for the terminal, the leaderboard and the results page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from harness.statistics.comparison import GAINS
from harness.store.equal_cost import FOUND
from harness.store.finished import ShowRow
from harness.store.learning_curves import MEAN, REWARD
from harness.store.sentences import joined
from harness.store.statistic import CLOCK, OWN_ROLLOUTS, POINTS, TIMES

HEADS = ("regime", "kappa", "reach", "gain", "at equal cost", "over", "greedy", "best@k", "cost", "worth")


class PaceLine(NamedTuple):
    """One regime of one group, as text, in the order of HEADS."""

    regime: str
    kappa: str
    reach: str
    gain: str
    at_equal_cost: str
    over: str
    greedy: str
    best_of_k: str
    cost: str
    worth: str


def choose_rows(rows: Sequence[ShowRow]) -> list[ShowRow]:
    """Choose the rows of the table: of the first metric, the mean of a group's policies, or its only policy."""
    if not rows:
        return []
    metric = rows[0].metric
    policies: dict[str, set[str]] = {}
    for row in rows:
        policies.setdefault(row.group, set()).add(row.policy)
    return [row for row in rows if row.metric == metric and (row.policy == MEAN or len(policies[row.group]) == 1)]


def make_pace_line(row: ShowRow) -> PaceLine:
    """Write one line."""
    return PaceLine(
        regime=row.regime,
        kappa=write_kappa(row),
        reach=write_reach(row),
        gain=POINTS.with_interval(row.gain, row.gain_interval),
        at_equal_cost=POINTS.with_interval(row.equal_cost_gain, row.equal_cost_interval),
        over=row.equal_cost_baseline,
        greedy=POINTS.text(row.greedy_gain),
        best_of_k=POINTS.text(row.best_of_k_gain),
        cost=TIMES.text(row.counted_cost if row.cost_on_clock is None else row.cost_on_clock),
        worth=write_worth(row),
    )


def write_kappa(row: ShowRow) -> str:
    """Write the pace with its interval, or why there is none."""
    if row.kappa is not None:
        return CLOCK.with_interval(row.kappa, row.kappa_interval)
    return row.pace_status or "–"


def write_reach(row: ShowRow) -> str:
    """Write the reach with its interval, or why there is none; a dash where the pace already says it."""
    if row.reach is not None:
        return POINTS.with_interval(row.reach, row.reach_interval)
    return row.pace_status if row.kappa is not None else "–"


def write_worth(row: ShowRow) -> str:
    """Write the worth with its interval, as a bound where the pace lies beyond the budgets that were run."""
    if row.worth is None:
        return "–"
    return f"{row.worth_beyond}{OWN_ROLLOUTS.with_interval(row.worth, row.worth_interval)}"


def write_pace_words(row: ShowRow) -> str:
    """Write pace, reach and the gain at equal cost in a line."""
    words = [f"kappa {write_kappa(row)}"]
    if row.kappa is not None:
        words.append(f"reach {write_reach(row)}")
    if row.equal_cost_gain is not None:
        gain = POINTS.with_interval(row.equal_cost_gain, row.equal_cost_interval)
        words.append(f"at equal cost {gain} over {row.equal_cost_baseline}")
    return ", ".join(words)


def write_pace_notes(rows: Sequence[ShowRow]) -> list[str]:
    """Say what the table is made from, why numbers are missing, and which gains are found."""
    notes = []
    if any(row.pace_curve == REWARD for row in rows):
        notes.append("Pace and reach are of training rewards: the suite has no held-out curve of five points.")
    for words in dict.fromkeys(row.remark for row in rows if row.remark):
        regimes = dict.fromkeys(row.regime for row in rows if row.remark == words)
        notes.append(f"{joined([*regimes])}: {words}.")
    if any(row.cost_on_clock is not None for row in rows):
        notes.append(
            "Cost: counted tokens over those of the clock, independent training at the suite's own rollout budget."
        )
    notes += _write_refusals(rows)
    notes += _write_found(rows)
    return notes


def _write_refusals(rows: Sequence[ShowRow]) -> list[str]:
    """Say of every reason for a missing number where it holds."""
    regimes_of: dict[str, set[str]] = {}
    missing: dict[tuple[str, str], dict[str, list[str]]] = {}
    for row in rows:
        if not row.pace_curve:
            continue
        regimes_of.setdefault(row.group, set()).add(row.regime)
        if row.pace_reason:
            by_group = missing.setdefault((row.pace_status, row.pace_reason), {})
            by_group.setdefault(row.group, []).append(row.regime)
    said = []
    for (status, reason), by_group in missing.items():
        places = []
        for group, regimes in by_group.items():
            whole = len(set(regimes)) == len(regimes_of[group])
            places.append(group if whole else f"{group} ({', '.join(dict.fromkeys(regimes))})")
        said.append(f"{status[0].upper()}{status[1:]} on {joined(places)}: {reason}.")
    return said


def _write_found(rows: Sequence[ShowRow]) -> list[str]:
    """Say which gains hold at equal cost and at the baseline's best rate, and where the others fail."""
    gaining = [row for row in rows if row.verdict == GAINS and row.found]
    said = []
    found = [row for row in gaining if row.found == FOUND]
    if found:
        several = all(row.baseline_rates > 1 for row in found)
        rate = "over the baseline at its best rate in the suite" if several else "at the one learning rate of the suite"
        said.append(f"Found, at equal cost and {rate}: {_name_places(found)}.")
    for why in dict.fromkeys(row.found for row in gaining if row.found != FOUND):
        said.append(f"Not found, {why}: {_name_places(row for row in gaining if row.found == why)}.")
    return said


def _name_places(rows: Iterable[ShowRow]) -> str:
    return joined([f"{row.regime} on {row.group}" for row in rows])
