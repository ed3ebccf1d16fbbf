"""A mini-batch's gradient: set to zero, measured by source, clipped."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, nan, sqrt
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from harness.errors import Fault, TrainingError


def check_norm(policy: str, update: int, norm: float) -> None:
    """Raises TrainingError for the norm of a gradient that is NaN or infinite. update: counted from the policy's first."""
    if not isfinite(norm):
        raise TrainingError(Fault.NOT_FINITE, f"policy {policy}: the gradient of update {update} is not finite")


class Gradients:
    """The gradients of a step's updates, and what was measured of them. Measuring reads only.

    measure: also keep the norms of own and of peer terms alone and their cosine, at the cost of a copy of the gradient. Compared
    in float64, one matrix at a time.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], measure: bool) -> None:
        self._parameters, self._measure = parameters, measure
        self._own: list[Tensor] = []
        self._totals: list[float] = []
        self._norms: dict[str, list[float]] = {"own": [], "peer": []}
        self._cosines: list[float] = []

    def reset(self) -> None:
        """Zeros, never None: an update without gradient must be the same AdamW step in a fresh and in a resumed engine."""
        self._own = []
        for parameter in self._parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            else:
                parameter.grad.zero_()

    def observe(self, source: Literal["own", "peer"]) -> None:
        """Call after the backward passes of all own terms, then after those of all peer terms."""
        if not self._measure:
            return
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        if source == "own":
            self._own = [gradient.clone() for gradient in gradients]
        squares = own_squares = product = 0.0
        for index, gradient in enumerate(gradients):
            alone = gradient.double()
            if source == "peer" and self._own:
                own = self._own[index].double()
                alone -= own
                own_squares += float(torch.dot(own.flatten(), own.flatten()))
                product += float(torch.dot(own.flatten(), alone.flatten()))
            squares += float(torch.dot(alone.flatten(), alone.flatten()))
        self._norms[source].append(sqrt(squares))
        if source == "peer" and self._own:
            scale = sqrt(own_squares * squares)
            self._cosines.append(product / scale if scale else 0.0)

    def clip(self, norm: float) -> float:
        """Clip to `norm` and return the norm before clipping."""
        self._totals.append(float(nn.utils.clip_grad_norm_(self._parameters, norm)))
        return self._totals[-1]

    @property
    def norm(self) -> float:
        """Before clipping, mean over the updates."""
        return _mean(self._totals)

    @property
    def own_norm(self) -> float:
        """Of the own terms alone, mean over the updates that had some; NaN where not measured."""
        return _mean(self._norms["own"])

    @property
    def peer_norm(self) -> float:
        """Of the peer terms alone, mean over the updates that had some; NaN where not measured."""
        return _mean(self._norms["peer"])

    @property
    def cosine(self) -> float:
        """Between own and peer gradients, mean over the updates that had both; NaN where not measured."""
        return _mean(self._cosines)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else nan
