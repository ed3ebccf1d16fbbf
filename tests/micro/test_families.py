"""The four families: round trips, determinism, and folders that the Auto classes open."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from harness.engines.embedded.families import (
    FAMILIES,
    build_model,
    build_tokenizer,
    write_corpus,
)

_MODEL_TYPES = {"llama": "llama", "qwen": "qwen3", "neox": "gpt_neox", "gpt2": "gpt2"}
_PIECES = {"llama": ["16", "4"], "qwen": ["1", "6", "4"], "neox": ["1", "64"], "gpt2": ["16", "##4"]}


@pytest.mark.parametrize("family", FAMILIES)
def test_round_trip_through_a_folder(family: str, tmp_path: Path) -> None:
    """What AutoTokenizer opens again must encode as the tokenizer did and give every byte back."""
    tokenizer = build_tokenizer(family)
    tokenizer.save_pretrained(tmp_path)
    build_model(family, 0, tokenizer).save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    texts = write_corpus(seed=99, texts=1000)
    assert again(texts)["input_ids"] == tokenizer(texts)["input_ids"]
    assert again.batch_decode(again(texts)["input_ids"]) == texts
    assert again.convert_ids_to_tokens(again.encode("164"))[-len(_PIECES[family]) :] == _PIECES[family]
    assert (again.eos_token, again.pad_token) == ("<eos>", "<pad>")
    assert len({again.eos_token_id, again.pad_token_id, again.unk_token_id}) == 3


@pytest.mark.parametrize("family", FAMILIES)
def test_model_opens_with_the_auto_class(family: str, tmp_path: Path) -> None:
    tokenizer = build_tokenizer(family)
    model = build_model(family, 3, tokenizer)
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = torch.tensor([tokenizer.encode("Q: 2+3+4\nA: 2+3=5")])
    assert again.config.model_type == _MODEL_TYPES[family]
    assert again.config.eos_token_id == tokenizer.eos_token_id
    assert again.config.vocab_size == len(tokenizer)
    with torch.no_grad():
        assert torch.equal(again(ids).logits, model(ids).logits)
    assert 250_000 < sum(p.numel() for p in model.parameters()) < 450_000
