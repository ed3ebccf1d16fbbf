"""Shapes: what the meta device says of a config is what torch allocates, and what the models' authors publish."""

from __future__ import annotations

import json
from pathlib import Path

import huggingface_hub
import pytest
import torch
import yaml
from transformers import AutoConfig, AutoModelForCausalLM

from harness.allocation.meta import measure_shape
from harness.allocation.shapes import Attention, load_config, load_shape, shape_from_config, shipped_configs
from harness.engines.embedded.families import FAMILIES, build_tokenizer
from harness.errors import UsageError

PUBLIC = yaml.safe_load(Path(__file__).with_name("public_models.yaml").read_text("utf-8"))


@pytest.mark.slow_but("google/gemma-3-1b-it", "microsoft/Phi-4-mini-instruct", "tiiuae/falcon-7b")
@pytest.mark.parametrize("row", PUBLIC, ids=lambda row: row["name"])
def test_public_models_have_the_published_number_of_parameters(row, tmp_path) -> None:  # type: ignore[no-untyped-def]
    folder = tmp_path / row["name"].rpartition("/")[2]
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(row["config"]))
    shape = load_shape(str(folder))
    assert shape.parameters / 1e9 == pytest.approx(row["published"], rel=0.01)
    assert shape.read(1) / 1e9 == pytest.approx(row.get("active", row["published"]), rel=0.02)
    assert shape.attention
    assert shape.half.layers > shape.half.layer > 0
    assert 0 < shape.matmul <= shape.parameters


def test_sliding_windows_and_large_heads_are_seen() -> None:
    gemma = next(row for row in PUBLIC if row["name"] == "google/gemma-3-1b-it")
    shape = shape_from_config("gemma", gemma["config"])
    assert shape.vocab == 262_144
    assert set(shape.attention) == {Attention(22, 4, 1, 256, 512), Attention(4, 4, 1, 256, None)}
    assert shape.kv_bytes(4096) == 2 * 2 * 256 * (22 * 512 + 4 * 4096)
    assert shape.attention_flops(4096) == 4 * 4 * 256 * (22 * 512 + 4 * 2048)


def test_a_token_takes_some_experts_and_many_tokens_read_all() -> None:
    mixtral = next(row for row in PUBLIC if "Mixtral" in row["name"])
    shape = shape_from_config("mixtral", mixtral["config"])
    assert shape.routed == 0.25
    assert shape.matmul < shape.read(1) < shape.read(4) < shape.read(64) <= shape.parameters


@pytest.mark.parametrize("family", FAMILIES)
def test_micro_shapes_are_those_of_the_families(family: str) -> None:
    config = FAMILIES[family].configure(len(build_tokenizer(family)))
    assert measure_shape(family, config.to_dict()) == load_shape(f"micro/{family}")


@pytest.mark.slow_but("Qwen3-1.7B-Base", "SmolLM2-360M-Instruct")
@pytest.mark.parametrize("name", sorted(shipped_configs()))
def test_shipped_configs(name: str) -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**shipped_configs()[name]))
    shape = load_shape(f"somebody/{name}")
    assert shape.parameters == sum(p.numel() for p in model.parameters())
    assert shape == measure_shape(name, shipped_configs()[name])


def test_folder_and_hub_cache_come_before_the_table(tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    small = shipped_configs()["Qwen3-0.6B"]
    (tmp_path / "Qwen3-4B").mkdir()
    (tmp_path / "Qwen3-4B" / "config.json").write_text(json.dumps(small))
    assert load_config(str(tmp_path / "Qwen3-4B")) == small
    snapshot = tmp_path / "hub" / "models--Qwen--Qwen3-4B" / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps(small))
    refs = tmp_path / "hub" / "models--Qwen--Qwen3-4B" / "refs"
    refs.mkdir()
    (refs / "main").write_text("0" * 40)
    monkeypatch.setattr("huggingface_hub.file_download.HF_HUB_CACHE", str(tmp_path / "hub"), raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    assert load_config("Qwen/Qwen3-4B") == small


@pytest.mark.parametrize(
    ("text", "words"),
    [("{", "cannot be read"), ("[]", "JSON object"), ('{"model_type": "nosuch"}', "knows no model_type 'nosuch'"),
     ('{"model_type": "mamba", "hidden_size": 8, "num_hidden_layers": 1, "vocab_size": 8}', "no attention"),
     ('{"model_type": "t5"}', "no causal language model"),
     ('{"model_type": "llama", "hidden_size": 8, "num_attention_heads": 3}', "no causal language model")],
)  # fmt: skip
def test_bad_configuration(tmp_path, text: str, words: str) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UsageError, match=words) as caught:
        load_shape(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_a_mistyped_folder_asks_the_hub_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def again(*args: object, **options: object) -> str:
        raise AssertionError("a download, which tries five times more")

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", again)
    with pytest.raises(UsageError, match="'modles/a': not a folder, and not available from the hub"):
        load_config("modles/a")


@pytest.mark.parametrize(
    ("model", "words"),
    [("nobody/Nothing-1B", "not a folder, and not available from the hub"), ("micro/nothing", "unknown micro family"),
     ("./no/such/folder", "neither a folder on this machine nor a name on the hub")],
)  # fmt: skip
def test_unknown_names(monkeypatch, model: str, words: str) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UsageError, match=words):
        load_shape(model)
