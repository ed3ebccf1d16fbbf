"""What the numbers say, in plain sentences."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import TYPE_CHECKING

from harness.statistics.comparison import (
    DIFFERS,
    DIFFERS_POLICIES,
    EQUIVALENT,
    GAINS,
    INCONCLUSIVE,
    LOSES,
    MIN_TIE_SEEDS,
    MOST_SEEDS,
    WITHHELD,
)

if TYPE_CHECKING:
    from harness.store.ranking import Rank, Ranking


# In place of a tie letter
NO_TIES = "–"
TIES_FROM = (
    f"Ties are shown from {MIN_TIE_SEEDS} seeds on: of fewer, regimes that nobody would believe equal share a letter."
)


def explain_verdicts(margin: float) -> str:
    """How verdicts and tie groups are meant, for captions."""
    return (
        "All verdicts of one policy (or of the mean of policies) and one metric are one set of paired t tests over seeds: every "
        "regime on every group and benchmark, on their mean, and whether groups differ, corrected together by Holm's method, so "
        "that of twenty such sets without any effect at most one has a false finding. A regime gains or loses where the corrected "
        "interval of its gain leaves out 0; by the same tests regimes without a tie letter in common are told apart. No effect "
        f"larger than {write_points(margin)}: the 95 % interval of the gain lies within ±{100 * margin:.3g}, and groups are not "
        "seen to differ. Differs between policies: the mean finds nothing, but by a family of tests of its own the policies' gains "
        f"differ. {TIES_FROM} Not corrected: 95 % intervals, no effect, the choice among policies and metrics, the best of several "
        "suites."
    )


def write_points(share: float) -> str:
    """`2 points` for 0.02."""
    return f"{100 * share:.3g} point{'' if share == 0.01 else 's'}"


def write_rate(rate: float) -> str:
    """`1e-4`."""
    digits, _, power = f"{rate:e}".partition("e")
    return f"{float(digits):g}e{int(power)}"


def verdict_mark(verdict: str, margin: float) -> str:
    return f"no effect > {100 * margin:.3g}" if verdict == EQUIVALENT else verdict


def write_sentence(ranking: Ranking) -> str:
    """E.g. "On 2 groups and 5 seeds, sgt gains over independent ..."."""
    left_out = f" Left out: {joined(ranking.left_out)}." if ranking.left_out else ""
    if not ranking.ranks:
        return f"No regime has finished on everything chosen here yet.{left_out}"
    compared = [r for r in ranking.ranks if r.baseline is not None]
    counts = [count_of(ranking.groups, "group")]
    counts += [count_of(ranking.tasks, "benchmark")] if ranking.tasks > 1 else []
    seeds = sorted({r.paired_seeds for r in compared if r.paired_seeds}) or [ranking.seeds]
    many = count_of(seeds[0], "seed") if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]} seeds"
    where = f"On {', '.join(counts)} and {many}"
    if not any(r.paired_seeds for r in compared):
        return f"{where}, there is nothing yet to compare {ranking.baseline} with.{left_out}"
    if seeds[-1] < 2:
        return f"{where}, nothing can be said about chance: a second seed is needed before a difference means anything.{left_out}"
    families: dict[str, list[Rank]] = {}
    for rank in compared:
        families.setdefault(str(rank.baseline), []).append(rank)
    order = sorted(families, key=lambda baseline: (", " in baseline, baseline != ranking.baseline, baseline))
    told = [_write_family(baseline, families[baseline], ranking, baseline == order[0]) for baseline in order]
    power = _write_power([r for r in compared if r.verdict == INCONCLUSIVE], len(seeds) > 1)
    return f"{where}, {' '.join(told)}{power}{left_out}"


# Regimes that a short sentence names before "and ... more"
_NAMED = 3


def write_summary(ranking: Ranking, rate: float | None = None) -> str:
    """Write at most three short sentences: what was found, what was excluded, what could not have been seen.

    rate: the one learning rate at which independent training ran; None where it ran at several, or where it is not known.
    `write_sentence` has every regime.
    """
    compared = [r for r in ranking.ranks if r.baseline is not None]
    seeds = sorted({r.paired_seeds for r in compared if r.paired_seeds})
    if not seeds or seeds[-1] < 2:
        return write_sentence(ranking)
    counts = [count_of(ranking.groups, "group")]
    counts += [count_of(ranking.tasks, "benchmark")] if ranking.tasks > 1 else []
    many = count_of(seeds[0], "seed") if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]} seeds"
    at = "" if rate is None else f" at learning rate {write_rate(rate)}"
    where = f"On {', '.join(counts)} and {many}{at}"
    parts = [f"{where}, {_write_found(compared, ranking.baseline)}", _write_excluded(compared, ranking.margin)]
    unseen = _write_unseen(compared, ranking.margin)
    return " ".join([*parts, unseen] if unseen else parts)


def _write_found(ranks: Sequence[Rank], baseline: str) -> str:
    """E.g. `sgt gains over independent, copd loses.`"""
    phrases = {GAINS: f"gain{{s}} over {baseline}", LOSES: f"lose{{s}} against {baseline}",
               DIFFERS: "differ{s} between groups", DIFFERS_POLICIES: "differ{s} between policies"}  # fmt: skip
    parts = []
    for verdict, phrase in phrases.items():
        names = [_name_with_settings(rank) for rank in ranks if rank.verdict == verdict]
        if names:
            parts.append(f"{name_some(names)} {phrase.format(s='s' if len(names) == 1 else '')}")
    return f"{', '.join(parts)}." if parts else f"no regime is found to gain or to lose against {baseline}."


def _write_excluded(ranks: Sequence[Rank], margin: float) -> str:
    excluded = [_name_with_settings(rank) for rank in ranks if rank.verdict == EQUIVALENT]
    said = f"an effect larger than {write_points(margin)} of {name_some(excluded)}" if excluded else "nothing"
    withheld = ""
    for why in WITHHELD:
        names = [_name_with_settings(rank) for rank in ranks if rank.verdict == why]
        if names:
            withheld += f"; of {name_some(names)} the verdict is {why}"
    return f"Excluded: {said}{withheld}."


def _write_unseen(ranks: Sequence[Rank], margin: float) -> str:
    """Write of whom one cannot tell, what gain would have shown, and how many seeds would show the margin; empty for nobody."""
    unseen = [rank for rank in ranks if rank.verdict == INCONCLUSIVE]
    if not unseen:
        return ""
    powers = sorted(rank.detectable for rank in unseen if rank.detectable is not None and rank.detectable <= 1)
    said = f"Open: {name_some([_name_with_settings(rank) for rank in unseen])}"
    if powers:
        low, high = (f"{100 * share:.1f}" for share in (powers[0], powers[-1]))
        said += f"; with 80 % power a gain of {low if low == high else f'{low} to {high}'} points would have shown"
    needed = sorted(rank.seeds_needed or MOST_SEEDS for rank in unseen if rank.gain_interval)
    if needed and margin:
        low, high = (
            f"more than {count:,}" if count == MOST_SEEDS else f"{count:,}" for count in (needed[0], needed[-1])
        )
        said += f", and {low if low == high else f'{low} to {high}'} seeds would show one of {write_points(margin)}"
    return f"{said}."


def name_some(names: Sequence[str]) -> str:
    """Name the first few, and count the others: `a, b, c and 4 more`."""
    left = len(names) - _NAMED
    return joined(names) if left < 2 else f"{', '.join(names[:_NAMED])} and {left} more"


def _name_with_settings(rank: Rank) -> str:
    """E.g. `tuned sgt` of a line as tuned."""
    return f"tuned {_name_line(rank)}" if ", " in str(rank.baseline) else rank.regime


def _write_family(baseline: str, ranks: Sequence[Rank], ranking: Ranking, first: bool) -> str:
    """first: of several baselines, for whose regimes alone it is said between which groups their gains lie."""
    over, _, settings = baseline.partition(", ")
    over = f"tuned {over}" if settings else over
    head = settings if first else settings[:1].upper() + settings[1:]
    opening = f"{head}: " if head else "" if first else f"Against {over}: "
    phrases = {
        GAINS: "{ends} gain{s} over {over} at {budget}{apart}",
        LOSES: "{ends} lose{s} against {it}",
        DIFFERS: "{ends} differ{s} between groups{whom}",
        DIFFERS_POLICIES: "{ends} differ{s} between policies{whom}",
        EQUIVALENT: f"{{names}} show{{s}} no effect larger than {write_points(ranking.margin)}{{whom}}",
        INCONCLUSIVE: "for {ends} one cannot tell{whom}",
        **{why: f"for {{names}} the verdict is {why}" for why in WITHHELD},
    }
    whom = "" if opening.startswith("Against") else f" against {over}"
    parts: list[str] = []
    for kind, phrase in phrases.items():
        same = [r for r in ranks if r.verdict == kind]
        if same:
            several = len(same) > 1
            words = {
                "s": "" if several else "s",
                "it": "it" if parts else over,
                "budget": _write_budget(same, ranking.unlike),
            }
            names = [_name_line(r) for r in same]
            ends = [_write_ends(r) for r in same] if first else names
            words |= {"names": joined(names), "ends": joined(ends), "over": over}
            parts.append(phrase.format(**words, apart=_write_apart(same), whom="" if parts else whom))
    return f"{opening}{'; '.join(parts)}."


def _write_budget(ranks: Sequence[Rank], unlike: Container[str]) -> str:
    others = [_name_line(r) for r in ranks if r.regime in unlike]
    if len(others) == len(ranks):
        return "another number of rollouts"
    return f"the same rollout budget{f' ({joined(others)} at another one)' if others else ''}"


def _write_ends(rank: Rank) -> str:
    if rank.ends is None:
        return _name_line(rank)
    (low, least), (high, most) = rank.ends
    where = "for" if rank.verdict == DIFFERS_POLICIES else "on"
    return f"{_name_line(rank)} ({_write_signed(least)} {where} {low} to {_write_signed(most)} {where} {high})"


def _write_signed(share: float) -> str:
    """`−6.7` points for -0.067."""
    return f"{100 * share:+z.1f}".replace("-", "−")


def write_doubt(ranking: Ranking) -> str:
    """How many seeds would settle what the sentence leaves open."""
    known = sorted(
        (r.seeds_needed or MOST_SEEDS, r.regime)
        for r in ranking.ranks
        if r.verdict == INCONCLUSIVE and r.gain_interval and (r.seeds_needed or MOST_SEEDS) > r.paired_seeds
    )
    if not known or not ranking.margin:
        return ""
    each = [
        f"{'more than' if needed == MOST_SEEDS else 'about'} {needed:,} for {regime}"
        for needed, regime in dict.fromkeys([known[0], known[-1]])
    ]
    return (
        f"Seeds that would show a gain of {write_points(ranking.margin)} with 80 % power, if they go on to differ as those "
        f"that are there: {joined(each)}."
    )


def _write_power(unseen: Sequence[Rank], named: bool) -> str:
    powers = ((r.detectable or 2.0, r.regime, r.paired_seeds) for r in unseen)
    known = sorted(each for each in powers if each[0] <= 1)  # nobody gains more
    if not known:
        return ""
    shown = dict.fromkeys([known[0], known[(len(known) - 1) // 2], known[-1]])
    each = [
        f"{100 * share:.1f} points ({regime}{', ' + count_of(seeds, 'seed') if named else ''})"
        for share, regime, seeds in shown
    ]
    return f" With 80 % power you could have seen a gain of {joined(each)}."


def _write_apart(gainers: Sequence[Rank]) -> str:
    if len(gainers) < 2 or any(rank.tie_group == NO_TIES for rank in gainers):
        return ""
    together = [[bool(set(a.tie_group) & set(b.tie_group)) for b in gainers] for a in gainers]
    if all(all(row) for row in together):
        return " and cannot be told apart"
    best = [i for i, tied in enumerate(together[0]) if tied]
    clear = all(not together[i][j] for i in best for j in range(len(gainers)) if j not in best)
    if clear and len(best) < len(gainers):
        return f", {joined([_name_line(gainers[i]) for i in best])} most"
    return ""


def _name_line(rank: Rank) -> str:
    if ", " in str(rank.baseline):
        return rank.regime.partition(", ")[0]
    return rank.regime


def joined(parts: Sequence[str]) -> str:
    """`a, b and c`."""
    if len(parts) == 1:
        return parts[0]
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def count_of(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
