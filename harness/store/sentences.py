"""What the numbers say, in plain sentences."""

from __future__ import annotations

from collections.abc import Container, Sequence
from itertools import product
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
    """Say how verdicts and tie groups are meant, for captions."""
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
    """Write a fraction in points: `2 points` for 0.02."""
    plural = "" if share == 0.01 else "s"
    return f"{100 * share:.3g} point{plural}"


def write_rate(rate: float) -> str:
    """Write a learning rate as short as it can be: `1e-4`."""
    digits, _, power = f"{rate:e}".partition("e")
    return f"{float(digits):g}e{int(power)}"


def verdict_mark(verdict: str, margin: float) -> str:
    """Write a verdict as it stands in a table. margin: a fraction."""
    return f"no effect > {100 * margin:.3g}" if verdict == EQUIVALENT else verdict


def write_sentence(ranking: Ranking) -> str:
    """Say in full what a ranking shows, e.g. "On 2 groups and 5 seeds, sgt gains over independent ..."."""
    left_out = f" Left out: {'; '.join(ranking.left_out)}." if ranking.left_out else ""
    if not ranking.ranks:
        return f"No regime has finished on everything chosen here yet.{left_out}"
    compared = [rank for rank in ranking.ranks if rank.baseline is not None]
    paired = _list_paired_seeds(compared)
    seeds = paired or [ranking.seeds]
    where = _write_where(ranking, seeds)
    if not paired:
        return f"{where}, there is nothing yet to compare {ranking.baseline} with.{left_out}"
    if seeds[-1] < 2:
        return f"{where}, nothing can be said about chance: a second seed is needed before a difference means anything.{left_out}"
    families: dict[str, list[Rank]] = {}
    for rank in compared:
        families.setdefault(str(rank.baseline), []).append(rank)
    # the suite's own baseline first, tuned ones last
    order = sorted(families, key=lambda baseline: (", " in baseline, baseline != ranking.baseline, baseline))
    told = []
    for baseline in order:
        told.append(_write_family(baseline, families[baseline], ranking, baseline == order[0]))
    unseen = [rank for rank in compared if rank.verdict == INCONCLUSIVE]
    power = _write_power(unseen, len(seeds) > 1)
    return f"{where}, {' '.join(told)}{power}{left_out}"


def _list_paired_seeds(ranks: Sequence[Rank]) -> list[int]:
    """Return the numbers of seeds that gains are of, from fewest to most."""
    return sorted({rank.paired_seeds for rank in ranks if rank.paired_seeds})


def _write_where(ranking: Ranking, seeds: Sequence[int]) -> str:
    """Write on how many groups, benchmarks and seeds a sentence is. seeds: from fewest to most."""
    counts = [count_of(ranking.groups, "group")]
    if ranking.tasks > 1:
        counts.append(count_of(ranking.tasks, "benchmark"))
    many = count_of(seeds[0], "seed") if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]} seeds"
    return f"On {', '.join(counts)} and {many}"


# Regimes that a short sentence names before "and ... more"
_NAMED = 3


def write_summary(ranking: Ranking, rate: float | None = None) -> str:
    """Write at most three short sentences: what was found, what was excluded, what could not have been seen.

    rate: the one learning rate at which independent training ran; None where it ran at several, or where it is not known.
    `write_sentence` has every regime.
    """
    compared = [rank for rank in ranking.ranks if rank.baseline is not None]
    seeds = _list_paired_seeds(compared)
    if not seeds or seeds[-1] < 2:
        return write_sentence(ranking)
    at = "" if rate is None else f" at learning rate {write_rate(rate)}"
    where = _write_where(ranking, seeds) + at
    found = _write_found(compared, ranking.baseline)
    parts = [f"{where}, {found}", _write_excluded(compared, ranking.margin)]
    unseen = _write_unseen(compared, ranking.margin)
    if unseen:
        parts.append(unseen)
    return " ".join(parts)


def _write_found(ranks: Sequence[Rank], baseline: str) -> str:
    """Write who gains, loses or differs, e.g. `sgt gains over independent, copd loses.`"""
    phrases = {
        GAINS: f"gain{{s}} over {baseline}",
        LOSES: f"lose{{s}} against {baseline}",
        DIFFERS: "differ{s} between groups",
        DIFFERS_POLICIES: "differ{s} between policies",
    }
    parts = []
    for verdict, phrase in phrases.items():
        names = _name_judged(ranks, verdict)
        if names:
            said = phrase.format(s="s" if len(names) == 1 else "")
            parts.append(f"{name_some(names)} {said}")
    return f"{', '.join(parts)}." if parts else f"no regime is found to gain or to lose against {baseline}."


def _name_judged(ranks: Sequence[Rank], verdict: str) -> list[str]:
    """Return the names of the regimes with a verdict."""
    return [_name_with_settings(rank) for rank in ranks if rank.verdict == verdict]


def _write_excluded(ranks: Sequence[Rank], margin: float) -> str:
    """Write of whom an effect larger than the margin is excluded, and of whom the verdict is withheld."""
    excluded = _name_judged(ranks, EQUIVALENT)
    said = f"an effect larger than {write_points(margin)} of {name_some(excluded)}" if excluded else "nothing"
    withheld = ""
    for why in WITHHELD:
        names = _name_judged(ranks, why)
        if names:
            withheld += f"; of {name_some(names)} the verdict is {why}"
    return f"Excluded: {said}{withheld}."


def _write_unseen(ranks: Sequence[Rank], margin: float) -> str:
    """Write of whom one cannot tell, what gain would have shown, and how many seeds would show the margin; empty for nobody."""
    unseen = [rank for rank in ranks if rank.verdict == INCONCLUSIVE]
    if not unseen:
        return ""
    names = [_name_with_settings(rank) for rank in unseen]
    said = f"Open: {name_some(names)}"
    # nobody gains more than 1
    powers = sorted(rank.detectable for rank in unseen if rank.detectable is not None and rank.detectable <= 1)
    if powers:
        shares = [f"{100 * share:.1f}" for share in powers]
        said += f"; with 80 % power a gain of {_write_range(shares)} points would have shown"
    needed = sorted(rank.seeds_needed or MOST_SEEDS for rank in unseen if rank.gain_interval)
    if needed and margin:
        counts = [f"more than {count:,}" if count == MOST_SEEDS else f"{count:,}" for count in needed]
        said += f", and {_write_range(counts)} seeds would show one of {write_points(margin)}"
    return f"{said}."


def _write_range(numbers: Sequence[str]) -> str:
    """Write the first and the last of sorted numbers, once where they read the same."""
    low, high = numbers[0], numbers[-1]
    return low if low == high else f"{low} to {high}"


def name_some(names: Sequence[str]) -> str:
    """Name the first few, and count the others: `a, b, c and 4 more`."""
    left = len(names) - _NAMED
    if left < 2:
        return joined(names)
    first = ", ".join(names[:_NAMED])
    return f"{first} and {left} more"


def _name_with_settings(rank: Rank) -> str:
    """Return a regime's name, e.g. `tuned sgt` of a line as tuned."""
    return f"tuned {_name_line(rank)}" if ", " in str(rank.baseline) else rank.regime


def _write_family(baseline: str, ranks: Sequence[Rank], ranking: Ranking, first: bool) -> str:
    """Write what is found of all regimes that one baseline is compared with.

    first: of several baselines, for whose regimes alone it is said between which groups their gains lie.
    """
    over, _, settings = baseline.partition(", ")
    if settings:
        over = f"tuned {over}"
        head = settings if first else settings[:1].upper() + settings[1:]
        opening = f"{head}: "
    else:
        opening = "" if first else f"Against {over}: "
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
        same = [rank for rank in ranks if rank.verdict == kind]
        if not same:
            continue
        names = [_name_line(rank) for rank in same]
        ends = [_write_ends(rank) for rank in same] if first else names
        words = {
            "s": "" if len(same) > 1 else "s",
            "it": "it" if parts else over,
            "budget": _write_budget(same, ranking.unlike),
            "names": joined(names),
            "ends": joined(ends),
            "over": over,
            "apart": _write_apart(same),
            # the baseline is named once
            "whom": "" if parts else whom,
        }
        parts.append(phrase.format(**words))
    return f"{opening}{'; '.join(parts)}."


def _write_budget(ranks: Sequence[Rank], unlike: Container[str]) -> str:
    """Write at which rollout budget regimes gain. unlike: those whose budget is not the baseline's."""
    others = [_name_line(rank) for rank in ranks if rank.regime in unlike]
    if len(others) == len(ranks):
        return "another number of rollouts"
    exceptions = f" ({joined(others)} at another one)" if others else ""
    return f"the same rollout budget{exceptions}"


def _write_ends(rank: Rank) -> str:
    """Write a regime with its least and its largest gain, by group or by policy."""
    if rank.ends is None:
        return _name_line(rank)
    (low, least), (high, most) = rank.ends
    where = "for" if rank.verdict == DIFFERS_POLICIES else "on"
    from_low = f"{_write_signed(least)} {where} {low}"
    to_high = f"{_write_signed(most)} {where} {high}"
    return f"{_name_line(rank)} ({from_low} to {to_high})"


def _write_signed(share: float) -> str:
    """Write a fraction in points with its sign: `−6.7` for -0.067."""
    return f"{100 * share:+z.1f}".replace("-", "−")


def write_doubt(ranking: Ranking) -> str:
    """Say how many seeds would settle what the sentence leaves open; empty where nothing is left open."""
    known = []
    for rank in ranking.ranks:
        needed = rank.seeds_needed or MOST_SEEDS
        if rank.verdict == INCONCLUSIVE and rank.gain_interval and needed > rank.paired_seeds:
            known.append((needed, rank.regime))
    if not known or not ranking.margin:
        return ""
    known.sort()
    each = []
    for needed, regime in dict.fromkeys([known[0], known[-1]]):
        about = "more than" if needed == MOST_SEEDS else "about"
        each.append(f"{about} {needed:,} for {regime}")
    return (
        f"Seeds that would show a gain of {write_points(ranking.margin)} with 80 % power, if they go on to differ as those "
        f"that are there: {joined(each)}."
    )


def _write_power(unseen: Sequence[Rank], named: bool) -> str:
    """Say which gain would have been seen of some regimes: the least, the middle and the largest. named: with their seeds."""
    powers = [(rank.detectable or 2.0, rank.regime, rank.paired_seeds) for rank in unseen]
    known = sorted(each for each in powers if each[0] <= 1)  # nobody gains more
    if not known:
        return ""
    middle = known[(len(known) - 1) // 2]
    each = []
    for share, regime, seeds in dict.fromkeys([known[0], middle, known[-1]]):
        of_seeds = f", {count_of(seeds, 'seed')}" if named else ""
        each.append(f"{100 * share:.1f} points ({regime}{of_seeds})")
    return f" With 80 % power you could have seen a gain of {joined(each)}."


def _write_apart(gainers: Sequence[Rank]) -> str:
    """Say of several regimes that gain whether they can be told apart: which gain most, where some are clearly ahead."""
    if len(gainers) < 2 or any(rank.tie_group == NO_TIES for rank in gainers):
        return ""
    letters = [set(rank.tie_group) for rank in gainers]
    if all(one & other for one, other in product(letters, repeat=2)):
        return " and cannot be told apart"
    # the first one's gain is the largest
    best = [place for place, own in enumerate(letters) if letters[0] & own]
    others = [place for place in range(len(gainers)) if place not in best]
    clear = not any(letters[one] & letters[other] for one, other in product(best, others))
    if clear and others:
        names = [_name_line(gainers[place]) for place in best]
        return f", {joined(names)} most"
    return ""


def _name_line(rank: Rank) -> str:
    """Return a regime's name, without the settings that its sentence has named."""
    if ", " in str(rank.baseline):
        return rank.regime.partition(", ")[0]
    return rank.regime


def joined(parts: Sequence[str]) -> str:
    """Write a list of words: `a, b and c`."""
    *before, last = parts
    if not before:
        return last
    return f"{', '.join(before)} and {last}"


def count_of(number: int, noun: str) -> str:
    """Write a number with its noun: `1 seed`, `2 seeds`."""
    plural = "" if number == 1 else "s"
    return f"{number} {noun}{plural}"
