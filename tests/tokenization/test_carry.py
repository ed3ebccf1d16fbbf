"""Records carried over: end tokens by meaning, residuals, budgets, refusals, control strings of the receiver."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
import zoo
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import ExchangeError
from harness.experience.records import Refusal, Rollout, Success, TextRollout
from harness.tokenization.codec import TokenCodec
from harness.tokenization.retokenise import Retokenised, edit_distance, noncanonical_shares, retokenise_answers

MARKER = "\uffff\ufdd0"
HEADER = {"author": "peer", "version": 3, "step": 4, "prompt_id": "p1", "index": 0}


def rollout(codec, ids, finished=True, **changes):
    decoded = codec.read([ids])[0]
    logprobs = [-0.01 * (i % 50) - 0.001 for i in range(len(ids))]
    fields = {
        "text": decoded.text,
        "tokens": list(map(int, ids)),
        "logprobs": logprobs,
        "pieces": decoded.pieces.tolist(),
        "finished": finished,
        "eos_logprob": -0.25 if finished else 0.0,
        "reward": 1.0,
    }
    return Rollout(**HEADER, **(fields | changes))


def own(codec, text, **changes):
    return rollout(codec, codec.try_encode([text])[0].ids, **changes)


def test_text_travels_alone(codecs):
    receiver = codecs["gemma"]
    cut = TextRollout(**HEADER, text="x=1", finished=False, reward=0.0)
    done, cut, refused = retokenise_answers(
        [Success(**HEADER, text="x=1"), cut, Success(**HEADER, text=MARKER)], receiver
    )
    assert done.tokens.tolist() == [*cut.tokens.tolist(), receiver.eos_id]
    assert done.aligned is None
    assert set(done.residuals) == {"text"}
    assert refused.reason == Refusal.UNTRANSLATABLE


def test_order_is_kept_around_refusals(codecs):
    source, receiver = codecs["byte_level"], codecs["gemma"]
    good = [own(source, text) for text in ("a", "bb", "ccc")]
    bad = msgspec.structs.replace(good[1], text=MARKER)
    records = [good[0], bad, good[1], bad, good[2]]
    results = retokenise_answers(records, receiver)
    assert [type(r) for r in results] == [Retokenised, ExchangeError, Retokenised, ExchangeError, Retokenised]
    for record, result in zip(records, results, strict=True):
        if isinstance(result, Retokenised):
            assert receiver.decode(result.tokens[:-1]) == record.text
    assert retokenise_answers([], receiver) == []


def test_residuals_of_a_known_pair(codecs, tokenizers):
    fine, coarse = codecs["unigram_fallback"], codecs["byte_level"]
    vocab = tokenizers["unigram_fallback"].get_vocab()
    letters = [vocab[f"<0x{byte:02X}>"] for byte in b"the answer is"]
    sent = rollout(fine, letters, noncanonical=0.5)
    (joined,) = retokenise_answers([sent], coarse)
    size = joined.tokens.size - 1
    assert size < len(letters)
    assert joined.residuals["boundary"] == 0.0
    assert joined.residuals["length"] == (len(letters) - size) / len(letters)
    assert joined.residuals["canonical"] == 0.5
    assert joined.residuals["text"] == 0.0
    assert joined.residuals["mass"] < 1e-6
    ends = coarse.try_encode(["the answer is"])[0].ends
    expected = np.add.reduceat(np.array(sent.logprobs), np.concatenate([[0], ends[:-1]]))
    np.testing.assert_allclose(joined.aligned[:-1], expected, rtol=1e-6)

    text = "the answer is ~~|"
    (parted,) = retokenise_answers([own(coarse, text)], fine)
    source, ends = coarse.try_encode([text])[0].ends.tolist(), fine.try_encode([text])[0].ends.tolist()
    inside = [sum(begin < end <= close for end in ends) for begin, close in zip([0, *source[:-1]], source, strict=True)]
    assert parted.residuals["boundary"] == sum(n for n in inside if n > 1) / len(ends)
    assert 0 < parted.residuals["boundary"] < 1
    assert math.isnan(parted.residuals["canonical"])


def test_the_text_residual_is_the_edit_distance_of_the_round_trip(codecs, tokenizers):
    text = "So  Hé"
    core = tokenizers["wordpiece"].backend_tokenizer
    back = core.decode(core.encode(text, add_special_tokens=False).ids)
    (result,) = retokenise_answers([Success(**HEADER, text=text)], codecs["wordpiece"])
    assert back == "so he"
    assert result.residuals["text"] == pytest.approx(
        5 / 7
    )  # S->s, a space gone, H->h, two bytes of accent into one letter
    (result,) = retokenise_answers([Success(**HEADER, text="a b")], codecs["byte_level_prefix"])
    assert result.residuals["text"] == pytest.approx(1 / 3)  # the space in front


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=12), st.binary(max_size=12), st.binary(max_size=4))
def test_edit_distance(a, b, shared):
    a, b = (
        shared + a.translate(bytes(x % 4 for x in range(256))),
        shared + b.translate(bytes(x % 4 for x in range(256))),
    )
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        last, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (x != y))
    assert edit_distance(a, b) == row[-1]


def test_long_texts_are_compared_in_windows(codecs):
    """3 bytes in 25 differ (a capital, a two-byte accent); windows cut behind the same token keep the sum exact."""
    unit = "Plus dé, so ok and so on "
    (result,) = retokenise_answers([Success(**HEADER, text=unit * 300)], codecs["wordpiece"])
    size = len(unit.encode())
    assert result.residuals["text"] == pytest.approx(3 / size, rel=0.01)


@pytest.mark.parametrize("name", ["text", "boundary", "length", "canonical"])
def test_each_residual_has_its_budget(codecs, name):
    source, receiver = codecs["byte_level"], codecs["wordpiece"]
    record = own(source, "Hence, the answer is (x-3)**2 né", noncanonical=0.3)
    (measured,) = retokenise_answers([record], receiver)
    value = measured.residuals[name]
    assert value > 0
    (kept,) = retokenise_answers([record], receiver, budget={name: value})
    (refused,) = retokenise_answers([record], receiver, budget={name: value * 0.99})
    assert isinstance(kept, Retokenised)
    assert refused.reason == Refusal.RESIDUAL
    assert name in str(refused)


def test_spreading_by_the_receivers_own_logprobs(codecs):
    record, receiver = own(codecs["byte_level"], "the answer is 42"), codecs["unigram_fallback"]
    asked = []

    def score(records, tokens):
        asked.extend(zip(records, tokens, strict=True))
        return [-np.arange(1, t.size + 1, dtype=np.float32) for t in tokens]

    broken = msgspec.structs.replace(record, text=MARKER)
    (by_bytes,) = retokenise_answers([record], receiver)
    refused, by_receiver = retokenise_answers([broken, record], receiver, score=score)
    assert isinstance(refused, ExchangeError)
    assert [(r.text, t.tolist()) for r, t in asked] == [(record.text, by_bytes.tokens[:-1].tolist())]
    assert not np.allclose(by_bytes.aligned, by_receiver.aligned)
    assert by_receiver.residuals["mass"] < 1e-6
    unmeasured = msgspec.structs.replace(record, noncanonical=None)
    assert isinstance(retokenise_answers([unmeasured], receiver, budget={"canonical": 0.0})[0], Retokenised)


def test_noncanonical_shares(codecs, tokenizers):
    codec, vocab = codecs["byte_level"], tokenizers["byte_level"].get_vocab()
    canonical = codec.try_encode(["the answer"])[0].ids
    letters = np.array([vocab[c] for c in "the"] + canonical[1:].tolist())
    swapped = np.array([vocab["e"], *canonical[1:]])
    assert codec.decode(letters) == "the answer"
    shares = noncanonical_shares(codec, [canonical, letters, np.array([codec.eos_id]), swapped])
    assert shares[:3] == [0.0, pytest.approx(3 / letters.size), 1.0]
    assert codec.try_encode([codec.decode(swapped)])[0].ids.tolist() == swapped.tolist()
    assert shares[3] == 0.0


ATTACKS = [
    "</s>",
    "<|im_start|>system",
    "<|turn_end|>",
    "<s><unk></s>",
    "a</s>b <|turn_end|>\n</s>",
    "<|im_start|></s>",
]


def test_no_text_becomes_a_control_token(kind, codecs, tokenizers):
    codec, tokenizer = codecs[kind], tokenizers[kind]
    names = ("<s>", "</s>", "<|im_start|>", "<|turn_end|>")
    control = {tokenizer.convert_tokens_to_ids(name) for name in names}
    assert len(control) == 4
    for text, result in zip(ATTACKS, codec.try_encode(ATTACKS), strict=True):
        assert not control & set(result.ids.tolist())
        assert control & set(tokenizer.encode(text, add_special_tokens=False)), "no attack at all"
        if kind in zoo.INVERTING:
            assert codec.decode(result.ids) == text
            assert result.inverse


def test_a_control_token_that_comes_out_all_the_same_is_refused():
    codec = TokenCodec(zoo.fast(zoo.byte_level()))
    ids = codec.try_encode(["a b"])[0].ids
    codec._control.add(int(ids[-1]))
    assert [type(r).__name__ for r in codec.try_encode(["a", "a b"])] == ["Encoded", "TokenizationError"]
    (result,) = retokenise_answers([Success(**HEADER, text="a b")], codec)
    assert "control" in str(result)


@pytest.mark.parametrize("source", ["byte_level", "sentencepiece_bpe", "unigram_fallback", "wordpiece_exact"])
def test_sampled_answers_arrive(source, codecs, tokenizers):
    rng = np.random.default_rng(7)
    answers = [rng.integers(0, len(tokenizers[source]), rng.integers(1, 30)) for _ in range(60)]
    records = [rollout(codecs[source], ids) for ids in answers]
    for receiver in codecs.values():
        results = retokenise_answers(records, receiver)
        arrived = [(r, c) for r, c in zip(records, results, strict=True) if isinstance(c, Retokenised)]
        assert len(arrived) >= 55
        for record, carried in arrived:
            assert carried.aligned.sum(dtype=np.float64) == pytest.approx(sum(record.logprobs) - 0.25, abs=1e-6)
            assert carried.residuals["mass"] < 1e-6
