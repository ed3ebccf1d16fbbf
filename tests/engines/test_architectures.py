"""The embedded engine on random models of the architectures that matter, against transformers' own generation and forward pass."""

from __future__ import annotations

import json
from pathlib import Path

import architectures
import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Cohere2Config,
    DeepseekV3Config,
    Exaone4Config,
    FalconConfig,
    Gemma2Config,
    Gemma3Config,
    Gemma3TextConfig,
    GemmaConfig,
    GPT2Config,
    GPTJConfig,
    GPTNeoXConfig,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    NemotronConfig,
    Olmo2Config,
    Olmo3Config,
    OPTConfig,
    Phi3Config,
    PhiConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
    RwkvConfig,
    SmolLM3Config,
    Starcoder2Config,
)

from harness.engines.embedded.engine import EmbeddedEngine
from harness.engines.embedded.families import build_tokenizer
from harness.engines.embedded.kernels import kinds_of_layers
from harness.engines.embedded.loading import check_layers
from harness.engines.protocol import Sampling
from harness.errors import EngineError

ROOT = Path(__file__).parents[2]
WINDOW, NEW = 7, 24
SIZES = {
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
}
GROUPED = {"num_key_value_heads": 2, "head_dim": 16}
GEMMA = {**SIZES, **GROUPED, "sliding_window": WINDOW, "query_pre_attn_scalar": 16}
MIXED = ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]
CONFIGS = {
    "llama": (LlamaConfig, SIZES | GROUPED),
    "qwen2": (Qwen2Config, SIZES | {"num_key_value_heads": 2}),
    "qwen2-windows": (
        Qwen2Config,
        SIZES
        | {"num_key_value_heads": 2, "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    ),
    "qwen3": (Qwen3Config, SIZES | GROUPED),
    "gemma2": (Gemma2Config, GEMMA | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 5.0}),
    "gemma3": (Gemma3TextConfig, GEMMA | {"layer_types": MIXED}),
    "mistral": (MistralConfig, SIZES | GROUPED | {"sliding_window": WINDOW}),
    "neox": (GPTNeoXConfig, SIZES),
    "gemma": (GemmaConfig, SIZES | GROUPED),
    "smollm3": (SmolLM3Config, SIZES | {"num_key_value_heads": 2}),
    "phi": (PhiConfig, SIZES | {"num_key_value_heads": 2}),
    "phi3": (Phi3Config, SIZES | {"num_key_value_heads": 2, "sliding_window": WINDOW}),
    "olmo2": (Olmo2Config, SIZES | {"num_key_value_heads": 2}),
    "olmo3": (Olmo3Config, SIZES | {"num_key_value_heads": 2, "sliding_window": WINDOW}),
    "granite": (GraniteConfig, SIZES | {"num_key_value_heads": 2}),
    "exaone4": (Exaone4Config, SIZES | GROUPED | {"sliding_window": WINDOW}),
    "cohere2": (Cohere2Config, SIZES | GROUPED | {"sliding_window": WINDOW}),
    "starcoder2": (Starcoder2Config, SIZES | {"num_key_value_heads": 2, "sliding_window": WINDOW}),
    "falcon": (FalconConfig, {"num_hidden_layers": 4, "num_attention_heads": 4, "hidden_size": 48, "alibi": False}),
    "opt": (
        OPTConfig,
        {"hidden_size": 48, "ffn_dim": 96, "num_hidden_layers": 4, "num_attention_heads": 4, "word_embed_proj_dim": 48}
        | {"max_position_embeddings": 128, "dropout": 0.0, "init_std": 0.2},
    ),
    "nemotron": (NemotronConfig, SIZES | GROUPED),
    "qwen3_moe": (
        Qwen3MoeConfig,
        SIZES | GROUPED | {"moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2},
    ),
    "mixtral": (MixtralConfig, SIZES | GROUPED | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "deepseek_v3": (
        DeepseekV3Config,
        SIZES
        | {
            "num_key_value_heads": 4,
            "kv_lora_rank": 16,
            "q_lora_rank": 16,
            "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 8,
        }
        | {"v_head_dim": 16, "moe_intermediate_size": 32, "n_routed_experts": 4, "num_experts_per_tok": 2}
        | {"n_group": 1, "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1},
    ),
    "gpt2": (
        GPT2Config,
        {"n_embd": 48, "n_layer": 4, "n_head": 4, "n_positions": 128, "initializer_range": 0.2}
        | dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
    ),
}


def build(kind, folder):
    tokenizer = build_tokenizer("llama")
    make, options = CONFIGS[kind]
    config = make(**options, vocab_size=len(tokenizer), pad_token_id=0, eos_token_id=1, bos_token_id=None)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@pytest.mark.slow_but("gemma3")
@pytest.mark.parametrize("kind", CONFIGS)
def test_as_transformers_itself(kind, tmp_path, prompts):
    build(kind, tmp_path)
    prompts = sorted(prompts, key=lambda p: -len(p.text))[:4] + list(prompts[:4])
    engine = EmbeddedEngine("a", tmp_path, device="cpu")
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, attn_implementation="eager").eval()
    ids = [engine.tokenizer.encode(p.text) for p in prompts]
    assert min(map(len, ids)) > WINDOW
    greedy = engine.sample(prompts, np.zeros((len(prompts), 1), np.uint64), Sampling(0.0, NEW))
    for start, (ours,) in zip(ids, greedy, strict=True):
        batch = torch.tensor([start])
        theirs = model.generate(
            batch, attention_mask=torch.ones_like(batch), do_sample=False, max_new_tokens=NEW, suppress_tokens=[0]
        )[0, len(start) :]
        assert ours.tokens.tolist() == theirs.tolist()

    seeds = np.arange(3 * len(prompts), dtype=np.uint64).reshape(-1, 3)
    samples = engine.sample(prompts, seeds, Sampling(1.0, NEW))
    flat = [(start, p, s) for start, p, group in zip(ids, prompts, samples, strict=True) for s in group]
    scores = engine.score([p for _, p, _ in flat], [s.tokens for _, _, s in flat])
    for (start, _, sample), score in zip(flat, scores, strict=True):
        whole = torch.tensor([[*start, *sample.tokens.tolist()]])
        with torch.no_grad():
            logits = model(whole).logits[0, len(start) - 1 : -1]
        logits[:, 0] = -1e9
        plain = logits.log_softmax(-1).gather(1, whole[0, len(start) :, None])[:, 0].numpy()
        assert np.abs(plain - sample.logprobs).max() < 1e-4
        assert np.abs(plain - score).max() < 1e-4


@pytest.mark.parametrize("kind", ["gemma3", "mistral"])
def test_the_windows_matter(kind, tmp_path, prompts):
    build(kind, tmp_path)
    sample = EmbeddedEngine("a", tmp_path, device="cpu").sample(prompts[:1], np.zeros((1, 1), np.uint64), Sampling())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"sliding_window": 100}))
    (wide,) = EmbeddedEngine("a", tmp_path, device="cpu").score(prompts[:1], [sample[0][0].tokens])
    assert np.abs(wide - sample[0][0].logprobs).max() > 0.01


def test_the_windows_of_a_model_that_also_sees_images_are_its_texts():
    text = GEMMA | {"layer_types": MIXED}
    assert kinds_of_layers(Gemma3Config(text_config=text)) == {"full_attention": None, "sliding_attention": WINDOW}


def test_a_window_that_the_architecture_lacks_is_ignored_as_transformers_does():
    configs = [
        make(**SIZES, sliding_window=WINDOW) for make in (MistralConfig, Phi3Config, Starcoder2Config, LlamaConfig)
    ]
    assert [kinds_of_layers(config) for config in configs] == [{"": WINDOW}] * 3 + [{"": None}]


def test_what_is_neither_full_nor_sliding_is_refused_by_name(tmp_path):
    for kind, change, words in (
        ("qwen3", {"layer_types": ["chunked_attention", "linear_attention", *MIXED[2:]]}, "chunked_attention, linear_"),
        ("qwen3", {"layer_types": MIXED}, "without a sliding_window"),
        ("gemma3", {"use_bidirectional_attention": True}, "look ahead"),
        ("llama", {"logits_scaling": "x"}, "unsupported operand"),
    ):
        build(kind, tmp_path)
        config = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(EngineError, match=words):
            EmbeddedEngine("a", tmp_path, device="cpu")
    config = RwkvConfig(hidden_size=32, num_hidden_layers=2, vocab_size=416)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(EngineError, match=r"recurrent layers \(rwkv\)"):
        EmbeddedEngine("a", tmp_path, device="cpu")


def test_the_table_of_architectures_is_current_and_claims_no_more_than_is_compared_here():
    assert set(architectures.VERIFIED) == {make.model_type for make, _ in CONFIGS.values()}
    assert "opens" not in [architectures.verdict(kind) for kind in architectures.NAMED]
    text = architectures.PAGE.read_text("utf-8")
    assert architectures.page(text) == text, "run: python tools/architectures.py"


def test_attention_of_its_own_is_refused_before_weights_are_read(tmp_path):
    with pytest.raises(EngineError, match=r"attention of its own \(gptj\)"):
        check_layers(tmp_path, GPTJConfig(n_layer=1))
