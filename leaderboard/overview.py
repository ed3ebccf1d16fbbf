"""Does sharing help, whom, at what cost, is it real: a line per suite and a line per regime, for the pages and the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from harness.statistics.comparison import DIFFERS, EQUIVALENT, GAINS, INCONCLUSIVE, LOSES, WITHHELD
from harness.store.ranking import Rank, Ranking, Share, rank, whom
from harness.store.sentences import verdict_mark
from harness.store.statistic import STATISTICS
from harness.store.table import MEAN, SeedRow
from harness.store.tuning import without_trials
from leaderboard.charts import SIGNS

KEY = (
    "Gain: over the baseline at the same rollout budget. Whom: each policy by itself. Cost: seconds of CPU (of GPU, where the "
    "baseline used one) over the baseline's."
)
BEST = (
    "Of each suite the regime with the largest gain, of those that gain where one does. The best of several is likely to have been "
    "lucky too: its interval is that of one comparison chosen beforehand, not corrected for the choice among regimes and suites. "
    "Whether it is real is judged with a correction within its suite."
)
_NAMED = 4
"""Policies that are told one by one; of more, how many, and the ends."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one metric says of a suite. costs: by regime, over the baseline's, mean over groups and benchmarks."""

    metric: str
    found: Ranking
    costs: Mapping[str, float]
    shares: Sequence[Share]

    def lines(self) -> pd.DataFrame:
        """A row per regime that has a baseline, best gain first."""
        return pd.DataFrame(
            [
                {
                    "Regime": r.regime,
                    "Gain, points": _gain(r),
                    "Is it real?": f"{SIGNS[r.verdict]} {verdict_mark(r.verdict, self.found.margin)}",
                    "Whom": self._whom(r.regime),
                    "Cost": self._cost(r.regime),
                }
                for r in self._compared()
            ]
        )

    def line(self) -> dict[str, str]:
        """The suite's own, of the regime with the largest gain; of those that gain where one does."""
        compared = self._compared()
        if not compared:
            return {"Most gain, points": "nothing to compare yet"}
        first = next((r for r in compared if r.verdict == GAINS), compared[0])
        return {
            "Most gain, points": f"{first.regime} {_gain(first)}",
            "Is it real?": f"{SIGNS[first.verdict]} {verdict_mark(first.verdict, self.found.margin)}",
            "Whom": self._whom(first.regime),
            "Cost": self._cost(first.regime),
            "Its seeds": str(first.seeds),
            "All regimes": _counted(r.verdict for r in compared),
            "Metric": self.metric,
        }

    def _compared(self) -> list[Rank]:
        return sorted((r for r in self.found.ranks if r.gain is not None), key=lambda r: -(r.gain or 0.0))

    def _cost(self, regime: str) -> str:
        cost = self.costs.get(regime, float("nan"))
        return "–" if cost != cost else f"{cost:.1f}×"

    def _whom(self, regime: str) -> str:
        shares = [s for s in self.shares if s.regime == regime and s.gain is not None]
        shares.sort(key=lambda s: -(s.gain or 0.0))
        groups = len({s.group for s in shares}) > 1
        if len(shares) <= _NAMED:
            return ", ".join(_share(s, groups) for s in shares)
        ends = f"from {_share(shares[-1], groups)} to {_share(shares[0], groups)}"
        return f"{len(shares)} policies: {_counted(s.verdict for s in shares)}; {ends}"


def answer(
    table: pd.DataFrame,
    seeds: Sequence[SeedRow],
    policy: str,
    pairs: bool,
    margin: float,
    among: Sequence[SeedRow] | None = None,
) -> Outcome:
    """Of one policy (or the policies' mean, `*`) and metric. `table`: its rows of `frames.show_frame`; `seeds`: of all
    policies; `among`: all of the metric, where `seeds` are of some groups or benchmarks only."""
    costs = table.groupby("regime")["cost"].mean().to_dict()
    ours, all_of_it = ([r for r in rows if r.policy == policy] for rows in (seeds, seeds if among is None else among))
    found = rank(ours, pairs, margin, all_of_it)
    return Outcome(str(table["metric"].iloc[0]), found, costs, whom(seeds, margin, among))


def first_metric(table: pd.DataFrame, seeds: Sequence[SeedRow], pairs: bool, margin: float) -> Outcome | None:
    """The answer that a suite opens with; None where nothing has finished."""
    if table.empty:
        return None
    policy = MEAN if (table["policy"] == MEAN).any() else table["policy"].iloc[0]
    metric = table["metric"].iloc[0]
    rows = table[(table["metric"] == metric) & (table["policy"] == policy)]
    return answer(rows, [r for r in seeds if r.metric == metric], policy, pairs, margin)


def overview(
    suites: Sequence[str],
    find: Callable[[str], Outcome | None],
    name: Callable[[str], str],
    state: Callable[[str], str],
) -> pd.DataFrame:
    """A row per suite, without those that hold the trials of another one. name: of a suite, as it is to be shown; state: what
    has become of its cells."""
    return pd.DataFrame([_row(suite, find(suite), name, state) for suite in without_trials(suites)]).fillna("")


def _row(suite: str, found: Outcome | None, name: Callable[[str], str], state: Callable[[str], str]) -> dict[str, str]:
    told = {"Most gain, points": "no cell has finished"} if found is None else found.line()
    return {"Suite": name(suite), **told, "Cells": state(suite)}


def _gain(r: Rank) -> str:
    gain = STATISTICS["gain"].unit
    return f"{gain.text(r.gain)} {gain.interval(r.gain_interval)}".rstrip()


def _counted(verdicts: Iterable[str]) -> str:
    counts = Counter(verdicts)
    return ", ".join(
        f"{counts[v]}\u00a0{SIGNS[v]}"
        for v in (GAINS, LOSES, DIFFERS, EQUIVALENT, INCONCLUSIVE, *WITHHELD)
        if counts[v]
    )


def _share(s: Share, group: bool) -> str:
    where = f" in {s.group}" if group else ""
    return f"{s.policy}{where} {STATISTICS['gain'].unit.text(s.gain)}\u00a0{SIGNS[s.verdict]}"
