"""Shapes: parameter counts are exactly those of the modules that transformers builds."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from harness.allocation.models import ModelShape, load_shape, shape_from_config, shipped
from harness.errors import UsageError

SMALL = {
    "gpt2": {"n_embd": 48, "n_layer": 3, "n_head": 4, "n_positions": 64, "vocab_size": 200},
    "gpt_neox": {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 100, "vocab_size": 200},
    "mistral": {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
                "intermediate_size": 100, "vocab_size": 200},
}  # fmt: skip


def config_of(shape: ModelShape):  # type: ignore[no-untyped-def]
    return AutoConfig.for_model(
        shape.family, hidden_size=shape.hidden, num_hidden_layers=shape.layers, num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads, head_dim=shape.head_dim, intermediate_size=shape.intermediate,
        vocab_size=shape.vocab, tie_word_embeddings=shape.tied, pad_token_id=0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip


def count(config) -> int:  # type: ignore[no-untyped-def]
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    "name", sorted({s: n for n, s in ((n, (s.hidden, s.layers, s.family)) for n, s in shipped().items())}.values())
)
def test_parameters_of_the_papers_models(name: str) -> None:
    shape = shipped()[name]
    config = config_of(shape)
    assert shape.parameters == count(config)
    assert shape_from_config(name, config.to_dict()) == shape


@pytest.mark.parametrize("family", SMALL)
@pytest.mark.parametrize("tied", [True, False])
def test_parameters_of_other_families(family: str, tied: bool) -> None:
    config = AutoConfig.for_model(family, tie_word_embeddings=tied, **SMALL[family])
    assert shape_from_config("x", config.to_dict()).parameters == count(config)


@pytest.mark.parametrize(
    ("name", "published"),
    [("Qwen3-0.6B", 0.60), ("Qwen3-1.7B", 1.72), ("Qwen3-4B", 4.02), ("Qwen3-8B", 8.19), ("Qwen2.5-Math-1.5B", 1.54),
     ("Llama-3.2-1B", 1.24), ("Llama-3.2-3B", 3.21), ("SmolLM3-3B", 3.08)],
)  # fmt: skip
def test_parameters_as_their_authors_state_them(name: str, published: float) -> None:
    assert load_shape(f"somebody/{name}").parameters / 1e9 == pytest.approx(published, abs=0.006)


def test_folder_is_read_before_the_table(tmp_path) -> None:  # type: ignore[no-untyped-def]
    folder = tmp_path / "Qwen3-4B"
    folder.mkdir()
    config = config_of(shipped()["Qwen3-0.6B"])
    (folder / "config.json").write_text(json.dumps(config.to_diff_dict()))
    assert load_shape(str(folder)).parameters == shipped()["Qwen3-0.6B"].parameters


@pytest.mark.parametrize(
    ("text", "words"),
    [("{", "cannot be read"), ("[]", "JSON object"), ('{"model_type": "mamba"}', "no memory formula"),
     ('{"model_type": "llama", "hidden_size": 8}', "num_attention_heads")],
)  # fmt: skip
def test_bad_configuration(tmp_path, text: str, words: str) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UsageError, match=words):
        load_shape(str(tmp_path))


def test_unknown_name() -> None:
    with pytest.raises(UsageError, match="not in the table"):
        load_shape("nobody/Nothing-1B")
