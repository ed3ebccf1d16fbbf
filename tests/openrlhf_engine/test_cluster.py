"""Reservations on real Ray with four logical devices."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from contextlib import closing

import pytest
import ray
from alone import Alone
from ray._common.utils import reset_ray_address
from ray._private.utils import read_ray_address
from ray_nodes import head

from harness.engines.backend import read_options
from harness.engines.openrlhf import seams
from harness.engines.openrlhf.cluster import Reservation, lay_out_slots
from harness.engines.openrlhf.plugin import OpenRLHFSettings
from harness.errors import EngineError, InfeasibleError, SuiteError

pytestmark = [pytest.mark.usefixtures("ray_cluster"), pytest.mark.timeout(600)]


def wait_until_free(count, seconds=20.0):
    end = time.monotonic() + seconds
    while ray.available_resources().get("GPU", 0) < count and time.monotonic() < end:
        time.sleep(0.1)
    return ray.available_resources().get("GPU", 0)


def test_two_cells_that_each_need_three_of_four_devices_both_finish():
    assert wait_until_free(4) == 4
    finished, held, overlap = [], [], []

    def cell(name):
        policies = {f"{name}1": OpenRLHFSettings(trainers=2), f"{name}2": OpenRLHFSettings()}
        with closing(Reservation(policies)) as reservation:
            held.append(name)
            overlap.append(len(held))
            bundles = [b for slot in reservation.slots.values() for b in slot.trainers]
            assert sorted(bundles) == [0, 1, 2]
            time.sleep(1.0)
            held.remove(name)
        finished.append(name)

    threads = [threading.Thread(target=cell, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert sorted(finished) == ["a", "b"]
    assert max(overlap) == 1
    assert wait_until_free(4) == 4


def test_the_impossible_is_refused_at_once_with_the_shortfall():
    started = time.monotonic()
    with pytest.raises(InfeasibleError, match=r"needs 7 GPUs, the cluster has 4: 3 short"):
        Reservation(
            {"a": OpenRLHFSettings(trainers=3), "b": OpenRLHFSettings(trainers=2, rollout_engines=2, colocate=False)}
        )
    assert time.monotonic() - started < 5.0


def test_a_busy_cluster_is_given_up_at_the_deadline():
    with closing(Reservation({"a": OpenRLHFSettings(trainers=3)})):
        started = time.monotonic()
        with pytest.raises(EngineError, match=r"no room on the cluster within 1 s: 2 devices needed, 1 GPUs"):
            Reservation({"b": OpenRLHFSettings(trainers=2, start_seconds=1.0)})
        assert time.monotonic() - started < 5.0
    assert wait_until_free(4) == 4


def test_layouts():
    assert OpenRLHFSettings(trainers=2).devices == 2
    assert OpenRLHFSettings(trainers=2, rollout_engines=1, tensor_parallel=4).devices == 4
    assert OpenRLHFSettings(trainers=2, rollout_engines=1, tensor_parallel=4, colocate=False).devices == 6
    with closing(Reservation({"a": OpenRLHFSettings(trainers=1, rollout_engines=2, colocate=False)})) as reservation:
        assert reservation.slots["a"].trainers == (0,)
        assert reservation.slots["a"].rollouts == (1, 2)


def test_bad_options_name_their_place():
    with pytest.raises(SuiteError, match=r"x.yaml: engine_options.zero_stage: "):
        read_options(OpenRLHFSettings, {"zero_stage": 1}, "x.yaml")
    with pytest.raises(SuiteError, match=r"x.yaml: engine_options: zero_stage 0 needs dtype fp32"):
        read_options(OpenRLHFSettings, {"zero_stage": 0}, "x.yaml")  # item 1
    assert read_options(OpenRLHFSettings, {"zero_stage": 0, "dtype": "fp32"}).zero_stage == 0
    with pytest.raises(SuiteError, match="unknown field `zero`"):
        read_options(OpenRLHFSettings, {"zero": 1})


@pytest.mark.parametrize("devices", [{"trainers": 2}, {"rollout_engines": 2}, {"trainers": 2, "tensor_parallel": 4}])
def test_trainers_that_lend_weights_by_device_are_as_many_as_rollout_devices(devices, folders, monkeypatch):
    """Item 12: with CUDA a trainer that has no rollout engine on its device leaves a copy of the weights behind at each sync."""
    monkeypatch.setattr(seams, "uses_cpu_devices", lambda: False)
    with pytest.raises(EngineError, match="rollout engines need as many devices as there are trainers"):
        Alone("a", folders["llama"], settings=OpenRLHFSettings(**devices))


def test_policies_that_share_devices_reserve_them_once():
    wishes = {name: OpenRLHFSettings(trainers=2, share_devices=True) for name in "abc"}
    with closing(Reservation(wishes)) as reservation:
        assert reservation.group.bundle_count == 2
        assert {slot.trainers for slot in reservation.slots.values()} == {(0, 1)}
        assert len({id(slot.devices) for slot in reservation.slots.values()}) == 1
        assert sum(slot.part(0.4) + slot.part(0.2) for slot in reservation.slots.values()) <= 1
    with pytest.raises(EngineError, match="share_devices: all policies of a cell share their devices, or none does"):
        Reservation({"a": OpenRLHFSettings(share_devices=True), "b": OpenRLHFSettings()})


@pytest.fixture
def strangers_cluster():
    """A Ray that somebody else has started on this machine: its address."""
    with head() as address:
        end = time.monotonic() + 100
        while time.monotonic() < end and read_ray_address() != address:
            time.sleep(0.5)
        yield address
    reset_ray_address()  # a killed cluster leaves its address behind


@pytest.mark.timeout(600)
def test_a_strangers_cluster_is_joined_only_where_it_is_named(strangers_cluster):
    def joined(how, **environment):
        clean = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
        code = f"import ray; {how}; print('at', ray.get_runtime_context().gcs_address)"
        run = subprocess.run(
            [sys.executable, "-c", code], env={**clean, **environment}, capture_output=True, text=True, timeout=300
        )
        return run.stdout.rpartition("at ")[2].strip() or run.stderr

    ours = "from harness.engines.openrlhf.cluster import connect_to_cluster; connect_to_cluster(1"
    assert joined("ray.init()") == strangers_cluster, "the stranger's cluster is not there to be joined"
    own = joined(f"{ours})")
    assert own.count(":") == 1, own
    assert own != strangers_cluster
    assert joined(f"{ours}, address='{strangers_cluster}')") == strangers_cluster
    assert joined(f"{ours})", RAY_ADDRESS=strangers_cluster) == strangers_cluster


def test_which_devices_must_be_neighbours():
    def blocks(policies):
        return lay_out_slots(policies)[1]

    assert blocks({"a": OpenRLHFSettings(tensor_parallel=2), "b": OpenRLHFSettings(trainers=3)}) == [2, 1, 1, 1]
    assert blocks({"a": OpenRLHFSettings(trainers=2, rollout_engines=2, tensor_parallel=2, colocate=False)}) == [
        1,
        1,
        2,
        2,
    ]
    both = {
        "a": OpenRLHFSettings(tensor_parallel=4, share_devices=True),
        "b": OpenRLHFSettings(trainers=5, tensor_parallel=2, share_devices=True),
    }
    assert blocks(both) == [4, 1]


THREE_NODES = """
import os
import ray
from contextlib import closing
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from harness.engines.openrlhf.cluster import Reservation, connect_to_cluster
from harness.engines.openrlhf.plugin import OpenRLHFSettings
from harness.errors import InfeasibleError

cluster = Cluster()
for _ in range(3):
    cluster.add_node(num_cpus=3, num_gpus=3, include_dashboard=False)
connect_to_cluster(address=cluster.address)
nodes = lambda group: placement_group_table(group)["bundles_to_node_id"]
packed = placement_group([{"GPU": 1, "CPU": 1}] * 4, strategy="PACK")
assert packed.wait(60)
places = nodes(packed)
print("packing alone:", "divided" if places[2] != places[3] or places[0] != places[1] else "whole")
remove_placement_group(packed)
with closing(Reservation({"a": OpenRLHFSettings(tensor_parallel=2), "b": OpenRLHFSettings(tensor_parallel=2)})) as first:
    places = nodes(first.group)
    print("reserved:", "divided" if places[2] != places[3] or places[0] != places[1] else "whole")
    with closing(Reservation({"c": OpenRLHFSettings(tensor_parallel=2)})) as second:
        places = nodes(second.group)
        print("beside it:", "divided" if places[0] != places[1] else "whole")
try:
    Reservation({"a": OpenRLHFSettings(tensor_parallel=4)})
except InfeasibleError as error:
    print("too large:", error)
ray.shutdown()
cluster.shutdown()
"""


@pytest.mark.timeout(600)
def test_a_tensor_parallel_engine_is_never_divided_between_nodes():
    clean = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    run = subprocess.run([sys.executable, "-c", THREE_NODES], env=clean, capture_output=True, text=True, timeout=500)
    said = dict(line.split(": ", 1) for line in run.stdout.splitlines() if ": " in line)
    assert run.returncode == 0, run.stderr
    assert {key: said[key] for key in ("packing alone", "reserved", "beside it")} == {
        "packing alone": "divided",
        "reserved": "whole",
        "beside it": "whole",
    }
    assert "must be on one node" in said["too large"]


UNKNOWN_WORD = """
import os
import ray
import torch
from harness.engines.openrlhf import seams
from harness.engines.openrlhf.cluster import connect_to_cluster, inventory_of_cluster

connect_to_cluster(2)  # GPUs are there, and forbidden
torch.version.cuda = "13.0"
print("forbidden:", ray.cluster_resources()["GPU"], seams.uses_cpu_devices(), repr(os.environ["CUDA_VISIBLE_DEVICES"]))
ray.shutdown()
os.environ["CUDA_VISIBLE_DEVICES"] = "1"
ray.init(address="local", num_cpus=1, num_gpus=1, resources={"accelerator_type:G": 1}, include_dashboard=False)
(node,) = inventory_of_cluster().nodes
print("asked:", node.gpus, node.gpu_kind, node.gpu_memory // 2**20, seams.uses_cpu_devices())
ray.shutdown()
"""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("chosen", ["-1"])
def test_a_node_says_which_gpus_it_has_and_the_cluster_decides_for_cuda(nvidia_smi, chosen):
    """Ray calls an RTX 4090 `G`; and a driver without a GPU opens actors that have some."""
    nvidia_smi(2, "NVIDIA GeForce RTX 4090", 24564)
    clean = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"} | {"CUDA_VISIBLE_DEVICES": chosen}
    run = subprocess.run([sys.executable, "-c", UNKNOWN_WORD], env=clean, capture_output=True, text=True, timeout=500)
    said = [line for line in run.stdout.splitlines() if line.startswith(("forbidden", "asked"))]
    assert said == [f"forbidden: 2.0 True {chosen!r}", "asked: 1 RTX4090 24564 False"], run.stderr[-2000:]
