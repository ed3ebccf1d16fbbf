"""What there is to run on: nodes with GPUs, cores and memory.

An inventory is stated (`parse`), found on this machine (`local`) or read off a Ray cluster's node table (`from_ray`).
Sizes written with ``G`` are 10**9 bytes, with ``Gi`` 2**30.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import psutil

from harness.allocation.gpus import Card, visible
from harness.errors import UsageError

NODE_GPUS = 8
CORES_PER_GPU = 16
RAM_PER_GPU = 128 * 2**30
MAX_NODES = 10_000
LOGICAL = "logical"
"""Kind of a GPU that is a core of a CPU."""


@dataclass(frozen=True, slots=True)
class Node:
    """One machine. gpu_memory: bytes of each of its GPUs; memory: bytes of RAM that may be used."""

    name: str
    cores: int
    memory: int
    gpus: int = 0
    gpu_memory: int = 0
    gpu_kind: str = ""


@dataclass(frozen=True, slots=True)
class Inventory:
    """All nodes, in one fixed order."""

    nodes: tuple[Node, ...]

    def __post_init__(self) -> None:
        names = [node.name for node in self.nodes]
        if not names or len(set(names)) != len(names):
            raise UsageError("an inventory has at least one node, and no two of one name")

    @property
    def gpus(self) -> int:
        return sum(node.gpus for node in self.nodes)

    @property
    def cores(self) -> int:
        return sum(node.cores for node in self.nodes)

    @property
    def memory(self) -> int:
        return sum(node.memory for node in self.nodes)

    def with_logical_gpus(self) -> Inventory:
        """For a cluster without GPUs: one logical GPU per core. Half of a node's memory is theirs, the rest stays its RAM."""
        return Inventory(
            tuple(
                replace(
                    n, gpus=n.cores, gpu_memory=n.memory // 2 // max(1, n.cores), gpu_kind=LOGICAL, memory=n.memory // 2
                )
                for n in self.nodes
            )
        )

    def without_gpus(self) -> Inventory:
        """The same nodes, their cores and memory."""
        return Inventory(tuple(replace(n, gpus=0, gpu_memory=0, gpu_kind="") for n in self.nodes))

    def describe(self) -> str:
        """One line, for people."""
        parts = []
        for node in self.nodes:
            gpus = f"{node.gpus} x {node.gpu_kind or 'GPU'} of {node.gpu_memory / 1e9:.0f} GB, " if node.gpus else ""
            parts.append(f"{node.name}: {gpus}{node.cores} cores, {node.memory / 1e9:.0f} GB")
        if len(parts) > 4:
            parts = [*parts[:3], f"... {len(parts)} nodes"]
        return "; ".join(parts)


_SIZE = r"(\d+(?:\.\d+)?)(Gi|G)B?"
_GPUS = re.compile(rf"(?:(\d+)x)?(\d+)x([A-Za-z][\w.]*)-{_SIZE}(?:\+(\d+)cpu-{_SIZE})?")
_CPUS = re.compile(rf"(?:(\d+)x)?(\d+)cpu-{_SIZE}")


def _bytes(number: str, unit: str) -> int:
    return int(float(number) * (2**30 if unit == "Gi" else 10**9))


def parse(text: str) -> Inventory:
    """An inventory from ``[NODESx]COUNTxKIND-SIZE[+COREScpu-RAM]`` or ``[NODESx]COREScpu-RAM``.

    Without a number of nodes, GPUs stand in nodes of at most eight; without ``+...`` a GPU comes with 16 cores and
    128 GiB of RAM. With it, cores and RAM are each node's.

    Raises
    ------
    UsageError
        The text has another form, or a number is zero or absurd.
    """
    shown = text[:80]
    if any(len(number) > 6 for number in re.findall(r"\d+", text)):
        raise UsageError(f"inventory `{shown}`: counts and sizes are positive and of a real cluster's order")
    if match := _GPUS.fullmatch(text):
        nodes_text, count, kind, size, unit, cores, ram, ram_unit = match.groups()
        total, nodes = int(count), int(nodes_text or 0)
        if nodes_text is None:
            per_node = [NODE_GPUS] * (total // NODE_GPUS)
            per_node += [total % NODE_GPUS] if total % NODE_GPUS else []
        else:
            per_node = [total] * min(nodes, MAX_NODES + 1)
        found = [
            Node(
                name=f"node{i}",
                gpus=gpus,
                gpu_memory=_bytes(size, unit),
                gpu_kind=kind.upper(),
                cores=int(cores) if cores else gpus * CORES_PER_GPU,
                memory=_bytes(ram, ram_unit) if ram else gpus * RAM_PER_GPU,
            )
            for i, gpus in enumerate(per_node)
        ]
        enough = all(n.gpus and n.gpu_memory and n.cores and n.memory for n in found)
    elif match := _CPUS.fullmatch(text):
        nodes_text, count, size, unit = match.groups()
        number = min(int(nodes_text or 1), MAX_NODES + 1)
        found = [Node(name=f"node{i}", cores=int(count), memory=_bytes(size, unit)) for i in range(number)]
        enough = all(n.cores and n.memory for n in found)
    else:
        raise UsageError(f"inventory `{shown}`: expected for example 8xH100-80G, 2x8xH100-80G+128cpu-1000G or 4cpu-24G")
    if not found or not enough or len(found) > MAX_NODES:
        raise UsageError(f"inventory `{shown}`: counts and sizes are positive and of a real cluster's order")
    return Inventory(tuple(found))


def local() -> Inventory:
    """This machine: the cores this process may use, the memory available now, and the GPUs that CUDA shows it."""
    process = psutil.Process()
    cores = len(process.cpu_affinity()) if hasattr(process, "cpu_affinity") else (psutil.cpu_count() or 1)
    gpus = visible()
    return Inventory(
        (
            Node(
                name="local",
                cores=cores,
                memory=int(psutil.virtual_memory().available),
                gpus=len(gpus),
                gpu_memory=min((card.memory for card in gpus), default=0),
                gpu_kind=gpus[0].kind if gpus else "",
            ),
        )
    )


ACCELERATOR = "accelerator_type:"
"""Begins the name of the resource by which Ray says that a node has an accelerator. The rest of it is a word of the product's name:
`G` of GeForce, `A100` of one of 40 and of one of 80 GB."""


def accelerated(resources: Collection[str]) -> bool:
    """Whether the GPUs of a Ray node or cluster with these resources are GPUs, and not cores of a CPU."""
    return LOGICAL not in resources and any(name.startswith(ACCELERATOR) for name in resources)


def from_ray(nodes: Iterable[Mapping[str, Any]], cards: Callable[[str], Sequence[Card]]) -> Inventory:
    """The inventory of a Ray cluster, from what ``ray.nodes()`` returns (Ray itself is not imported).

    cards: the GPUs that CUDA shows on the node of an id; asked of the nodes with accelerators. The GPUs of others are logical: half
    of the node's memory is theirs.

    Raises
    ------
    UsageError
        No node is alive, or one that has accelerators lists none.
    """
    found: list[Node] = []
    for entry in nodes:
        if not entry.get("Alive", True):
            continue
        has, name = entry.get("Resources", {}), str(entry.get("NodeID") or entry.get("NodeName") or f"node{len(found)}")
        gpus, memory = int(has.get("GPU", 0)), int(has.get("memory", 0))
        kind, each = LOGICAL, memory // 2 // max(1, gpus)
        if gpus and accelerated(has):
            listed = cards(name)
            if not listed:
                raise UsageError(f"Ray node {name} has {gpus} GPUs, and nvidia-smi lists none there")
            kind, each = listed[0].kind, min(card.memory for card in listed)
        found.append(
            Node(
                name=name,
                cores=int(has.get("CPU", 0)),
                memory=memory // 2 if gpus and kind == LOGICAL else memory,
                gpus=gpus,
                gpu_memory=each if gpus else 0,
                gpu_kind=kind if gpus else "",
            )
        )
    if not found:
        raise UsageError("the Ray cluster has no living node")
    return Inventory(tuple(sorted(found, key=lambda node: node.name)))
