"""The sampling loop's own parts."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from harness.engines.embedded.kernels import attend_in_groups, cpu_bf16, with_packed_weights
from harness.engines.embedded.sampling import KeyValues, _closed_up

one_family = pytest.mark.parametrize("folder", ["qwen"], indirect=True)


def cache(prompts: int) -> KeyValues:
    made = KeyValues(3)
    numbers = torch.arange(2 * prompts * 2 * 3 * 4.0).view(2, prompts, 2, 3, 4)
    made.layers = [(numbers[0], -numbers[0]), (numbers[1], -numbers[1])]
    made.length = 3
    return made


@pytest.mark.parametrize(
    "done", [[0, 1, 0, 0, 1, 0], [1, 1, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1], [1, 0, 1, 0, 1, 0], [0] * 6]
)
def test_rows_that_go_on_close_up(done):
    finished = torch.tensor(done, dtype=torch.bool)
    order = _closed_up(finished)
    assert sorted(order.tolist()) == [row for row, end in enumerate(done) if not end]
    stays = sum(int(row == place) for place, row in enumerate(order.tolist()))
    assert stays == sum(1 for end in done[: len(order)] if not end), "a row moved that need not"
    before, kept = cache(6), cache(6)
    kept.layers = [(k.clone(), v.clone()) for k, v in kept.layers]
    kept.keep(order)
    for old, new in zip(before.layers, kept.layers, strict=True):
        for a, b in zip(old, new, strict=True):
            assert torch.equal(b, a[order])


def test_packed_products_are_the_same_to_the_bit():
    layers = nn.Sequential(nn.Linear(48, 96), nn.Linear(96, 33, bias=False), nn.Linear(33, 7)).bfloat16()
    with torch.inference_mode():
        for rows in (1, 5, 64):
            inputs = torch.randn(rows, 2, 48, generator=torch.Generator().manual_seed(rows)).bfloat16()
            plain = layers(inputs)
            with with_packed_weights(layers, 64):
                changed = [layer for layer in layers if "forward" in vars(layer)]
                assert torch.equal(layers(inputs), plain)
    assert len(changed) == (3 if cpu_bf16() else 0)


def test_packing_ends_with_its_block_and_leaves_fp32_alone():
    half, single = nn.Linear(8, 8).bfloat16(), nn.Linear(8, 8)

    def fail() -> None:
        with with_packed_weights(nn.ModuleList([half, single]), 4):
            assert "forward" not in vars(single)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert "forward" not in vars(half)
    half.weight.data.zero_()
    assert not half(torch.ones(1, 8).bfloat16()).sub(half.bias).any(), "an old copy of the weights is used"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("queries", [1, 5])
@pytest.mark.parametrize("learning", [False, True])
@pytest.mark.parametrize("width", [16, 12])
def test_grouped_attention_is_attention(dtype, queries, learning, width):
    rng = torch.Generator().manual_seed(0)
    query = torch.randn(3, 6, queries, 16, generator=rng).to(dtype)
    key, value = (torch.randn(3, 2, 20, size, generator=rng).to(dtype)[:, :, :11] for size in (16, width))
    mask = torch.zeros(3, 1, queries, 11, dtype=dtype)
    mask[1, ..., :4] = torch.finfo(dtype).min
    module = nn.Module()
    module.num_key_value_groups = 3
    with torch.inference_mode(not learning):
        output, _ = attend_in_groups(module, query, key, value, mask, scaling=0.3)
    wanted = scaled_dot_product_attention(
        query.double(),
        key.repeat_interleave(3, 1).double(),
        value.repeat_interleave(3, 1).double(),
        mask.double(),
        scale=0.3,
    )
    assert output.shape == (3, queries, 6, width)
    torch.testing.assert_close(
        output.double(), wanted.transpose(1, 2), atol=2e-2 if dtype == torch.bfloat16 else 1e-6, rtol=0
    )
