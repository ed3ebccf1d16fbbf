"""Bundles, requests and where they go: one gang of bundles onto nodes, all or nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.allocation.inventory import Inventory, Node


@dataclass(frozen=True, slots=True, order=True)
class Bundle:
    """Resources that must lie within one node: whole GPUs with at least `gpu_memory` bytes each, cores, RAM bytes."""

    gpus: int = 0
    cores: int = 0
    memory: int = 0
    gpu_memory: int = 0


@dataclass(frozen=True, slots=True)
class Free:
    """What is left of a node. GPUs are counted, not numbered."""

    gpus: int
    cores: int
    memory: int
    gpu_memory: int

    @classmethod
    def of(cls, node: Node) -> Free:
        return cls(node.gpus, node.cores, node.memory, node.gpu_memory)

    def holds(self, bundle: Bundle) -> bool:
        return (
            self.gpus >= bundle.gpus
            and self.cores >= bundle.cores
            and self.memory >= bundle.memory
            and (not bundle.gpus or self.gpu_memory >= bundle.gpu_memory)
        )

    def less(self, bundle: Bundle) -> Free:
        return Free(self.gpus - bundle.gpus, self.cores - bundle.cores, self.memory - bundle.memory, self.gpu_memory)

    def plus(self, bundle: Bundle) -> Free:
        return Free(self.gpus + bundle.gpus, self.cores + bundle.cores, self.memory + bundle.memory, self.gpu_memory)

    def meet(self, other: Free) -> Free:
        """What both have."""
        return Free(
            min(self.gpus, other.gpus), min(self.cores, other.cores), min(self.memory, other.memory), self.gpu_memory
        )

    @property
    def legal(self) -> bool:
        return self.gpus >= 0 and self.cores >= 0 and self.memory >= 0


Placement = tuple[str, ...]
"""The node of each bundle, in the bundles' order."""


def capacity(inventory: Inventory) -> dict[str, Free]:
    """All of every node, in the inventory's order."""
    return {node.name: Free.of(node) for node in inventory.nodes}


def place(bundles: Sequence[Bundle], free: Mapping[str, Free]) -> Placement | None:
    """A node for every bundle, or None; `free` is not changed.

    Best fit decreasing: the largest bundle first, each on the node that keeps the fewest GPUs, then cores, then the first
    in order. Exact where the bundles are equal; otherwise it may miss a packing that an exhaustive search would find.
    """
    left = dict(free)
    chosen = [""] * len(bundles)
    for index in sorted(range(len(bundles)), key=lambda i: bundles[i], reverse=True):
        bundle = bundles[index]
        best = ""
        for name, room in left.items():
            if room.holds(bundle) and (not best or (room.gpus, room.cores) < (left[best].gpus, left[best].cores)):
                best = name
        if not best:
            return None
        left[best] = left[best].less(bundle)
        chosen[index] = best
    return tuple(chosen)


def take(free: dict[str, Free], bundles: Iterable[Bundle], placement: Placement) -> None:
    """Subtract a placed gang, in place."""
    for bundle, name in zip(bundles, placement, strict=True):
        free[name] = free[name].less(bundle)


def give(free: dict[str, Free], bundles: Iterable[Bundle], placement: Placement) -> None:
    """Add a placed gang back, in place."""
    for bundle, name in zip(bundles, placement, strict=True):
        free[name] = free[name].plus(bundle)


def missing(bundles: Sequence[Bundle], free: Mapping[str, Free]) -> str:
    """In words, what keeps a gang from fitting, and by how much; empty when it fits."""
    if place(bundles, free) is not None:
        return ""
    words = []
    for bundle in sorted(set(bundles), reverse=True):
        if any(room.holds(bundle) for room in free.values()):
            continue
        lacks = []
        most = max((room.gpus for room in free.values()), default=0)
        if bundle.gpus > most:
            lacks.append(f"{bundle.gpus} GPUs on one node where the largest has {most}: {bundle.gpus - most} short")
        best = max((room.gpu_memory for room in free.values() if room.gpus), default=0)
        if bundle.gpus and bundle.gpu_memory > best:
            lacks.append(f"{gigabytes(bundle.gpu_memory)} per GPU where the largest has {gigabytes(best)}: "
                         f"{gigabytes(bundle.gpu_memory - best)} short")  # fmt: skip
        cores = max((room.cores for room in free.values()), default=0)
        if bundle.cores > cores:
            lacks.append(
                f"{bundle.cores} cores on one node where the largest has {cores}: {bundle.cores - cores} short"
            )
        ram = max((room.memory for room in free.values()), default=0)
        if bundle.memory > ram:
            lacks.append(f"{gigabytes(bundle.memory)} of RAM on one node where the largest has {gigabytes(ram)}: "
                         f"{gigabytes(bundle.memory - ram)} short")  # fmt: skip
        words.append("needs " + " and ".join(lacks or ["a mix of resources that no single node has"]))
    if words:
        return "; ".join(words)
    for what, need, have in (
        ("GPUs", sum(b.gpus for b in bundles), sum(r.gpus for r in free.values())),
        ("cores", sum(b.cores for b in bundles), sum(r.cores for r in free.values())),
    ):
        if need > have:
            words.append(f"needs {need} {what} where there are {have}: {need - have} short")
    need, have = sum(b.memory for b in bundles), sum(r.memory for r in free.values())
    if need > have:
        words.append(
            f"needs {gigabytes(need)} of RAM where there are {gigabytes(have)}: {gigabytes(need - have)} short"
        )
    return "; ".join(words) or f"its {len(bundles)} bundles fit in sum, but not onto the nodes as they are cut"


def gigabytes(size: float) -> str:
    """Bytes as decimal GB."""
    return f"{size / 1e9:.1f} GB"
