"""Inventories: stated, found here, read off a Ray cluster."""

from __future__ import annotations

import pytest

from harness.allocation.gpus import Card
from harness.allocation.inventory import from_ray, local, parse
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


def ray_node(name: str, kind: str = "", gpus: float = 4.0, memory: float = 64e9) -> dict[str, object]:
    has = {"CPU": 8.0, "GPU": gpus, "memory": memory, **({f"accelerator_type:{kind}": 1.0} if kind else {})}
    return {"NodeID": name, "Alive": True, "Resources": has}


def test_ray_cluster() -> None:
    """The GPU path, 7: Ray's word for a GPU is neither its kind nor its size, so the nodes themselves are asked."""
    asked = {
        "b": [Card("0", "RTX4090", 24 * 10**9)], "c": [Card("0", "A100", 80 * 10**9), Card("1", "A100", 40 * 10**9)],
        "d": [Card("0", "B200", 180 * 10**9)], "e": [Card("0", "A6000", 48 * 10**9)],
    }  # fmt: skip
    nodes = [
        ray_node("d", "B200"),
        ray_node("c", "A100"),
        ray_node("b", "G"),
        ray_node("e", "RTX"),
        ray_node("a", memory=16e9),
    ]
    nodes.append({"NodeID": "f", "Alive": False, "Resources": {"CPU": 4.0}})
    found = from_ray(nodes, asked.__getitem__).nodes
    assert [(n.name, n.gpus, n.gpu_memory, n.gpu_kind, n.memory) for n in found] == [
        ("a", 4, 2 * 10**9, "logical", 8 * 10**9), ("b", 4, 24 * 10**9, "RTX4090", 64 * 10**9),
        ("c", 4, 40 * 10**9, "A100", 64 * 10**9), ("d", 4, 180 * 10**9, "B200", 64 * 10**9),
        ("e", 4, 48 * 10**9, "A6000", 64 * 10**9),
    ]  # fmt: skip
    with pytest.raises(UsageError, match="no living node"):
        from_ray(nodes[-1:], asked.__getitem__)
    with pytest.raises(UsageError, match="Ray node d has 4 GPUs, and nvidia-smi lists none there"):
        from_ray(nodes, lambda _: [])


def test_logical_gpus() -> None:
    (node,) = parse("4cpu-24G").with_logical_gpus().nodes
    assert (node.gpus, node.gpu_memory, node.memory) == (4, 3 * 10**9, 12 * 10**9)
