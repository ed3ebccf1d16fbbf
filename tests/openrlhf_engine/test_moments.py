"""Moments from a checkpoint, on a rank that ZeRO 3 gives a padded share."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from harness.engines.openrlhf.state import load_moments


@pytest.mark.parametrize("key", ["master", "exp_avg"])
def test_eight_numbers_on_three_ranks(key, tmp_path, monkeypatch):
    from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3 as Stage3

    share, optimiser = torch.full((3,), 9.0), Stage3.__new__(Stage3)
    optimiser._get_fp32_opt_state_partition = lambda *_, **__: (share, 0)
    optimiser._get_param_partition_rank = lambda _: 2
    optimiser._swappable_optimizer_subgroup = lambda _: False
    weight = torch.nn.Parameter(torch.zeros(0))
    weight.ds_id, weight.ds_shape, weight.ds_numel, weight.ds_tensor = 0, torch.Size([2, 4]), 8, torch.zeros(3)
    weight._z3_optimizer = optimiser
    module = SimpleNamespace(named_parameters=lambda: [("w", weight)])
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 2)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 3)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")
    save_file({f"{key}:w": torch.arange(8.0).view(2, 4)}, tmp_path / "moments")
    load_moments(tmp_path / "moments", SimpleNamespace(module=module, basic_optimizer=SimpleNamespace(state={})))
    assert share.tolist() == [6.0, 7.0, 0.0]
