"""Every number true, 3: which GPUs there are is what CUDA shows, by one place that plan, `doctor`, workers and Ray go by.

`nvidia-smi` is a script; everything else is real.
"""

from __future__ import annotations

import pytest

from harness.allocation.gpus import has_bf16, kind_of, visible
from harness.allocation.inventory import local


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
    assert [card.name for card in visible()] == names
    assert {(card.kind, card.memory) for card in visible()} <= {("H100", 81559 * 2**20)}
    (node,) = local().nodes
    assert (node.gpus, node.gpu_memory) == (len(names), 81559 * 2**20 if names else 0)


def test_parts_of_a_gpu_are_devices(nvidia_smi, monkeypatch):
    nvidia_smi(2, "NVIDIA A100-SXM4-40GB", 40960, ("3g.20gb", "1c.2g.10gb", "1g.10gb+me"))
    assert [(c.name, c.memory) for c in visible()][2:4] == [("MIG-0a2", 10 * 10**9), ("MIG-1a0", 20 * 10**9)]
    assert {card.kind for card in visible()} == {"A100"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1a0,MIG-0a1")
    assert [(c.name, c.memory) for c in visible()] == [("MIG-1a0", 20 * 10**9), ("MIG-0a1", 10 * 10**9)]
    assert local().nodes[0].gpu_memory == 10 * 10**9


@pytest.mark.parametrize(
    "says", ["exit 9", "sleep 60", "echo No devices were found", "echo 'NVIDIA GB10, [N/A], [N/A]'"]
)
def test_a_driver_that_says_nothing_of_use(nvidia_smi, monkeypatch, says):
    (nvidia_smi(1) / "nvidia-smi").write_text(f"#!/bin/sh\n{says.replace('sleep', 'exec sleep')}\n")
    monkeypatch.setattr("harness.allocation.gpus.ANSWER_SECONDS", 0.5)
    assert visible() == []
    monkeypatch.setenv("PATH", "")
    assert visible() == []


@pytest.mark.parametrize(
    ("product", "kind", "bf16"),
    [
        ("NVIDIA H100 80GB HBM3", "H100", True), ("NVIDIA A100-SXM4-80GB", "A100", True), ("NVIDIA GH200 480GB", "GH200", True),
        ("NVIDIA GeForce RTX 4090", "RTX4090", True), ("NVIDIA RTX A6000", "A6000", True), ("NVIDIA A10", "A10", True),
        ("NVIDIA RTX 6000 Ada Generation", "RTX6000", True), ("NVIDIA B200", "B200", True), ("NVIDIA H20", "H20", True),
        ("NVIDIA Graphics Device", "GPU", True), ("Tesla T4", "T4", False), ("Tesla V100-SXM2-16GB", "V100", False),
        ("Quadro RTX 6000", "QUADRORTX6000", False), ("NVIDIA TITAN RTX", "TITAN", False), ("Quadro GV100", "QUADRO", False),
        ("NVIDIA GeForce RTX 2080 Ti", "RTX2080", False), ("NVIDIA GeForce GTX 1080 Ti", "GTX1080", False),
    ],
)  # fmt: skip
def test_kinds_and_what_they_can(product, kind, bf16):
    """The GPU path, 13: generations before Ampere multiply no bf16."""
    assert (kind_of(product), has_bf16(kind)) == (kind, bf16)
