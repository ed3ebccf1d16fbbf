"""Memory put away: really given back to the system, and back bit for bit in the same tensors."""

from __future__ import annotations

import psutil
import torch

from harness.engines.openrlhf.away import Away, all_tensors, discard

SIZE = 48 * 2**20


def resident():
    return psutil.Process().memory_full_info().uss


def test_pages_go_back_to_the_system_and_contents_return():
    flat = torch.arange(SIZE // 4, dtype=torch.float32)
    parts = [flat[: SIZE // 8].view(-1, 2), flat[SIZE // 8 :]]
    small, before = torch.ones(4), resident()
    away = Away([*parts, small])
    assert away.nbytes == SIZE  # two views of one storage go once, and a small tensor stays
    assert before - resident() > 0.95 * SIZE
    assert small.sum() == 4
    away.back()
    assert before - resident() < 0.05 * SIZE
    assert torch.equal(flat, torch.arange(SIZE // 4, dtype=torch.float32))
    parts[0][0, 1] = -1.0
    assert flat[1] == -1.0


def test_what_is_not_freed_can_be_overwritten_and_restored():
    one, two = torch.full((8,), 3.0), torch.full((5,), 4.0, dtype=torch.bfloat16)
    away = Away([one, two], free=False, least=1)
    one.zero_(), two.zero_()
    away.back()
    assert one.tolist() == [3.0] * 8
    assert two.tolist() == [4.0] * 5


def test_one_storage_after_another():
    tensors = [torch.full((4,), float(i)) for i in range(3)]
    away = Away(tensors, least=1)
    there = [[t.untyped_storage().nbytes() > 0 for t in tensors] for _ in away.one_by_one()]
    assert there == [[True, False, False], [True, True, False], [True, True, True]]
    assert [t[0].item() for t in tensors] == [0.0, 1.0, 2.0]


def test_every_tensor_of_the_process_is_found():
    held = {"somewhere": [torch.nn.Parameter(torch.ones(3))]}
    assert any(found is held["somewhere"][0] for found in all_tensors("cpu"))


def test_discarded_pages_read_as_zeros():
    cache, before = torch.ones(SIZE // 4), resident()
    discard([cache])
    assert before - resident() > 0.95 * SIZE
    assert cache[4096:-4096].abs().max() == 0.0
