"""Peers' scores on the way: to their reader alone, onto the sampled tokens by bytes, refused where they cannot be of the answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harness.engines.embedded.families import build_tokenizer
from harness.errors import ExchangeError
from harness.exchange.exchange import Exchange, Quotas
from harness.exchange.misbehaviour import Lying, Noisy, Sender
from harness.exchange.receiving import Received, Receiver
from harness.experience.answers import Answer, Group, Inbox, Prompt
from harness.experience.records import Draft, Refusal, Scores, decode_record, encode_record
from harness.learning.regime import Context
from harness.learning.registry import build
from harness.session.cell.learners import Clock
from harness.suite.schema import Sharing, edges_of
from harness.tokenization.codec import TokenCodec
from harness.verification.verdict import Verdict

NAMES = ("me", "you", "she")
TEXTS = [" 12+34=46, 46*2=92. \\boxed{92}", " \\boxed{7}", " never", "", " 5 pens"]


@pytest.fixture(scope="module")
def codecs() -> dict[str, TokenCodec]:
    return {family: TokenCodec(build_tokenizer(family)) for family in ("llama", "qwen")}


def per_byte(text: str) -> np.ndarray:
    """A conditional distribution over bytes: its log-probability of each."""
    return -0.05 - np.array([byte % 7 for byte in text.encode()]) / 10


def sums(codec: TokenCodec, text: str) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Tokens, log-probabilities under that distribution, and bytes of each token."""
    encoded = codec.try_encode([text])[0]
    ends = np.concatenate([[0], encoded.ends])
    total = np.concatenate([[0.0], np.cumsum(per_byte(text))])
    return encoded.ids, np.diff(total[ends]).astype(np.float32), np.diff(ends).tolist()


def own_group(codec: TokenCodec) -> Group:
    answers = []
    for i, text in enumerate(TEXTS):
        ids, logprobs, _ = sums(codec, text) if text else (np.zeros(0, np.int32), np.zeros(0, np.float32), [])
        tokens = np.append(ids, np.int32(codec.eos_id))
        verdict = Verdict("invalid", "timeout") if i == 4 else Verdict("right" if i < 2 else "wrong")
        answers.append(Answer(tokens, np.append(logprobs, np.float32(-0.3)), text, True, verdict))
    return Group(Prompt("x", "Q: 1\nA:", "92"), "me", 0, 5, tuple(answers))


def scores(codec: TokenCodec, which: int, **changes: Any) -> Scores:
    _, logprobs, pieces = sums(codec, TEXTS[which] or " x")
    fields: dict[str, Any] = {
        "author": "you", "version": 3, "step": 5, "prompt_id": "x", "reader": "me", "index": which,
        "logprobs": logprobs.tolist(), "pieces": pieces, "eos_logprob": -0.3,
    }  # fmt: skip
    return Scores(**{**fields, **changes})


def received(codecs: dict[str, TokenCodec], *records: Scores, **sharing: Any) -> tuple[Received, Exchange]:
    """What `me` (llama's tokens) makes of what `you` (qwen's) sends."""
    exchange = Exchange(NAMES, edges_of(NAMES, "all"), kinds=frozenset({Scores}), max_staleness=sharing.get("stale", 0))
    exchange._gates["me"].open(4, ["x"])
    exchange.publish("you", 5, records)
    limits = {k: v for k, v in sharing.items() if k != "stale"}
    receiver = Receiver(exchange, Sharing(**limits), lambda *_: [], longest=999)
    learner: Any = SimpleNamespace(name="me", codec=codecs["llama"], engine=None, clock=Clock())
    group = own_group(codecs["llama"])
    return receiver.collect(learner, 5, [group.prompt], own=[group]), exchange


def test_the_same_distribution_over_bytes_differs_within_chunks_only(codecs: dict[str, TokenCodec]) -> None:
    """Exact fact: another tokenizer, the same conditional distribution over bytes: the sum over an answer is that of its own
    log-probabilities, and CoPD's advantages sum to zero."""
    result, _ = received(codecs, *(scores(codecs["qwen"], i) for i in (0, 1, 2)))
    group = own_group(codecs["llama"])
    assert [s.index for s in result.inbox.scores["x"]] == [0, 1, 2]
    for placed in result.inbox.scores["x"]:
        own = group.answers[placed.index]
        assert placed.aligned.shape == own.tokens.shape
        assert placed.aligned.sum(dtype=np.float64) == pytest.approx(own.logprobs.sum(dtype=np.float64), abs=1e-5)
        assert placed.aligned[-1] == own.logprobs[-1], "EOS by meaning"
        assert placed.source_tokens == len(sums(codecs["qwen"], own.text)[1])
    context = Context("me", NAMES, 5, np.random.default_rng(0), 99)
    (term,) = build("copd", {"ratio": 0.0}).learn([group], Inbox(scores=result.inbox.scores), context)
    assert [float(np.sum(a.advantage)) for a in term.answers] == pytest.approx([0.0] * 3, abs=1e-5)
    assert any(np.abs(a.advantage).max() > 1e-3 for a in term.answers), "the tokenizers do differ within chunks"
    assert all(e.residual_boundary is not None and e.residual_mass < 1e-5 for _, e in result.scored)


def test_a_draft_gets_eos_by_whether_it_was_finished(codecs: dict[str, TokenCodec]) -> None:
    """A peer's log-probabilities of the text's tokens, its last one of EOS, and 0 for EOS of an answer that was cut off."""
    kinds = frozenset({Draft})
    asks = Exchange(NAMES, edges_of(NAMES, "all"), kinds=kinds, max_staleness=0)
    asks._gates["you"].open(4, ["x"])
    about = {"author": "me", "version": 3, "step": 5, "prompt_id": "x", "text": TEXTS[0]}
    asks.publish("me", 5, [Draft(**about, index=i, finished=i == 0) for i in range(2)])

    def score(_: Any, tokens: list[np.ndarray]) -> list[np.ndarray]:
        return [-np.arange(1, t.size + 1, dtype=np.float32) for t in tokens]

    engine = SimpleNamespace(version=8, score=score, reads=lambda prompt: prompt.text)
    learner: Any = SimpleNamespace(name="you", codec=codecs["qwen"], engine=engine, clock=Clock())
    receiver = Receiver(asks, Sharing(), lambda *_: [], longest=999, asks=asks)
    finished, cut = receiver.scores(learner, 5, [own_group(codecs["qwen"]).prompt])
    size = len(sums(codecs["qwen"], TEXTS[0])[1])
    assert finished.logprobs == cut.logprobs == [-float(i) for i in range(1, size + 1)]
    assert (finished.eos_logprob, cut.eos_logprob) == (-size - 1.0, 0.0)


def test_what_cannot_be_of_the_answer_is_refused(codecs: dict[str, TokenCodec]) -> None:
    """Another's, another text's, of an answer that was not sent (invalid, empty, absent), of an earlier step."""
    other = codecs["qwen"]
    bad = {
        "reader": scores(other, 0, reader="she"),
        "text": scores(other, 1, pieces=scores(other, 0).pieces, logprobs=scores(other, 0).logprobs),
        "invalid": scores(other, 4),
        "empty": scores(other, 3, logprobs=[-1.0], pieces=[0]),
        "absent": scores(other, 0, index=9),
    }
    for what, record in bad.items():
        result, exchange = received(codecs, record)
        assert not result.inbox.scores, what
        if what != "reader":  # which is not even sent here
            assert [row.reason for row in exchange.ledger if row.author == "you"] == [Refusal.INCONSISTENT], what
    result, exchange = received(codecs, scores(other, 0, step=4), stale=1)
    assert not result.inbox.scores
    assert [row.reason for row in exchange.ledger if row.author == "you"] == [Refusal.STALE]


def test_budgets_are_those_of_rollouts(codecs: dict[str, TokenCodec]) -> None:
    result, exchange = received(codecs, scores(codecs["qwen"], 0), max_boundary_residual=0.0)
    (row,) = [row for row in exchange.ledger if row.author == "you"]
    assert (row.reason, bool(result.inbox.scores)) == (Refusal.RESIDUAL, False)
    assert row.residual_boundary > 0


def test_only_the_reader_gets_them(codecs: dict[str, TokenCodec]) -> None:
    exchange = Exchange(NAMES, edges_of(NAMES, "all"), kinds=frozenset({Scores}), quotas=Quotas.fitting(1, 4, 40))
    both = [scores(codecs["qwen"], 0), scores(codecs["qwen"], 1, reader="she")]
    exchange.publish("you", 5, both)
    assert exchange.collect("me", 5, ["x"]).records == (both[0],)
    assert exchange.collect("she", 5, ["x"]).records == (both[1],)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"pieces": [1]}, "inconsistent"), ({"eos_logprob": 0.5}, "not_logprob"), ({"eos_logprob": float("nan")}, "not_finite"),
        ({"logprobs": [], "pieces": []}, "wrong_type"), ({"eos_logprob": -1e9}, "not_finite"), ({"index": -1}, "wrong_type"),
    ],
)  # fmt: skip
def test_hostile_numbers(codecs: dict[str, TokenCodec], changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ExchangeError) as refused:
        decode_record(encode_record(scores(codecs["qwen"], 0, **changes)), kinds=frozenset({Scores}))
    assert refused.value.reason == reason


def test_a_liar_finds_a_share_certain_and_nobody_else_does(codecs: dict[str, TokenCodec]) -> None:
    honest = [scores(codecs["qwen"], i % 3, index=i) for i in range(200)]
    for share in (1.0, 0.3):
        told = Sender(Lying(share=share), 7).scored(1, honest)
        certain = [s for s in told if set(s.logprobs) == {0.0} and s.eos_logprob == 0.0]
        assert len(certain) / 200 == pytest.approx(share, abs=0.1)
        assert [s for s in told if s not in certain] == [
            h for h, s in zip(honest, told, strict=True) if s not in certain
        ]
        assert told == Sender(Lying(share=share), 7).scored(1, honest)
    assert Sender(Noisy(share=0.5), 7).scored(1, honest) == honest
