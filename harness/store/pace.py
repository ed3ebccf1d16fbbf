"""How fast each line of a suite learns and where it ends, from the curves of its finished cells (docs/statistics.md).

A line is compared with its *clock*: independent training at the suite's own budget and at the line's own learning rate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from harness.statistics.acceleration import (
    Acceleration,
    BaselineClock,
    compare_with_clock,
    describe_too_few,
    fit_clock,
    refused_fit,
)
from harness.statistics.worth import Worth, estimate_worth
from harness.store.learning_curves import (
    REWARD,
    LearningCurves,
    common_points,
    read_curves,
    stack_curves,
)
from harness.store.read import Snapshot

NOT_IDENTIFIED, STILL_RISING = "not identified", "still rising"
TOO_FEW, NO_CLOCK, CHOSEN_PROMPTS = "too few points", "no baseline at its rate", "chosen prompts"


@dataclass(frozen=True, slots=True)
class Pace:
    """A line's pace and end. clock: the line it is compared with. curve: HELD_OUT or REWARD. status: why a number is missing, or
    empty; reason: the same in a sentence. fit: None where none was tried."""

    clock: str
    curve: str
    status: str = ""
    reason: str = ""
    fit: Acceleration | None = None
    worth: Worth | None = None

    @property
    def kappa(self) -> float | None:
        """The pace, where it is identified."""
        if self.fit is None or self.fit.problem:
            return None
        return self.fit.kappa

    @property
    def kappa_interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the pace, where it is identified."""
        if self.fit is None or self.fit.problem:
            return None
        return self.fit.kappa_low, self.fit.kappa_high

    @property
    def reach(self) -> float | None:
        """The difference of the ends, where it is identified and the baseline's own curve is flat at the end of its run."""
        if self.fit is None or self.fit.problem or self.fit.rising:
            return None
        return self.fit.delta

    @property
    def reach_interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the reach, where there is one."""
        if self.fit is None or self.reach is None:
            return None
        return self.fit.delta_low, self.fit.delta_high


@dataclass(frozen=True, slots=True)
class Clocks:
    """Which lines of a suite are compared with which.

    of: by line, its clock; empty where the suite has none at the line's rate. A clock itself is absent. cells: by line, the
    variant whose cells it is made of. ladders: by clock, the lines that are the same training at other budgets, with the budget as
    a multiple of the clock's. on_chosen_prompts: lines that replace prompts while they train.
    """

    of: Mapping[str, str]
    cells: Mapping[str, str]
    ladders: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    on_chosen_prompts: frozenset[str] = frozenset()


class PaceBook:
    """The paces of one suite's lines, each fitted when it is first asked for."""

    def __init__(self, snapshot: Snapshot, suite: str, policies: Mapping[str, Sequence[str]], clocks: Clocks) -> None:
        """Remember where paces are read from. policies: of the suite, by group. The snapshot must be open when a pace is
        first asked for."""
        self._snapshot = snapshot
        self._suite = suite
        self._policies = policies
        self._clocks = clocks
        self._curves: LearningCurves | None = None
        self._fitted_clocks: dict[tuple[object, ...], BaselineClock] = {}
        self._fits: dict[tuple[object, ...], Acceleration] = {}

    def find_pace(self, group: str, policy: str, line: str, margin: float) -> Pace | None:
        """Return the pace of a line; None for a clock itself, and where nothing was measured.

        policy: or MEAN. margin: as for `statistics.acceleration.fit_acceleration`.
        """
        curves = self._read_curves()
        clock = self._clocks.of.get(line)
        if clock is None or not curves.of(group, policy, self._clocks.cells[line]):
            return None
        if not clock:
            return Pace("", curves.kind, NO_CLOCK, "the suite has no independent training at this learning rate")
        if curves.kind == REWARD and {line, clock} & self._clocks.on_chosen_prompts:
            why = "training rewards are of the prompts that were kept; this needs a held-out curve"
            return Pace(clock, curves.kind, CHOSEN_PROMPTS, why)
        fit = self.compare_lines(group, policy, line, clock, margin)
        if not fit.paces:
            return Pace(clock, curves.kind, TOO_FEW, fit.problem, fit)
        if fit.problem:
            return Pace(clock, curves.kind, NOT_IDENTIFIED, fit.problem, fit)
        worth = self._find_worth(group, policy, fit, clock, margin)
        if fit.rising:
            why = "the baseline's own curve still rises by more than the margin in the last fifth of its run"
            return Pace(clock, curves.kind, STILL_RISING, why, fit, worth)
        return Pace(clock, curves.kind, fit=fit, worth=worth)

    def compare_lines(
        self, group: str, policy: str, line: str, over: str, margin: float, only: Sequence[int] = ()
    ) -> Acceleration:
        """Fit a line's pace on the clock of another line. only: these seeds alone; empty for all that both have."""
        curves = self._read_curves()
        ours = curves.of(group, policy, self._clocks.cells[line])
        theirs = curves.of(group, policy, self._clocks.cells[over])
        seeds = sorted(ours.keys() & theirs.keys())
        if only:
            seeds = [seed for seed in seeds if seed in only]
        points = common_points([*(ours[seed] for seed in seeds), *(theirs[seed] for seed in seeds)])
        few = describe_too_few(len(seeds), len(points))
        if few:
            return refused_fit(len(seeds), few)
        at_clock = group, policy, self._clocks.cells[over], tuple(seeds), tuple(points)
        if at_clock not in self._fitted_clocks:
            self._fitted_clocks[at_clock] = fit_clock(np.array(points), stack_curves(theirs, seeds, points))
        fitted = *at_clock, self._clocks.cells[line], margin
        if fitted not in self._fits:
            own = stack_curves(ours, seeds, points)
            self._fits[fitted] = compare_with_clock(self._fitted_clocks[at_clock], own, margin=margin)
        return self._fits[fitted]

    def _read_curves(self) -> LearningCurves:
        if self._curves is None:
            self._curves = read_curves(self._snapshot, self._suite, self._policies)
        return self._curves

    def _find_worth(self, group: str, policy: str, fit: Acceleration, clock: str, margin: float) -> Worth | None:
        """Return what a pace is worth in own rollouts; None where the suite has no other budget of the clock's training."""
        ladder = self._clocks.ladders.get(clock, {})
        rungs = {budget: self.compare_lines(group, policy, rung, clock, margin) for rung, budget in ladder.items()}
        return estimate_worth(fit, rungs) if rungs else None
