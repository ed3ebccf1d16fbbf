"""Folders that are another model than they seem are named before anything is trained; what training leaves alone is kept."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from models import SUMS, TURNS, byte_level, change, write
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer
from transformers.utils import logging as library

from harness.engines import checkpoint
from harness.engines.embedded.engine import EmbeddedEngine
from harness.engines.vocabulary import check_weights, read_folder
from harness.errors import CheckpointError, EngineError
from harness.experience.answers import Prompt
from harness.learning.terms import Objective, Term, TermAnswer


def plain(place: Path, **said) -> Path:
    return write(place, byte_level(), TURNS, ends=["<|done|>"], eos_token="<|eos|>", **said)


def refused(folder: Path) -> str:
    def check() -> None:
        read_folder(folder)
        check_weights(folder)

    with pytest.raises(EngineError) as caught:
        check()
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)
    return str(caught.value)


def test_a_plain_folder_has_no_fault(tmp_path):
    read_folder(plain(tmp_path))
    check_weights(tmp_path)


def test_a_check_draws_no_bar(tmp_path, capfd, monkeypatch):
    """In an environment in which nothing else has switched transformers' bars off."""
    folder = plain(tmp_path)
    monkeypatch.setattr(library, "_tqdm_active", True)
    capfd.readouterr()
    check_weights(folder)
    assert capfd.readouterr().err == ""
    assert library.is_progress_bar_enabled()


def test_an_adapter_beside_weights_and_one_alone(tmp_path):
    folder = plain(tmp_path / "merged")
    (folder / "adapter_config.json").write_text("{}")
    assert "count twice or not at all" in refused(folder)
    with pytest.raises(EngineError, match="an adapter lies beside the weights"):
        EmbeddedEngine("p", folder)
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone/adapter_config.json").write_text("{}")
    assert "merge it into its base" in refused(tmp_path / "alone")


@pytest.mark.parametrize("method", ["gptq", "bitsandbytes"])
def test_quantised_weights(tmp_path, method):
    folder = plain(tmp_path)
    change(folder / "config.json", quantization_config={"quant_method": method})
    assert f"quantised weights ({method}) cannot be trained" in refused(folder)


def test_words_without_rows_but_not_control_tokens(tmp_path):
    folder = plain(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|image|>"]})
    tokenizer.save_pretrained(folder)
    read_folder(folder)  # no text becomes it
    tokenizer.add_tokens(["zebra"])
    tokenizer.save_pretrained(folder)
    assert "1 tokens without a row in the model, 'zebra' the first" in refused(folder)


@pytest.mark.parametrize(("pad", "ordinary"), [("!", True), ("<|eos|>", False), ("[PAD]", False)])
def test_a_pad_that_is_a_word(tmp_path, pad, ordinary):
    folder = plain(tmp_path, pad_token=pad)
    if ordinary:
        assert "the pad token '!' is an ordinary token" in refused(folder)
    else:
        read_folder(folder)


def test_weights_without_a_place_are_named(tmp_path):
    folder = plain(tmp_path)
    weights = load_file(folder / "model.safetensors")
    extra = {"model.layers.1.mlp.up_proj.weight": torch.zeros(64, 32)}
    save_file(weights | extra, folder / "model.safetensors", metadata={"format": "pt"})
    assert "no place for 1 of the weights, model.layers.1.mlp.up_proj.weight the first" in refused(folder)
    with pytest.raises(EngineError, match=r"^p: .*no place for 1 of the weights"):
        EmbeddedEngine("p", folder)


def test_weights_of_another_format_say_how_they_are_converted(tmp_path):
    folder = plain(tmp_path)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "only pytorch_model.bin: save them as safetensors" in refused(folder)


def trained(engine: EmbeddedEngine) -> None:
    prompt = Prompt("q", SUMS[0][0], SUMS[0][1])
    answer = TermAnswer("q", np.array([5, 6, engine.stop[0]], dtype=np.int32), advantage=1.0)
    from harness.engines.protocol import Optimisation

    engine.update([prompt], [Term("own", "own", Objective(form="nll"), (answer,))], Optimisation(1e-2, max_tokens=3))


def test_generation_settings_that_contradict_each_other_are_kept_and_do_not_stop_a_save(tmp_path):
    folder = plain(tmp_path / "model", generation={"do_sample": False, "temperature": 0.6})
    said = (folder / "generation_config.json").read_bytes()
    engine = EmbeddedEngine("p", folder, chat=True)
    trained(engine)
    engine.save(tmp_path / "kept")
    assert (tmp_path / "kept/generation_config.json").read_bytes() == said
    again = EmbeddedEngine("p", folder, chat=True)
    again.restore(tmp_path / "kept")
    prompts, tokens = [Prompt("q", *SUMS[0])], [np.array([5, 6, 2], dtype=np.int32)]
    assert np.array_equal(again.score(prompts, tokens)[0], engine.score(prompts, tokens)[0])


def test_a_model_without_generation_settings_gets_none(tmp_path):
    folder = write(tmp_path / "model", byte_level(), TURNS, eos_token="<|eos|>")
    engine = EmbeddedEngine("p", folder, chat=True)
    engine.save(tmp_path / "kept")
    assert not (tmp_path / "kept/generation_config.json").exists()


def test_all_named_templates_are_kept_and_sealed(tmp_path):
    folder = plain(tmp_path / "model")
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    named = [{"name": "default", "template": TURNS}, {"name": "tool_use", "template": "{{ messages }}"}]
    change(folder / "tokenizer_config.json", chat_template=named)
    engine = EmbeddedEngine("p", folder, chat=True)
    engine.save(tmp_path / "kept")
    kept = AutoTokenizer.from_pretrained(tmp_path / "kept").chat_template
    assert kept == {"default": TURNS, "tool_use": "{{ messages }}"}
    engine.restore(tmp_path / "kept")
    seal = json.loads((tmp_path / "kept/engine.json").read_text())
    (inner,) = (name for name in seal["files"] if "/" in name)
    (tmp_path / "kept" / inner).write_text("another")
    with pytest.raises(CheckpointError, match="truncated or altered"):
        checkpoint.check(tmp_path / "kept", "p")
