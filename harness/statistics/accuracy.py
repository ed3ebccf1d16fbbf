"""The accuracy of one cell, with its sampling error."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Of one cell on one task.

    Attributes
    ----------
    mean
        Over questions.
    error
        Standard error over questions; NaN for fewer than two.
    questions
        With a valid answer.
    answers
        Valid ones.
    """

    mean: float
    error: float
    questions: int
    answers: int


def accuracy(verdicts: Float[np.ndarray, "questions repeats"]) -> Accuracy:
    """Mean over the questions of each question's mean over its valid repeats.

    Questions are the clusters: repeats of one question are not independent evidence, so the standard error is that of
    the questions' means.

    Parameters
    ----------
    verdicts
        (questions, repeats): 1 is right, 0 wrong, NaN invalid or missing; a question without a valid answer is left out.
    """
    x = np.atleast_2d(np.asarray(verdicts, dtype=np.float64))
    valid = ~np.isnan(x)
    counts = valid.sum(axis=1)
    asked = counts > 0
    means = np.where(valid, x, 0.0).sum(axis=1)[asked] / counts[asked]
    n = int(asked.sum())
    error = float(means.std(ddof=1) / np.sqrt(n)) if n > 1 else float("nan")
    return Accuracy(float(means.mean()) if n else float("nan"), error, n, int(counts.sum()))
