"""What a policy's own answers cost it, carried as a peer's would be; and what its prompts and its model have no room for."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import yaml

sys.path.append(str(Path(__file__).resolve().parents[1] / "engines"))

import models
from models import SUMS, TURNS, byte_level, teach, with_blank, write

from harness.engines.embedded.engine import EmbeddedEngine
from harness.engines.protocol import Optimisation, Sampling
from harness.exchange import opening
from harness.exchange.exchange import Exchange
from harness.exchange.receiving import Received, Receiver, _score_behind
from harness.experience.answers import Answer, Group, PeerAnswer, Prompt
from harness.experience.records import Rollout, TextRollout
from harness.learning import registry
from harness.learning.advantages import peer_answer
from harness.learning.terms import OLD, Objective, Term, TermAnswer
from harness.phases import Interrupted
from harness.session.cell.carried import FREE, measure_price, said_of
from harness.session.cell.cell import read_behind_leads, run_cell
from harness.session.cell.learners import Learner
from harness.session.suite.draft_text import Findings, write_draft
from harness.session.suite.draft_trial import WARM_WHY, try_starts
from harness.session.suite.prepare import prepare_named
from harness.store.journal import read_journal
from harness.store.manifest import CarriedPrice, read_manifest
from harness.suite.schema import Policy, Sharing, Suite, edges_of
from harness.tokenization.retokenise import retokenise_answers
from harness.verification.verdict import Verdict

PROMPTS = [Prompt(f"q{i}", question, gold) for i, (question, gold) in enumerate(SUMS[:6])]
LINE_END = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
THOUGHT = TURNS.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")


def learner_of(folder: Path, chat: bool, ends_are_one: bool = True) -> Learner:
    policy = Policy(name="p", model=str(folder), chat=chat)
    engine = EmbeddedEngine("p", folder, chat=chat, device="cpu", dtype="fp32", ends_are_one=ends_are_one)
    return Learner(policy, engine, registry.build("naive", {}), 4, folder)


def chat_model(place: Path, end: str = "<|done|>", template: str = TURNS, **said: Any) -> Path:
    """Answers `\\boxed{n}` and ends with `end`."""
    folder = write(place, byte_level(words=["<think>", "</think>"]), template, eos_token="<|eos|>", **said)
    tokenizer = EmbeddedEngine("p", folder, chat=True).tokenizer
    encode, last = tokenizer.encode, tokenizer.convert_tokens_to_ids(end)

    def head(question: str) -> list[int]:
        turn = [{"role": "user", "content": question}]
        text = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
        return list(encode(text, add_special_tokens=False))

    teach(folder, head, lambda gold: [*encode(f"\\boxed{{{gold}}}", add_special_tokens=False), last])
    return folder


def blank_model(place: Path, template: str | None, with_blank_first: bool) -> Path:
    """Of SentencePiece's kind; answers begin with its blank or without."""
    core = with_blank()
    folder = write(place, core, template, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    engine = EmbeddedEngine("p", folder, chat=template is not None)

    def answer(gold: str) -> list[int]:
        ids = engine.tokenizer.encode(f"\\boxed{{{gold}}}", add_special_tokens=False)
        text = f"\n\\boxed{{{gold}}}"
        line = engine.tokenizer.encode("\n", add_special_tokens=False)
        joined = engine.tokenizer.encode(text, add_special_tokens=False)[len(line) :]
        return [*(ids if with_blank_first else joined), engine.stop[0]]

    def head(question: str) -> list[int]:
        return engine._vocabulary.encode(Prompt("q", question, ""))

    teach(folder, head, answer)
    return folder


@pytest.mark.parametrize(
    "said",
    [{"ends": ["<|done|>"]}, {}, {"ends": ["<|eos|>"]}, {"listed": ["<|eos|>", "<|done|>"]}],
    ids=["named", "nowhere", "another", "in config.json"],
)
def test_a_chat_model_pays_nothing_wherever_its_end_is_named(tmp_path, said):
    price = measure_price(learner_of(chat_model(tmp_path, **said), chat=True), PROMPTS, 16)
    assert (price.answers, price.finished, price.compared) == (6, 6, 6)
    assert abs(price.nats) <= FREE
    assert said_of("p", price) == ""


@pytest.mark.parametrize("template", [LINE_END, None])
@pytest.mark.parametrize("blank", [True, False])
def test_a_tokenizers_own_blank_is_put_where_the_policy_puts_it(tmp_path, template, blank):
    learner = learner_of(blank_model(tmp_path, template, blank), chat=template is not None)
    assert learner.codec.puts_blank
    price = measure_price(learner, PROMPTS, 20)
    assert price.compared == 6
    assert abs(price.nats) <= FREE
    # the other way is dear: the rule is not idle
    texts = [f"\\boxed{{{prompt.gold}}}" for prompt in PROMPTS]
    costs = []
    for joined in (False, True):
        ids = [
            np.append(one.ids, learner.codec.closing).astype(np.int32)
            for one in learner.codec.try_encode(texts, joined)
        ]
        costs.append(-np.mean([score.sum() for score in learner.engine.score(PROMPTS, ids)]))
    assert costs[blank] - costs[not blank] > 3


def test_another_end_than_most_own_answers_is_named(tmp_path, monkeypatch):
    learner = learner_of(chat_model(tmp_path, ends=["<|done|>"]), chat=True, ends_are_one=False)
    learner.codec.closing = (learner.engine.tokenizer.convert_tokens_to_ids("<|eos|>"),)
    assert abs(measure_price(learner, PROMPTS, 16).nats) <= FREE, "own answers show their end"
    monkeypatch.setattr(opening, "usual_closing", lambda own: ())
    price = measure_price(learner, PROMPTS, 16)
    assert price.nats > 2
    words = said_of("p", price)
    assert words.startswith(f"p: pays {price.nats:.2f} nats for its own greedy answers")
    assert "it ends them with <|done|>, a carried one ends with <|eos|>" in words
    as_one = learner_of(learner.base, chat=True)
    as_one.codec.closing = learner.codec.closing
    price = measure_price(as_one, PROMPTS, 16)
    assert abs(price.nats) <= FREE, "which of its ends a policy writes costs nothing"
    assert price.why == "", "and is no difference: a rehearsal would name it"


def test_a_policy_that_never_ends_is_named():
    words = said_of("p", CarriedPrice(answers=8, finished=0, compared=0, noncanonical=0, nats=0.0))
    assert words.startswith("p: none of its 8 greedy answers ended")
    assert "generation_config.json" in words


def sent(learner: Learner, *records: Any) -> tuple[list[Any], Any]:
    """What a learner makes of a peer's records, and their rows."""
    receiver, rows = receiver_of(learner, records)
    return receiver.carry(list(zip(records, rows, strict=True)), learner, {"q0": PROMPTS[0]}), rows


def receiver_of(learner: Learner, records: Sequence[Any]) -> tuple[Receiver, list[Any]]:
    """What carries a peer's records to a learner, and their rows."""
    asked = list(dict.fromkeys(record.prompt_id for record in records))
    exchange = Exchange(("p", "you"), edges_of(("p", "you"), "all"), kinds=frozenset({TextRollout}), max_staleness=0)
    exchange._gates["p"].open(0, asked)
    exchange.publish("you", 1, records)
    collected = exchange.collect("p", 1, asked)
    assert list(collected.records) == list(records)
    return Receiver(exchange, Sharing(), lambda *_: [], longest=64), list(collected.entries)


def text_of(words: str, index: int = 0) -> TextRollout:
    return TextRollout(
        author="you", version=0, step=1, prompt_id="q0", index=index, text=words, finished=True, reward=1.0
    )


def test_an_open_thought_is_closed_before_an_answer_that_closes_none(tmp_path):
    learner = learner_of(chat_model(tmp_path, template=THOUGHT), chat=True)
    kept, rows = sent(learner, text_of("\\boxed{4}"), text_of("2 and 2</think>\\boxed{4}", 1))
    assert [row.reason for row in rows] == ["", ""]
    mark = learner.engine.tokenizer.convert_tokens_to_ids("</think>")
    assert [result.lead for _, result, _ in kept] == [(mark,), ()]
    assert mark not in kept[0][1].tokens
    assert mark in kept[1][1].tokens


def test_what_a_tokenizer_cannot_close_is_refused(tmp_path, monkeypatch):
    learner = learner_of(chat_model(tmp_path, template=THOUGHT), chat=True)
    monkeypatch.setattr(type(learner.codec), "closing_of_thought", lambda self, prompt: ())
    kept, rows = sent(learner, text_of("\\boxed{4}"), text_of("2 and 2</think>\\boxed{4}", 1))
    assert [row.reason for row in rows] == ["open_thought", ""]
    assert [record.index for record, *_ in kept] == [1]


def thinker(place: Path, between: str) -> Learner:
    """Of a model whose prompts open a thought: it closes that at once, and writes `between` before its answer."""
    folder = write(place, byte_level(words=["<think>", "</think>"]), THOUGHT, ends=["<|done|>"], eos_token="<|eos|>")
    engine = EmbeddedEngine("p", folder, chat=True)
    mark, end = engine.tokenizer.convert_tokens_to_ids(["</think>", "<|done|>"])

    def answer(gold: str) -> list[int]:
        return [mark, *engine.tokenizer.encode(f"{between}\\boxed{{{gold}}}", add_special_tokens=False), end]

    teach(folder, lambda question: engine._vocabulary.encode(Prompt("q", question, "")), answer)
    return learner_of(folder, chat=True)


@pytest.mark.parametrize("between", ["", "\n\n"])
def test_behind_a_closed_thought_a_peers_answer_costs_what_the_own_one_costs(tmp_path, between):
    """Its closing mark is the prompt's: it is read and costs nothing. What the policy writes behind it comes before the text."""
    learner = thinker(tmp_path, between)
    seeds = np.zeros((len(PROMPTS), 1), np.uint64)
    samples = [row[0] for row in learner.engine.sample(PROMPTS, seeds, Sampling(0.0, 24))]
    assert all(sample.finished and "</think>" in sample.text for sample in samples)
    own = [
        Group(prompt, "p", 0, 1, (Answer(sample.tokens, sample.logprobs, sample.text, True, Verdict("right")),))
        for prompt, sample in zip(PROMPTS, samples, strict=True)
    ]
    told = [sample.text.partition("</think>")[2].lstrip() for sample in samples]
    records = [
        TextRollout.about(group, index=0, text=text, finished=True, reward=1.0)
        for group, text in zip(own, told, strict=True)
    ]
    records = [msgspec.structs.replace(record, author="you") for record in records]
    receiver, rows = receiver_of(learner, records)
    carried = receiver.carry(list(zip(records, rows, strict=True)), learner, {p.id: p for p in PROMPTS}, own)
    assert [row.reason for row in rows] == [""] * len(PROMPTS)
    assert [list(result.lead) + result.tokens.tolist() for _, result, _ in carried] == [
        s.tokens.tolist() for s in samples
    ]
    scores = learner.engine.score(PROMPTS, [sample.tokens for sample in samples])
    theirs = _score_behind(
        [result.lead for _, result, _ in carried], learner.engine, PROMPTS, [result.tokens for _, result, _ in carried]
    )
    for score, other in zip(scores, theirs, strict=True):
        assert other == pytest.approx(score[1:], abs=1e-5)
    # as before the mark was put there, it would be dear
    bare = learner.engine.score(PROMPTS, [result.tokens for _, result, _ in carried])
    assert np.mean([other.sum() - alone.sum() for other, alone in zip(theirs, bare, strict=True)]) > 2


def test_what_closes_a_thought_is_read_and_not_learnt(tmp_path):
    learner = thinker(tmp_path, "")
    mark = learner.engine.tokenizer.convert_tokens_to_ids("</think>")
    ids = np.array(learner.engine.tokenizer.encode("\\boxed{4}", add_special_tokens=False), np.int32)
    peer = PeerAnswer(
        author="you", version=0, step=1, prompt_id="q0", index=0, tokens=ids, text="\\boxed{4}", finished=False,
        verdict=Verdict("right"), lead=(mark,),
    )  # fmt: skip
    received = Received(learnable=[(peer, None)])
    term = Term("peer", "peer", Objective(form="nll"), (peer_answer(peer, 1.0, None),))
    (answer,) = read_behind_leads(term, received).answers
    assert answer.tokens.tolist() == [mark, *ids.tolist()]
    assert answer.mask.tolist() == [False] + [True] * ids.size
    assert answer.counted == ids.size
    report = learner.engine.update(PROMPTS[:1], [replace(term, answers=(answer,))], Optimisation())
    assert (report.terms[0].tokens, report.terms[0].active_tokens) == (ids.size, ids.size)
    expected = -learner_of(learner.base, chat=True).engine.score(PROMPTS[:1], [answer.tokens])[0][1:].mean()
    assert report.terms[0].loss == pytest.approx(expected, rel=1e-5)


def test_values_by_token_move_with_what_is_read_first():
    answer = TermAnswer(
        "q",
        np.arange(3, dtype=np.int32),
        np.arange(3, dtype=np.float32),
        -np.ones(3, np.float32),
        mask=np.arange(3) != 1,
    )
    behind = answer.read_behind([7, 8])
    assert behind.tokens.tolist() == [7, 8, 0, 1, 2]
    assert behind.advantage.tolist() == [0, 0, 0, 1, 2]
    assert behind.denominator.tolist() == [0, 0, -1, -1, -1]
    assert behind.mask.tolist() == [False, False, True, False, True]
    assert behind.tokens.dtype == np.int32
    plain = TermAnswer("q", np.arange(3, dtype=np.int32), 0.5, OLD).read_behind([7])
    assert (plain.advantage, plain.denominator, plain.counted) == (0.5, OLD, 3)


def test_an_answer_beyond_the_models_positions_is_too_long(tmp_path):
    learner = learner_of(chat_model(tmp_path, positions=40), chat=True)
    kept, rows = sent(learner, text_of("\\boxed{4}"), text_of("1 2 3 4 5 6 7 8 9 " * 3 + "\\boxed{4}", 1))
    assert [row.reason for row in rows] == ["", "too_long"]
    assert [record.index for record, *_ in kept] == [0]


def test_two_closing_tokens_are_carried_and_are_one_action(tmp_path):
    template = TURNS.replace("<|done|>", "<|said|><|done|>")
    core = byte_level([*models.SPECIAL, "<|said|>"])
    folder = write(tmp_path, core, template, ends=["<|done|>"], eos_token="<|eos|>")
    learner = learner_of(folder, chat=True)
    assert learner.engine.tokenizer.convert_ids_to_tokens(list(learner.closing)) == ["<|said|>", "<|done|>"]
    text = "\\boxed{4}"
    ids = learner.codec.try_encode([text])[0].ids
    tokens = np.append(ids, learner.closing).astype(np.int32)
    logprobs = -np.arange(1, tokens.size + 1, dtype=np.float32)
    own = Answer(tokens, logprobs, text, True, Verdict("right"), ending=learner.ending(tokens))
    group = Group(PROMPTS[0], "p", 0, 1, (own,))
    (record,) = Rollout.of(group, learner.pieces([group]))
    record.check()
    assert record.tokens == ids.tolist()
    assert record.eos_logprob == pytest.approx(logprobs[-2:].sum())
    (carried,) = retokenise_answers([record], learner.codec)
    assert carried.tokens.tolist() == tokens.tolist()
    assert carried.aligned.sum() == pytest.approx(logprobs.sum())
    assert carried.aligned[-2] == carried.aligned[-1]


def days(monkeypatch: pytest.MonkeyPatch, day: str) -> None:
    """Have the clock say this day to what freezes it."""

    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime.fromisoformat(f"{day}T12:00:00").replace(tzinfo=tz or UTC)

    monkeypatch.setattr("harness.session.cell.manifests.datetime", Clock)


def test_a_resumed_cell_keeps_its_day_and_its_prices(tmp_path, verifier, monkeypatch):
    chat_model(tmp_path / "dated", template="<|turn|>system {{ strftime_now('%d.%m.%Y') }}<|done|>" + TURNS)
    blank_model(tmp_path / "plain", None, with_blank_first=True)
    rows = [{"question": q, "answer": a, "split": "test" if i % 4 else "train"} for i, (q, a) in enumerate(SUMS)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sums = {"file": "sums.jsonl"}
    policies = [
        {"name": "dated", "model": "./dated", "chat": True, "style": "raw"},
        {"name": "plain", "model": "./plain", "style": "raw"},
    ]
    suite = {
        "groups": [{"name": "pair", "policies": policies}], "regimes": ["naive"], "baseline": "naive", "seeds": [1],
        "training": {"task": sums, "steps": 2, "prompts": 2, "rollouts": 2, "max_new_tokens": 16, "checkpoint_every": 1},
        "evaluation": {"tasks": [sums], "k": 0, "limit": 2, "max_new_tokens": 16, "curve_every": 0},
    }  # fmt: skip
    (tmp_path / "x.yaml").write_text(json.dumps(suite))
    prepared = prepare_named(str(tmp_path / "x.yaml"), tmp_path / "results")
    cell = prepared.cells[0]
    folder = prepared.folder / cell.key

    def run(stop: bool) -> None:
        run_cell(cell, folder, verifier, lambda *_: None, lambda: stop)

    days(monkeypatch, "2026-01-30")
    with pytest.raises(Interrupted):
        run(True)
    first = read_manifest(folder)
    days(monkeypatch, "2026-02-02")
    run(False)
    manifest = read_manifest(folder)
    assert manifest.state == "done"
    assert [(p.name, p.date) for p in manifest.policies] == [("dated", "2026-01-30"), ("plain", "")]
    assert manifest.carried == first.carried
    assert {name: abs(price.nats) <= FREE for name, price in manifest.carried.items()} == {"dated": True, "plain": True}
    rows = read_journal(folder).tables["samples"].to_pylist()
    asked = {row["prompt"] for row in rows if row["policy"] == "dated"}
    assert asked
    assert all("30.01.2026" in prompt for prompt in asked)


def test_a_start_that_a_suite_proposes_is_tried_first(tmp_path, monkeypatch):
    """Two models of a few thousand parameters learn no sums in two dozen steps."""
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    folders = [str(chat_model(tmp_path / name)) for name in ("one", "two")]
    proposed = Findings("ladder.add2", warm=("one", "two"), why=(f"one and two: {WARM_WHY}", "Kept."))
    suite = Suite.model_validate(yaml.safe_load(write_draft(folders, "ladder", "pair", proposed)))
    found = try_starts(proposed, suite, str(tmp_path / "pair.yaml"))
    assert found.warm == ()
    assert found.why[0] == "Kept."
    assert [words.partition(":")[0] for words in found.why[1:]] == [
        f"{name} cannot learn this here" for name in ("one", "two")
    ]
    assert (
        "stage0"
        not in write_draft(folders, "ladder", "pair", found).partition("regimes:")[0].partition("policies:\n")[2]
    )
