"""`harness bandit`: the stability-support plane and the facts, by an exact softmax bandit (ours)."""

from harness.bandit.enumeration import (
    Bandit,
    JointDraw,
    enumerate_outcomes,
    every_choice,
    expected_value,
    gradient_variance,
    mean_gradient,
)
from harness.bandit.facts import Fact, list_facts
from harness.bandit.report import BanditReport, measure_point, run_bandit

__all__ = [
    "Bandit",
    "BanditReport",
    "Fact",
    "JointDraw",
    "enumerate_outcomes",
    "every_choice",
    "expected_value",
    "gradient_variance",
    "list_facts",
    "mean_gradient",
    "measure_point",
    "run_bandit",
]
