"""Inventories: stated, found here, read off a Ray cluster."""

from __future__ import annotations

import pytest

from harness.allocation.inventory import GPU_MEMORY, from_ray, local, parse
from harness.errors import UsageError


def test_stated_gpus() -> None:
    (node,) = parse("8xH100-80G").nodes
    assert (node.gpus, node.gpu_memory, node.gpu_kind, node.cores) == (8, 80 * 10**9, "H100", 128)


def test_more_than_eight_gpus_stand_in_several_nodes() -> None:
    assert [n.gpus for n in parse("20xA100-40G").nodes] == [8, 8, 4]
    assert [n.gpus for n in parse("3x4xA100-40G").nodes] == [4, 4, 4]


def test_cores_and_memory_per_node() -> None:
    inventory = parse("2x8xH200-141G+96cpu-1000Gi")
    assert inventory.cores == 192
    assert inventory.memory == 2 * 1000 * 2**30


def test_stated_cores() -> None:
    (node,) = parse("4cpu-24G").nodes
    assert (node.cores, node.memory, node.gpus) == (4, 24 * 10**9, 0)
    assert len(parse("3x4cpu-24Gi").nodes) == 3


@pytest.mark.parametrize(
    "text",
    ["", "8", "8xH100", "H100-80G", "0xH100-80G", "8xH100-0G", "0x8xH100-80G", "0cpu-4G", "4cpu", "-1xH100-80G", "8xH100-80T",
     "99999999999xH100-80G", "99999999x8xH100-80G", "8xH100-80G+0cpu-8G", "8xH100-80G\n"],
)  # fmt: skip
def test_nonsense_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert str(caught.value).startswith("inventory `")


def test_this_machine() -> None:
    inventory = local()
    assert inventory.cores >= 1
    assert 10**8 < inventory.memory < 10**14


def test_ray_cluster() -> None:
    nodes = [
        {
            "NodeID": "b",
            "Alive": True,
            "Resources": {"CPU": 8.0, "GPU": 4.0, "memory": 64e9, "accelerator_type:H100": 1.0},
        },
        {"NodeID": "a", "Alive": True, "Resources": {"CPU": 4.0, "GPU": 4.0, "memory": 16e9}},
        {"NodeID": "c", "Alive": False, "Resources": {"CPU": 4.0}},
    ]
    first, second = from_ray(nodes).nodes
    assert (first.name, first.gpus, first.gpu_memory, first.gpu_kind) == ("a", 4, 2 * 10**9, "logical")
    assert (second.name, second.gpu_memory, second.gpu_kind) == ("b", GPU_MEMORY["H100"], "H100")
    with pytest.raises(UsageError, match="no living node"):
        from_ray(nodes[2:])


def test_logical_gpus() -> None:
    (node,) = parse("4cpu-24G").with_logical_gpus().nodes
    assert (node.gpus, node.gpu_memory, node.memory) == (4, 3 * 10**9, 12 * 10**9)
