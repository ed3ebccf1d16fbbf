"""What the settings of all suites show together, in sentences, for the leaderboard's first screen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations

from harness.statistics import MARGIN
from harness.statistics.comparison import EQUIVALENT, GAINS, LOSES
from harness.store.finished import ShowRow
from harness.store.kind_answers import KindAnswers, KindFinding, answer_by_kind
from harness.store.sentences import joined, verdict_mark, write_points, write_rate
from harness.store.standing import DEFAULTS, KINDS, Board, Kind, OneBase, Setting
from harness.store.statistic import PERCENT, POINTS

_WHERE: dict[Kind, str] = {
    "built": "where each policy was taught what the other lacks,",
    "alike": "on tiny models with the statistics of real pairs,",
    "real": "on real models,",
}


def summarise_board(
    defaults: Board,
    tuned: Board,
    margin: float = MARGIN,
    statuses: Mapping[str, str] | None = None,
) -> list[str]:
    """Say what the settings show together: first what stands out in each kind of pair, then who gains and loses there.

    statuses: by regime, whose defaults it has: `published`, or `with defaults of ours`.
    """
    parts = [_summarise_findings(answer_by_kind(defaults, write_points(margin)))]
    rates = _write_two_rates(defaults, margin)
    if rates:
        parts[0] += f" {rates}"
    for kind in KINDS:
        said = _summarise_kind(kind, defaults, tuned, statuses or {})
        if said:
            parts.append(said)
    single = _name_pairs_at_one_rate(defaults)
    if single:
        parts.append(f"At one learning rate alone ran {single}: whether their gains hold at another is not known.")
    if defaults.unlike:
        parts.append(_write_one_base(defaults.unlike[0]))
    return parts


def _summarise_findings(kinds: Sequence[KindAnswers]) -> str:
    """Write one sentence with a clause for each kind of pair: its largest gain, else the regime that most surely learns faster."""
    clauses = []
    for answers in kinds:
        gains, paces, ends, _ = answers.answers
        largest = next((one for one in gains.found if one.value > 0), None)
        # who learns faster towards a lower end is no good news
        lower = {(one.regime, one.setting) for one in ends.found if one.value < 0}
        faster = [one for one in paces.found if one.value > 1 and (one.regime, one.setting) not in lower]
        surest = max(faster, key=lambda one: one.interval[0], default=None)
        clauses.append(f"{_WHERE[answers.kind]} {_write_finding(largest, surest)}")
    sentence = "; ".join(clauses) or "no regime is compared with its defaults yet"
    return _begin_with_capital(f"{sentence}.")


def _write_finding(gain: KindFinding | None, pace: KindFinding | None) -> str:
    """Write a gain; where none was found, a pace. Both would be of two settings, and read as if they were of one."""
    if gain is not None:
        return f"{gain.regime} gains {gain.number} points"
    if pace is not None:
        return f"no regime is shown to gain, but {pace.regime} learns {pace.number} times as fast as training alone"
    return "no regime is shown to gain"


def _summarise_kind(kind: Kind, defaults: Board, tuned: Board, statuses: Mapping[str, str]) -> str:
    """Say who gains and loses in the settings of one kind; empty where there are none."""
    cells = [(name, cell) for name, _, cell in defaults.list_gains(kind)]
    if not cells:
        return ""
    gains = _list_judged(cells, GAINS)
    loses = _list_judged(cells, LOSES)
    nothing = sum(cell.verdict == EQUIVALENT for _, cell in cells)
    sizes = [cell.gain for _, cell in cells]
    low, high = POINTS.text(min(sizes)), POINTS.text(max(sizes))
    when_tuned = [(name, cell) for name, _, cell in tuned.list_gains(kind)]
    also = [name for name in _list_judged(when_tuned, GAINS) if name not in gains]
    said = _name_by_status(gains, statuses) or "no regime gains with its defaults"
    if also:
        said += f", {joined(also)} when tuned"
    if loses:
        said += f"; {_name_regimes(loses, 'lose')}"
    sentence = f"{_WHERE[kind]} {said} (gains from {low} to {high} points; in {nothing} of {len(cells)} comparisons no effect)."
    return _begin_with_capital(sentence)


def _begin_with_capital(sentence: str) -> str:
    """Return a sentence whose first letter is a capital, which `_WHERE` has not: it stands within sentences too."""
    return sentence[0].upper() + sentence[1:]


def _list_judged(cells: Sequence[tuple[str, ShowRow]], verdict: str) -> list[str]:
    """Return the regimes with a verdict in some setting, by name."""
    return sorted({name for name, cell in cells if cell.verdict == verdict})


def _write_one_base(one: OneBase) -> str:
    """Say that a gain is not seen over several base checkpoints."""
    alone = POINTS.with_interval(one.gain.gain, one.gain.gain_interval)
    there = POINTS.with_interval(one.there.gain, one.there.gain_interval)
    return (
        f"{one.gain.regime} gains {alone} points on {one.alone.title} in {one.alone.names}, where all seeds start from one "
        f"base checkpoint a family. Over {one.own.seeds} base checkpoints a family, in {one.own.names}, it is {there}: "
        "no gain is shown there."
    )


def _name_by_status(names: Sequence[str], statuses: Mapping[str, str]) -> str:
    """Say which regimes gain, those with published defaults apart from those with ours; empty where none does."""
    by_status: dict[str, list[str]] = {}
    for name in names:
        by_status.setdefault(statuses.get(name, DEFAULTS), []).append(name)
    parts = []
    for status, own in sorted(by_status.items()):
        said = _name_regimes(own, "gain")
        parts.append(f"{said} ({status})")
    return " and ".join(parts)


def _write_two_rates(defaults: Board, margin: float) -> str:
    """Write the largest gain of a regime that ran on the same pair at two learning rates, at both, if possible after as much
    training. Empty where no regime ran at two, or on positive controls alone: these gain because they were built so."""
    by_pair: dict[tuple[object, ...], list[tuple[Setting, ShowRow]]] = {}
    for name, setting, row in defaults.list_gains():
        if setting.rate is not None and setting.kind != "built":
            of_pair = by_pair.setdefault((name, *setting.pair), [])
            of_pair.append((setting, row))
    best: tuple[bool, float] | None = None
    both: list[tuple[Setting, ShowRow]] = []
    for cells in by_pair.values():
        for first, second in permutations(cells, 2):
            setting, row = first
            other, _ = second
            if setting.rate == other.rate:
                continue
            worth = setting.shape == other.shape, float(row.gain)
            if best is None or worth > best:
                best = worth
                both = [first, second]
    if not both:
        return ""
    (setting, row), (other, there) = both
    at_first = _write_at_a_rate(setting, row, margin)
    at_second = _write_at_a_rate(other, there, margin)
    return f"On {setting.title} the gain of {row.regime} is {at_first} and {at_second}."


def _write_at_a_rate(setting: Setting, row: ShowRow, margin: float) -> str:
    """Write a gain with the learning rate at which it was seen, its verdict, and where training alone ends."""
    gain = POINTS.with_interval(row.gain, row.gain_interval)
    rate = write_rate(setting.rate or 0.0)
    # "no effect" is said of the interval that is not corrected
    corrected = "" if row.verdict == EQUIVALENT else "95 % by itself; corrected for all that is compared: "
    verdict = verdict_mark(row.verdict, margin)
    alone = ""
    if setting.alone is not None:
        alone = f"; independent training ends at {PERCENT.text(setting.alone)} %"
    return f"{gain} points at learning rate {rate} in {setting.names} ({corrected}{verdict}{alone})"


def _name_pairs_at_one_rate(defaults: Board) -> str:
    """Name the pairs that ran at one known learning rate alone, but those that were built to gain; empty where there are none."""
    rates: dict[tuple[object, ...], set[float | None]] = {}
    titles: dict[tuple[object, ...], str] = {}
    for setting in defaults.settings:
        if setting.kind != "built":
            of_pair = rates.setdefault(setting.pair, set())
            of_pair.update(setting.rates or [setting.rate])
            titles[setting.pair] = setting.title
    single = [titles[pair] for pair, known in rates.items() if len(known) == 1 and None not in known]
    return joined(single) if single else ""


def _name_regimes(names: Sequence[str], verb: str) -> str:
    """Write names with a verb of theirs; empty without names."""
    if not names:
        return ""
    ending = "s" if len(names) == 1 else ""
    return f"{joined(names)} {verb}{ending}"
