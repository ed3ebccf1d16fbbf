"""Peers' answers begin and end as the reader's own; log-probabilities and bytes go along."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harness.engines.embedded.families import build_tokenizer
from harness.exchange import opening
from harness.exchange.exchange import Exchange
from harness.exchange.receiving import Receiver
from harness.experience.answers import Answer, Group, PeerAnswer, Prompt
from harness.experience.records import Draft, Rollout, TextRollout
from harness.session.cell.learners import Clock
from harness.suite.schema import Sharing, edges_of
from harness.tokenization.codec import TokenCodec
from harness.verification.verdict import Verdict

NAMES = ("me", "you")
RIGHT = Verdict("right")
ENGINE: Any = SimpleNamespace(reads=lambda prompt: prompt.text)


@pytest.fixture(scope="module")
def codecs() -> dict[str, TokenCodec]:
    return {family: TokenCodec(build_tokenizer(family)) for family in ("llama", "qwen")}


def group(codec: TokenCodec, *texts: str) -> Group:
    encoded = [np.append(codec.try_encode([text])[0].ids, np.int32(codec.eos_id)) for text in texts]
    answers = [
        Answer(ids, np.zeros(ids.size, np.float32), t, True, RIGHT) for ids, t in zip(encoded, texts, strict=True)
    ]
    return Group(Prompt("x", "Q: 1\nA:", "92"), "me", 0, 5, tuple(answers))


@pytest.mark.parametrize(
    ("texts", "space"),
    [
        ((" 1", "2", " 3"), " "),
        (("1", "\n\n2", "\n\n3"), "\n\n"),
        ((" 1", "2"), ""),  # of equally many the shortest
        (("\t1", " 2", "   "), "\t"),
        ((" ", "\n"), None),
    ],
)
def test_the_space_is_that_of_most_own_answers(
    codecs: dict[str, TokenCodec], texts: tuple[str, ...], space: str
) -> None:
    assert opening.usual_opening([group(codecs["llama"], *texts)]) == space


@pytest.mark.parametrize(
    ("text", "pieces", "by", "opened", "moved"),
    [
        (" 8 + 9", [1, 1, 4], "", "8 + 9", [0, 1, 4]),
        (" 8 + 9", [2, 4], "", "8 + 9", [1, 4]),
        ("8 + 9", [1, 4], " ", " 8 + 9", [2, 4]),
        ("\n \u00a08", [1, 2, 1, 1], " ", " 8", [1, 0, 0, 1]),
        ("\n8", [1, 1], "\n", "\n8", [1, 1]),
        ("  ", [2], "", "  ", [2]),
        (" 8", [2], None, " 8", [2]),
    ],
)
def test_bytes_of_the_tokens_go_along(
    text: str, pieces: list[int], by: str | None, opened: str, moved: list[int]
) -> None:
    record = Rollout(
        author="you", version=0, step=5, prompt_id="x", index=0, text=text, tokens=[0] * len(pieces),
        logprobs=[-1.0] * len(pieces), pieces=pieces, finished=True, reward=1.0,
    )  # fmt: skip
    result = opening.open_with(record, by)
    assert isinstance(result, Rollout)
    assert (result.text, result.pieces) == (opened, moved)
    result.check()
    back = opening.as_sent([len(opened.encode())], text, by)
    assert sum(back) == len(text.encode())


def received(codecs: dict[str, TokenCodec], record: Rollout | TextRollout, own: Group, way: str) -> PeerAnswer:
    exchange = Exchange(NAMES, edges_of(NAMES, "all"), kinds=frozenset({type(record)}), max_staleness=0)
    exchange._gates["me"].open(4, ["x"])
    exchange.publish("you", 5, [record])
    receiver = Receiver(exchange, Sharing(opening=way), lambda golds, *_: [RIGHT] * len(golds), longest=99)
    learner: Any = SimpleNamespace(name="me", codec=codecs["llama"], engine=ENGINE, clock=Clock())
    (answer,) = receiver.collect(learner, 5, [own.prompt], own=[own]).inbox.answers["x"]
    return answer


@pytest.mark.parametrize("way", ["receiver", "as_sent"])
def test_a_peers_answer_begins_as_ones_own(codecs: dict[str, TokenCodec], way: str) -> None:
    """Whatever an older suite says of it."""
    own, text = group(codecs["llama"], " 12", " 13", "4"), "12+34=46. \\boxed{46}"
    encoded = codecs["qwen"].try_encode([text])[0]
    sizes = np.diff(encoded.ends, prepend=0)
    header: dict[str, Any] = {"author": "you", "version": 3, "step": 5, "prompt_id": "x", "index": 0, "finished": True}
    rollout = Rollout(
        **header,
        text=text,
        tokens=encoded.ids.tolist(),
        logprobs=(-0.1 * sizes).tolist(),
        pieces=sizes.tolist(),
        reward=1.0,
    )
    for record in (rollout, TextRollout(**header, text=text, reward=1.0)):
        answer = received(codecs, record, own, way)
        assert codecs["llama"].decode(answer.tokens).startswith(" 12")
        assert answer.text == text, "as its author wrote it"
        if answer.aligned is not None:
            assert answer.aligned.sum() == pytest.approx(-0.1 * len(text), abs=1e-5)
            assert answer.aligned.size == answer.tokens.size


@pytest.mark.parametrize("sent", ["12+34=46", " 12+34=46"])
def test_scores_of_a_draft_have_the_bytes_that_its_author_sent(codecs: dict[str, TokenCodec], sent: str) -> None:
    asks = Exchange(NAMES, edges_of(NAMES, "all"), kinds=frozenset({Draft}), max_staleness=0)
    asks._gates["you"].open(4, ["x"])
    asks.publish("me", 5, [Draft(author="me", version=3, step=5, prompt_id="x", text=sent, index=0, finished=True)])
    read: list[str] = []

    def score(_: Any, tokens: list[np.ndarray]) -> list[np.ndarray]:
        read.extend(codecs["qwen"].decode(t) for t in tokens)
        return [np.zeros(t.size, dtype=np.float32) for t in tokens]

    engine = SimpleNamespace(version=8, score=score, reads=ENGINE.reads)
    learner: Any = SimpleNamespace(name="you", codec=codecs["qwen"], engine=engine, clock=Clock())
    receiver = Receiver(asks, Sharing(), lambda *_: [], longest=999, asks=asks)
    own = group(codecs["qwen"], "7", "8", " 9")
    (scores,) = receiver.scores(learner, 5, [own.prompt], [own])
    assert read == ["12+34=46"]
    assert sum(scores.pieces) == len(sent)
    assert len(scores.pieces) == len(scores.logprobs)


def test_a_suite_without_the_setting_keeps_its_keys() -> None:
    assert "opening" not in Sharing().model_dump(mode="json")
    assert Sharing(opening="receiver").model_dump(mode="json")["opening"] == "receiver"
