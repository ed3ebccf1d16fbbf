"""Adapters beside frozen weights, and activations that are made again."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest
import torch
from own_terms import gradients, terms_of
from safetensors.torch import load_file

from harness.engines.conformance import CHECKS, Case, name_of
from harness.engines.embedded.engine import EmbeddedEngine
from harness.engines.protocol import Optimisation
from harness.errors import CheckpointError

LORA = {"rank": 64, "alpha": 128.0}
families = pytest.mark.parametrize("folder", ["qwen", "gpt2"], indirect=True)
one_family = pytest.mark.parametrize("folder", ["qwen"], indirect=True)
needs_peft = pytest.mark.skipif(
    __import__("importlib.util").util.find_spec("peft") is None, reason="peft (extra `lora`) is not installed"
)


@contextmanager
def adapters_off(engine):
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = [m for m in engine.model.modules() if isinstance(m, BaseTunerLayer)]
    assert layers
    for on in (False, True):
        for layer in layers:
            layer.enable_adapters(on)
        if not on:
            yield


@pytest.mark.slow_but("restored_engine_continues_exactly-gpt2", "samples_are_well_formed-qwen")
@needs_peft
@families
@pytest.mark.parametrize("check", CHECKS, ids=name_of)
def test_conformance_with_adapters(check, folder, prompts, tmp_path):
    check(Case(lambda name: EmbeddedEngine(name, folder, device="cpu", lora=LORA), prompts[:7], tmp_path))


@pytest.mark.slow_but("qwen-fp32", "gpt2-bf16", "fp32-qwen", "bf16-gpt2")
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_gradients_are_the_same_when_activations_are_made_again(dtype, folder, prompts):
    plain, again = (
        EmbeddedEngine("a", folder, device="cpu", micro_tokens=200, dtype=dtype, checkpointing=on)
        for on in (False, True)
    )
    terms = terms_of(plain, prompts[:5])
    kept, made = gradients(plain, prompts[:5], terms), gradients(again, prompts[:5], terms)
    assert kept.keys() == made.keys()
    for name, gradient in kept.items():
        torch.testing.assert_close(made[name], gradient, rtol=0, atol=0, msg=name)


@pytest.mark.slow_but("fp32-qwen")
@needs_peft
@families
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_adapters_alone_are_trained_and_a_checkpoint_is_the_policy(dtype, folder, prompts, tmp_path):
    base = EmbeddedEngine("a", folder, device="cpu", dtype=dtype)
    engine = EmbeddedEngine("a", folder, device="cpu", dtype=dtype, lora=LORA)
    terms, some = terms_of(engine, prompts[:5]), prompts[:5]
    answers = [a.tokens for a in terms[0].answers]
    asked = [p for p in some for _ in range(4)]
    before, fresh = base.score(asked, answers), engine.score(asked, answers)
    with adapters_off(engine):
        for mine, theirs in zip(engine.score(asked, answers), fresh, strict=True):
            np.testing.assert_array_equal(mine, theirs)  # fresh adapters change nothing
    engine.update(some, terms, Optimisation(learning_rate=1e-2, updates=2))
    after = engine.score(asked, answers)
    assert max(float(np.abs(a - b).max()) for a, b in zip(after, before, strict=True)) > 0.1
    frozen = dict(base.model.named_parameters())
    for name, parameter in engine.model.named_parameters():
        assert parameter.requires_grad == (".lora_" in name)
        if ".lora_" not in name:
            assert torch.equal(parameter, frozen[name.replace(".base_layer.", ".")])
    engine.save(tmp_path / "c")
    state = load_file(tmp_path / "c" / "optimiser.safetensors")
    assert all(".lora_" in name for name in state)
    restored = EmbeddedEngine("a", folder, device="cpu", dtype=dtype, lora=LORA)
    restored.restore(tmp_path / "c")
    for mine, theirs in zip(restored.score(asked, answers), after, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    for options in ({}, {"lora": {"rank": 2, "alpha": 2.0}, "dtype": dtype}):  # as evaluation opens it
        opened = EmbeddedEngine("b", tmp_path / "c", device="cpu", **options)
        assert opened.precision == "fp32"
        for mine, theirs in zip(opened.score(asked, answers), after, strict=True):
            np.testing.assert_allclose(mine, theirs, atol=1e-4 if dtype == "fp32" else 0.3)
    base.save(tmp_path / "whole")
    with pytest.raises(CheckpointError, match="there are no adapters"):
        engine.restore(tmp_path / "whole")
    other = EmbeddedEngine("a", folder, device="cpu", lora=LORA | {"rank": 4})
    with pytest.raises(CheckpointError, match="of another rank"):
        other.restore(tmp_path / "c")


@needs_peft
@one_family
def test_a_change_that_bf16_would_round_away_is_kept(folder, prompts, tmp_path):
    engine = EmbeddedEngine("a", folder, device="cpu", dtype="bf16", lora={"rank": 1, "alpha": 1.0})
    base = {name: value.clone() for name, value in EmbeddedEngine("a", folder, device="cpu").model.state_dict().items()}
    engine.update(prompts[:5], terms_of(engine, prompts[:5]), Optimisation(learning_rate=1e-5))
    engine.save(tmp_path / "c")
    merged = load_file(tmp_path / "c" / "model.safetensors")
    name = "model.layers.0.self_attn.q_proj.weight"
    rounded = base[name].bfloat16().float()
    moved, lost = merged[name] != rounded, merged[name].bfloat16().float() == rounded
    assert moved.float().mean() > 0.9
    assert (moved & lost).float().mean() > 0.5
