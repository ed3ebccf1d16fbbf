"""A mini-batch's gradient: set to zero, measured by source, clipped."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn


class Gradients:
    """The gradients of a step's updates, and what was measured of them. Measuring reads only.

    measure: also keep the norms of own and of peer terms alone and their cosine, at the cost of two copies of the gradient.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], measure: bool) -> None:
        self._parameters, self._measure = parameters, measure
        self._before: Float[Tensor, "N"] | None = None
        self._totals: list[float] = []
        self._norms: dict[str, list[float]] = {"own": [], "peer": []}
        self._cosines: list[float] = []

    def reset(self) -> None:
        """Zeros, never None: an update without gradient must be the same AdamW step in a fresh and in a resumed engine."""
        self._before = None
        for parameter in self._parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            else:
                parameter.grad.zero_()

    def observe(self, source: Literal["own", "peer"]) -> None:
        """Call after the backward passes of all own terms, then after those of all peer terms."""
        if not self._measure:
            return
        now = torch.cat([p.grad.flatten() for p in self._parameters if p.grad is not None])
        alone = now if self._before is None else now - self._before
        self._norms[source].append(float(alone.norm()))
        if self._before is not None:
            self._cosines.append(float(nn.functional.cosine_similarity(self._before, alone, dim=0)))
        self._before = now

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
