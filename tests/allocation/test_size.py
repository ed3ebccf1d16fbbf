"""The account of bytes against what torch really allocates, on small models."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from harness.allocation import chunks
from harness.allocation.demand import Workload
from harness.allocation.embedded import process_memory
from harness.allocation.shapes import ModelShape, shape_from_config
from harness.allocation.size import (
    LOGITS_BYTES,
    activation_bytes,
    checkpoint_bytes,
    kv_cache_bytes,
    measuring_bytes,
    trainer_states,
    weight_bytes,
    working_bytes,
)

sys.path.insert(0, str(Path(__file__).parent))
import measuring

FAMILIES = {
    "llama": {"tie_word_embeddings": True},
    "qwen3": {"tie_word_embeddings": False, "head_dim": 48},
    "qwen2": {"tie_word_embeddings": True},
}
SIZES = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 384,
         "vocab_size": 1000, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}  # fmt: skip


def build(family: str, dtype: torch.dtype) -> tuple[torch.nn.Module, ModelShape]:
    config = AutoConfig.for_model(family, **SIZES, **FAMILIES[family])
    return AutoModelForCausalLM.from_config(config).to(dtype), shape_from_config(family, config.to_dict())


def stored(tensors) -> int:  # type: ignore[no-untyped-def]
    """Bytes of distinct storages."""
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_gradients_and_adam_states_fp32(family: str) -> None:
    model, shape = build(family, torch.float32)
    optimiser = torch.optim.AdamW(model.parameters())
    model(torch.zeros(1, 4, dtype=torch.long)).logits.sum().backward()
    optimiser.step()
    states = trainer_states(shape, "fp32", zero=0, ranks=1)
    assert stored(model.parameters()) == states.weights == weight_bytes(shape, "fp32")
    assert stored(p.grad for p in model.parameters()) == states.gradients
    moments = stored(t for s in optimiser.state.values() for t in s.values() if t.dim())
    assert moments == states.optimiser


def test_mixed_precision_states() -> None:
    model, shape = build("qwen3", torch.bfloat16)
    masters = [p.detach().float().requires_grad_() for p in model.parameters()]
    optimiser = torch.optim.AdamW(masters)
    model(torch.zeros(1, 4, dtype=torch.long)).logits.float().sum().backward()
    for parameter, master in zip(model.parameters(), masters, strict=True):
        assert parameter.grad is not None
        master.grad = parameter.grad.float()
    optimiser.step()
    states = trainer_states(shape, "bf16", zero=0, ranks=1)
    moments = stored(t for s in optimiser.state.values() for t in s.values() if t.dim())
    assert stored(model.parameters()) == states.weights
    assert stored(p.grad for p in masters) == states.gradients
    assert moments + stored(masters) == states.optimiser


@pytest.mark.parametrize("family", FAMILIES)
def test_kv_cache(family: str) -> None:
    model, shape = build(family, torch.float32)
    with torch.no_grad():
        cache = model(torch.zeros(3, 32, dtype=torch.long), use_cache=True).past_key_values
    measured = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert measured == kv_cache_bytes(shape, 3, 32, value_bytes=4)


def test_kv_cache_comes_in_whole_blocks_and_is_divided_by_heads() -> None:
    _, shape = build("llama", torch.float32)
    assert kv_cache_bytes(shape, 1, 17) == kv_cache_bytes(shape, 1, 32) == 2 * kv_cache_bytes(shape, 1, 16)
    assert kv_cache_bytes(shape, 5, 64, tensor_parallel=2) * 2 == kv_cache_bytes(shape, 5, 64)
    assert kv_cache_bytes(shape, 5, 64, tensor_parallel=8) == kv_cache_bytes(shape, 5, 64, tensor_parallel=2)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_activations_kept_for_the_backward_pass(family: str, dtype: torch.dtype) -> None:
    """What autograd keeps, within a tenth; the account also counts two copies of the logits that autograd does not keep."""
    model, shape = build(family, dtype)
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    answers, tokens = 2, 64
    ids = torch.zeros(answers, tokens, dtype=torch.long)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logits = model(ids, use_cache=False).logits.float()
        loss = torch.log_softmax(logits, -1).mean()
    precision = "bf16" if dtype == torch.bfloat16 else "fp32"
    formula = activation_bytes(shape, answers * tokens, False, precision) - answers * tokens * shape.vocab * (
        LOGITS_BYTES - 4
    )
    assert loss.requires_grad
    assert formula == pytest.approx(sum(kept.values()), rel=0.1)


def test_zero_divides_what_its_stage_says() -> None:
    _, shape = build("llama", torch.float32)
    whole = trainer_states(shape, "bf16", 0, 4)
    assert whole.weights + whole.gradients + whole.optimiser == 18 * shape.parameters
    two, three = trainer_states(shape, "bf16", 2, 4), trainer_states(shape, "bf16", 3, 4)
    assert (two.weights, two.gradients, two.optimiser) == (whole.weights, whole.gradients // 4, whole.optimiser // 4)
    assert three.weights == whole.weights // 4


def test_checkpointing_keeps_less() -> None:
    _, shape = build("llama", torch.float32)
    assert activation_bytes(shape, 128, True) < activation_bytes(shape, 128, False)


def test_lengths_of_a_workload() -> None:
    work = Workload(1, 2, 100, 50, 20.0)
    assert (work.sequence, work.mean_sequence) == (150, 120.0)


def test_measuring_is_divided_by_the_ranks() -> None:
    _, shape = build("llama", torch.float32)
    transient = 8 * shape.largest
    assert measuring_bytes(shape, 1, 10**12) == 4 * shape.parameters + transient
    assert measuring_bytes(shape, 4, 10**12) == shape.parameters + transient
    assert measuring_bytes(shape, 1, 0) - 4 * shape.parameters > transient


def test_checkpoints() -> None:
    _, shape = build("llama", torch.float32)
    full, half = checkpoint_bytes(shape, "fp32"), checkpoint_bytes(shape, "bf16")
    assert (full.weights, full.optimiser) == (4 * shape.parameters, 8 * shape.parameters)
    assert (half.weights, half.optimiser) == (2 * shape.parameters, 12 * shape.parameters)
    assert full.whole - full.kept == full.optimiser


@pytest.mark.slow_but("llama")
@pytest.mark.timeout(400)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", measuring.CONFIGS)
def test_a_measured_step_with_its_reference_takes_what_the_account_says(name: str, precision: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
    found = measuring.measured_step(name, measuring.build(name, tmp_path / name), precision)
    account = process_memory(measuring.demanded(name, precision))
    assert {part: getattr(account, part) for part in ("weights", "gradients", "optimiser", "reference")} == {
        part: found[part] for part in ("weights", "gradients", "optimiser", "reference")
    }
    assert account.train == pytest.approx(found["all"], rel=0.1)
    assert account.activations + account.measuring == pytest.approx(found["moment"], rel=0.15)


@pytest.mark.slow_but("qwen3-fp32")
@pytest.mark.timeout(400)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_with_checkpointing_a_step_takes_less_as_the_account_says(name: str, precision: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
    folder = measuring.build(name, tmp_path / name)
    plain, less = (measuring.measured_step(name, folder, precision, checkpointing=on) for on in (False, True))
    account = process_memory(measuring.demanded(name, precision, checkpointing=True))
    assert less["moment"] < plain["moment"]
    assert account.train == pytest.approx(less["all"], rel=0.15)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_adapters_alone_have_gradients_and_moments(precision: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
    pytest.importorskip("peft", reason="extra `lora`")
    folder = measuring.build("llama", tmp_path / "llama")
    found = measuring.measured_step("llama", folder, precision, lora={"rank": 8, "alpha": 16.0})
    account = process_memory(measuring.demanded("llama", precision, lora=8))
    assert found["gradients"] <= account.gradients < 1.3 * found["gradients"]
    assert found["optimiser"] <= account.optimiser < 1.3 * found["optimiser"]
    assert account.weights == pytest.approx(found["weights"], rel=0.02)
    assert account.train == pytest.approx(found["all"], rel=0.15)


def test_the_account_and_the_engine_have_their_sizes_from_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every number true, 26; The GPU path, 13: on a GPU the output layer has more logits at once, and they are planned."""
    import inspect

    from harness.allocation import embedded
    from harness.engines.embedded import engine, head, kernels, sampling
    from harness.engines.embedded.plugin import EmbeddedOptions

    for module in (embedded, kernels, engine, head, sampling):
        for name in filter(str.isupper, vars(chunks).keys() & vars(module).keys()):
            assert getattr(module, name) is getattr(chunks, name), f"{module.__name__}.{name}"
            assert f"\n{name} =" not in inspect.getsource(module)
    assert EmbeddedOptions().micro_tokens == chunks.MICRO_TOKENS
    assert inspect.signature(engine.EmbeddedEngine).parameters["micro_tokens"].default == chunks.MICRO_TOKENS
    asked = measuring.demanded("gemma3")
    policy, work = replace(asked.policies[0], measured=False), replace(asked.workload, prompts=64)
    cpu, gpu = (embedded._training(policy, work, chunks.MICRO_TOKENS, on) for on in (False, True))
    assert gpu - cpu == embedded.LOGITS_BYTES * (chunks.GPU_LOGITS - chunks.LOGITS)


def test_what_comes_and_goes_beside_the_states() -> None:
    """Items 5 and 13: a pass's own gradients under ZeRO 2, gathered weights under ZeRO 3, or the optimiser's step."""
    _, shape = build("llama", torch.float32)
    psi = shape.parameters
    assert working_bytes(shape, "fp32", 0, 1, 10**9, 0) == 10**9
    assert working_bytes(shape, "bf16", 2, 4, 10**9, 0) == 10**9 + 2 * psi // 4
    assert working_bytes(shape, "bf16", 3, 4, 10**9, 0) == 10**9 + 2 * psi
    assert working_bytes(shape, "bf16", 2, 4, 0, 0) == psi
    assert working_bytes(shape, "bf16", 3, 1, 0, 3 * psi) == 5 * psi
