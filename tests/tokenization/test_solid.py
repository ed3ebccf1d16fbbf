"""Spans without offsets where a tokenizer changes only white space and capitals: the same as with them."""

from __future__ import annotations

import numpy as np
import pytest
import zoo
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from harness.errors import TokenizationError
from harness.tokenization.codec import Encoded, TokenCodec
from harness.tokenization.spans import Texts, by_offsets, by_solid_bytes

LOSSY = ["unigram_nfkc", "wordpiece", "word_suffix"]
"""Kinds that join or drop white space."""

PARTS = st.sampled_from(
    ["a", "So", "THE", "answer", "(x-82)**2", "3", "42", ".", ",", "'s", "do not", "\\frac{1}{2}", "O", "#", "##", "</w>",
     " ", "  ", "   ", "\n", "\n\n", "\t", "\r\n", "\x07", "\x0b", "\x1f", "\x7f", "\xa0", "\u2028", "\u3000", "<unk>", "▁",
     "é", "e\u0301", "İ", "ﬁ", "漢", "🙂", "<think>", "<|turn_end|>"]
)  # fmt: skip
TEXTS = st.lists(PARTS, min_size=1, max_size=12).map("".join)


def both_ways(codec, texts):
    """Per text with tokens: ids, ends by solid bytes, whether they are right, ends by offsets, tokens that share no character."""
    encodings = codec._core(texts, offsets=True)
    batch, joined = codec._batch(encodings), Texts.join(texts)
    solid, right = by_solid_bytes(codec._surfaces, batch, joined)
    exact = by_offsets(codec._surfaces, batch, joined, [e.offsets for e in encodings])
    for row, text in enumerate(texts):
        tokens = slice(batch.rows[row], batch.rows[row + 1] - 1)
        if batch.ids[tokens].size:
            begins, ends = np.array([(0, 0), *encodings[row].offsets, (len(text), 0)]).T
            alone = (begins[1:-1] < ends[1:-1]) & (begins[1:-1] >= ends[:-2]) & (ends[1:-1] <= begins[2:])
            yield text, batch.ids[tokens], solid[tokens], bool(right[row]), exact[tokens], alone


def bare(data: bytes) -> bytes:
    return bytes(byte for byte in data if byte > 32).lower()


@pytest.mark.parametrize("kind", LOSSY)
@settings(max_examples=150, deadline=None)
@given(data=st.lists(TEXTS, min_size=1, max_size=6))
def test_right_ends_are_those_of_the_offsets(codecs, kind, data):
    """A space that the tokenizer inserts has no byte; the offsets give it the character behind it."""
    for _, _, solid, right, exact, alone in both_ways(codecs[kind], data):
        if right:
            assert solid[alone].tolist() == exact[alone].tolist()


@pytest.mark.parametrize("kind", sorted(zoo.KINDS))
@settings(max_examples=60, deadline=None)
@given(data=st.lists(TEXTS, min_size=1, max_size=6))
def test_right_ends_give_each_token_its_own_solid_bytes(codecs, kind, data):
    surfaces = codecs[kind]._surfaces
    for text, ids, solid, right, *_ in both_ways(codecs[kind], data):
        if not right:
            continue
        batch, begin = surfaces.batch(ids, np.array([ids.size])), 0
        pieces = surfaces.pieces(batch)
        assert (np.diff(solid, prepend=0) >= 0).all()
        assert solid[-1] == len(text.encode())
        for start, length, end in zip(pieces.starts, pieces.lengths, solid, strict=False):
            own = surfaces.bytes[start : start + length].tobytes()
            assert bare(text.encode()[begin:end]) == bare(own)
            begin = end


@pytest.mark.parametrize("kind", LOSSY)
def test_maths_needs_no_offsets(codecs, kind):
    assert all(right for _, _, _, right, *_ in both_ways(codecs[kind], zoo.texts(250)[:250]))


@pytest.mark.parametrize("kind", LOSSY)
def test_the_codec_takes_the_short_way_where_it_may(codecs, kind):
    codec = codecs[kind]
    assert not codec._inverts
    easy = set(np.flatnonzero(codec._easy_bytes).tolist())
    assert set(b"a2+(*) \n") <= easy
    assert max(easy) < 128
    assert (0x07 in easy) == (kind == "word_suffix")  # the others drop control characters


@pytest.mark.parametrize(
    ("kind", "text", "word_ends"),
    [("word_suffix", "Hence   HENCE", {5, 13}), ("wordpiece", "Hence \n HENCE", {5, 13}),
     ("unigram_nfkc", "so   HENCE", {2, 10}), ("unigram_nfkc", "so \n\n 3", {2, 7}),
     ("wordpiece", "h\u00e9nce", None), ("unigram_nfkc", "a\u00a0b", None)],
)  # fmt: skip
def test_white_space_goes_where_the_core_puts_it(codecs, kind, text, word_ends):
    """No end inside the white space, and none where accents or other spaces were changed."""
    ((*_, solid, right, _, _),) = both_ways(codecs[kind], [text])
    assert right == (word_ends is not None)
    if word_ends is not None:
        inside = {i + 1 for i in range(len(text) - 1) if text[i].isspace() and text[i + 1].isspace()}
        assert word_ends <= set(solid.tolist())
        assert not inside & set(solid.tolist())


SPACED = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])
MARKED = decoders.BPEDecoder(suffix="</w>")


@pytest.mark.parametrize(
    ("decoder", "tokens", "text", "ends"),
    [
        (SPACED, ["a", "▁", "b"], "A \t\nB", [1, 4, 5]),
        (SPACED, ["a▁", "b"], "a   b", [4, 5]),
        (SPACED, ["a", "▁", "▁b"], "a  B", [1, 2, 4]),
        (SPACED, ["a", "▁", "▁b"], "a   b", None),  # which of the two holds the third space?
        (SPACED, ["a", "▁", "b"], "ab", [1, 1, 2]),
        (SPACED, ["a", "▁", "▁b"], "a b", None),
        (SPACED, ["a", "b"], "a c", None),
        (SPACED, ["a", "b"], "a b b", None),
        (SPACED, ["a", "</s>", "b"], "a\tb", None),  # a token without bytes may stand for any
        (MARKED, ["a</w>", "b</w>"], "A  B \n", [1, 6]),
        (MARKED, ["a</w>", "</s>", "b</w>"], "a b", None),
    ],
)
def test_ends_of_any_tokens(decoder, tokens, text, ends):
    vocab = {token: i for i, token in enumerate(["a", "b", "▁", "▁b", "a▁", "b</w>", "a</w>", "</s>"])}
    core = Tokenizer(models.BPE(vocab, []))
    core.decoder = decoder
    core.add_special_tokens(["</s>"])
    surfaces = TokenCodec(zoo.fast(core))._surfaces
    before, after = [5, 6], [0]  # other rows, not right
    ids = [before, [vocab[token] for token in tokens], after]
    batch = surfaces.batch(np.concatenate(ids), np.array([len(row) for row in ids]))
    found, right = by_solid_bytes(surfaces, batch, Texts.join(["x y z", text, "\n"]))
    assert right.tolist() == [False, ends is not None, False]
    if ends is not None:
        assert found[batch.rows[1] : batch.rows[2] - 1].tolist() == ends


def unknowing() -> Tokenizer:
    """Knows one letter, and dies in the ordinary way of any other."""
    core = Tokenizer(models.WordLevel({"a": 0, "</s>": 1}, unk_token="<none>"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    return core


def test_a_tokenizer_that_fails_on_the_probes_can_still_be_used():
    results = TokenCodec(zoo.fast(unknowing())).try_encode(["a a", "a b", "a"])
    assert [type(result) for result in results] == [Encoded, TokenizationError, Encoded]
