"""How much of a cell's accuracy is the luck of its own answers: the floor under every spread over seeds."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from harness.statistics.intervals import Array


def sampling_variance(accuracy: ArrayLike, error: ArrayLike, questions: ArrayLike, answers: ArrayLike) -> Array:
    """Variance of an accuracy on a given question set that its answers alone make; arrays of one shape (our reading).

    The questions are given, so what differs between them is no noise. With k = answers / questions > 1 the repeats tell the two
    apart: a right-or-wrong answer of probability p_q varies by p_q (1 - p_q), whose mean is the whole variance a (1 - a) less
    that between the questions, (questions - 1) error^2, corrected for k; so the mean over all varies by

        (a (1 - a) - (questions - 1) error^2) / ((k - 1) questions).

    A single answer per question tells nothing apart: half of error^2 is taken, as if the questions differed as much as the
    answers to one of them. Never less than 1 / answers^2, the step from one count of right answers to the next: where all
    answers are right there is no spread to be seen, and yet another seed may get one wrong.

    Parameters
    ----------
    accuracy
        a, in [0, 1].
    error
        Standard error over questions (`statistics.accuracy`, the store's `scores`).
    questions
        Asked.
    answers
        Valid ones, to all questions.
    """
    a, e, n, total = (np.asarray(v, dtype=np.float64) for v in (accuracy, error, questions, answers))
    with np.errstate(invalid="ignore", divide="ignore"):
        repeats = total / n
        apart = (a * (1 - a) - (n - 1) * e**2) / ((repeats - 1) * n)
        found = np.where(repeats > 1, apart, e**2 / 2)
        found = np.where(np.isnan(found), a * (1 - a) / (2 * total), found)
        return np.maximum(found, 1 / total**2)
