"""What there is to run on: nodes with GPUs, cores and memory.

An inventory is stated (`parse`), found on this machine (`local`) or read off a Ray cluster's node table (`from_ray`).
Sizes written with ``G`` are 10**9 bytes, with ``Gi`` 2**30.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import psutil

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


def _local_gpus(deadline: float = 5.0) -> list[tuple[str, int]]:
    """(kind, bytes) of this machine's GPUs by ``nvidia-smi``; none where it is absent, fails or takes too long."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=deadline, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    found = []
    for line in answer.splitlines():
        name, _, mebibytes = line.rpartition(",")
        if mebibytes.strip().isdigit():
            words = re.findall(r"[A-Z]+\d+\w*|GH200|GB200|B200", name.upper())
            found.append((words[0] if words else "GPU", int(mebibytes) * 2**20))
    return found


def local() -> Inventory:
    """This machine: the cores this process may use, the memory available now, and the GPUs that nvidia-smi lists."""
    process = psutil.Process()
    cores = len(process.cpu_affinity()) if hasattr(process, "cpu_affinity") else (psutil.cpu_count() or 1)
    gpus = _local_gpus()
    return Inventory(
        (
            Node(
                name="local",
                cores=cores,
                memory=int(psutil.virtual_memory().available),
                gpus=len(gpus),
                gpu_memory=min((size for _, size in gpus), default=0),
                gpu_kind=gpus[0][0] if gpus else "",
            ),
        )
    )


GPU_MEMORY: Mapping[str, int] = {
    "H100": 80 * 10**9, "H200": 141 * 10**9, "A100": 40 * 10**9, "A100-40G": 40 * 10**9, "A100-80G": 80 * 10**9,
    "L40S": 48 * 10**9, "L4": 24 * 10**9, "A10G": 24 * 10**9, "V100": 16 * 10**9, "T4": 16 * 10**9,
}  # fmt: skip
"""Bytes per GPU by Ray's ``accelerator_type:`` names, the smallest model sold under a name."""


def from_ray(nodes: Iterable[Mapping[str, Any]]) -> Inventory:
    """The inventory of a Ray cluster, from what ``ray.nodes()`` returns (Ray itself is not imported).

    A node's GPUs of unknown kind are logical: half of the node's memory is theirs.

    Raises
    ------
    UsageError
        No node is alive.
    """
    found: list[Node] = []
    for entry in nodes:
        if not entry.get("Alive", True):
            continue
        has = entry.get("Resources", {})
        gpus, memory = int(has.get("GPU", 0)), int(has.get("memory", 0))
        kinds = [key.partition(":")[2] for key in has if key.startswith("accelerator_type:")]
        kind = next((k for k in kinds if k in GPU_MEMORY), "")
        each = GPU_MEMORY[kind] if kind else memory // 2 // max(1, gpus)
        found.append(
            Node(
                name=str(entry.get("NodeID") or entry.get("NodeName") or f"node{len(found)}"),
                cores=int(has.get("CPU", 0)),
                memory=memory if kind or not gpus else memory // 2,
                gpus=gpus,
                gpu_memory=each if gpus else 0,
                gpu_kind=(kind or LOGICAL) if gpus else "",
            )
        )
    if not found:
        raise UsageError("the Ray cluster has no living node")
    return Inventory(tuple(sorted(found, key=lambda node: node.name)))
