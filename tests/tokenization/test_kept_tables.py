"""Tables of large vocabularies, kept in the cache."""

from __future__ import annotations

import json

import numpy as np
import pytest
import zoo
from safetensors.numpy import load, save

from harness.tokenization import kept_tables
from harness.tokenization.codec import TokenCodec
from harness.tokenization.kept_tables import tables_of


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path))
    monkeypatch.setattr(kept_tables.tables_of, "__defaults__", (0,))
    return tmp_path / "tokenizers"


def same(a, b):
    """The same texts to the same ids, spans and refusals."""
    texts = zoo.texts(12)
    for one, other in zip(a.try_encode(texts), b.try_encode(texts), strict=True):
        assert type(one) is type(other)
        if hasattr(one, "ids"):
            np.testing.assert_array_equal(one.ids, other.ids)
            np.testing.assert_array_equal(one.ends, other.ends)
            assert one.inverse == other.inverse
            assert a.decode(one.ids) == b.decode(one.ids)
        else:
            assert (one.reason, str(one)) == (other.reason, str(other))


def test_found_ones_are_those_that_were_made(kind, tokenizers, codecs, cache):
    first = TokenCodec(tokenizers[kind])
    (file,) = cache.iterdir()
    written = file.stat().st_mtime_ns
    second = TokenCodec(tokenizers[kind])
    assert file.stat().st_mtime_ns == written
    same(codecs[kind], first)
    same(codecs[kind], second)


@pytest.mark.parametrize("harm", ["cut", "altered", "empty", "other"])
def test_a_damaged_file_is_made_again(harm, tokenizers, codecs, cache):
    TokenCodec(tokenizers["gemma"])
    (file,) = cache.iterdir()
    whole = file.read_bytes()
    arrays = load(whole)
    words = json.loads(whole[8 : 8 + int.from_bytes(whole[:8], "little")])["__metadata__"]
    altered = arrays | {"lengths": arrays["lengths"][::-1].copy()}
    harmed = {"cut": whole[:-5], "altered": save(altered, words), "empty": b"", "other": b"{}"}
    file.write_bytes(harmed[harm])
    same(codecs["gemma"], TokenCodec(tokenizers["gemma"]))
    again, before = load(file.read_bytes()), load(whole)
    assert all(np.array_equal(again[name], before[name]) for name in before.keys() - {"reader"})


def test_what_else_they_are_made_of_is_in_the_name(tokenizers, cache):
    tokenizer = zoo.fast(zoo.KINDS["gemma"]())
    tables_of(tokenizer, ())
    tokenizer.chat_template = zoo.CHAT + "<|end|>"
    tables_of(tokenizer, ())
    tables_of(tokenizer, ("<|im_start|>",))
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|new|>"]})
    tables_of(tokenizer, ())
    assert len(list(cache.iterdir())) == 4


def test_a_cache_that_cannot_be_written_is_done_without(tokenizers, codecs, cache):
    cache.write_text("a file where the folder should be")
    same(codecs["gemma"], TokenCodec(tokenizers["gemma"]))


def test_a_small_vocabulary_is_not_kept(tokenizers, tmp_path, monkeypatch):
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path))
    TokenCodec(tokenizers["gemma"])
    assert not list(tmp_path.iterdir())
