"""Ray itself, and the one reservation that holds all of a cell's resources.

A cell's bundles form one placement group, which Ray grants whole or not at all: two cells that each hold a part of what
they need cannot happen.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import Any

import ray
import torch
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from harness import phases
from harness.allocation.inventory import LOGICAL, VISIBLE, Card, Inventory, from_ray, visible
from harness.engines.openrlhf import seams
from harness.engines.openrlhf.settings import Settings
from harness.engines.openrlhf.turns import Turns
from harness.errors import EngineError, InfeasibleError

REACH_SECONDS = 5.0
CARDS_SECONDS = 120.0
"""Of a node: its first task starts a process there and imports this package."""
NODE = "ray.io/node-id"
"""Ray's own label of a node."""
ANOTHER_SECONDS = 60.0
"""For the nodes chosen to become free, before others are tried."""
_connecting = threading.Lock()
OWN = "local"
"""Ray's word for a new cluster; without an address it joins whichever was started on the machine last."""


def connect(devices: int | None = None, address: str | None = None, quiet: bool = False) -> None:
    """Join the cluster at `address`, by default that of `RAY_ADDRESS`, or start a Ray of our own on this machine, whatever else
    runs there. Idempotent.

    Parameters
    ----------
    devices
        Without CUDA here a local Ray gets so many logical GPUs, each with a CPU of its own; the default is one per core. Otherwise
        it has the GPUs that CUDA shows.
    quiet
        Of a cluster that is joined: what its actors say on stderr is not heard here.

    Raises EngineError where no cluster answers at the address.
    """
    with _connecting:
        if ray.is_initialized():
            return
        # Workers must be able to import this package from wherever it was imported here.
        roots = [str(Path(__file__).parents[3]), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {"env_vars": {"PYTHONPATH": os.pathsep.join(roots)}}
        address = address or os.environ.get("RAY_ADDRESS") or OWN
        if address != OWN:
            _join(address, environment, quiet)
            return
        cards, kept = [card.name for card in visible()], os.environ.get(VISIBLE)
        options: dict[str, Any] = {}
        if torch.cuda.is_available():
            if cards:  # Ray would count a -1 as a device
                options["num_gpus"], os.environ[VISIBLE] = len(cards), ",".join(cards)
        else:
            count = devices or len(os.sched_getaffinity(0))
            options |= {"num_gpus": count, "num_cpus": count, "resources": {LOGICAL: 1}}
            options |= {"_system_config": {"prestart_worker_first_driver": False}}
            os.environ.pop(VISIBLE, None)  # Ray takes logical GPUs for some of these
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        # An actor killed while it starts leaves vLLM's process behind; Ray then ends it.
        os.environ.setdefault("RAY_kill_child_processes_on_worker_exit_with_raylet_subreaper", "true")
        try:
            ray.init(address=OWN, runtime_env=environment, include_dashboard=False, log_to_driver=False, **options)
        finally:
            os.environ.pop(VISIBLE, None)
            if kept is not None:
                os.environ[VISIBLE] = kept


def _join(address: str, environment: dict[str, Any], quiet: bool) -> None:
    """What its actors say on stderr is heard here, in the cell's log, unless `quiet`."""
    host, _, port = address.rpartition(":")
    try:
        if port.isdecimal() and "/" not in host:  # Ray itself waits long for an address at which nothing is
            socket.create_connection((host.strip("[]"), int(port)), REACH_SECONDS).close()
        level = {"logging_level": logging.ERROR} if quiet else {}
        ray.init(address=address, runtime_env=environment, log_to_driver=not quiet, **level)
    except (OSError, RuntimeError, ValueError, OverflowError) as error:
        raise EngineError(f"no Ray cluster to join at {address}: {' '.join(str(error).split())[:300]}") from None


def inventory(address: str | None = None) -> Inventory:
    """Of the cluster that `connect` joins. Raises EngineError where a node with accelerators does not say which."""
    connect(address=address)
    return from_ray(ray.nodes(), _cards)


def _cards(node: str) -> list[Card]:
    """The GPUs that CUDA shows on a node, asked by a task that takes nothing there and leaves the node's own choice as it is."""
    unchanged = {"env_vars": {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}}
    place = NodeAffinitySchedulingStrategy(node, soft=False)
    asked = (
        ray.remote(num_cpus=0, max_retries=0)(visible)
        .options(scheduling_strategy=place, runtime_env=unchanged)
        .remote()
    )
    try:
        found: list[Card] = ray.get(asked, timeout=CARDS_SECONDS)
    except RayError as error:
        raise EngineError(f"Ray node {node} does not say which GPUs it has: {str(error).strip()[-300:]}") from None
    return found


@dataclass(frozen=True, slots=True)
class Slot:
    """One policy's part of a reservation: bundle of each trainer rank and of each rollout engine's first device, and the turns
    that it takes on them with `policies - 1` others."""

    group: PlacementGroup
    trainers: tuple[int, ...]
    rollouts: tuple[int, ...]
    turns: Turns
    policies: int = 1

    def part(self, share: float) -> float:
        """What a process may book of its bundle, whose policies divide it among themselves; Ray knows four decimals."""
        return int(share / self.policies * 10_000) / 10_000


class Reservation:
    """All bundles of a cell, in one placement group. A bundle is one GPU and one CPU."""

    def __init__(self, policies: Mapping[str, Settings], deadline: float) -> None:
        """Reserve.

        Raises
        ------
        InfeasibleError
            The cluster has too few devices even when idle.
        EngineError
            Others did not free enough within `deadline` seconds.
        """
        connect()
        self.shared = shared(policies.values())
        devices = [settings.devices for settings in policies.values()]
        count = max(devices) if self.shared else sum(devices)
        _check_capacity(count)
        group = _grouped(undivided(policies), deadline)
        if group is None:
            free = ray.available_resources()
            raise EngineError(
                f"no room on the cluster within {deadline:g} s: {count} devices needed, "
                f"{free.get('GPU', 0):g} GPUs and {free.get('CPU', 0):g} CPUs free"
            )
        self.group = group
        self.slots = _assign(self.group, policies)
        try:
            self._check_nodes(policies)
        except EngineError:
            self.release()
            raise

    def _check_nodes(self, policies: Mapping[str, Settings]) -> None:
        """An engine's tensor-parallel devices must not lie on several nodes."""
        nodes = placement_group_table(self.group)["bundles_to_node_id"]
        for name, settings in policies.items():
            for first in self.slots[name].rollouts:
                if len({nodes[bundle] for bundle in range(first, first + settings.tensor_parallel)}) > 1:
                    raise EngineError(
                        f"policy {name!r}: Ray gave the {settings.tensor_parallel} devices of one rollout engine on several "
                        "nodes; a smaller tensor_parallel fits"
                    )

    def release(self, deadline: float = 30.0) -> None:
        """Give everything back and wait until Ray has it. Idempotent; raises EngineError after `deadline` seconds."""
        if not ray.is_initialized():
            return
        remove_placement_group(self.group)
        end = monotonic() + deadline
        prefix = f"_group_{self.group.id.hex()}"
        while any(name.endswith(prefix[1:]) for name in ray.available_resources()):
            if monotonic() > end:
                raise EngineError(f"Ray did not take a placement group back within {deadline:g} s")
            sleep(0.1)

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()


def _grouped(blocks: Sequence[int], deadline: float) -> PlacementGroup | None:
    """A placement group of one bundle per device, whose blocks of devices lie on one node each; None after `deadline` seconds.

    Ray's own packing fills one node after the other, and would divide a block between two. So where there are blocks and several
    nodes, each block is given its node, and another one if that does not become free.

    Raises InfeasibleError where a block is larger than any node has room for.
    """
    end = monotonic() + deadline
    bundles = [{"GPU": 1.0, "CPU": 1.0}] * sum(blocks)
    while True:
        nodes = _nodes_of(blocks)
        group = placement_group(
            bundles, strategy="PACK", bundle_label_selector=[{NODE: node} for node in nodes] if nodes else None
        )
        if _granted(group, min(end - monotonic(), ANOTHER_SECONDS if nodes else deadline)):
            return group
        remove_placement_group(group)
        if monotonic() >= end:
            return None


def _nodes_of(blocks: Sequence[int]) -> list[str]:
    """The node of each device: where there is room now, else where there would be on an idle cluster. Empty where any will do."""
    free, total = seams.node_resources()
    if max(blocks) == 1 or len(total) == 1:
        return []
    for resources in (free, total):
        rooms = {node: int(min(has.get("GPU", 0), has.get("CPU", 0))) for node, has in sorted(resources.items())}
        if found := fit(blocks, rooms):
            return found
    most = max(int(min(has.get("GPU", 0), has.get("CPU", 0))) for has in total.values())
    raise InfeasibleError(
        f"a rollout engine's {max(blocks)} devices must be on one node, and the cell's are {sum(blocks)}: no such room on "
        f"{len(total)} nodes of at most {most}; a smaller tensor_parallel fits"
    )


def fit(blocks: Sequence[int], rooms: Mapping[str, int]) -> list[str]:
    """The node of each device, block after block: the largest first, each to the fullest node that holds it. Empty: no room."""
    left, chosen = dict(rooms), dict[int, str]()
    for index in sorted(range(len(blocks)), key=lambda i: -blocks[i]):
        able = [node for node, room in left.items() if room >= blocks[index]]
        if not able:
            return []
        chosen[index] = min(able, key=lambda node: left[node])
        left[chosen[index]] -= blocks[index]
    return [chosen[index] for index, size in enumerate(blocks) for _ in range(size)]


def undivided(policies: Mapping[str, Settings]) -> list[int]:
    """Sizes of the blocks of neighbouring devices that must lie on one node, in order: an engine's tensor-parallel ones."""
    together = shared(policies.values())
    count = (max if together else sum)(settings.devices for settings in policies.values())
    joined = [False] * count  # whether a device is in one block with the one before it
    first = 0
    for settings in policies.values():
        shift = first if settings.colocate else first + settings.trainers
        for engine in range(settings.rollout_engines):
            start = shift + engine * settings.tensor_parallel
            joined[start + 1 : start + settings.tensor_parallel] = [True] * (settings.tensor_parallel - 1)
        first += 0 if together else settings.devices
    blocks: list[int] = []
    for same in joined:
        if same:
            blocks[-1] += 1
        else:
            blocks.append(1)
    return blocks


def _granted(group: PlacementGroup, deadline: float) -> bool:
    end = monotonic() + deadline
    while not group.wait(timeout_seconds=max(0.1, min(2.0, end - monotonic()))):
        phases.beat()  # it is the others' turn; the deadline is what ends this wait
        if monotonic() >= end:
            return False
    return True


def _check_capacity(count: int) -> None:
    total = ray.cluster_resources()
    for resource in ("GPU", "CPU"):
        short = count - total.get(resource, 0)
        if short > 0:
            raise InfeasibleError(
                f"the cell needs {count} {resource}s, the cluster has {total.get(resource, 0):g}: {short:g} short"
            )


def _assign(group: PlacementGroup, policies: Mapping[str, Settings]) -> dict[str, Slot]:
    slots: dict[str, Slot] = {}
    first, together, turns = 0, shared(policies.values()), Turns()
    for name, settings in policies.items():
        trainers = tuple(range(first, first + settings.trainers))
        shift = first if settings.colocate else first + settings.trainers
        rollouts = tuple(shift + engine * settings.tensor_parallel for engine in range(settings.rollout_engines))
        many = len(policies) if together else 1
        slots[name] = Slot(group, trainers, rollouts, turns if together else Turns(), many)
        first += 0 if together else settings.devices
    return slots


def shared(policies: Iterable[Settings]) -> bool:
    """Whether the policies have the same devices. Raises EngineError where only some would."""
    wishes = {bool(settings.share_devices) for settings in policies}
    if len(wishes) > 1:
        raise EngineError("share_devices: all policies of a cell share their devices, or none does")
    return wishes == {True}


def main() -> None:
    """Hold a cluster on this machine for other processes: print its address, and end it when stdin closes."""
    for ignored in (signal.SIGINT, signal.SIGTERM):  # the run decides what they mean, and closes stdin
        signal.signal(ignored, signal.SIG_IGN)
    out = os.dup(1)
    os.dup2(2, 1)  # what Ray prints is not for the reader of the address
    connect()
    os.write(out, f"{ray.get_runtime_context().gcs_address}\n".encode())
    sys.stdin.read()
    ray.shutdown()


if __name__ == "__main__":
    main()
