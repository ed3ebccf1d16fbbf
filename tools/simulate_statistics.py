"""Bias, coverage, false findings and power of the statistics of docs/statistics.md, on the shapes of all shipped suites.

python tools/simulate_statistics.py [REPETITIONS]      100 unless said; minutes of one processor

Shapes are read from the suites: seeds, policies, points of the learning curve and answers behind each point (held-out ones, or
training answers by tenths of a run where a suite has fewer than five held-out points). Curves are logistics, seeds differ in level,
height and time; the run is long enough for the baseline to flatten, or, in the rows "on the slope", ends in the middle of its rise.
They rise by 40 points, as those of tiny models do; the last lines are of the pretrained pair's curves, which rise by less.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf, log

import numpy as np

from harness.statistics import mean_interval
from harness.statistics.acceleration import MIN_POINTS, MIN_SEEDS, Acceleration, compare_with_clock, fit_clock
from harness.statistics.claims import (
    FIRST_LOOK,
    REFUTED,
    SUPPORTED,
    Bounds,
    MeasuredClaim,
    answer_claims,
    level_of_look,
)
from harness.statistics.crossed import estimate_crossed
from harness.statistics.policies import MemberScores, find_policy_differences
from harness.statistics.power import find_power
from harness.statistics.worth import estimate_worth
from harness.suite.load import load_suite, shipped_suites
from harness.suite.schema import Suite

TENTHS = 10
LOW, HIGH, RISE, MIDDLE = 0.35, 0.75, 9.0, 0.3
# The pretrained pair alone: twelve points at its rate of 5e-5 (`pretrained`), twenty to twenty-five at 2e-4 (one seed)
SMALL_RISES = (0.12, 0.20)
PACES_AND_ENDS = ((1.0, 0.0), (1.1, 0.0), (1.25, 0.03), (1.0, 0.06))


@dataclass(frozen=True, order=True)
class Shape:
    """Of a suite's curves. answers: behind each point of the mean over policies."""

    seeds: int
    points: int
    answers: int


# Curves as they should be: 120 questions of each of two policies
LONG_RUNS = Shape(10, 11, 240)


def shape_of(suite: Suite) -> Shape | None:
    """Return the shape of a suite's curves; None for one without seeds or points enough."""
    policies = len(suite.groups[0].policies)
    training, evaluation = suite.training, suite.evaluation
    points = training.steps // evaluation.curve_every + 1 if evaluation.curve_every else 0
    answers = evaluation.curve_prompts * policies
    if points < MIN_POINTS:
        points = min(TENTHS, training.steps)
        answers = training.prompts * training.rollouts * policies * max(training.steps // TENTHS, 1)
    if len(suite.seeds) < MIN_SEEDS or points < MIN_POINTS:
        return None
    return Shape(len(suite.seeds), points, answers)


def list_shapes() -> dict[Shape, list[str]]:
    """Return the shipped suites by shape."""
    shapes: dict[Shape, list[str]] = {}
    for name in shipped_suites():
        shape = shape_of(load_suite(name))
        if shape is not None:
            shapes.setdefault(shape, []).append(name)
    return dict(sorted(shapes.items()))


def draw_curves(
    shape: Shape,
    regimes: Sequence[tuple[float, float]],
    length: float,
    rng: np.random.Generator,
    mean_height: float = HIGH - LOW,
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Draw steps, and noisy curves of a baseline and of regimes on the same seeds.

    regimes: pace and end of each. length: of the run, 1 where the baseline flattens inside it. mean_height: by how much the
    baseline's curves rise, in accuracy.
    """
    steps = np.linspace(0, length, shape.points)
    level = LOW + 0.02 * rng.standard_normal((shape.seeds, 1))
    height = mean_height + 0.02 * rng.standard_normal((shape.seeds, 1))
    middle = MIDDLE + 0.02 * rng.standard_normal((shape.seeds, 1))

    def rise(at: np.ndarray) -> np.ndarray:
        return np.asarray(1 / (1 + np.exp(-RISE * (at - middle))))

    begun = rise(np.zeros(1))
    curves = []
    for pace, end in [(1.0, 0.0), *regimes]:
        served = rise(pace * steps)
        exact = level + height * served + end * (served - begun) / (1 - begun)
        curves.append(exact + np.sqrt(exact * (1 - exact) / shape.answers) * rng.standard_normal(exact.shape))
    return steps, curves


def fit_drawn(
    shape: Shape, pace: float, end: float, length: float, rng: np.random.Generator, mean_height: float = HIGH - LOW
) -> Acceleration:
    """Fit drawn curves."""
    steps, (baseline, regime) = draw_curves(shape, [(pace, end)], length, rng, mean_height)
    return compare_with_clock(fit_clock(steps, baseline), regime)


def describe_paces(shape: Shape, repetitions: int, rng: np.random.Generator) -> Iterator[str]:
    """Yield a line for each pace and end, and one for a run that ends on the slope."""
    for pace, end in PACES_AND_ENDS:
        fits = [fit_drawn(shape, pace, end, 1.0, rng) for _ in range(repetitions)]
        told = [fit for fit in fits if not fit.problem]
        refused = 1 - len(told) / repetitions
        if not told:
            yield f"  kappa {pace:4} delta {100 * end:+.0f}: refused 1.00"
            continue
        paces = np.array([fit.kappa for fit in told]) - pace
        ends = 100 * (np.array([fit.delta for fit in told]) - end)
        held = np.mean([fit.kappa_low <= pace <= fit.kappa_high for fit in told])
        held_end = np.mean([fit.delta_low <= end <= fit.delta_high for fit in told])
        apart = np.mean([not fit.kappa_low <= 1 <= fit.kappa_high for fit in told])
        yield (
            f"  kappa {pace:4} delta {100 * end:+.0f}: kappa bias {paces.mean():+.3f} sd {paces.std():.3f} cover {held:.2f}; "
            f"delta bias {ends.mean():+.2f} sd {ends.std():.2f} cover {held_end:.2f}; refused {refused:.2f}; "
            f"told from 1 {apart:.2f}"
        )
    slope = [fit_drawn(shape, 1.0, 0.0, 0.35, rng) for _ in range(repetitions)]
    silent = np.mean([bool(fit.problem) for fit in slope])
    no_end = np.mean([bool(fit.problem) or fit.rising for fit in slope])
    yield f"  on the slope: pace refused {silent:.2f}, reach refused or still rising {no_end:.2f}"


def describe_small_rises(shape: Shape, repetitions: int, rng: np.random.Generator) -> Iterator[str]:
    """Yield, for each height of `SMALL_RISES` and pace, how often such curves are refused and how often a pace is told from 1.

    The share of told paces is of all runs: one that is refused tells nothing.
    """
    for height in SMALL_RISES:
        for pace in (1.1, 1.25):
            fits = [fit_drawn(shape, pace, 0.0, 1.0, rng, height) for _ in range(repetitions)]
            refused = np.mean([bool(fit.problem) for fit in fits])
            told = np.mean([not fit.problem and not fit.kappa_low <= 1 <= fit.kappa_high for fit in fits])
            yield f"  rise of {100 * height:.0f} points, kappa {pace:4}: refused {refused:.2f}, told from 1 {told:.2f}"


def describe_worth(shape: Shape, repetitions: int, rng: np.random.Generator) -> str:
    """Say how well a worth between 2 and 4 times the rollouts is recovered, whose paces are 1.12 and 1.25."""
    pace, rungs = 1.185, {2.0: 1.12, 4.0: 1.25}
    true = 2.0 ** (1 + log(pace / 1.12) / log(1.25 / 1.12))
    found = []
    held = 0
    for _ in range(repetitions):
        regimes = [(pace, 0.0), *((own, 0.0) for own in rungs.values())]
        steps, (baseline, regime, *others) = draw_curves(shape, regimes, 1.0, rng)
        clock = fit_clock(steps, baseline)
        ladder = {budget: compare_with_clock(clock, own) for budget, own in zip(rungs, others, strict=True)}
        worth = estimate_worth(compare_with_clock(clock, regime), ladder)
        if worth is not None and not worth.beyond and not np.isnan(worth.low):
            found.append(worth.rollouts)
            held += worth.low <= true <= worth.high
    if not found:
        return f"  worth {true:.2f}: no interval in {repetitions}"
    missing = 1 - len(found) / repetitions
    return (
        f"  worth {true:.2f}: median {np.median(found):.2f}, cover {held / len(found):.2f}; no interval {missing:.2f}"
    )


def describe_false_findings(seeds: int, repetitions: int, rng: np.random.Generator) -> str:
    """Say how often tables without any effect have a false answer, and how often intervals for other questions hold."""
    policies = held = 0
    for _ in range(repetitions):
        accuracy = 0.5 + 0.02 * rng.standard_normal((2, 2, 8, seeds)) * np.geomspace(0.3, 2, 8)[:, None]
        groups = [MemberScores(own, np.full(own.shape, 1e-6)) for own in accuracy]
        policies += any(one.any() for one in find_policy_differences(groups, [None, *[0] * 7], 0.0))
        asked = rng.standard_normal((seeds, 1)) * 0.02 + rng.standard_normal((1, 60)) * 0.1
        crossed = estimate_crossed(asked + 0.2 * rng.standard_normal((seeds, 60)))
        held += crossed.low <= 0 <= crossed.high
    shares = [count / repetitions for count in (policies, held)]
    return (
        f"{seeds} seeds: policies said to differ {shares[0]:.3f}, intervals for other questions cover {shares[1]:.3f}; power for 2 "
        f"points {find_power(0.0124, seeds, 0.02):.2f}"
    )


def describe_false_answers(seeds: int, repetitions: int, rng: np.random.Generator) -> str:
    """Say how often a suite with five claims, each exactly at its bound, has a false answer at the last look and at any look."""
    at_last = at_any = 0
    for _ in range(repetitions):
        gains = 0.02 * rng.standard_normal((5, seeds))
        false = [_is_answered(gains, look) for look in range(FIRST_LOOK, seeds + 1)]
        at_last += false[-1]
        at_any += any(false)
    return (
        f"{seeds} seeds: a false answer to five claims {at_last / repetitions:.4f} at the last look, {at_any / repetitions:.4f} at "
        "any look"
    )


def _is_answered(gains: np.ndarray, look: int) -> bool:
    """Say whether any claim that gains are above 0 is answered after so many seeds. gains: (claims, seeds)."""
    drawn = mean_interval(gains[:, :look])
    measured = [MeasuredClaim(float(m), float(e), look - 1) for m, e in zip(drawn.mean, drawn.error, strict=True)]
    claims, seeds = gains.shape
    told = answer_claims(measured, [Bounds(0.0, inf)] * claims, [level_of_look(look, seeds)] * claims)
    return any(one.answer in (SUPPORTED, REFUTED) for one in told)


def generator_of(shape: Shape) -> np.random.Generator:
    """Make the random numbers of a shape, its own, so that a suite that comes or changes leaves the lines of all others alone."""
    return np.random.default_rng((shape.seeds, shape.points, shape.answers))


def main() -> None:
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    shapes = {**list_shapes(), LONG_RUNS: ["ten seeds with a held-out point every ten of 100 steps"]}
    for shape, suites in shapes.items():
        print(f"{shape.seeds} seeds, {shape.points} points of {shape.answers} answers ({', '.join(suites)}):")
        rng = generator_of(shape)
        for line in describe_paces(shape, repetitions, rng):
            print(line, flush=True)
        print(describe_worth(shape, repetitions, rng), flush=True)
    for seeds in sorted({shape.seeds for shape in shapes}):
        rng = np.random.default_rng(seeds)
        print(describe_false_findings(seeds, 20 * repetitions, rng), flush=True)
        print(describe_false_answers(seeds, 500 * repetitions, rng), flush=True)
    describe_pretrained_pair(2 * repetitions)


def describe_pretrained_pair(repetitions: int) -> None:
    """Print what curves of the pretrained pair could tell: held-out ones of eight seeds, and those of training in its suites."""
    of_suite = shape_of(load_suite("real_pair"))
    assert of_suite is not None
    few = Shape(8, 5, 192)
    denser = replace(few, points=LONG_RUNS.points)
    sixteen_each = replace(denser, answers=16 * 91 * 2)
    for shape in (few, denser, sixteen_each, of_suite):
        print(f"the pretrained pair: {shape.seeds} seeds, {shape.points} points of {shape.answers} answers:")
        for line in describe_small_rises(shape, repetitions, generator_of(shape)):
            print(line, flush=True)


if __name__ == "__main__":
    main()
