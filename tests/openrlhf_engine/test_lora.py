"""Adapters beside frozen weights: trained as the embedded engine does, synced merged, stored in its format."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from alone import Alone
from safetensors.torch import load_file
from test_engine import SETTINGS, own_term
from test_parity import InProcess, World, learn, same

from harness.engines import checkpoint
from harness.engines.backend import read_options
from harness.engines.embedded.engine import EmbeddedEngine
from harness.engines.lora import ADAPTERS
from harness.engines.openrlhf.plugin import Settings
from harness.engines.openrlhf.state import synced_weights
from harness.engines.openrlhf.strategy import Strategy
from harness.engines.protocol import Optimisation, Sampling
from harness.engines.vocabulary import open_vocabulary
from harness.errors import CheckpointError, SuiteError

LORA = {"rank": 4, "alpha": 8.0}
LONGEST = 24
OPTIMISATION = Optimisation(learning_rate=1e-3, max_tokens=LONGEST, old_logprobs="sampler")


def tensors(folder):
    return {file: load_file(folder / file) for file in ("model.safetensors", ADAPTERS, checkpoint.OPTIMISER)}


def opened(folder, adapters=None, **options):
    strategy = Strategy(read_options(Settings, {"lora": LORA, **options}), 1.0)
    strategy.adapters, trainers = adapters, InProcess()
    trainers.call("init_model_from_pretrained", strategy, str(folder), 1 << 30)
    trainers.call("join", [], open_vocabulary(folder, chat=False).forbidden)
    return trainers


@pytest.mark.parametrize(("stage", "dtype"), [(0, "fp32"), (2, "fp32"), (2, "bf16")])
def test_updates_and_checkpoints_are_the_embedded_engines(stage, dtype, folders, prompts, tmp_path):
    folder = folders["qwen"]
    embedded = EmbeddedEngine("a", folder, device="cpu", dtype=dtype, lora=LORA)
    world = World(embedded, prompts[:6])
    terms = world.terms("token-ppo-token")
    trainers = opened(folder, dtype=dtype, zero_stage=stage)
    module = trainers.worker.actor.model.module
    before = {name: value.clone() for name, value in module.named_parameters()}
    for _ in range(2):
        loss, norm, *_ = learn(trainers, terms, world.prompts, folder, OPTIMISATION)
        theirs = embedded.update(world.prompts, terms, OPTIMISATION)
        assert (loss, norm) == pytest.approx((theirs.loss, theirs.gradient_norm), rel=1e-4 if dtype == "fp32" else 0.1)
    for name, parameter in module.named_parameters():
        assert torch.equal(parameter, before[name]) == (".lora_" not in name), name
    parts = trainers.worker.actor.model.basic_optimizer.param_groups
    assert sum(p.numel() for part in parts for p in part["params"]) < sum(p.numel() for p in module.parameters()) / 3

    def fill(new):
        trainers.call("save", str(new), checkpoint.OPTIMISER)

    checkpoint.write(tmp_path / "ours", "a", 2, fill)
    embedded.save(tmp_path / "theirs")
    ours, theirs = tensors(tmp_path / "ours"), tensors(tmp_path / "theirs")
    for file, found in ours.items():
        assert found.keys() - {"lm_head.weight"} == theirs[file].keys() - {"lm_head.weight"}
        for name, value in found.items():
            if dtype == "fp32" and file != checkpoint.OPTIMISER:
                torch.testing.assert_close(value, theirs[file].get(name, value), rtol=0, atol=2e-5, msg=name)
    embedded.restore(tmp_path / "ours")
    embedded.save(tmp_path / "taken")
    again = opened(folder, tmp_path / "ours", dtype=dtype, zero_stage=stage)
    again.call("load_moments", str(tmp_path / "ours" / checkpoint.OPTIMISER))
    (tmp_path / "again").mkdir()
    again.call("save", str(tmp_path / "again"), checkpoint.OPTIMISER)
    for other in ("taken", "again"):
        found = tensors(tmp_path / other)
        for file, values in ours.items():
            same({n: v for n, v in values.items() if n != "lm_head.weight"},
                 {n: v for n, v in found[file].items() if n != "lm_head.weight"})  # fmt: skip
    one, two = (learn(t, terms, world.prompts, folder, OPTIMISATION) for t in (trainers, again))
    assert one[:2] == two[:2]


def test_what_rollout_engines_get_is_merged(folders, prompts):
    """In bf16 too a change of less than its resolution arrives on average, and the frozen weights come back to the bit."""
    folder = folders["qwen"]
    trainers = opened(folder)
    world = World(EmbeddedEngine("a", folder, device="cpu"), prompts[:6])
    engine = trainers.worker.actor.model
    place = "model.layers.0.mlp.up_proj"
    frozen = dict(engine.module.named_parameters())[f"{place}.base_layer.weight"].clone()
    learn(trainers, world.terms("token-ppo-token"), world.prompts, folder, OPTIMISATION)
    layer = engine.module.get_submodule(place)
    up, down = (part["default"].weight.detach().float() for part in (layer.lora_B, layer.lora_A))
    change = up @ down * 2
    assert change.abs().max() > 0
    with synced_weights(engine) as sent:
        assert set(sent) == set(load_file(folder / "model.safetensors")) - {"lm_head.weight"}
        found = sent[f"{place}.weight"].float() - frozen.float()
    error = (found - change).mean().abs()
    assert error < 0.2 * change.abs().mean()
    slope = float((found * change).sum() / change.square().sum())
    assert slope == pytest.approx(1.0, abs=0.15)
    assert torch.equal(layer.base_layer.weight, frozen)


def test_stages_that_shard_frozen_weights_are_refused():
    with pytest.raises(SuiteError, match="engine_options: lora needs zero_stage 0 or 2"):
        read_options(Settings, {"lora": LORA, "zero_stage": 3})


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("ray_cluster")
def test_an_engine_with_adapters(folders, prompts, tmp_path):
    """Two steps with vLLM, whose weights are checked at each; its base; a checkpoint, and from it the same third step."""
    folder, some = folders["qwen"], prompts[:4]
    engine = Alone("a", folder, settings=read_options(Settings, {**SETTINGS, "lora": LORA}))
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
