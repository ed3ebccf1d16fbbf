"""What the numbers say, in one or two plain sentences: the only place for these words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.statistics.compare import MOST_SEEDS
from harness.statistics.judgement import GAINS, LOSES, UNTOLD, WITHIN

if TYPE_CHECKING:
    from harness.store.ranking import Rank, Ranking


def explained(margin: float) -> str:
    """How verdicts and tie groups are meant, for captions."""
    return (
        "Verdicts, p-values and tie groups are one set of tests: paired t tests of all pairs over the seeds, corrected together "
        "by Holm's method (each comparison with the baseline counts one, all others together one more). A regime gains or "
        "loses where its corrected test against the baseline is significant at 5 %, and exactly then the two share no tie "
        f"group: a letter in common means that they cannot be told apart. No effect larger than {points(margin)}: the 95 % "
        f"interval of the gain lies within ±{100 * margin:.3g}. Intervals are not corrected: one may leave 0 out where one "
        "cannot tell."
    )


def points(share: float) -> str:
    """`2 points` for 0.02."""
    return f"{100 * share:.3g} point{'' if share == 0.01 else 's'}"


def verdict_words(verdict: str, margin: float) -> str:
    """A verdict as people read it, e.g. `no effect larger than 2 points`."""
    return f"no effect larger than {points(margin)}" if verdict == WITHIN else verdict


def verdict_mark(verdict: str, margin: float) -> str:
    """The same for a column of a table, e.g. `no effect > 2`."""
    return f"no effect > {100 * margin:.3g}" if verdict == WITHIN else verdict


def sentence(found: Ranking) -> str:
    """The answer on top of everything, e.g. "On 2 pairs and 5 seeds, sgt gains over independent ..."."""
    if not found.ranks:
        return "No regime has finished on everything chosen here yet."
    counts = [_count(found.groups, "pair" if found.pairs else "group")]
    counts += [_count(found.tasks, "benchmark")] if found.tasks > 1 else []
    where = f"On {', '.join(counts)} and {_count(found.seeds, 'seed')}"
    kinds = {
        kind: [r for r in found.ranks if r.verdict == kind and r.baseline is not None]
        for kind in (GAINS, LOSES, WITHIN, UNTOLD)
    }
    if not any(kinds.values()):
        return f"{where}, there is nothing yet to compare {found.baseline} with."
    if found.seeds < 2:
        return f"{where}, nothing can be said about chance: a second seed is needed before a difference means anything."
    parts = []
    if gain := kinds[GAINS]:
        parts.append(
            f"{_names(gain)} {_verb(gain, 'gain')} over {found.baseline} at the same rollout budget{_apart(gain)}"
        )
    if lose := kinds[LOSES]:
        parts.append(f"{_names(lose)} {_verb(lose, 'lose')} against {'it' if parts else found.baseline}")
    whom = "" if parts else f" against {found.baseline}"
    if within := kinds[WITHIN]:
        parts.append(f"{_names(within)} {_verb(within, 'show')} {verdict_words(WITHIN, found.margin)}{whom}")
        whom = ""
    if untold := kinds[UNTOLD]:
        parts.append(f"for {_names(untold)} one cannot tell{whom}")
    return f"{where}, {'; '.join(parts)}.{_power(found.seeds, [*within, *untold])}"


def doubt(found: Ranking) -> str:
    """How many seeds would settle what the sentence leaves open, for the sharpest and the most blurred regime there; empty where
    seeds are not what is wanting."""
    known = sorted(
        (r.seeds_needed or MOST_SEEDS, r.regime)
        for r in found.ranks
        if r.verdict == UNTOLD and r.gain_interval and (r.seeds_needed or MOST_SEEDS) > r.seeds
    )
    if not known or not found.margin:
        return ""
    each = [
        f"{'more than' if needed == MOST_SEEDS else 'about'} {needed:,} for {regime}"
        for needed, regime in dict.fromkeys([known[0], known[-1]])
    ]
    return (
        f"Seeds that would show a gain of {points(found.margin)} with 80 % power, if they go on to differ as these "
        f"{found.seeds} do: {_joined(each)}."
    )


def _power(seeds: int, unseen: Sequence[Rank]) -> str:
    """How large a gain would have been seen, regime by regime: the sharpest, the middle and the most blurred one."""
    known = sorted((r.detectable, r.regime) for r in unseen if r.detectable is not None)
    if not known:
        return ""
    shown = dict.fromkeys([known[0], known[(len(known) - 1) // 2], known[-1]])
    each = [f"{100 * share:.1f} points of {regime}" for share, regime in shown]
    return f" With {_count(seeds, 'seed')} you could have seen a gain of {_joined(each)}."


def _apart(gainers: Sequence[Rank]) -> str:
    """How those that gain stand to each other; silent where it is more than one sentence can say."""
    if len(gainers) < 2:
        return ""
    together = [[bool(set(a.tie_group) & set(b.tie_group)) for b in gainers] for a in gainers]
    if all(all(row) for row in together):
        return " and cannot be told apart"
    best = [i for i, tied in enumerate(together[0]) if tied]
    clear = all(not together[i][j] for i in best for j in range(len(gainers)) if j not in best)
    return f", {_names([gainers[i] for i in best])} most" if clear else ""


def _names(ranks: Sequence[Rank]) -> str:
    return _joined([r.regime for r in ranks])


def _joined(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _verb(ranks: Sequence[Rank], verb: str) -> str:
    return verb if len(ranks) > 1 else f"{verb}s"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
