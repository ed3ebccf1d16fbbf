"""Decoding layers of the engine's own give what transformers' layers give: the same bits in portable numerics."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
)

from harness.engines.conformance import tiny_prompts
from harness.engines.embedded import decoding
from harness.engines.embedded.engine import EmbeddedEngine
from harness.engines.embedded.families import FAMILIES, build_tokenizer
from harness.engines.embedded.numerics import ENVIRONMENT, explain_unable
from harness.engines.protocol import Sampling

WINDOW, NEW = 7, 20
SIZES = {
    "hidden_size": 48,
    "intermediate_size": 100,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
}
SHARED = {"num_key_value_heads": 2}
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
WINDOWS = {"use_sliding_window": True, "sliding_window": WINDOW, "layer_types": MIXED}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
CONFIGS = {
    **{family: (made.config, made.settings) for family, made in FAMILIES.items()},
    "heads that share": (LlamaConfig, SIZES | SHARED | {"head_dim": 16, "attention_bias": True, "mlp_bias": True}),
    "scaled angles": (LlamaConfig, SIZES | SHARED | {"rope_parameters": LLAMA3}),
    "untied": (LlamaConfig, SIZES | {"tie_word_embeddings": False}),
    "mistral": (MistralConfig, SIZES | SHARED | {"sliding_window": WINDOW}),
    "qwen2": (Qwen2Config, SIZES | SHARED),
    "qwen2 with windows": (Qwen2Config, SIZES | SHARED | WINDOWS),
    "qwen3": (Qwen3Config, SIZES | SHARED | {"head_dim": 10}),
    "gemma3": (
        Gemma3TextConfig,
        SIZES | SHARED | {"head_dim": 16, "sliding_window": WINDOW, "query_pre_attn_scalar": 20, "layer_types": MIXED},
    ),
    "one after the other": (GPTNeoXConfig, SIZES | {"use_parallel_residual": False, "rotary_pct": 0.5}),
    "gpt2 by layers": (
        GPT2Config,
        {"n_embd": 48, "n_layer": 3, "n_head": 4, "n_positions": 128, "scale_attn_by_inverse_layer_idx": True}
        | dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
    ),
}


def build(folder: Path, kind: str, **changes: object) -> Path:
    make, options = CONFIGS[kind]
    tokenizer = build_tokenizer("llama")
    given = {**options, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None, **changes}
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(make(vocab_size=len(tokenizer), **given)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def sampled(engine: EmbeddedEngine, own_layers: bool, rows: int) -> list[tuple[list[int], np.ndarray]]:
    """Tokens and log-probabilities of three answers to each of `rows` questions of unequal lengths."""
    policy = engine._policy
    assert policy.own_layers
    object.__setattr__(policy, "own_layers", own_layers)
    prompts = tiny_prompts(40)[::7][:rows]
    seeds = np.arange(3 * rows, dtype=np.uint64).reshape(rows, 3)
    groups = engine.sample(prompts, seeds, Sampling(1.0, NEW))
    object.__setattr__(policy, "own_layers", True)
    return [(sample.tokens.tolist(), sample.logprobs) for group in groups for sample in group]


def compare(folder: Path, rows: int, **options: object) -> float:
    """The largest difference of log-probabilities; infinite where tokens differ."""
    engine = EmbeddedEngine("a", folder, device="cpu", **options)
    pairs = zip(sampled(engine, True, rows), sampled(engine, False, rows), strict=True)
    return max(float(np.abs(a[1] - b[1]).max()) if a[0] == b[0] else np.inf for a, b in pairs)


CODE = """
import json, sys
from pathlib import Path
from harness.engines.embedded.numerics import require_portable
require_portable()
import test_decoding as t
found = {kind: [t.compare(t.build(Path(sys.argv[1]) / str(i), kind), rows, numerics="portable") for rows in (1, 5)]
         for i, kind in enumerate(sys.argv[2:])}
print(json.dumps(found))
"""


USUAL = ("llama", "qwen2 with windows", "gemma3", "neox", "gpt2")


@pytest.mark.skipif(bool(explain_unable()), reason="this machine cannot compute portably")
@pytest.mark.parametrize(
    "kinds",
    [USUAL, pytest.param([kind for kind in CONFIGS if kind not in USUAL], marks=pytest.mark.slow)],
    ids=["usual", "others"],
)
def test_bits_are_transformers_in_portable_numerics(kinds, tmp_path):
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    given = os.environ | ENVIRONMENT | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    command = [sys.executable, "-c", CODE, str(tmp_path), *kinds]
    done = subprocess.run(command, env=given, stdout=subprocess.PIPE, text=True, check=True, timeout=600)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {kind: [0.0, 0.0] for kind in kinds}


@pytest.mark.parametrize("kind", CONFIGS)
def test_numbers_are_transformers_in_fast_numerics(kind, tmp_path):
    assert compare(build(tmp_path, kind), 5, dtype="fp32") <= 1e-4


@pytest.mark.parametrize("kind", ["qwen", "heads that share", "gemma3", "one after the other", "gpt2 by layers"])
def test_numbers_are_transformers_in_fast_bf16(kind, tmp_path):
    assert compare(build(tmp_path, kind), 5, dtype="bf16") <= 2e-2


def test_adapters_count(tmp_path):
    engine = EmbeddedEngine("a", build(tmp_path, "qwen3"), device="cpu", lora={"rank": 4, "alpha": 8})
    before = sampled(engine, True, 3)
    for name, parameter in engine.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.5)
    own, theirs = sampled(engine, True, 3), sampled(engine, False, 3)
    assert [tokens for tokens, _ in own] == [tokens for tokens, _ in theirs] != [tokens for tokens, _ in before]


def test_weights_are_read_anew_after_an_update(tmp_path):
    engine = EmbeddedEngine("a", build(tmp_path, "gemma3"), device="cpu")
    before = sampled(engine, True, 2)
    with torch.no_grad():
        for parameter in engine.model.parameters():
            parameter.mul_(1.1)
    own, theirs = sampled(engine, True, 2), sampled(engine, False, 2)
    assert [tokens for tokens, _ in own] == [tokens for tokens, _ in theirs] != [tokens for tokens, _ in before]


@pytest.mark.parametrize("kind", ["dynamic", "yarn", "longrope"])
def test_angles_that_follow_the_length_are_left_to_transformers(kind, tmp_path):
    engine = EmbeddedEngine("a", build(tmp_path, "untied"), device="cpu")
    assert decoding.decoder_of(engine.model, 8) is not None
    engine.model.config.rope_parameters["rope_type"] = kind
    assert decoding.decoder_of(engine.model, 8) is None


def test_what_is_not_written_out_is_left_to_transformers(tmp_path):
    class Other(LlamaForCausalLM):
        pass

    other = Other(LlamaConfig(**SIZES, vocab_size=50, attn_implementation="sdpa"))
    assert not decoding.agrees_with_model(other)
    capped = AutoModelForCausalLM.from_config(Gemma2Config(**SIZES, head_dim=8, vocab_size=50))
    assert not decoding.agrees_with_model(capped)
    eager = LlamaForCausalLM._from_config(LlamaConfig(**SIZES, vocab_size=50), attn_implementation="eager")
    assert not decoding.agrees_with_model(eager)


def test_layers_that_compute_something_else_are_found_when_a_model_is_opened(tmp_path, monkeypatch):
    folder = build(tmp_path, "qwen2")
    assert EmbeddedEngine("a", folder, device="cpu")._policy.own_layers
    monkeypatch.setattr(decoding, "_normalise_fp32", lambda weight, eps, hidden: hidden * weight)
    assert not EmbeddedEngine("a", folder, device="cpu")._policy.own_layers
