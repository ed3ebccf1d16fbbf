"""Gradients of own and of peer answers apart, whatever ZeRO stage keeps them where."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import nan, sqrt

import torch
from torch import Tensor, distributed

from harness.engines.openrlhf.away import Away


@dataclass(frozen=True, slots=True)
class Apart:
    """Norms of the gradients of own and of peer answers alone, and their cosine; NaN where absent or not measured."""

    own: float = nan
    peer: float = nan
    cosine: float = nan


UNMEASURED = Apart()


class Norms:
    """Sum of the norms of all gradients of an update as they come out of the backward passes, over all ranks: NaN or infinite where
    one of them is. DeepSpeed does not tell: it takes such a norm for 1, or leaves the step out and reports the one before."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        self._sum = torch.zeros((), device=self._parameters[0].device)

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Backward passes inside count."""
        handles = [p.register_hook(self._add) for p in self._parameters]  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def sum(self) -> float:
        """Over all ranks; a collective operation, once."""
        distributed.all_reduce(self._sum)
        return float(self._sum)

    def _add(self, gradient: Tensor) -> None:
        self._sum += torch.linalg.vector_norm(gradient.detach(), dtype=torch.float32)


class Sums:
    """Gradients of own and of peer answers, added up as they come out of the backward passes, before DeepSpeed shards them.

    Each rank keeps its share of every weight's sum, reduced over all ranks, in fp32: on the device 4 bytes per parameter over
    the number of ranks, and as much away while peers' answers add up, when those of own answers have left the device.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        self._ranks, self._rank = distributed.get_world_size(), distributed.get_rank()
        self._sums: dict[str, dict[int, Tensor]] = {"own": {}, "peer": {}}
        self._away = Away([])

    @contextmanager
    def collect(self, source: str) -> Iterator[None]:
        """Backward passes inside count for `source`, "own" before "peer"; every rank runs equally many."""
        handles = [p.register_hook(partial(self._add, source, i)) for i, p in enumerate(self._parameters)]  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
        if source == "own":
            self._away = Away(self._sums["own"].values(), least=1)

    def apart(self) -> Apart:
        """Over all ranks; a collective operation, once."""
        own, peer = self._sums["own"], self._sums["peer"]
        measured = [bool(own), bool(peer)]
        found = torch.zeros(3, dtype=torch.float64)
        for index, _ in zip(list(own), self._away.one_by_one(), strict=True):
            mine = own.pop(index).double()
            found[0] += mine.square().sum().cpu()
            if index in peer:
                found[2] += (mine * peer[index].double()).sum().cpu()
        found[1] = sum(share.double().square().sum().cpu() for share in peer.values())
        if self._ranks > 1:
            found = found.to(self._parameters[0].device)
            distributed.all_reduce(found)
        norms = [sqrt(square) if there else nan for square, there in zip(found.tolist(), measured, strict=False)]
        scale = norms[0] * norms[1]
        return Apart(norms[0], norms[1], float(found[2]) / scale if scale > 0 else nan)

    def _add(self, source: str, index: int, gradient: Tensor) -> None:
        flat = gradient.detach().float().flatten()
        if self._ranks > 1:
            flat = flat.clone()
            distributed.all_reduce(flat)
        size = -(-flat.numel() // self._ranks)
        share = flat[self._rank * size : (self._rank + 1) * size] / self._ranks
        sums = self._sums[source]
        if index in sums:
            sums[index] += share
        elif share.numel():
            sums[index] = share
