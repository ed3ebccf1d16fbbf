"""Adapters beside frozen weights: trained as the embedded engine does, synced merged, stored in its format."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from alone import Alone
from safetensors.torch import load_file
from test_engine import SETTINGS, own_term
from test_parity import LORA, InProcess, World, grow

from harness.engines.backend import read_options
from harness.engines.embedded.engine import EmbeddedEngine
from harness.engines.openrlhf.plugin import OpenRLHFSettings
from harness.engines.openrlhf.state import synced_weights
from harness.engines.openrlhf.strategy import Strategy
from harness.engines.protocol import Optimisation, Sampling
from harness.errors import CheckpointError

LONGEST = 24


def test_what_rollout_engines_get_is_merged(folders, prompts):
    """In bf16 too a change of less than its resolution arrives on average, and the frozen weights come back to the bit."""
    folder = folders["qwen"]
    trainers = InProcess()
    world = World(EmbeddedEngine("a", folder, device="cpu"), prompts[:6])
    grow(trainers, Strategy(read_options(OpenRLHFSettings, {"lora": LORA}), 1.0), world, folder)
    engine = trainers.worker.actor.model
    place = "model.layers.0.mlp.up_proj"
    frozen = load_file(folder / "model.safetensors")[f"{place}.weight"].bfloat16()
    layer = engine.module.get_submodule(place)
    up, down = (part["default"].weight.detach().float() for part in (layer.lora_B, layer.lora_A))
    change = up @ down * 2
    assert change.abs().max() > 0
    with synced_weights(engine) as sent:
        assert set(sent) == set(load_file(folder / "model.safetensors")) - {"lm_head.weight"}
        moved = sent[f"{place}.weight"].float() - frozen.float()
    error = (moved - change).mean().abs()
    assert error < 0.2 * change.abs().mean()
    slope = float((moved * change).sum() / change.square().sum())
    assert slope == pytest.approx(1.0, abs=0.15)
    assert torch.equal(layer.base_layer.weight, frozen)


@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("ray_cluster")
def test_an_engine_with_adapters(folders, prompts, tmp_path):
    """Two steps with vLLM, whose weights are checked at each; its base; a checkpoint, and from it the same third step."""
    folder, some = folders["qwen"], prompts[:4]
    engine = Alone("a", folder, settings=read_options(OpenRLHFSettings, {**SETTINGS, "lora": LORA}))
    try:
        seeds = np.arange(16, dtype=np.uint64).reshape(4, 4)
        samples = engine.sample(some, seeds, Sampling(1.0, LONGEST))
        asked, answers = [p for p in some for _ in range(4)], [s.tokens for group in samples for s in group]
        first, term = engine.score(asked, answers), own_term(some, samples)
        for _ in range(2):
            engine.update(some, [term], Optimisation(learning_rate=1e-2, max_tokens=LONGEST))
        now = engine.score(asked, answers)
        assert max(float(np.abs(a - b).max()) for a, b in zip(now, first, strict=True)) > 0.05
        for mine, base in zip(engine.score_base(asked, answers), first, strict=True):
            np.testing.assert_array_equal(mine, base)
        engine.save(tmp_path / "c")
        third = [engine.update(some, [term], Optimisation(learning_rate=1e-2, max_tokens=LONGEST))]
        engine.restore(tmp_path / "c")
        for mine, before in zip(engine.score(asked, answers), now, strict=True):
            np.testing.assert_array_equal(mine, before)
        third.append(engine.update(some, [term], Optimisation(learning_rate=1e-2, max_tokens=LONGEST)))
        assert third[0].gradient_norm == third[1].gradient_norm
        EmbeddedEngine("a", folder, device="cpu").save(tmp_path / "whole")
        with pytest.raises(CheckpointError, match="there are no adapters"):
            engine.restore(tmp_path / "whole")
    finally:
        engine.close()
