"""Ray, and the one reservation of a cell's resources: a placement group, granted whole or not at all."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import ray
import torch
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from harness import phases
from harness.allocation.inventory import (
    LOGICAL,
    VISIBLE,
    Bundle,
    Card,
    Inventory,
    from_ray,
    list_visible_gpus,
    place_bundles,
)
from harness.engines.openrlhf import seams
from harness.engines.openrlhf.offload import Devices
from harness.engines.openrlhf.plugin import OpenRLHFSettings
from harness.errors import EngineError, InfeasibleError
from harness.limits import count_cores

REACH_SECONDS = 5.0
CARDS_SECONDS = 120.0  # of a node, whose first task imports this package
NODE = "ray.io/node-id"  # Ray's label
ANOTHER_SECONDS = 60.0  # until others than the chosen nodes are tried
_connecting = threading.Lock()
OWN = "local"  # a new cluster; without an address Ray joins the machine's latest


def connect_to_cluster(devices: int | None = None, address: str | None = None, quiet: bool = False) -> None:
    """Join the cluster at `address` or `RAY_ADDRESS`, or start one, without CUDA with `devices` logical GPUs (one per core).
    Idempotent. Raises EngineError where none answers."""
    with _connecting:
        if ray.is_initialized():
            return
        # Workers must import this package from the same place.
        roots = [str(Path(__file__).parents[3]), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {"env_vars": {"PYTHONPATH": os.pathsep.join(roots)}}
        address = address or os.environ.get("RAY_ADDRESS") or OWN
        if address != OWN:
            _join_cluster(address, environment, quiet)
            return
        cards = [card.name for card in list_visible_gpus()]
        kept = os.environ.get(VISIBLE)
        options: dict[str, Any] = {}
        if torch.cuda.is_available():
            if cards:  # Ray would count a -1 as a device
                options["num_gpus"], os.environ[VISIBLE] = len(cards), ",".join(cards)
        else:
            count = devices or count_cores()
            options |= {"num_gpus": count, "num_cpus": count, "resources": {LOGICAL: 1}}
            options |= {"_system_config": {"prestart_worker_first_driver": False}}
            os.environ.pop(VISIBLE, None)  # Ray takes logical GPUs for some of these
            # Ray's workers have nice 15, with which they get hardly any of a core that another process wants. Here they compute the
            # run itself, and its deadlines pass meanwhile.
            os.environ.setdefault("RAY_worker_niceness", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        # vLLM's process outlives an actor killed at its start; Ray ends it.
        os.environ.setdefault("RAY_kill_child_processes_on_worker_exit_with_raylet_subreaper", "true")
        try:
            ray.init(address=OWN, runtime_env=environment, include_dashboard=False, log_to_driver=False, **options)
        finally:
            os.environ.pop(VISIBLE, None)
            if kept is not None:
                os.environ[VISIBLE] = kept


def _join_cluster(address: str, environment: dict[str, Any], quiet: bool) -> None:
    """Connect to a Ray cluster at an address, or start one here. Raises EngineError."""
    host, _, port = address.rpartition(":")
    try:
        if port.isdecimal() and "/" not in host:  # Ray waits long for an address without a server
            socket.create_connection((host.strip("[]"), int(port)), REACH_SECONDS).close()
        level = {"logging_level": logging.ERROR} if quiet else {}
        ray.init(address=address, runtime_env=environment, log_to_driver=not quiet, **level)
    except (OSError, RuntimeError, ValueError, OverflowError) as error:
        raise EngineError(f"no Ray cluster to join at {address}: {' '.join(str(error).split())[:300]}") from None


def inventory_of_cluster(address: str | None = None) -> Inventory:
    """Describe the cluster that `connect_to_cluster` joins. Raises EngineError where a node with accelerators does not say
    which."""
    connect_to_cluster(address=address)
    return from_ray(ray.nodes(), _read_cards)


def _read_cards(node: str) -> list[Card]:
    """Return the GPUs of a node, asked there."""
    unchanged = {"env_vars": {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}}
    there = NodeAffinitySchedulingStrategy(node, soft=False)
    task = ray.remote(num_cpus=0, max_retries=0)(list_visible_gpus).options(
        scheduling_strategy=there, runtime_env=unchanged
    )
    try:
        return ray.get(task.remote(), timeout=CARDS_SECONDS)  # type: ignore[no-any-return]
    except RayError as error:
        raise EngineError(f"Ray node {node} does not say which GPUs it has: {str(error).strip()[-300:]}") from None


@dataclass(frozen=True, slots=True)
class Slot:
    """Bundles of each trainer rank, and of each rollout engine's first device."""

    trainers: tuple[int, ...]
    rollouts: tuple[int, ...]
    devices: Devices
    policies: int = 1

    def part(self, share: float) -> float:
        """Return what a process books of its bundle; Ray knows four decimals."""
        return int(share / self.policies * 10_000) / 10_000


class Reservation:
    """Bundles of one GPU and one CPU. Raises InfeasibleError where even an idle cluster has too few, EngineError where too few
    get free within the longest `start_seconds`."""

    def __init__(self, policies: Mapping[str, OpenRLHFSettings]) -> None:
        connect_to_cluster()
        deadline = max(settings.start_seconds for settings in policies.values())
        self.slots, blocks = lay_out_slots(policies)
        self.shared = shares_devices(policies.values())
        count = sum(blocks)
        for resource in ("GPU", "CPU"):
            there = ray.cluster_resources().get(resource, 0)
            if there < count:
                raise InfeasibleError(
                    f"the cell needs {count} {resource}s, the cluster has {there:g}: {count - there:g} short"
                )
        group = _reserve_group(blocks, deadline)
        if group is None:
            free = ray.available_resources()
            raise EngineError(
                f"no room on the cluster within {deadline:g} s: {count} devices needed, "
                f"{free.get('GPU', 0):g} GPUs and {free.get('CPU', 0):g} CPUs free"
            )
        self.group = group
        nodes = placement_group_table(group)["bundles_to_node_id"]
        for name, settings in policies.items():
            size = settings.tensor_parallel
            if any(len({nodes[b] for b in range(first, first + size)}) > 1 for first in self.slots[name].rollouts):
                self.close()
                raise EngineError(
                    f"policy {name!r}: Ray gave the {size} devices of one rollout engine on several nodes; a smaller "
                    "tensor_parallel fits"
                )

    def close(self, deadline: float = 30.0) -> None:
        """Wait until Ray has it all back. Idempotent; raises EngineError after `deadline` seconds."""
        if not ray.is_initialized():
            return
        remove_placement_group(self.group)
        end = monotonic() + deadline
        suffix = f"group_{self.group.id.hex()}"
        while any(name.endswith(suffix) for name in ray.available_resources()):
            if monotonic() > end:
                raise EngineError(f"Ray did not take a placement group back within {deadline:g} s")
            sleep(0.1)


def lay_out_slots(policies: Mapping[str, OpenRLHFSettings]) -> tuple[dict[str, Slot], list[int]]:
    """Return each policy's slot, and the sizes of tensor-parallel blocks, each of which must lie on one node."""
    together = shares_devices(policies.values())
    slots: dict[str, Slot] = {}
    inside: set[int] = set()  # devices in one block with the one before them
    common = Devices()
    first = 0
    count = 0
    for name, settings in policies.items():
        size = settings.tensor_parallel
        shift = first if settings.colocate else first + settings.trainers
        rollouts = tuple(shift + engine * size for engine in range(settings.rollout_engines))
        trainers = tuple(range(first, first + settings.trainers))
        slots[name] = (
            Slot(trainers, rollouts, common, len(policies)) if together else Slot(trainers, rollouts, Devices())
        )
        inside |= {start + place for start in rollouts for place in range(1, size)}
        count = max(count, first + settings.devices)
        first += 0 if together else settings.devices
    starts = [device for device in range(count) if device not in inside]
    return slots, [end - start for start, end in zip(starts, [*starts[1:], count], strict=True)]


def shares_devices(policies: Iterable[OpenRLHFSettings]) -> bool:
    """Whether the policies have the same devices. Raises EngineError where only some would."""
    wishes = {bool(settings.share_devices) for settings in policies}
    if len(wishes) > 1:
        raise EngineError("share_devices: all policies of a cell share their devices, or none does")
    return wishes == {True}


def _reserve_group(blocks: Sequence[int], deadline: float) -> PlacementGroup | None:
    """Reserve a placement group; None after `deadline` seconds. As Ray would divide a block between nodes, each gets a node, and
    another if that stays taken."""
    end = monotonic() + deadline
    bundles = [{"GPU": 1.0, "CPU": 1.0}] * sum(blocks)
    while True:
        nodes = _nodes_of(blocks)
        group = placement_group(
            bundles, strategy="PACK", bundle_label_selector=[{NODE: node} for node in nodes] if nodes else None
        )
        until = min(end, monotonic() + ANOTHER_SECONDS) if nodes else end
        while not group.wait(timeout_seconds=max(0.1, min(2.0, until - monotonic()))):
            phases.report_progress()  # only the deadline ends this wait
            if monotonic() >= until:
                break
        else:
            return group
        remove_placement_group(group)
        if monotonic() >= end:
            return None


def _nodes_of(blocks: Sequence[int]) -> list[str]:
    """Choose a node for each device: with space now, else when idle. Empty where any will do. Raises InfeasibleError."""
    free, total = seams.node_resources()
    if max(blocks) == 1 or len(total) == 1:
        return []
    for resources in (free, total):
        space = {
            node: Bundle(int(min(has.get("GPU", 0), has.get("CPU", 0)))) for node, has in sorted(resources.items())
        }
        placed = place_bundles([Bundle(size) for size in blocks], space)
        if placed:
            return [node for node, size in zip(placed[1], blocks, strict=True) for _ in range(size)]
    raise InfeasibleError(
        f"a rollout engine's {max(blocks)} devices must be on one node, and the cell's are {sum(blocks)}: no such room on "
        f"{len(total)} nodes of at most {max(space.values()).gpus}; a smaller tensor_parallel fits"
    )
