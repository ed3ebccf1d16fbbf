"""Co-RL's theorem: policies that reward each other's majority answer agree on the right one if p_A + p_B > 1, else on another."""

from __future__ import annotations

import numpy as np
import pytest

from harness.bandit import Bandit, enumerate_outcomes, mean_gradient
from harness.learning.registry import build

RIGHT, STEPS, RATE, ROLLOUTS = 0, 40, 2.0, 3


def agreed(p_a: float, p_b: float) -> tuple[float, float]:
    """Their shares of right answers after gradient ascent by exact expectations, both at once; two answers, one right."""
    regime = build("rlccf", {"vote": "peer"})
    logits = np.log([[p_a, 1 - p_a], [p_b, 1 - p_b]])
    rewards = np.array([1.0, 0.0])
    for _ in range(STEPS):
        pairs = logits, logits[::-1]
        gradients = [mean_gradient(enumerate_outcomes(Bandit(pair, rewards, ROLLOUTS), regime)) for pair in pairs]
        logits = logits + RATE * np.array(gradients)
    right = np.exp(logits[:, RIGHT]) / np.exp(logits).sum(axis=1)
    return float(right[0]), float(right[1])


@pytest.mark.parametrize(("p_a", "p_b"), [(0.8, 0.4), (0.45, 0.6)])
def test_above_one_both_learn_the_right_answer(p_a: float, p_b: float) -> None:
    assert min(agreed(p_a, p_b)) > 0.9


@pytest.mark.parametrize(("p_a", "p_b"), [(0.2, 0.6), (0.55, 0.4)])
def test_below_one_both_learn_the_wrong_one_though_one_was_mostly_right(p_a: float, p_b: float) -> None:
    assert max(agreed(p_a, p_b)) < 0.1
