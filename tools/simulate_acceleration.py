"""How well pace and end (harness/statistics/acceleration.py) are recovered from simulated curves: the table of docs/statistics.md.

python tools/simulate_acceleration.py [REPETITIONS]      60 unless said; a line for each kind of curves, pace and end
"""

from __future__ import annotations

import sys

import numpy as np

from harness.statistics.acceleration import Acceleration, fit_acceleration

SEEDS, LAST = 10, 100.0
STEPS = np.linspace(0, LAST, 11)
RATE, MIDDLE = 0.09, 30.0
# 240 questions with four answers; answers to one question are alike
NOISE = 1.3 / 960
PACES_AND_ENDS = ((1.0, 0.0), (1.1, 0.0), (1.25, 0.0), (1.0, 0.06), (1.1, -0.06), (1.25, 0.03))
KINDS = ("one logistic", "earlier or later", "two steps", "jumps")


def logistic(x: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-x)))


def share_learnt(kind: str, steps: np.ndarray, shift: float) -> np.ndarray:
    """A seed's share of what can be learnt at these steps, of a curve that begins at a share above 0."""
    if kind == "two steps":
        return 0.5 * logistic(0.3 * (steps - 15 - shift)) + 0.5 * logistic(0.3 * (steps - 45 - shift))
    return logistic(RATE * (steps - MIDDLE - shift))


def simulate_fit(kind: str, pace: float, end: float, rng: np.random.Generator) -> Acceleration:
    """Fit noisy curves of a baseline and of a regime with this pace and end."""
    low = 0.35 + 0.02 * rng.standard_normal(SEEDS)
    high = 0.75 + 0.02 * rng.standard_normal(SEEDS)
    shifts = 2 * rng.standard_normal(SEEDS) * (kind != KINDS[0])
    baseline, regime = np.zeros((2, SEEDS, STEPS.size))
    for seed in range(SEEDS):
        begun = share_learnt(kind, np.zeros(1), shifts[seed])[0]
        height = high[seed] - low[seed]
        baseline[seed] = low[seed] + height * share_learnt(kind, STEPS, shifts[seed])
        served = share_learnt(kind, pace * STEPS, shifts[seed])
        regime[seed] = low[seed] + height * served + end * (served - begun) / (1 - begun)
    if kind == "jumps":
        for curves in (baseline, regime):
            curves[rng.random(SEEDS) < 0.2] += 0.10 * (STEPS >= LAST / 2)
    noisy = [c + np.sqrt(np.clip(c * (1 - c), 0, 1) * NOISE) * rng.standard_normal(c.shape) for c in (baseline, regime)]
    return fit_acceleration(STEPS, *noisy)


def main() -> None:
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    rng = np.random.default_rng(0)
    for kind in KINDS:
        for pace, end in PACES_AND_ENDS:
            fits = [simulate_fit(kind, pace, end, rng) for _ in range(repetitions)]
            paces = np.array([fit.kappa for fit in fits]) - pace
            ends = 100 * (np.array([fit.delta for fit in fits]) - end)
            held = np.mean([fit.kappa_low <= pace <= fit.kappa_high for fit in fits])
            held_end = np.mean([fit.delta_low <= end <= fit.delta_high for fit in fits])
            refused = np.mean([bool(fit.problem) for fit in fits])
            print(
                f"{kind:16} kappa {pace:4} delta {100 * end:+4.0f}: "
                f"kappa {paces.mean():+.3f} sd {paces.std():.3f} cover {held:.2f}; "
                f"delta {ends.mean():+.2f} sd {ends.std():.2f} cover {held_end:.2f}; refused {refused:.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
