"""Reasoning marks map by meaning."""

from __future__ import annotations

import numpy as np
import pytest
import zoo
from test_carry import HEADER, own
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from harness.experience.records import Success
from harness.tokenization.alignment import cut_into_chunks, distribute_logprobs
from harness.tokenization.codec import REASONING_TAGS, ReasoningTags, TokenCodec
from harness.tokenization.retokenise import retokenise_answers

THOUGHT = "<think>\n7+5=12\n</think>\n\\boxed{12}"


def named(core: Tokenizer) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def thinker(*marks: str, build=zoo.byte_level) -> TokenCodec:
    core = build()
    core.add_tokens([AddedToken(mark, special=False) for mark in marks])
    return TokenCodec(named(core))


def test_between_equal_tokenizers_nothing_changes():
    source, receiver = (thinker("<think>", "</think>") for _ in range(2))
    sent = own(source, THOUGHT)
    (carried,) = retokenise_answers([sent], receiver)
    assert carried.tokens[:-1].tolist() == sent.tokens
    assert carried.aligned[:-1].tolist() == pytest.approx(sent.logprobs)
    assert (carried.residuals["boundary"], carried.residuals["text"], carried.spelled_tags) == (0.0, 0.0, 0)
    marks = {receiver._own.token_to_id(mark) for mark in ("<think>", "</think>")}
    assert marks <= set(carried.tokens.tolist())


def test_a_mark_becomes_the_receivers_own():
    source, receiver = thinker("<think>", "</think>"), thinker("[THINK]", "[/THINK]", build=zoo.gemma)
    own_marks = [receiver._own.token_to_id(mark) for mark in ("[THINK]", "[/THINK]")]
    text = f"é {THOUGHT} <think>x"
    sent = own(source, text)
    mass = sum(sent.logprobs)
    (carried,) = retokenise_answers([sent], receiver)
    assert [i for i in carried.tokens.tolist() if i in own_marks] == [own_marks[0], own_marks[1], own_marks[0]]
    assert carried.aligned[:-1].sum(dtype=np.float64) == pytest.approx(mass, abs=1e-6)
    assert (carried.residuals["text"], carried.spelled_tags) == (0.0, 0)
    (encoded,) = receiver.try_encode([text])
    assert encoded.ends[-1] == len(text.encode())
    assert (np.diff(encoded.ends, prepend=0) > 0).all()
    place = carried.tokens.tolist().index(own_marks[0])
    at = [source._own.token_to_id("<think>")]
    assert carried.aligned[place] == pytest.approx(sent.logprobs[sent.tokens.index(at[0])])


def test_who_has_no_mark_reads_letters_and_they_are_counted():
    receiver = thinker()
    (carried,) = retokenise_answers([Success(**HEADER, text=THOUGHT)], receiver)
    assert receiver.decode(carried.tokens[:-1]) == THOUGHT
    assert carried.spelled_tags == 2


def test_a_meaning_stands_in_one_row():
    spellings = [s for row in REASONING_TAGS for s in row]
    assert len(set(spellings)) == len(spellings)
    assert ReasoningTags(["</think>"]).translate("[/THINK]").text == "</think>"
    assert ReasoningTags(["</think>"]).translate("[THINK]").text == "[THINK]"


def ended_by_unknown(**named) -> TokenCodec:
    """Byte-level BPE without all bytes, whose unknown token is the end token: what some headers say."""
    vocab = {"<|end|>": 0, **{c: i + 1 for i, c in enumerate("abcdefgh ")}}
    core = Tokenizer(models.BPE(vocab, [], unk_token="<|end|>"))
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    core.add_special_tokens(["<|end|>"])
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<|end|>", **named)


@pytest.mark.parametrize("role", ["eos_token", "pad_token", "bos_token"])
def test_no_end_is_smuggled_as_what_is_unknown(role):
    codec = TokenCodec(ended_by_unknown(**{role: "<|end|>"}), stop=() if role == "eos_token" else (9,))
    results = codec.try_encode(["abc", "ab\x07c", "abd"])
    assert [getattr(r, "reason", "read") for r in results][:2] == ["read", "control"]
    assert 0 not in results[0].ids


def test_every_id_that_ends_an_answer_is_out_of_reach():
    codec, plain = (TokenCodec(zoo.fast(zoo.byte_level()), stop=stop) for stop in ((2, 70), ()))
    (ids,) = (e.ids for e in plain.try_encode([plain.decode([70])]))
    assert ids.tolist() == [70]
    (refused,) = codec.try_encode([plain.decode([70])])
    assert refused.reason == "control"


def test_joined_before_bytes_is_read_all_the_same():
    tokenizer = zoo.fast(zoo.byte_level())
    before = TokenCodec(tokenizer)
    texts = [text for text in zoo.texts(40) if before.try_encode([text])[0].__class__.__name__ == "Encoded"]
    core = zoo.byte_level()
    core.decoder = decoders.Sequence([decoders.Fuse(), decoders.ByteLevel()])
    after = TokenCodec(zoo.fast(core))
    for a, b in zip(before.try_encode(texts), after.try_encode(texts), strict=True):
        assert a.ids.tolist() == b.ids.tolist()
        assert a.ends.tolist() == b.ends.tolist()
    ids = [e.ids for e in after.try_encode(texts)]
    assert [d.text for d in after.read(ids)] == [core.decode(i.tolist()) for i in ids]


def test_mass_holds_where_the_receivers_log_probabilities_cancel():
    ends = np.array([2, 4, 6])
    for weights in ([2e-4, -2e-4 + 1e-12, 0.0], [-1e-9, 1e-9, -1e-13], [0.0, 0.0, 0.0]):
        aligned = distribute_logprobs(ends, cut_into_chunks(np.array([6]), ends), np.array([-7.25]), np.array(weights))
        assert abs(aligned.sum(dtype=np.float64) + 7.25) < 1e-6
        assert (aligned <= 0).all()
