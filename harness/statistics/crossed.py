"""Intervals of a gain for other questions than those that were asked: seeds and questions are both a sample.

An interval over seeds holds for the questions of the evaluation. Answers to other questions differ too, so that the mean over them
has a variance of its own (Miller, arXiv 2411.00640). Seeds and questions are crossed: every seed answers every question. The
variance of the mean then follows from the mean squares of a two-way layout [our reading].
"""

from __future__ import annotations

from math import nan, sqrt
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from harness.statistics.acceleration import student_quantile


class CrossedEstimate(NamedTuple):
    """The mean of differences with its interval for other seeds and other questions. error: its standard error, NaN where there are
    fewer than two seeds or questions."""

    mean: float
    low: float
    high: float
    error: float


def estimate_crossed(differences: Float[np.ndarray, "seeds questions"], level: float = 0.95) -> CrossedEstimate:
    """Estimate the mean difference over all seeds and questions.

    differences: of each seed on each question, without gaps. The variance is (MS_seeds + MS_questions - MS_rest) / (seeds x
    questions), and never less than that over seeds alone, nor is the interval narrower than that over seeds; degrees of freedom are
    Satterthwaite's (Biometrics Bull. 2, 1946).
    """
    seeds, questions = differences.shape
    mean = float(differences.mean()) if differences.size else nan
    if seeds < 2 or questions < 2:
        return CrossedEstimate(mean, nan, nan, nan)
    of_seed = differences.mean(axis=1)
    of_question = differences.mean(axis=0)
    answers = seeds * questions
    freedom_of_rest = (seeds - 1) * (questions - 1)
    # what neither the seed nor the question explains, (seeds, questions)
    rest = differences - of_seed[:, None] - of_question + mean
    square_seeds = questions * float(of_seed.var(ddof=1))
    square_questions = seeds * float(of_question.var(ddof=1))
    square_rest = float((rest**2).sum()) / freedom_of_rest
    total = max(square_seeds + square_questions - square_rest, square_seeds)
    if total == 0:
        return CrossedEstimate(mean, mean, mean, 0.0)
    parts = square_seeds**2 / (seeds - 1) + square_questions**2 / (questions - 1)
    parts += square_rest**2 / freedom_of_rest
    freedom = max(total**2 / parts, 1.0)
    error = sqrt(total / answers)
    error_over_seeds = sqrt(square_seeds / answers)
    half = student_quantile(level, freedom) * error
    half_over_seeds = student_quantile(level, seeds - 1) * error_over_seeds
    half = max(half, half_over_seeds)
    return CrossedEstimate(mean, mean - half, mean + half, error)
