"""Inventories: stated, found here, read off a Ray cluster."""

from __future__ import annotations

import pytest

from harness.allocation.inventory import (
    Bundle,
    Card,
    capacity_of,
    explain_shortage,
    from_ray,
    gpu_kind,
    has_bf16,
    inventory_of_machine,
    list_visible_gpus,
    parse_inventory,
)
from harness.allocation.inventory import place_bundles as placed
from harness.errors import UsageError
from harness.limits import count_cores

GB = 10**9


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("8xH100-80G", [(8, 80 * GB, "H100", 128, 8 * 2**37)]),
        ("20xa100-40G", [(8, 40 * GB, "A100", 128, 2**40), (8, 40 * GB, "A100", 128, 2**40), (4, 40 * GB, "A100", 64, 2**39)]),
        ("2x4xA100-40GB", [(4, 40 * GB, "A100", 64, 2**39)] * 2),
        ("2x8xH200-141G+96cpu-1000Gi", [(8, 141 * GB, "H200", 96, 1000 * 2**30)] * 2),
        ("4cpu-24.5G", [(0, 0, "", 4, 24_500_000_000)]),
        ("3x4cpu-24Gi", [(0, 0, "", 4, 24 * 2**30)] * 3),
    ],
)  # fmt: skip
def test_stated(text, nodes):
    assert [(n.gpus, n.gpu_memory, n.gpu_kind, n.cores, n.memory) for n in parse_inventory(text).nodes] == nodes


@pytest.mark.parametrize(
    "text",
    ["", "8", "8xH100", "H100-80G", "0xH100-80G", "8xH100-0G", "0x8xH100-80G", "0cpu-4G", "4cpu", "-1xH100-80G", "8xH100-80T",
     "99999999999xH100-80G", "99999999x8xH100-80G", "8xH100-80G+0cpu-8G", "8xH100-80G\n", "8xH100-80G4cpu-8G"],
)  # fmt: skip
def test_nonsense_is_refused_in_one_line(text):
    with pytest.raises(UsageError) as caught:
        parse_inventory(text)
    assert str(caught.value).startswith("inventory `")


def ray_node(name, kind="", gpus=4.0, memory=64e9):
    has = {"CPU": 8.0, "GPU": gpus, "memory": memory, **({f"accelerator_type:{kind}": 1.0} if kind else {})}
    return {"NodeID": name, "Alive": True, "Resources": has}


def test_ray_cluster():
    """Ray's word for a GPU is neither its kind nor its size, so the nodes themselves are asked."""
    asked = {"b": [Card("0", "RTX4090", 24 * GB)], "c": [Card("0", "A100", 80 * GB), Card("1", "A100", 40 * GB)]}
    nodes = [ray_node("c", "A100"), ray_node("b", "G"), ray_node("a", memory=16e9)]
    nodes.append({"NodeID": "f", "Alive": False, "Resources": {"CPU": 4.0}})
    read = from_ray(nodes, asked.__getitem__).nodes
    assert [(n.name, n.gpus, n.gpu_memory, n.gpu_kind, n.memory) for n in read] == [
        ("a", 4, 2 * GB, "logical", 8 * GB), ("b", 4, 24 * GB, "RTX4090", 64 * GB), ("c", 4, 40 * GB, "A100", 64 * GB),
    ]  # fmt: skip
    unlike = [Card("0", "A100", 80 * GB), Card("1", "V100", 32 * GB)]
    (both,) = from_ray(nodes[:1], lambda _: unlike).nodes
    assert (both.gpu_kind, both.gpu_memory) == ("V100", 32 * GB)  # one of them multiplies no bf16
    with pytest.raises(UsageError, match="no living node"):
        from_ray(nodes[-1:], asked.__getitem__)
    with pytest.raises(UsageError, match="Ray node c has 4 GPUs, and nvidia-smi lists none there"):
        from_ray(nodes, lambda _: [])


@pytest.mark.parametrize(
    ("chosen", "names"),
    [
        (None, ["0", "1", "2", "3", "4", "5", "6", "7"]), ("3", ["3"]), ("5,2", ["5", "2"]), (" 1 , 0", ["1", "0"]),
        ("", []), ("-1", []), ("0,-1,1", ["0"]), ("8", []), ("0,9,1", ["0"]), ("2,2", []), ("NoDevFiles", []), ("all", []),
        ("GPU-3a", ["GPU-3a"]), ("GPU-5,GPU-0a", ["GPU-5a", "GPU-0a"]), ("GPU-", []), ("GPU-9a", []), ("1,GPU-3a", ["1"]),
        ("GPU-3a,GPU-3", []),
    ],
)  # fmt: skip
def test_the_variable_is_read_as_cuda_reads_it(nvidia_smi, monkeypatch, chosen, names):
    nvidia_smi(8)
    if chosen is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    assert [card.name for card in list_visible_gpus()] == names
    (node,) = inventory_of_machine().nodes
    assert (node.gpus, node.gpu_memory, node.gpu_kind) == ((len(names), 81559 * 2**20, "H100") if names else (0, 0, ""))
    assert node.cores >= 1 and 10**8 < node.memory < 10**14  # noqa: PT018


def test_a_control_group_s_limits_are_the_machine_s(tmp_path, monkeypatch):
    job = tmp_path / "job" / "task"
    job.mkdir(parents=True)
    (tmp_path / "own").write_text("0::/job/task\n")
    for file, text in (("cpu.max", "50000 100000"), ("memory.max", "9000"), ("memory.current", "8000")):
        (job.parent / file).write_text(f"{text}\n")
        (job / file).write_text("max\n")
    (job.parent / "memory.stat").write_text("anon 5000\ninactive_file 2000\n")
    monkeypatch.setattr("harness.limits.GROUPS", tmp_path)
    monkeypatch.setattr("harness.limits.GROUP", tmp_path / "own")
    assert (inventory_of_machine().nodes[0].cores, inventory_of_machine().nodes[0].memory) == (1, 3000)


@pytest.mark.parametrize(
    ("limit", "cores"), [("150000 100000", 2), ("100000 100000", 1), ("900000 100000", 4), ("max 100000", 4)]
)
def test_part_of_a_core_counts_as_one(limit, cores, tmp_path, monkeypatch):
    (tmp_path / "own").write_text("0::/job\n")
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "cpu.max").write_text(f"{limit}\n")
    monkeypatch.setattr("harness.limits.GROUPS", tmp_path)
    monkeypatch.setattr("harness.limits.GROUP", tmp_path / "own")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3})
    assert count_cores() == cores


def test_parts_of_a_gpu_are_devices(nvidia_smi, monkeypatch):
    nvidia_smi(2, "NVIDIA A100-SXM4-40GB", 40960, ("3g.20gb", "1c.2g.10gb", "1g.10gb+me"))
    assert list_visible_gpus()[2:4] == [Card("MIG-0a2", "A100", 10 * GB), Card("MIG-1a0", "A100", 20 * GB)]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1a0,MIG-0a1")
    assert [(c.name, c.memory) for c in list_visible_gpus()] == [("MIG-1a0", 20 * GB), ("MIG-0a1", 10 * GB)]
    assert inventory_of_machine().nodes[0].gpu_memory == 10 * GB


@pytest.mark.parametrize(
    "says", ["exit 9", "sleep 60", "echo No devices were found", "echo 'NVIDIA GB10, [N/A], [N/A]'"]
)
def test_a_driver_that_says_nothing_of_use(nvidia_smi, monkeypatch, says):
    (nvidia_smi(1) / "nvidia-smi").write_text(f"#!/bin/sh\n{says.replace('sleep', 'exec sleep')}\n")
    monkeypatch.setattr("harness.allocation.inventory.ANSWER_SECONDS", 0.5)
    assert list_visible_gpus() == []
    monkeypatch.setenv("PATH", "")
    assert list_visible_gpus() == []


@pytest.mark.parametrize(
    ("product", "kind", "bf16"),
    [
        ("NVIDIA H100 80GB HBM3", "H100", True), ("NVIDIA A100-SXM4-80GB", "A100", True), ("NVIDIA GH200 480GB", "GH200", True),
        ("NVIDIA GeForce RTX 4090", "RTX4090", True), ("NVIDIA RTX A6000", "A6000", True), ("NVIDIA A10", "A10", True),
        ("NVIDIA RTX 6000 Ada Generation", "RTX6000", True), ("NVIDIA B200", "B200", True), ("NVIDIA H20", "H20", True),
        ("NVIDIA Graphics Device", "GPU", True), ("Tesla T4", "T4", False), ("Tesla V100-SXM2-16GB", "V100", False),
        ("Quadro RTX 6000", "QUADRORTX6000", False), ("NVIDIA TITAN RTX", "TITAN", False), ("Quadro GV100", "QUADRO", False),
        ("NVIDIA RTX 2000 Ada Generation", "RTX2000", True), ("NVIDIA GeForce RTX 2050", "RTX2050", True),
        ("NVIDIA GeForce RTX 2080 Ti", "RTX2080", False), ("NVIDIA GeForce GTX 1080 Ti", "GTX1080", False),
    ],
)  # fmt: skip
def test_kinds_and_what_they_can(product, kind, bf16):
    """Generations before Ampere multiply no bf16."""
    assert (gpu_kind(product), has_bf16(kind)) == (kind, bf16)


def test_bundles_are_packed_closely():
    free = {"a": Bundle(3, 99, 99), "b": Bundle(5, 99, 99)}
    assert placed([Bundle(2)], free) == ({"a": Bundle(1, 99, 99), "b": Bundle(5, 99, 99)}, ("a",))
    assert placed([Bundle(2)] * 3, free) is not None
    assert placed([Bundle(2)] * 4, free) is None
    larger = {"a": Bundle(4, 99, 99), "b": Bundle(6, 99, 99)}  # with the smaller ones first nothing holds the largest
    assert placed([Bundle(3), Bundle(3), Bundle(4)], larger) == (
        {"a": Bundle(0, 99, 99), "b": Bundle(0, 99, 99)},
        ("b", "b", "a"),
    )


@pytest.mark.parametrize(
    ("bundles", "words"),
    [
        ([Bundle(9)], "needs 9 GPUs on one node where the largest has 8: 1 short"),
        ([Bundle(1, gpu_memory=100 * GB)], "needs 100.0 GB per GPU where the largest has 80.0 GB: 20.0 GB short"),
        ([Bundle(0, 400, 600 * GB)], "needs 400 cores on one node where the largest has 64: 336 short and "
                                     "600.0 GB of RAM on one node where the largest has 512.0 GB: 88.0 GB short"),
        ([Bundle(4)] * 5, "needs 20 GPUs where there are 16: 4 short"),
        ([Bundle(0, 40)] * 4, "needs 160 cores where there are 128: 32 short"),
        ([Bundle(0, 1, 300 * GB)] * 4, "needs 1200.0 GB of RAM where there are 1024.0 GB: 176.0 GB short"),
        ([Bundle(5)] * 3, "its 3 bundles fit in sum, but not onto the nodes as they are cut"),
        ([Bundle(8)] * 2, ""),
    ],
)  # fmt: skip
def test_shortfalls_in_words(bundles, words):
    assert explain_shortage(bundles, capacity_of(parse_inventory("2x8xH100-80G+64cpu-512G"))) == words
