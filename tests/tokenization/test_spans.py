"""Byte spans: canonical encodings against the core's offsets and the tokens' bytes, sampled ids against the core's decoder."""

from __future__ import annotations

import random

import numpy as np
import pytest
import zoo
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from harness.errors import TokenizationError
from harness.tokenization.codec import Encoded, TokenCodec
from harness.tokenization.token_bytes import byte_level_alphabet, ends_by_offsets, ill_formed


def byte_positions(text):
    return [len(text[:i].encode()) for i in range(len(text) + 1)]


def test_every_byte_is_covered_once(kind, texts, encoded):
    refused = 0
    for text, e in zip(texts, encoded[kind], strict=True):
        if e is None:
            refused += 1
            continue
        assert e.ids.dtype == e.ends.dtype == np.int32
        assert e.ids.shape == e.ends.shape
        assert e.ends[-1] == len(text.encode())
        assert (np.diff(e.ends, prepend=0) >= 0).all()
    # BERT drops control characters, T5 joins spaces, CLIP drops them: a text of nothing else has no tokens.
    assert refused <= (8 if kind in {"wordpiece", "unigram_nfkc", "word_suffix"} else 0)


@pytest.mark.parametrize("kind", sorted(zoo.INVERTING))
def test_spans_are_the_bytes_of_each_token(kind, tokenizers, texts, encoded):
    core, stand_ins = tokenizers[kind].backend_tokenizer, byte_level_alphabet()
    for text, e in zip(texts, encoded[kind], strict=True):
        data, begin = text.encode(), 0
        assert e.inverse
        for position, (i, end) in enumerate(zip(e.ids.tolist(), e.ends.tolist(), strict=True)):
            token = core.id_to_token(i)
            if kind == "byte_level":
                own = bytes(stand_ins[character] for character in token)
            elif token.startswith("<0x"):
                own = bytes([int(token[3:5], 16)])
            else:
                own = token.replace("▁", " ").encode()
                own = own[1:] if kind == "sentencepiece_bpe" and position == 0 else own
            assert data[begin:end] == own
            begin = end


def test_ids_are_the_cores_and_tokens_that_share_no_character_end_where_it_says(kind, tokenizers, texts, encoded):
    core = Tokenizer.from_str(tokenizers[kind].backend_tokenizer.to_str())
    core.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])  # offsets must not be trimmed
    checked = 0
    for text, e in zip(texts, encoded[kind], strict=True):
        if e is None:
            continue
        plain = core.encode(text, add_special_tokens=False)
        where, offsets = byte_positions(text), plain.offsets
        assert e.ids.tolist() == plain.ids
        for index, (begin, end) in enumerate(offsets[:-1]):
            alone = begin < end <= offsets[index + 1][0] and (index == 0 or offsets[index - 1][1] <= begin)
            if alone:
                checked += 1
                # Where the word's end is spelled as a space, the space belongs to the word.
                after = offsets[index + 1][0] if kind == "word_suffix" and e.inverse else end
                assert e.ends[index] == where[after]
    assert checked > 1200


def test_what_is_called_inverse_is(kind, codecs, texts, encoded):
    inverse = [(text, e.ids) for text, e in zip(texts, encoded[kind], strict=True) if e is not None and e.inverse]
    assert len(inverse) > (0 if kind == "byte_level_prefix" else 5)
    assert [d.text for d in codecs[kind].read([ids for _, ids in inverse])] == [text for text, _ in inverse]


def test_offsets_that_run_backwards_still_give_a_partition():
    assert ends_by_offsets([b"x"] * 3, "abcd", [(0, 3), (0, 1), (1, 2)], True) == [3, 3, 4]


def test_a_normaliser_that_keeps_the_length_claims_no_end_inside(codecs):
    encoded = codecs["byte_level_digits"].try_encode(["\uf900x"])[0]
    assert encoded.ends.tolist() == [3] * (encoded.ids.size - 1) + [4]
    assert encoded.ids.size > 2


def test_a_normalised_character_does_not_blur_the_cut_ones(codecs):
    codec = codecs["byte_level_digits"]
    for head in ("漢字\n", "🫠🧑🏽‍🚀\n", "ᄒ\n", "\u0600ז\n"):
        plain, mixed = codec.try_encode([head, head + "e\u0301x"])
        assert plain.inverse
        assert not mixed.inverse
        size = plain.ids.size
        assert mixed.ids[:size].tolist() == plain.ids.tolist()
        assert mixed.ends[:size].tolist() == plain.ends.tolist()


def test_tokens_of_one_expanded_character_add_no_bytes(codecs):
    encoded = codecs["unigram_nfkc"].try_encode(["x ﷺ y"])[0]
    assert not encoded.inverse
    assert set(encoded.ends.tolist()) <= {0, 1, 2, 5, 6, 7}


def sampled(codec, tokenizer, count=300, seed=3):
    """Ids as a bad policy samples them: special tokens, lone bytes and ids of padded embeddings among them."""
    rng = random.Random(seed)
    byte_like = sorted(i for t, i in tokenizer.get_vocab().items() if t.startswith("<0x") or len(t) == 1)
    pools = [range(len(tokenizer) + 5), byte_like, byte_like]
    return [
        np.array([rng.choice(rng.choice(pools)) for _ in range(rng.randint(0, 40))], dtype=np.int32)
        for _ in range(count)
    ]


def test_sampled_ids_give_the_cores_text_and_pieces_that_sum_to_it(kind, codecs, tokenizers):
    codec, core = codecs[kind], tokenizers[kind].backend_tokenizer
    answers = sampled(codec, tokenizers[kind])
    for ids, decoded in zip(answers, codec.read(answers), strict=True):
        assert decoded.text == core.decode(ids.tolist(), skip_special_tokens=True)
        assert decoded.pieces.shape == ids.shape
        assert decoded.pieces.sum() == len(decoded.text.encode())
        assert (decoded.pieces >= 0).all()


def test_sampled_tokens_end_where_a_shorter_answer_would(kind, codecs, tokenizers):
    codec, core, checked = codecs[kind], tokenizers[kind].backend_tokenizer, 0
    answers = sampled(codec, tokenizers[kind], count=60)
    for ids, decoded in zip(answers, codec.read(answers), strict=True):
        ends, data = np.cumsum(decoded.pieces), decoded.text.encode()
        for count in range(1, len(ids)):
            prefix = core.decode(ids[:count].tolist(), skip_special_tokens=True)
            # A byte whose run breaks later reads otherwise alone; a stripped space leaves nothing to compare.
            whole = prefix and not prefix.endswith(" ") and "�" not in prefix[-4:]
            if whole and data.startswith(prefix.encode()):
                checked += 1
                # A mark at the end of a word becomes a space unless the answer ends there.
                assert ends[count - 1] - len(prefix.encode()) in ({0, 1} if kind == "word_suffix" else {0})
    assert checked > 50


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        decoders.Fuse(),
        decoders.Metaspace(),
        decoders.Metaspace(prepend_scheme="never"),
        decoders.Sequence([decoders.Fuse(), decoders.Metaspace()]),
        decoders.Sequence([decoders.Replace("▁", " "), decoders.Strip(" ", 1, 0)]),
        decoders.Sequence([decoders.Strip("a", 1, 0), decoders.Fuse(), decoders.Strip("b", 1, 0)]),
        decoders.Sequence([decoders.Replace("a", " "), decoders.Fuse(), decoders.Strip(" ", 0, 1)]),
        decoders.WordPiece(cleanup=False),
        decoders.WordPiece(cleanup=True),
        decoders.BPEDecoder(suffix="</w>"),
        decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(), decoders.Fuse()]),
    ],
    ids=lambda d: "none" if d is None else d.__getstate__().decode()[:60],
)
def test_every_decoder(decoder):
    vocab = ["a", "b", "▁", "▁▁a", "##b", "##", ".", "'s", "do not", "ab▁", "é", "<0xC3>", "<0xA9>", "<0x20>", "<0xFF>",
             "x</w>", "</w>", "</s>"]  # fmt: skip
    core = Tokenizer(models.BPE({token: i for i, token in enumerate(vocab)}, []))
    if decoder is not None:
        core.decoder = decoder
    tokenizer, rng = zoo.fast(core), random.Random(2)
    codec, core = TokenCodec(tokenizer), tokenizer.backend_tokenizer
    answers = [[rng.randrange(len(vocab) + 4) for _ in range(rng.randint(0, 9))] for _ in range(300)]
    for ids in answers:
        ids.insert(
            rng.randint(0, len(ids)), vocab.index("é")
        )  # the core panics where it strips an empty text on the right
    for ids, decoded in zip(answers, codec.read(answers), strict=True):
        assert decoded.text == core.decode(ids, skip_special_tokens=True)
        assert decoded.pieces.sum() == len(decoded.text.encode())


def test_cut_characters_of_a_byte_level_answer(codecs, tokenizers):
    stand_ins = {byte: character for character, byte in byte_level_alphabet().items()}
    vocab = tokenizers["byte_level"].get_vocab()
    ids = [vocab[stand_ins[byte]] for byte in "a€".encode() + b"\xff" + "€".encode()[:2]]
    decoded = codecs["byte_level"].read([ids])[0]
    assert decoded.text == "a€��"
    assert decoded.pieces.tolist() == [1, 1, 1, 1, 3, 1, 2]


def test_a_broken_run_of_fallback_bytes_is_replaced_byte_by_byte(codecs, tokenizers):
    vocab = tokenizers["gemma"].get_vocab()
    ids = [vocab[f"<0x{byte:02X}>"] for byte in "€".encode()] + [vocab["a"]]
    assert codecs["gemma"].read([ids])[0].pieces.tolist() == [1, 1, 1, 1]
    decoded = codecs["gemma"].read([ids[:2] + ids[-1:] + ids[:3]])[0]
    assert decoded.text == "��a€"
    assert decoded.pieces.tolist() == [3, 3, 1, 1, 1, 1]


def test_ill_formed_parts_follow_the_standard():
    rng = random.Random(5)
    samples = [
        bytes(rng.choice(b"a\xc3\xa9\xe2\x82\xac\xf0\x9f\x99\x82\xed\xa0\xff\xc0\xf4\x90\x80") for _ in range(12))
    ]
    samples += [bytes(rng.choice(samples[0]) for _ in range(rng.randint(0, 12))) for _ in range(1000)]
    samples += [bytes(rng.randrange(256) for _ in range(rng.randint(0, 12))) for _ in range(1000)]
    for data in samples:
        out, at = "", 0
        for start, stop in ill_formed(data):
            out, at = out + data[at:start].decode() + "�", stop
        assert out + data[at:].decode() == data.decode(errors="replace")


def test_refusals_name_their_reason(codecs):
    reasons = [
        result.reason if isinstance(result, TokenizationError) else "ok"
        for result in codecs["wordpiece"].try_encode(["", "x", "\ud800", "x" * ((1 << 20) + 1), "\x07"])
    ]
    assert reasons == ["empty", "ok", "unicode", "too_long", "untokenized"]
    with pytest.raises(TokenizationError, match="negative"):
        codecs["wordpiece"].read([[-1]])


def test_only_the_text_that_kills_the_tokenizer_is_refused():
    core = Tokenizer(models.BPE({"a": 0, "b": 1, "</s>": 2, "x": 3}, []))
    core.normalizer = normalizers.Replace(Regex("(?=bb)"), "x")
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    with pytest.raises(BaseException, match="index out of bounds") as caught:
        core.encode("bb")
    assert not isinstance(caught.value, Exception)
    results = TokenCodec(zoo.fast(core)).try_encode(["a", "bb", "ab"])
    assert [type(r) for r in results] == [Encoded, TokenizationError, Encoded]
    assert results[1].reason == "panic"


def test_what_is_no_tokenizer_is_refused(tokenizers):
    with pytest.raises(TokenizationError, match="slow"):
        TokenCodec(object())
    endless = zoo.fast(zoo.KINDS["byte_level"]())
    endless.eos_token = None
    with pytest.raises(TokenizationError, match="no end token"):
        TokenCodec(endless)
    assert TokenCodec(endless, stop=(7, 9)).eos_id == 7
    for decoder in (decoders.CTC(), decoders.Replace(Regex("a+"), "b"), decoders.Strip(" ", 2, 0)):
        core = Tokenizer(models.BPE({"a": 0, "</s>": 1}, []))
        core.decoder = decoder
        with pytest.raises(TokenizationError, match="decoder"):
            TokenCodec(zoo.fast(core))


@pytest.mark.parametrize(
    ("kind", "text", "word_ends"),
    [("word_suffix", "Hence   HENCE", {5, 13}), ("wordpiece", "Hence \n HENCE", {5, 13}),
     ("unigram_nfkc", "so   HENCE", {2, 10}), ("unigram_nfkc", "so \n\n 3", {2, 7})],
)  # fmt: skip
def test_white_space_goes_where_the_core_puts_it(codecs, kind, text, word_ends):
    (encoded,) = codecs[kind].try_encode([text])
    inside = {i + 1 for i in range(len(text) - 1) if text[i].isspace() and text[i + 1].isspace()}
    assert word_ends <= set(encoded.ends.tolist())
    assert not inside & set(encoded.ends.tolist())
