"""What the numbers say, in one or two plain sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from harness.statistics import holm, mean_interval, minimum_detectable, tie_groups

GAINS, LOSES, NOTHING, UNCLEAR, BASELINE = "gains", "loses", "no effect seen", "unclear", "baseline"


@dataclass(frozen=True, slots=True)
class Overall:
    """Regimes over all chosen groups and benchmarks.

    rows: one per regime, in order of the mean accuracy: regime, accuracy, low, high, gain, gain_low, gain_high, p (Holm),
    tie, seeds, detectable, verdict. groups, tasks, seeds: how many are behind them.
    """

    rows: pd.DataFrame
    groups: int
    tasks: int
    seeds: int
    sizes: tuple[int, ...]


def verdict(gain: float, low: float, high: float, adjusted: float, has_baseline: bool) -> str:
    """`gains` or `loses` after Holm's correction; `unclear` where only the uncorrected interval leaves 0 out."""
    if not has_baseline:
        return BASELINE
    if np.isnan(low):
        return NOTHING
    if adjusted <= 0.05:
        return GAINS if gain > 0 else LOSES
    return UNCLEAR if low > 0 or high < 0 else NOTHING


def overall(seeds: pd.DataFrame, order: Sequence[str], sizes: Sequence[int]) -> Overall:
    """Mean over the chosen groups and benchmarks, seed by seed. A regime counts a seed only where all of them are there."""
    places = seeds.groupby(["group", "task"], sort=False).ngroups
    by_seed = seeds.groupby(["regime", "seed"], sort=False).agg(
        accuracy=("accuracy", "mean"), n=("accuracy", "size"), gain=("gain", "mean"), pairs=("gain", "count")
    )
    accuracy = by_seed["accuracy"].where(by_seed["n"] == places).unstack("seed")
    gain = by_seed["gain"].where(by_seed["pairs"] == places).unstack("seed")
    regimes = [r for r in order if r in accuracy.index and accuracy.loc[r].notna().any()]
    scores, gains = accuracy.reindex(regimes).to_numpy(), gain.reindex(regimes).to_numpy()
    if not regimes:
        return Overall(pd.DataFrame(), 0, 0, 0, ())
    own, difference = mean_interval(scores), mean_interval(gains)
    adjusted = holm(difference.p)
    compared = seeds.groupby("regime")["baseline"].agg(lambda b: b.notna().any()).reindex(regimes).to_numpy()
    rows = pd.DataFrame(
        {
            "regime": regimes,
            "accuracy": own.mean,
            "low": own.low,
            "high": own.high,
            "gain": difference.mean,
            "gain_low": difference.low,
            "gain_high": difference.high,
            "p": adjusted,
            "tie": tie_groups(scores),
            "seeds": own.n,
            "detectable": minimum_detectable(difference.error, difference.n),
        }
    )
    rows["verdict"] = [
        verdict(g, low, high, p, bool(c))
        for g, low, high, p, c in zip(difference.mean, difference.low, difference.high, adjusted, compared, strict=True)
    ]
    ranked = rows.sort_values("accuracy", ascending=False, kind="stable", ignore_index=True)
    return Overall(ranked, seeds["group"].nunique(), seeds["task"].nunique(), int(own.n.max()), tuple(sizes))


def sentence(found: Overall, baseline: str) -> str:
    """The answer on top of the ranking, e.g. "On 2 pairs and 5 seeds, sgt gains over independent ..."."""
    if found.rows.empty:
        return "No regime has finished on everything chosen here yet."
    noun = "pair" if set(found.sizes) <= {2} else "group"
    where = f"On {_count(found.groups, noun)}"
    if found.tasks > 1:
        where += f", {_count(found.tasks, 'benchmark')}"
    where += f" and {_count(found.seeds, 'seed')}"
    kinds = {
        kind: list(found.rows.loc[found.rows["verdict"] == kind, "regime"]) for kind in (GAINS, LOSES, NOTHING, UNCLEAR)
    }
    if not any(kinds.values()):
        return f"{where}, there is nothing yet to compare {baseline} with."
    if found.seeds < 2:
        return f"{where}, nothing can be said about chance: a second seed is needed before a difference means anything."
    parts = []
    if kinds[GAINS]:
        parts.append(
            f"{_names(kinds[GAINS])} {_verb(kinds[GAINS], 'gain')} over {baseline} at the same rollout budget"
            + _apart(found, kinds[GAINS])
        )
    if kinds[LOSES]:
        parts.append(
            f"{_names(kinds[LOSES])} {_verb(kinds[LOSES], 'lose')} against it"
            if parts
            else f"{_names(kinds[LOSES])} {_verb(kinds[LOSES], 'lose')} against {baseline}"
        )
    family = int(found.rows["p"].notna().sum())
    for direction, verb in ((1, "gain"), (-1, "lose")):
        names = [r.regime for r in found.rows.itertuples() if r.verdict == UNCLEAR and r.gain * direction > 0]
        if names:
            whom = "" if parts else f" {'over' if direction > 0 else 'against'} {baseline}"
            parts.append(
                f"{_names(names)} may {verb}{whom}, but not beyond doubt once corrected for {_count(family, 'comparison')}"
            )
    if kinds[NOTHING]:
        parts.append(
            f"{_names(kinds[NOTHING])} {_verb(kinds[NOTHING], 'show')} no effect"
            + ("" if parts else f" against {baseline}")
        )
    seen = found.rows.loc[found.rows["verdict"] == NOTHING, "detectable"].dropna()
    text = f"{where}, {'; '.join(parts)}."
    if len(seen):
        text += f" With {_count(found.seeds, 'seed')} you could have seen {100 * seen.max():.1f} points."
    return text


def _apart(found: Overall, names: list[str]) -> str:
    if len(names) < 2:
        return ""
    ties = found.rows.set_index("regime").loc[names, "tie"]
    if ties.nunique() == 1:
        return " and cannot be told apart"
    best = [name for name in names if ties[name] == ties.min()]
    return f", {_names(best)} most" if len(best) < len(names) else ""


def _names(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _verb(names: list[str], verb: str) -> str:
    return verb if len(names) > 1 else f"{verb}s"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
