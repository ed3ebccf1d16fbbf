"""What the board answers by kind of pair: who gains, who learns faster, who ends elsewhere, whom it harms."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from harness.statistics.comparison import EQUIVALENT, GAINS, LOSES
from harness.store.roles import RoleRow
from harness.store.sentences import count_of, joined, write_rate
from harness.store.standing import Board, Kind, Setting
from harness.store.statistic import CLOCK, POINTS, Pair, Unit


class KindFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A number of one regime in one setting, in its unit, with its 95 % interval. whom: the members of the pair whose it is; of
    both, the number of the one that has less."""

    regime: str
    setting: Setting
    unit: Unit
    value: float
    interval: Pair
    whom: str = ""

    @property
    def number(self) -> str:
        """Return the number as a sentence has it, with its interval."""
        return self.unit.with_interval(self.value, self.interval)

    @property
    def where(self) -> str:
        """Return where it was found, e.g. `the weaker of neox × qwen, rate 1e-4 (matched)`."""
        member = f"{self.whom} of " if self.whom else ""
        setting = name_setting(self.setting, steps=False)
        return f"{member}{setting}"


class KindAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One question, of one kind of pair. said: a sentence or two that name no regime that `found` has. found: what stands out,
    most first."""

    question: str
    said: str
    found: tuple[KindFinding, ...] = ()


class KindAnswers(msgspec.Struct, frozen=True):
    """kind: of pair; settings: that the answers are from."""

    kind: Kind
    settings: tuple[Setting, ...]
    answers: tuple[KindAnswer, ...]


# Of gains without any effect, the share whose 95 % interval lies below 0
_BELOW_BY_CHANCE = 0.025
QUESTIONS = ("Does it gain?", "Does it learn faster? (kappa)", "Does it end elsewhere? (reach)", "Whom does it harm?")


def name_setting(setting: Setting, steps: bool = True) -> str:
    """Name a setting by its pair, its learning rate, its steps (or not) and its suites."""
    parts = [setting.title]
    if setting.rate is not None:
        parts.append(f"rate {write_rate(setting.rate)}")
    if steps and setting.steps is not None:
        parts.append(count_of(setting.steps, "step"))
    return f"{', '.join(parts)} ({setting.names})"


def answer_by_kind(board: Board, points: str) -> list[KindAnswers]:
    """Answer the four QUESTIONS for each kind of pair that the board has. points: the margin in words."""
    kinds = []
    for section in board.sections:
        kind = section.kind
        answers = (
            _answer_gain(board, kind, points),
            _answer_pace(board, kind),
            _answer_reach(board, kind),
            _answer_harm(board, kind),
        )
        kinds.append(KindAnswers(kind, section.settings, answers))
    return kinds


def _answer_gain(board: Board, kind: Kind, points: str) -> KindAnswer:
    """Say how many gains and losses are found, and of how many comparisons an effect is excluded."""
    cells = board.list_gains(kind)
    found = []
    for name, setting, row in cells:
        interval = row.gain_corrected_interval or row.gain_interval
        if row.verdict in (GAINS, LOSES) and interval:
            found.append(KindFinding(regime=name, setting=setting, unit=POINTS, value=row.gain, interval=interval))
    gains = sum(one.value > 0 for one in found)
    losses = len(found) - gains
    nothing = sum(row.verdict == EQUIVALENT for _, _, row in cells)
    left = len(cells) - len(found) - nothing
    shown = "no gain and no loss"
    if found:
        plural = "" if losses == 1 else "es"
        shown = f"{count_of(gains, 'gain')} and {losses} loss{plural}"
    opening = shown[0].upper() + shown[1:]
    said = (
        f"{opening} shown in {count_of(len(cells), 'comparison')}. {nothing} have no effect larger than "
        f"{points}, {left} cannot tell."
    )
    return KindAnswer(question=QUESTIONS[0], said=said, found=_order_findings(found, 0.0))


def _answer_pace(board: Board, kind: Kind) -> KindAnswer:
    """Say of how many comparisons kappa is known, and of how many it is not 1."""
    cells = board.list_gains(kind)
    known = []
    for name, setting, row in cells:
        interval = row.kappa_interval
        if row.kappa is not None and interval is not None:
            known.append(KindFinding(regime=name, setting=setting, unit=CLOCK, value=row.kappa, interval=interval))
    found = _leave_out(known, 1.0)
    said = _count_known(known, found, len(cells), "1")
    return KindAnswer(question=QUESTIONS[1], said=said, found=found)


def _answer_reach(board: Board, kind: Kind) -> KindAnswer:
    """Say of how many comparisons the reach is known, and of how many it is not 0."""
    cells = board.list_gains(kind)
    known = []
    for name, setting, row in cells:
        interval = row.reach_interval
        if row.reach is not None and interval is not None:
            known.append(KindFinding(regime=name, setting=setting, unit=POINTS, value=row.reach, interval=interval))
    found = _leave_out(known, 0.0)
    said = _count_known(known, found, len(cells), "0")
    return KindAnswer(question=QUESTIONS[2], said=said, found=found)


def _answer_harm(board: Board, kind: Kind) -> KindAnswer:
    """Say of how many members of pairs the whole interval of the gain lies below 0, and how many would by chance."""
    lines = board.list_roles(kind)
    known = 0
    below = 0
    found = []
    for name, setting, role in lines:
        known += (role.stronger is not None) + (role.weaker is not None)
        harmed = _find_harmed(role)
        below += len(harmed)
        if harmed:
            gain, interval, whom = min(harmed)
            members = "both" if len(harmed) > 1 else f"the {whom}"
            one = KindFinding(regime=name, setting=setting, unit=POINTS, value=gain, interval=interval, whom=members)
            found.append(one)
    said = _count_harmed(known, below)
    return KindAnswer(question=QUESTIONS[3], said=said, found=_order_findings(found, 0.0))


def _count_harmed(known: int, below: int) -> str:
    """Write how many gains by role lie below 0, beside how many would by chance."""
    if not known:
        return "Not known: no group's members differ before training."
    expected = known * _BELOW_BY_CHANCE
    chance = f"about {expected:.0f}" if expected >= 1 else "fewer than 1"
    lie = "lie" if below > 1 else "lies"
    counted = f"{below or 'None'} of {count_of(known, 'gain')} by role"
    return f"{counted} {lie} below 0 with the whole interval; {chance} would by chance."


def _find_harmed(role: RoleRow) -> list[tuple[float, Pair, str]]:
    """Return gain, 95 % interval and role of the members whose gain lies below 0 with its whole interval."""
    members = (
        (role.stronger, role.stronger_interval, "stronger"),
        (role.weaker, role.weaker_interval, "weaker"),
    )
    harmed = []
    for gain, interval, whom in members:
        if gain is not None and interval is not None and interval[1] < 0:
            harmed.append((gain, interval, whom))
    return harmed


def list_harmed(role: RoleRow | None) -> list[tuple[str, str]]:
    """Return the members of a pair that a regime harms: the role, and the gain in words."""
    if role is None:
        return []
    harmed = []
    for gain, interval, whom in _find_harmed(role):
        harmed.append((whom, POINTS.with_interval(gain, interval)))
    return harmed


def _count_known(known: Sequence[KindFinding], found: Sequence[KindFinding], compared: int, nothing: str) -> str:
    """Write in how many comparisons a number is identified, and in how many of these its interval leaves out no effect.

    nothing: the number that stands for no effect.
    """
    comparisons = count_of(compared, "comparison")
    if not known:
        return f"Not known: identified in none of {comparisons}."
    verb = "has" if len(found) == 1 else "have"
    count = len(found) or "none"
    return f"Identified in {len(known)} of {comparisons}; {count} of these {verb} an interval without {nothing}."


def _leave_out(findings: Iterable[KindFinding], nothing: float) -> tuple[KindFinding, ...]:
    """Return the findings whose interval leaves out the value of no effect."""
    found = [one for one in findings if not one.interval[0] <= nothing <= one.interval[1]]
    return _order_findings(found, nothing)


def _order_findings(findings: Iterable[KindFinding], nothing: float) -> tuple[KindFinding, ...]:
    """Return the findings, the farthest from no effect first."""
    return tuple(sorted(findings, key=lambda one: (-abs(one.value - nothing), one.regime, one.setting.names)))


def write_kind(answers: KindAnswers) -> list[str]:
    """Write a kind's answers as sentences, for the terminal and for pages."""
    lines = []
    for answer in answers.answers:
        line = f"{answer.question} {answer.said}"
        if answer.found:
            told = [f"{one.regime} {one.number} on {one.where}" for one in answer.found]
            line += f" {joined(told)}."
        lines.append(line)
    return lines
