"""Bytes and seconds that are counted, against what torch really allocates on small models."""

from __future__ import annotations

import inspect
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from harness.allocation import cost_model
from harness.allocation.cost_model import (
    CellDemand,
    PolicyDemand,
    Workload,
    checkpoint_bytes,
    device_of,
    kv_cache_bytes,
    trainer_states,
)
from harness.allocation.shapes import load_shape, precision_of_config, shape_from_config
from harness.engines.embedded import account, sizes
from harness.engines.embedded.account import process_memory
from harness.engines.openrlhf.account import activation_bytes, measuring_bytes, working_bytes

sys.path.insert(0, str(Path(__file__).parent))
import measuring
from gpu_check import stored

FAMILIES = {
    "llama": {"tie_word_embeddings": True},
    "qwen3": {"tie_word_embeddings": False, "head_dim": 48},
    "qwen2": {"tie_word_embeddings": True},
}
SIZES = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 384,
         "vocab_size": 1000, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}  # fmt: skip


def build(family: str, precision: str = "fp32", **more: object) -> tuple[torch.nn.Module, PolicyDemand]:
    config = AutoConfig.for_model(family, **SIZES, **FAMILIES[family])
    model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16 if precision == "bf16" else torch.float32)
    return model, PolicyDemand("a", shape_from_config(family, config.to_dict()), 8, precision, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("family", "precision"), [("llama", "fp32"), ("qwen3", "fp32"), ("qwen2", "fp32"), ("qwen3", "bf16")]
)
def test_weights_gradients_and_adam_states(family: str, precision: str) -> None:
    model, policy = build(family, precision)
    half = precision == "bf16"
    masters = [p.detach().float().requires_grad_() for p in model.parameters()] if half else list(model.parameters())
    optimiser = torch.optim.AdamW(masters)
    model(torch.zeros(1, 4, dtype=torch.long)).logits.float().sum().backward()
    for parameter, master in zip(model.parameters(), masters, strict=True):
        assert parameter.grad is not None
        master.grad = parameter.grad.float()
    optimiser.step()
    moments = stored(t for s in optimiser.state.values() for t in s.values() if t.dim())
    states = trainer_states(policy)
    assert stored(model.parameters()) == states.weights
    assert stored(p.grad for p in masters if p.grad is not None) == states.gradients
    assert moments + half * stored(masters) == states.optimiser
    assert checkpoint_bytes(policy.model, policy.precision, tokenizer=0) == (states.weights, states.optimiser)


@pytest.mark.parametrize("family", FAMILIES)
def test_kv_cache(family: str) -> None:
    model, policy = build(family)
    with torch.no_grad():
        cache = model(torch.zeros(1, 32, dtype=torch.long), use_cache=True).past_key_values
    measured = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert measured == kv_cache_bytes(policy, 32) == kv_cache_bytes(policy, 17) == 2 * kv_cache_bytes(policy, 16)
    assert kv_cache_bytes(policy, 32, 2) * 2 == measured
    assert kv_cache_bytes(policy, 32, 8) == kv_cache_bytes(policy, 32, 2)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_activations_kept_for_the_backward_pass(family: str, precision: str) -> None:
    """What autograd keeps, within a tenth; two copies of the logits that autograd does not keep are counted, too."""
    model, policy = build(family, precision)
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    ids = torch.zeros(2, 64, dtype=torch.long)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = torch.log_softmax(model(ids, use_cache=False).logits.float(), -1).mean()
    assert loss.requires_grad
    counted = activation_bytes(policy, ids.numel(), False) - ids.numel() * policy.model.vocab * (
        cost_model.LOGITS_BYTES - 4
    )
    assert counted == pytest.approx(sum(kept.values()), rel=0.1)
    assert activation_bytes(policy, ids.numel(), True) < activation_bytes(policy, ids.numel(), False)


def test_zero_divides_what_its_stage_says() -> None:
    _, policy = build("llama", "bf16")
    one, two, three = (trainer_states(policy, stage, 4) for stage in (1, 2, 3))
    psi = policy.model.parameters
    assert (one.weights, one.gradients, one.optimiser) == (2 * psi, 4 * psi, 3 * psi)
    assert (two.weights, two.gradients, two.optimiser) == (2 * psi, psi, 3 * psi)
    assert three.weights == 2 * psi // 4
    _, full = build("llama")
    assert [trainer_states(full, stage).optimiser for stage in (0, 1, 2, 3)] == [8 * psi, 12 * psi, 12 * psi, 8 * psi]


def test_what_comes_and_goes_beside_the_states() -> None:
    """Items 5 and 13: a pass's own gradients under ZeRO 2, gathered weights under ZeRO 3, or the optimiser's step."""
    (_, full), (_, half) = build("llama"), build("llama", "bf16", measured=True)
    psi, transient = full.model.parameters, 8 * full.model.largest
    assert working_bytes(full, 0, 1, 10**9, 0) == 10**9
    assert working_bytes(half, 2, 4, 10**9, 0) == 10**9 + 2 * psi // 4
    assert working_bytes(half, 3, 4, 10**9, 0) == 10**9 + 2 * psi
    assert working_bytes(half, 2, 4, 0, 0) == psi
    assert working_bytes(half, 3, 1, 0, 3 * psi) == 5 * psi
    assert [measuring_bytes(half, ranks, 10**12) for ranks in (1, 4)] == [4 * psi + transient, psi + transient]
    assert measuring_bytes(half, 1, 0) - 4 * psi > transient
    assert measuring_bytes(full, 1, 0) == 0


@pytest.mark.slow_but("llama-fp32")
@pytest.mark.timeout(400)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", measuring.CONFIGS)
def test_a_measured_step_with_its_reference_takes_what_is_counted(name: str, precision: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
    step = measuring.measured_step(name, measuring.build(name, tmp_path / name), precision)
    counted = process_memory(measuring.demanded(name, precision))
    parts = ("weights", "gradients", "optimiser", "reference")
    assert {part: getattr(counted, part) for part in parts} == {part: step[part] for part in parts}
    assert counted.train == pytest.approx(step["all"], rel=0.1)
    assert counted.activations + counted.measuring == pytest.approx(step["moment"], rel=0.15)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_with_checkpointing_a_step_takes_less_as_counted(name: str, precision: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
    folder = measuring.build(name, tmp_path / name)
    plain, less = (measuring.measured_step(name, folder, precision, checkpointing=on) for on in (False, True))
    counted = process_memory(measuring.demanded(name, precision, checkpointing=True))
    assert less["moment"] < plain["moment"]
    assert counted.train == pytest.approx(less["all"], rel=0.15)


@pytest.mark.slow_but("fp32")
@pytest.mark.timeout(400)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_adapters_alone_have_gradients_and_moments(precision: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
    pytest.importorskip("peft", reason="extra `lora`")
    folder = measuring.build("llama", tmp_path / "llama")
    step = measuring.measured_step("llama", folder, precision, lora={"rank": 8, "alpha": 16.0})
    counted = process_memory(measuring.demanded("llama", precision, lora=8))
    assert step["gradients"] <= counted.gradients < 1.3 * step["gradients"]
    assert step["optimiser"] <= counted.optimiser < 1.3 * step["optimiser"]
    assert counted.weights == pytest.approx(step["weights"], rel=0.02)
    assert counted.train == pytest.approx(step["all"], rel=0.15)


def test_plan_and_engine_have_their_sizes_from_one_place() -> None:
    """On a GPU the output layer has more logits at once, and they are planned."""

    from harness.engines import head
    from harness.engines.embedded import engine, kernels, sampling
    from harness.engines.embedded.plugin import EmbeddedOptions
    from harness.evaluation.backends import EngineBackend

    for module in (account, kernels, engine, head, sampling):
        for name in filter(str.isupper, (vars(sizes) | vars(cost_model)).keys() & vars(module).keys()):
            assert f"\n{name} =" not in inspect.getsource(module)
    assert EmbeddedOptions().micro_tokens == sizes.MICRO_TOKENS
    assert inspect.signature(EngineBackend).parameters["rows"].default == account.EVALUATED
    assert inspect.signature(engine.EmbeddedEngine).parameters["micro_tokens"].default == sizes.MICRO_TOKENS
    asked = measuring.demanded("gemma3")
    policy, work = replace(asked.policies[0], measured=False), replace(asked.workload, prompts=64)
    cpu, gpu = (account._training_bytes(policy, work, sizes.MICRO_TOKENS, on) for on in (False, True))
    assert gpu - cpu == cost_model.LOGITS_BYTES * (cost_model.GPU_LOGITS - cost_model.LOGITS)


def test_a_pretrained_policy_on_the_embedded_engine() -> None:
    """18 bytes a parameter in bf16; 2,560 positions of a vocabulary of 262,144 are 2.7 GB in fp32, and are never all there."""
    shape = load_shape("google/gemma-3-270m")
    assert precision_of_config({"dtype": "bfloat16"}) == precision_of_config({"torch_dtype": "torch.float16"}) == "bf16"
    assert precision_of_config({"dtype": "float32"}) == precision_of_config({}) == "fp32"
    cells = [CellDemand((PolicyDemand("a", shape, 8, p),), Workload(2, 8, 20, 40, 60)) for p in ("bf16", "fp32")]  # type: ignore[arg-type]
    half, full = map(process_memory, cells)
    assert (half.states, full.states) == (18 * shape.parameters, 16 * shape.parameters)
    assert half.activations < full.activations
    assert half.activations < 60 * 64 * (shape.half.layers + shape.half.head) + 4 * shape.largest + 0.6e9
    asked = (replace(cells[0].workload, evaluated=n, evaluation_tokens=40) for n in (0, 1000, 1024, 5000))
    step, some, full_call, many = (process_memory(replace(cells[0], workload=one)).activations for one in asked)
    assert step < 1000 * 16 * shape.vocab < some < full_call == many  # evaluation asks more at once than a step
    assert [account.cores(cells[0], most) for most in (1, 2, 4, 64)] == [1, 2, 4, 4]
    small = CellDemand((PolicyDemand("a", load_shape("micro/llama"), 8),), cells[0].workload)
    assert account.cores(small, 64) == 1
    faster, slower = (account.phases(cell, device_of("CORE")).train for cell in cells)
    assert slower == pytest.approx(account.BF16_GAIN * faster, rel=0.1)


def test_a_plan_of_adapters_computes_no_gradients_of_weights_and_reads_each_question_once() -> None:
    policy = PolicyDemand("a", load_shape("google/gemma-3-270m"), 8, "fp32")
    of_all = CellDemand((policy,), Workload(2, 8, 96, 24, 120, evaluated=1600, questions=100, evaluation_tokens=24))
    of_adapters = replace(of_all, policies=(replace(policy, lora=16),))
    core = device_of("CORE")
    assert account.phases(of_adapters, core).train == pytest.approx(
        account.phases(of_all, core).train * 2 / 3, rel=0.01
    )
    without_checkpoints = account.phases(of_adapters, core).train
    of_adapters = replace(of_adapters, policies=(replace(of_adapters.policies[0], checkpointing=True),))
    assert account.phases(of_adapters, core).train == pytest.approx(without_checkpoints * 3 / 2, rel=0.01)
    each_answers_question = replace(of_all, workload=replace(of_all.workload, questions=1600))
    fewer, more = (account.phases(cell, core).evaluate for cell in (of_all, each_answers_question))
    read = cost_model.score_seconds(policy.model, 1500 * 96, 96, core)
    assert more - fewer == pytest.approx(read)
