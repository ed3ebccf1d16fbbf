"""Memory put away: really given back to the system, and back bit for bit in the same tensors."""

from __future__ import annotations

from pathlib import Path

import torch

from harness.engines.openrlhf.offload import OffloadedTensors, all_tensors, discard_pages

SIZE, PAGE = 48 * 2**20, 4096


def pages_of(tensor):
    """The first whole page of a tensor's memory and the one after its last."""
    return tensor.data_ptr() // PAGE + 1, (tensor.data_ptr() + tensor.nbytes) // PAGE


def in_memory(pages):
    """Share of these pages that the system holds in memory for this process, from /proc/self/pagemap."""
    first, last = pages
    with Path("/proc/self/pagemap").open("rb", buffering=0) as table:
        table.seek(8 * first)
        entries = torch.frombuffer(bytearray(table.read(8 * (last - first))), dtype=torch.int64)
    return (entries < 0).float().mean().item()  # the highest bit: present


def test_pages_go_back_to_the_system_and_contents_return():
    flat = torch.arange(SIZE // 4, dtype=torch.float32)
    parts = [flat[: SIZE // 8].view(-1, 2), flat[SIZE // 8 :]]
    small, was = torch.ones(4), pages_of(flat)
    assert in_memory(was) > 0.99
    away = OffloadedTensors([*parts, small])
    assert sum(away._sizes) == SIZE  # two views of one storage go once, and a small tensor stays
    assert in_memory(was) < 0.05
    assert small.sum() == 4
    away.restore()
    assert in_memory(pages_of(flat)) > 0.99
    assert torch.equal(flat, torch.arange(SIZE // 4, dtype=torch.float32))
    parts[0][0, 1] = -1.0
    assert flat[1] == -1.0


def test_what_is_not_freed_can_be_overwritten_and_restored():
    one, two = torch.full((8,), 3.0), torch.full((5,), 4.0, dtype=torch.bfloat16)
    away = OffloadedTensors([one, two], free=False, least=1)
    one.zero_(), two.zero_()
    away.restore()
    assert one.tolist() == [3.0] * 8
    assert two.tolist() == [4.0] * 5


def test_one_storage_after_another():
    tensors = [torch.full((4,), float(i)) for i in range(3)]
    away = OffloadedTensors(tensors, least=1)
    there = [[t.untyped_storage().nbytes() > 0 for t in tensors] for _ in away.one_by_one()]
    assert there == [[True, False, False], [True, True, False], [True, True, True]]
    assert [t[0].item() for t in tensors] == [0.0, 1.0, 2.0]


def test_every_tensor_of_the_process_is_found():
    held = {"somewhere": [torch.nn.Parameter(torch.ones(3))]}
    assert any(one is held["somewhere"][0] for one in all_tensors("cpu"))


def test_discarded_pages_read_as_zeros():
    cache = torch.ones(SIZE // 4)
    discard_pages([cache])
    assert in_memory(pages_of(cache)) < 0.01
    assert cache[4096:-4096].abs().max() == 0.0
