"""`harness new-suite`: settings that fit the models, a file that loads, and hints for who follows them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from transformers import LlamaConfig, Qwen2Config

from harness.engines.embedded.families import build_tokenizer
from harness.errors import PluginError, UsageError
from harness.session.suite.draft import SIZES, draft
from harness.session.suite.preflight import preflight
from harness.session.suite.prepare import prepare
from harness.session.suite.rules import undeclared
from harness.suite.schema import Suite

SIZED = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
SMALL, SMOL, LARGE = (
    dict(zip(SIZED, sizes, strict=True))
    for sizes in ((64, 128, 2, 4, 416), (576, 1536, 30, 9, 49152), (3584, 18944, 28, 28, 152064))
)


def folder(place: Path, config: LlamaConfig, chat: bool = False) -> str:
    """A model's folder without its weights: a draft reads none."""
    place.mkdir()
    tokenizer = build_tokenizer("llama")
    if chat:
        tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    tokenizer.save_pretrained(place)
    (place / "config.json").write_text(json.dumps(config.to_dict() | {"dtype": "bfloat16"}))
    return str(place)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[str, str]:
    return (
        folder(tmp_path / "Smol-Instruct", LlamaConfig(**SMOL, max_position_embeddings=2048), chat=True),
        folder(tmp_path / "base", Qwen2Config(**SMALL, max_position_embeddings=2048)),
    )


def written(models: tuple[str, ...], task: str) -> Suite:
    return Suite.model_validate(yaml.safe_load(draft(models, task, "pair")))


def test_a_chat_model_and_a_base_model_are_asked_each_in_its_way(pair: tuple[str, str]) -> None:
    chat, base = written(pair, "micro").groups[0].policies
    assert (chat.name, chat.chat, chat.style) == ("smol-instruct", True, "zero-shot")
    assert (base.name, base.chat, base.style) == ("base", False, "few-shot")
    assert {p.style for p in written(pair, "gsm8k").groups[0].policies} == {"zero-shot"}


@pytest.mark.parametrize(
    ("config", "engine", "size"), [(SMALL, "embedded", 0), (SMOL, "embedded", 1), (LARGE, "openrlhf", 3)]
)
def test_the_largest_model_decides(tmp_path: Path, config: dict[str, int], engine: str, size: int) -> None:
    small = folder(tmp_path / "small", LlamaConfig(**SMALL))
    suite = written((small, folder(tmp_path / "other", Qwen2Config(**config))), "gsm8k")
    assert suite.engine == engine
    assert suite.training.learning_rate == SIZES[size].rate
    assert (suite.training.prompts, suite.training.rollouts) == (SIZES[size].prompts, SIZES[size].rollouts)
    assert suite.evaluation.tasks == ["gsm8k"]
    assert suite.training.max_new_tokens == suite.evaluation.max_new_tokens


def test_the_file_prepares_and_the_check_before_a_run_has_nothing_to_remark(
    pair: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.delenv("HARNESS_MODELS", raising=False)
    file = tmp_path / "here" / "pair.yaml"
    file.write_text(draft(pair, "micro", "pair"))
    assert undeclared(pair, file) == [tmp_path]
    monkeypatch.setenv("HARNESS_MODELS", str(tmp_path))
    assert undeclared(pair, file) == []
    prepared = prepare(str(file), tmp_path / "results", overrides=["regimes=[independent]"])
    assert len(prepared.cells) == 3
    monkeypatch.setattr("harness.engines.vocabulary.check_weights", lambda folder: None)
    assert preflight(prepared, run=False) == []
    raw = prepare(
        str(file), tmp_path / "results", overrides=["regimes=[independent]", "groups[0].policies[0].style=raw"]
    )
    (remark,) = preflight(raw, run=False)
    assert remark.startswith(
        "groups[0].policies[0].style: smol-instruct is asked micro questions without a word on the box"
    )


def test_hub_names_by_their_config_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("Qwen/Qwen3-1.7B-Base", "meta-llama/Llama-3.2-3B-Instruct")
    base, chat = written(names, "math").groups[0].policies
    assert (base.model, base.chat) == (names[0], False)
    assert (chat.model, chat.chat) == (names[1], True)
    assert written(names, "math").evaluation.tasks == ["math500"]


def test_refusals(pair: tuple[str, str]) -> None:
    with pytest.raises(UsageError, match="stands twice"):
        draft((pair[0], pair[0]), "micro", "x")
    with pytest.raises(PluginError, match="unknown training task 'chess'"):
        draft(pair, "chess", "x")
    with pytest.raises(UsageError, match="neither a folder"):
        draft((pair[0], "no/such/model"), "micro", "x")
