"""What there is to run on: nodes with GPUs, cores and memory; and what is reserved."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from harness.errors import UsageError
from harness.limits import available_memory, count_cores

NODE_GPUS = 8
CORES_PER_GPU = 16
RAM_PER_GPU = 128 * 2**30
MAX_NODES = 10_000
LOGICAL = "logical"  # kind of a GPU that is a core of a CPU
# Begins the name of the resource by which Ray marks a node's accelerator.
ACCELERATOR = "accelerator_type:"


def format_gigabytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB"


# The GPUs of this machine ---------------------------------------------------------------------------------------------

VISIBLE = "CUDA_VISIBLE_DEVICES"
ANSWER_SECONDS = 10.0  # without persistence mode nvidia-smi wakes every GPU first
_KIND = re.compile(r"(?:(?:QUADRO )?[RG]TX (?:PRO )?(?=\d))?[A-Z]{0,2}\d+[A-Z]*|QUADRO|TITAN")
_NO_BF16 = re.compile(r"QUADRO|TITAN|GTX|RTX20[6-8]|MX|G?[KMPVT]\d")
_NAMES = re.compile(r"^GPU (\d+):.*\(UUID: (GPU-[^)]+)\)|^ +MIG \S*?(\d+)gb\b.*\(UUID: (MIG-[^)]+)\)", re.MULTILINE)


class Card(NamedTuple):
    """A GPU, or a MIG part of one. name: in CUDA_VISIBLE_DEVICES. kind: e.g. RTX4090."""

    name: str
    kind: str
    memory: int


def list_visible_gpus() -> list[Card]:
    """List the GPUs that nvidia-smi lists and CUDA_VISIBLE_DEVICES leaves, in its order; none where nvidia-smi is absent, fails
    or is late.

    The variable is read as CUDA does (programming guide): numbers, or unique beginnings of names of
    GPUs or MIG parts, up to the first that means no device; none where one stands twice.
    nvidia-smi's numbers are CUDA's where the GPUs are alike or CUDA_DEVICE_ORDER is PCI_BUS_ID.
    """
    chosen = os.environ.get(VISIBLE)
    numbered = dict[str, Card]()
    parted = False
    listed = _ask_nvidia_smi("--query-gpu=name,memory.total,mig.mode.current", "--format=csv,noheader,nounits")
    for number, line in enumerate(listed.splitlines()):
        name, size, *mig = (field.strip() for field in line.split(",")) if "," in line else ("", "")
        if size.isdigit():
            numbered[str(number)] = Card(str(number), gpu_kind(name), int(size) * 2**20)
            parted = parted or mig == ["Enabled"]
    known = numbered
    if numbered and (parted if chosen is None else chosen.startswith(("GPU-", "MIG-"))):
        known = _with_names(numbered)
        if chosen is None:
            chosen = ",".join(name for name in known if name.startswith("MIG-"))
    if chosen is None:
        return list(known.values())
    cards: list[Card] = []
    for word in map(str.strip, chosen.split(",")):
        meant = {card for name, card in known.items() if name == word or ("-" in word[1:] and name.startswith(word))}
        if len(meant) != 1:
            break
        cards.append(meant.pop())
    return cards if len({*cards}) == len(cards) else []


def has_bf16(kind: str) -> bool:
    """Whether a kind of GPU multiplies bf16: none before Ampere does, which are those whose names begin with Kepler's to Turing's
    letter, or with a brand that ended with them."""
    return not _NO_BF16.match(kind.upper())


def gpu_kind(name: str) -> str:
    """Shorten a card's name: `NVIDIA A100-SXM4-80GB` is an A100, `NVIDIA GeForce RTX 4090` an RTX4090."""
    match = _KIND.search(name.upper())
    return match[0].replace(" ", "") if match else "GPU"


def _with_names(numbered: dict[str, Card]) -> dict[str, Card]:
    """Return cards by the names that CUDA_VISIBLE_DEVICES may give them."""
    by_name = dict[str, Card]()
    card = Card("", "", 0)
    for number, uuid, size, part in _NAMES.findall(_ask_nvidia_smi("-L")):
        if number:
            card = numbered.get(number, card)
            by_name[uuid] = card._replace(name=uuid)
        else:
            by_name[part] = card._replace(name=part, memory=int(size) * 10**9)
    return by_name


def _ask_nvidia_smi(*arguments: str) -> str:
    """Return what nvidia-smi prints; empty where it is not there or fails."""
    try:
        command = ["nvidia-smi", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=True)
        return done.stdout
    except (OSError, subprocess.SubprocessError):
        return ""


# Nodes ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Node:
    """gpu_memory: bytes of each GPU; memory: usable RAM."""

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
        """Give the nodes logical GPUs, one per core, with half of a node's memory."""
        nodes = []
        for node in self.nodes:
            half = node.memory // 2
            each = half // max(1, node.cores)
            nodes.append(replace(node, gpus=node.cores, gpu_memory=each, gpu_kind=LOGICAL, memory=half))
        return Inventory(tuple(nodes))

    def without_gpus(self) -> Inventory:
        return Inventory(tuple(replace(n, gpus=0, gpu_memory=0, gpu_kind="") for n in self.nodes))

    def describe(self) -> str:
        """Name the nodes with their GPUs, cores and memory; of many the first three."""
        parts = []
        for node in self.nodes:
            gpus = f"{node.gpus} x {node.gpu_kind or 'GPU'} of {node.gpu_memory / 1e9:.0f} GB, " if node.gpus else ""
            parts.append(f"{node.name}: {gpus}{node.cores} cores, {node.memory / 1e9:.0f} GB")
        if len(parts) > 4:
            parts = [*parts[:3], f"... {len(parts)} nodes"]
        return "; ".join(parts)


_SIZE = r"\d+(?:\.\d+)?Gi?B?"
_CPUS = rf"(\d+)cpu-({_SIZE})"
_STATED = re.compile(rf"(?:(\d+)x)?(?:(\d+)x([A-Za-z][\w.]*)-({_SIZE})(?:\+{_CPUS})?|{_CPUS})")


def _parse_size(size: str) -> int:
    """Read a size such as `24G` or `22.5GiB`, in bytes."""
    return int(float(size.rstrip("GiB")) * (2**30 if "i" in size else 10**9))


def parse_inventory(text: str) -> Inventory:
    """Read an inventory, ``[NODESx]COUNTxKIND-SIZE[+COREScpu-RAM]`` or ``[NODESx]COREScpu-RAM``; ``G`` is 10**9 bytes, ``Gi``
    2**30. GPUs stand in nodes of at most eight unless said, with 16 cores and 128 GiB of RAM each unless `+...` gives every
    node's. Raises UsageError."""
    shown = text[:80]
    match = _STATED.fullmatch(text)
    if match is None:
        raise UsageError(f"inventory `{shown}`: expected for example 8xH100-80G, 2x8xH100-80G+128cpu-1000G or 4cpu-24G")
    nodes, gpus, kind, size, *cpus = match.groups()
    cores, ram = cpus[:2] if gpus else cpus[2:]
    listed = []
    if all(len(number) <= 6 for number in re.findall(r"\d+", text)):
        total = int(gpus or 0)
        whole = [total] * min(int(nodes or 1), MAX_NODES + 1)
        if gpus and nodes is None:
            whole = [min(NODE_GPUS, total - begun) for begun in range(0, total, NODE_GPUS)]
        gpu_memory = _parse_size(size) if size else 0
        for number, own in enumerate(whole):
            node = Node(
                name=f"node{number}",
                gpus=own,
                gpu_memory=gpu_memory,
                gpu_kind=(kind or "").upper(),
                cores=int(cores) if cores else own * CORES_PER_GPU,
                memory=_parse_size(ram) if ram else own * RAM_PER_GPU,
            )
            listed.append(node)
    have_hosts = all(node.cores and node.memory for node in listed)
    have_gpus = not gpus or all(node.gpus and node.gpu_memory for node in listed)
    if not listed or not have_hosts or not have_gpus or len(listed) > MAX_NODES:
        raise UsageError(f"inventory `{shown}`: counts and sizes are positive and of a real cluster's order")
    return Inventory(tuple(listed))


def inventory_of_machine() -> Inventory:
    """Describe this machine: this process's cores, memory available now, and the GPUs that CUDA shows."""
    cards = list_visible_gpus()
    gpu_memory, gpu_kind = _weakest_card(cards)
    node = Node("local", count_cores(), available_memory(), len(cards), gpu_memory, gpu_kind)
    return Inventory((node,))


def _weakest_card(cards: Sequence[Card]) -> tuple[int, str]:
    """Return the memory and kind that a node of unlike cards counts as."""
    old = [card for card in cards if not has_bf16(card.kind)]
    least = min((card.memory for card in cards), default=0)
    kind = next((card.kind for card in (*old, *cards)), "")
    return least, kind


def has_accelerators(resources: Collection[str]) -> bool:
    """Whether the GPUs of a Ray node or cluster with these resources are no cores of a CPU."""
    return LOGICAL not in resources and any(name.startswith(ACCELERATOR) for name in resources)


def from_ray(nodes: Iterable[Mapping[str, Any]], cards: Callable[[str], Sequence[Card]]) -> Inventory:
    """Make an inventory of ``ray.nodes()``. cards: that CUDA shows on the node of an id, asked where there are accelerators;
    other GPUs are logical, with half of the node's memory. Raises UsageError where no node is alive, or one with accelerators
    lists none."""
    alive: list[Node] = []
    for entry in nodes:
        if not entry.get("Alive", True):
            continue
        has = entry.get("Resources", {})
        name = str(entry.get("NodeID") or entry.get("NodeName") or f"node{len(alive)}")
        gpus = int(has.get("GPU", 0))
        memory = int(has.get("memory", 0))
        each = 0
        kind = ""
        if gpus and has_accelerators(has):
            listed = cards(name)
            if not listed:
                raise UsageError(f"Ray node {name} has {gpus} GPUs, and nvidia-smi lists none there")
            each, kind = _weakest_card(listed)
        elif gpus:
            each = memory // 2 // gpus
            kind = LOGICAL
            memory = memory // 2
        alive.append(Node(name, int(has.get("CPU", 0)), memory, gpus, each, kind))
    if not alive:
        raise UsageError("the Ray cluster has no living node")
    return Inventory(tuple(sorted(alive, key=lambda node: node.name)))


# Reservations ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, order=True)
class Bundle:
    """Resources within one node, asked for or left: whole GPUs of at least `gpu_memory` bytes, cores, bytes of RAM."""

    gpus: int = 0
    cores: int = 0
    memory: int = 0
    gpu_memory: int = 0

    def holds(self, other: Bundle) -> bool:
        big_enough = not other.gpus or self.gpu_memory >= other.gpu_memory
        return big_enough and self.gpus >= other.gpus and self.cores >= other.cores and self.memory >= other.memory

    def plus(self, other: Bundle, sign: int = 1) -> Bundle:
        return Bundle(
            self.gpus + sign * other.gpus,
            self.cores + sign * other.cores,
            self.memory + sign * other.memory,
            self.gpu_memory,
        )


Free = dict[str, Bundle]  # what is left of each node


def capacity_of(inventory: Inventory) -> Free:
    return {node.name: Bundle(node.gpus, node.cores, node.memory, node.gpu_memory) for node in inventory.nodes}


def place_bundles(bundles: Sequence[Bundle], free: Free) -> tuple[Free, tuple[str, ...]] | None:
    """Place bundles; return what is left when all bundles are placed, and the node of each; None where they do not fit. Best fit
    decreasing: the largest first, on the node that keeps the fewest GPUs, then cores. Exact for equal bundles."""
    left = dict(free)
    chosen = [""] * len(bundles)
    largest_first = sorted(range(len(bundles)), key=lambda place: bundles[place], reverse=True)
    for index in largest_first:
        able = [name for name, node in left.items() if node.holds(bundles[index])]
        if not able:
            return None
        best = min(able, key=lambda name: (left[name].gpus, left[name].cores))
        left[best] = left[best].plus(bundles[index], -1)
        chosen[index] = best
    return left, tuple(chosen)


def _holds_anywhere(bundle: Bundle, free: Free) -> bool:
    return any(node.holds(bundle) for node in free.values())


def explain_shortage(bundles: Sequence[Bundle], free: Free) -> str:
    """Say what keeps bundles from being placed; empty where they fit."""
    if place_bundles(bundles, free) is not None:
        return ""

    distinct = sorted(set(bundles), reverse=True)
    single = [bundle for bundle in distinct if not _holds_anywhere(bundle, free)]
    if single:
        largest = _combine_bundles(max, free.values())
        lacks = []
        for bundle in single:
            words = _describe_shortage(bundle, largest, " on one node", "where the largest has")
            lacks.append(f"needs {words or 'a mix of resources that no single node has'}")
        return "; ".join(lacks)
    whole = replace(_combine_bundles(sum, bundles), gpu_memory=0)
    there = _combine_bundles(sum, free.values())
    words = _describe_shortage(whole, there, "", "where there are")
    if words:
        return f"needs {words}"
    return f"its {len(bundles)} bundles fit in sum, but not onto the nodes as they are cut"


def _combine_bundles(of: Callable[[Iterable[int]], int], bundles: Iterable[Bundle]) -> Bundle:
    """Combine bundles to one that has of each resource the largest or the sum."""
    figures = [(bundle.gpus, bundle.cores, bundle.memory, bundle.gpu_memory) for bundle in bundles]
    return Bundle(*map(of, zip(*figures, strict=True)))


def _describe_shortage(needed: Bundle, there: Bundle, on: str, where: str) -> str:
    """Return what a bundle needs beyond what there is, in words."""
    shortages = []
    for field, unit, show in (
        ("gpus", f" GPUs{on}", str),
        ("gpu_memory", " per GPU", format_gigabytes),
        ("cores", f" cores{on}", str),
        ("memory", f" of RAM{on}", format_gigabytes),
    ):
        need = getattr(needed, field)
        have = getattr(there, field)
        if need > have:
            shortages.append(f"{show(need)}{unit} {where} {show(have)}: {show(need - have)} short")
    return " and ".join(shortages)
