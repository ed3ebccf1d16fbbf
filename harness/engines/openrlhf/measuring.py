"""Gradients of own and of peer answers apart, whatever ZeRO stage keeps them where."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import nan

import torch
from torch import Tensor, distributed


@dataclass(frozen=True, slots=True)
class Apart:
    """Norms of the gradients of own and of peer answers alone, and their cosine; NaN where absent or not measured."""

    own: float = nan
    peer: float = nan
    cosine: float = nan


UNMEASURED = Apart()


class Sums:
    """Gradients of the loss, added up as they come out of the backward passes, before DeepSpeed shards them.

    Costs two copies of the gradients on every rank while it lives.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        self._sums: dict[str, dict[int, Tensor]] = {"own": {}, "peer": {}}

    @contextmanager
    def collect(self, source: str) -> Iterator[None]:
        """Backward passes inside count for `source`."""
        handles = [p.register_hook(partial(self._add, source, i)) for i, p in enumerate(self._parameters)]  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def apart(self) -> Apart:
        """Over all ranks; a collective operation."""
        squares = {"own": 0.0, "peer": 0.0}
        product = 0.0
        for index in range(len(self._parameters)):
            found = {source: sums[index] for source, sums in self._sums.items() if index in sums}
            for source, gradient in found.items():
                distributed.all_reduce(gradient)
                gradient /= distributed.get_world_size()
                squares[source] += float(gradient.double().square().sum())
            if len(found) == 2:
                product += float((found["own"].double() * found["peer"].double()).sum())
        norms = {source: squares[source] ** 0.5 if self._sums[source] else nan for source in squares}
        scale = norms["own"] * norms["peer"]
        return Apart(norms["own"], norms["peer"], product / scale if scale > 0 else nan)

    def _add(self, source: str, index: int, gradient: Tensor) -> None:
        sums, new = self._sums[source], gradient.detach().float()
        sums[index] = sums[index] + new if index in sums else new.clone()
