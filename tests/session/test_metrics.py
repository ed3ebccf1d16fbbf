"""Every stored number of a step against its definition in `harness.store.rows`, computed from the hand-made step alone."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from harness.engines.protocol import Optimisation
from harness.exchange.exchange import Exchange
from harness.exchange.receiving import Received, Receiver
from harness.experience.answers import AnswerId
from harness.experience.records import Success
from harness.learning.terms import Objective, Term, TermAnswer
from harness.session.cell.step_rows import k3_divergence, step_row, term_rows, trace_rows
from harness.store.rows import ExchangeRow, StepRow, TermRow
from harness.suite.schema import Sharing
from harness.tokenization.codec import TokenCodec

from .hand_made import PROMPTS, STEP, TERMS, TOLD, HandMade, Told, hand_made, member_of

NAN = float("nan")
PHASES = ("generate", "verify", "exchange", "score", "train")


@pytest.fixture(scope="module")
def step(folders: dict[str, Path]) -> HandMade:
    return hand_made(folders["llama"], TokenCodec(AutoTokenizer.from_pretrained(folders["qwen"])))


@pytest.fixture(scope="module", autouse=True)
def row(step: HandMade) -> StepRow:
    s = step
    return step_row(s.learner, STEP, s.own, s.others, s.received, s.terms, s.report, kl_step=0.25, kl_base=0.5)


def moved(step: HandMade, told: Told) -> int:
    size = step.answer(told).counted
    return {"moves": size, "half": size // 2, "clipped": 0, "silent": 0}[told.becomes]


def clipped(step: HandMade, told: Told) -> int:
    size = step.answer(told).counted
    return {"moves": 0, "half": size - size // 2, "clipped": size, "silent": 0}[told.becomes]


def weights(step: HandMade, told: Told) -> list[float]:
    """The importance weights of an answer that takes part, one by one."""
    if told.becomes == "silent" or told.term == "kl":
        return []
    if told.term in ("hacpo", "imitation"):
        return [float(told.ratio)]  # type: ignore[arg-type]
    return np.resize(np.atleast_1d(told.ratio), step.answer(told).counted).tolist()


def of(*terms: str) -> list[Told]:
    return [t for t in TOLD if t.term in terms]


PEER = of("imitation", "graft", "hacpo")


def test_own_answers(step: HandMade, row: StepRow) -> None:
    answers = [a for g in step.own for a in g.answers]
    sizes = [a.tokens.size for a in answers]
    assert (row.policy, row.step, row.version) == ("a", STEP, 1)
    assert (row.right, row.wrong, row.invalid, row.truncated, row.answers, row.rollouts) == (3, 5, 4, 2, 12, 12)
    assert row.reward_mean == pytest.approx(3 / 8)
    assert row.generated_tokens == sum(sizes)
    assert row.answer_tokens_mean == pytest.approx(sum(sizes) / 12)
    surprise = [0.5 + 0.25 * i for g in step.own for i in range(len(g.answers))]
    texts = [a.text for a in answers]
    assert row.empty == sum(not text.strip() for text in texts)
    assert row.unboxed == sum(bool(text.strip()) and r"\boxed" not in text for text in texts)
    assert row.entropy == pytest.approx(np.average(surprise, weights=sizes), rel=1e-6)
    assert (row.prompts, row.prompts_all_wrong, row.prompts_rescued) == (5, 2, 1)


def test_used_means_a_nonzero_gradient_everywhere(step: HandMade, row: StepRow) -> None:
    expected = {(t.prompt, t.index) for t in PEER if t.becomes in ("moves", "half")}
    assert len(expected) == 8
    rows = step.ledger
    assert {(r.prompt_id, r.index) for r in rows if r.used} == expected
    assert row.peer_used == 8
    for report, name in zip(step.report.terms, TERMS, strict=True):
        assert report.moved == tuple(moved(step, t) for t in of(name)), name
    traces = trace_rows(step.learner, STEP, step.own, step.received)
    assert traces
    assert all(t.used and (t.prompt_id, t.index) in expected for t in traces)


def test_what_the_update_says_of_each_answer_is_what_autograd_says(step: HandMade) -> None:
    for told in TOLD:
        term = next(t for t in step.terms if t.name == told.term)
        alone = Term(term.name, term.source, term.objective, (step.answer(told),), weight=term.weight)
        report = step.learner.engine.update(list(PROMPTS.values()), [alone], Optimisation(learning_rate=0.0))
        assert (report.gradient_norm > 0) == (moved(step, told) > 0), told


def test_clipped_share(step: HandMade, row: StepRow) -> None:
    part = sum(step.answer(t).counted for t in PEER if t.becomes != "silent")
    assert row.clipped_share == pytest.approx(sum(clipped(step, t) for t in PEER) / part)
    assert 0.3 < row.clipped_share < 0.7


def test_importance_weights(step: HandMade, row: StepRow) -> None:
    r = np.array([w for t in PEER for w in weights(step, t)])
    assert row.weight_second_moment == pytest.approx((r**2).mean(), rel=1e-4)
    assert row.effective_sample_size == pytest.approx(r.sum() ** 2 / (len(r) * (r**2).sum()), rel=1e-4)
    assert row.effective_sample_size < 0.95


def test_peer_only_support(step: HandMade, row: StepRow) -> None:
    support = sum(moved(step, t) for t in PEER if t.support)
    trained = sum(moved(step, t) for t in TOLD if t.term != "kl")
    assert row.peer_only_support_share == pytest.approx(support / trained)
    assert 0.2 < row.peer_only_support_share < 0.8


def test_what_was_sent_and_refused(step: HandMade, row: StepRow) -> None:
    sent = 15 + 1 + 2 + 1 + 1 + 2 + 1  # told, untold, earlier, unheard of, too long, successes, value
    assert row.refused_share == pytest.approx(7 / (sent + 3))
    assert row.peer_received == sent - 2 - 1  # without stale and unheard of, which the exchange kept out, and the value
    let_in = [e for e in step.ledger if e.accepted or e.reason in ("too_long", "unverified")]
    assert row.exchanged_bytes == sum(e.bytes for e in let_in)
    accepted = [e for e in let_in if e.accepted and e.kind != "value"]
    assert row.exchanged_tokens == sum(e.receiver_tokens + 1 for e in accepted)  # with EOS


def test_update(step: HandMade, row: StepRow) -> None:
    report = step.report
    assert (row.updates, row.kl_step, row.kl_base) == (1, 0.25, 0.5)
    assert row.loss == pytest.approx(sum(t.loss for t in report.terms))
    assert (row.gradient_norm, row.own_gradient_norm) == (report.gradient_norm, report.own_gradient_norm)
    assert (row.peer_gradient_norm, row.own_peer_cosine) == (report.peer_gradient_norm, report.own_peer_cosine)
    through = 0
    for source in ("own", "peer"):
        live = [t for t in TOLD if TERMS[t.term][0] == source and t.becomes != "silent"]
        through += sum(step.answer(t).tokens.size for t in live)
        through += sum(len(step.learner.engine.tokenizer.encode(PROMPTS[p].text)) for p in {t.prompt for t in live})
    assert row.trained_tokens == through
    for phase in PHASES:
        assert getattr(row, f"{phase}_seconds") == pytest.approx(step.learner.clock.cpu(phase), nan_ok=True)
    assert row.exchange_seconds > 0
    assert np.isnan(row.generate_seconds)


def test_gradients_apart(folders: dict[str, Path]) -> None:
    learner = member_of(folders["llama"])
    engine, eos = learner.engine, learner.engine.tokenizer.eos_token_id
    tokens = {"own": [*engine.tokenizer.encode("12"), eos], "peer": [*engine.tokenizer.encode("71"), eos]}
    prompt = PROMPTS["solved"]
    ids = engine.tokenizer.encode(prompt.text)
    gradients = {}
    for source, answer in tokens.items():
        logits = engine.model(torch.tensor([ids + answer])).logits[0, len(ids) - 1 : -1]
        logits[:, engine.tokenizer.pad_token_id] = float("-inf")
        logp = logits.log_softmax(-1)[torch.arange(len(answer)), torch.tensor(answer)]
        # The token average is over both answers' tokens; imitation's is over the answer's own, and over one prompt.
        loss = -2.0 * logp.sum() / len(answer) if source == "own" else -0.1 * logp.mean()
        by_parameter = torch.autograd.grad(loss, list(engine.model.parameters()))
        gradients[source] = torch.cat([g.flatten() for g in by_parameter]).double()
    own, peer = gradients["own"], gradients["peer"]
    one = TermAnswer(prompt.id, np.array(tokens["own"], np.int32), 2.0)
    other = TermAnswer(prompt.id, np.array(tokens["peer"], np.int32), 1.0, origin=AnswerId("b", prompt.id, 0))
    terms = [
        Term("own", "own", Objective(), (one,)),
        Term("imitation", "peer", Objective(form="nll", aggregation="prompt"), (other,), weight=0.1),
    ]
    report = engine.update([prompt], terms, Optimisation(learning_rate=0.0, measure=True))
    assert report.own_gradient_norm == pytest.approx(float(own.norm()), rel=1e-3)
    assert report.peer_gradient_norm == pytest.approx(float(peer.norm()), rel=1e-3)
    assert report.own_peer_cosine == pytest.approx(float(own @ peer / own.norm() / peer.norm()), abs=1e-3)
    assert report.gradient_norm == pytest.approx(float((own + peer).norm()), rel=1e-3)
    assert [t.gradient_norm for t in report.terms] == [report.own_gradient_norm, report.peer_gradient_norm]


def losses(step: HandMade) -> dict[str, float]:
    """Each term's loss by ALGORITHMS' formulas, one update: a sum over tokens or answers divided by its normaliser."""
    counted = {t: step.answer(t).counted for t in TOLD}
    tokens = sum(counted[t] for t in of("own", "graft"))
    sums = dict.fromkeys(TERMS, 0.0)
    for told in TOLD:
        ratios = np.resize(np.atleast_1d(told.ratio), counted[told])
        weight = told.weight * TERMS[told.term][2]
        match told.term:
            case "own" | "graft":
                value = np.minimum(ratios * told.advantage, np.clip(ratios, 0.8, 1.28) * told.advantage).sum() / tokens
            case "hacpo":
                value = np.clip(told.ratio, 0.8, 1.0) ** 2 * told.advantage / len(of("hacpo"))
            case "kl":
                value = -(1 / ratios - 1 + np.log(ratios)).sum() / sum(counted[t] for t in of("kl"))
            case "imitation":
                answer = step.answer(told)
                (scores,) = step.learner.engine.score([PROMPTS[told.prompt]], [answer.tokens])
                value = scores.mean() / len({t.prompt for t in TOLD})
        sums[told.term] -= weight * float(value)
    return sums


def test_terms(step: HandMade) -> None:
    expected = losses(step)
    rows = {r.name: r for r in term_rows("a", STEP, step.report)}
    assert list(rows) == list(TERMS)
    for name, row in rows.items():
        told = of(name)
        r = [w for t in told for w in weights(step, t)]
        assert (row.policy, row.step, row.source) == ("a", STEP, TERMS[name][0])
        assert row.answers == len(told)
        assert row.active == sum(moved(step, t) > 0 for t in told)
        assert row.tokens == sum(step.answer(t).counted for t in told)
        assert row.active_tokens == sum(moved(step, t) for t in told)
        assert row.clipped_tokens == sum(clipped(step, t) for t in told)
        assert row.loss == pytest.approx(expected[name], rel=1e-4)
        assert row.ratios == len(r)
        assert row.ratio_mean == pytest.approx(np.mean(r) if r else NAN, rel=1e-4, nan_ok=True)
        assert row.ratio_second == pytest.approx(np.mean(np.square(r)) if r else NAN, rel=1e-4, nan_ok=True)
        assert np.isnan(row.gradient_norm), "others share its source"
    assert set(TermRow.__struct_fields__) == {
        "policy", "step", "name", "source", "answers", "active", "tokens", "active_tokens", "clipped_tokens", "loss", "ratios",
        "ratio_mean", "ratio_second", "gradient_norm",
    }, "a new column needs its definition here"  # fmt: skip


def test_exchanges(step: HandMade) -> None:
    rows = step.ledger
    assert all((r.step, r.receiver) == (STEP, "a") for r in rows)
    reasons = {r.reason: r for r in rows if not r.accepted}
    assert len(reasons) == sum(not r.accepted for r in rows) == 7
    described = {
        reason: (r.author, r.kind, r.prompt_id, r.index, r.made, r.version, r.messages) for reason, r in reasons.items()
    }
    malformed = next(reason for reason in reasons if reasons[reason].messages == 2)
    assert described == {
        "stale": ("b", "rollout", "earlier", 1, STEP - 2, 3, 1),
        "unknown_prompt": ("b", "rollout", "unheard of", 0, STEP, 4, 1),
        "duplicate": ("b", "rollout", "failed", 0, STEP, 4, 1),
        "too_long": ("b", "rollout", "undecided", 1, STEP, 4, 1),
        "unverified": ("b", "success", "hopeless", 8, STEP, 4, 1),
        malformed: ("b", "", "", 0, -1, 0, 2),
        "late": ("c", "", "", 0, -1, 0, 0),
    }
    assert reasons[malformed].bytes == len(b"garbage" + b"more garbage")
    assert reasons["duplicate"].bytes == next(r.bytes for r in rows if r.accepted and r.prompt_id == "failed") > 0
    kinds = [r.kind for r in rows if r.accepted]
    assert (kinds.count("rollout"), kinds.count("success"), kinds.count("value")) == (17, 1, 1)
    late = next(r for r in rows if r.accepted and r.prompt_id == "earlier")
    assert (late.made, late.version, late.used) == (STEP - 1, 3, True)
    assert not any(r.used for r in rows if not r.accepted or r.kind == "value")


def test_lengths_verdicts_and_residuals_of_exchanges(step: HandMade, folders: dict[str, Path]) -> None:
    lengths = [len(AutoTokenizer.from_pretrained(folders[f]).encode(r"\boxed{5}")) for f in ("qwen", "llama")]
    for row in step.ledger:
        if row.accepted and row.kind == "rollout":
            assert row.verdict == ("wrong" if row.prompt_id == "undecided" else "right")
            assert [row.source_tokens, row.receiver_tokens] == lengths
            assert row.residual_text == 0.0
            assert row.residual_length == pytest.approx(abs(lengths[1] - lengths[0]) / lengths[0])
            assert row.residual_mass == pytest.approx(0.0, abs=1e-5)
            assert 0 <= row.residual_boundary <= 1
            assert np.isnan(row.residual_canonical), "nobody measured it"
        elif row.kind == "value":
            assert (row.verdict, row.source_tokens, row.receiver_tokens) == ("", 0, 0)
            assert np.isnan(row.residual_text)
    verdicts = {r.reason: r.verdict for r in step.ledger if not r.accepted}
    assert (verdicts["unverified"], verdicts["too_long"], verdicts["stale"]) == ("wrong", "", "")
    assert {r.marks_spelled for r in step.ledger} == {0}


def test_marks_that_the_receiver_reads_as_letters_are_counted(step: HandMade) -> None:
    entry = ExchangeRow(step=STEP, author="b", receiver="a", kind="success")
    record = Success(author="b", version=3, step=STEP, prompt_id="failed", index=0, text="<think>5</think> \\boxed{5}")
    nobody = Exchange(("a",), ())
    kept = Receiver(nobody, Sharing(), lambda *_: [], longest=99).carry([(record, entry)], step.learner, PROMPTS)
    assert len(kept) == 1
    assert entry.marks_spelled == 2


def test_without_peers_nothing_is_measured_of_them(step: HandMade) -> None:
    report = step.learner.engine.update(list(PROMPTS.values()), step.terms[:1], Optimisation(learning_rate=0.0))
    row = step_row(step.learner, STEP, step.own, [], Received(), step.terms[:1], report, NAN, NAN)
    absent = [row.weight_second_moment, row.effective_sample_size, row.clipped_share, row.refused_share]
    assert np.isnan(absent).all()
    assert (row.peer_received, row.peer_used, row.prompts_rescued, row.peer_only_support_share) == (0, 0, 0, 0.0)


def test_divergence_per_token() -> None:
    old = [np.log(np.array([0.5, 0.25], np.float32)), np.log(np.array([0.8], np.float32))]
    new = [np.log(np.array([0.25, 0.5], np.float32)), np.log(np.array([0.8], np.float32))]
    by_hand = [0.5 - 1 - np.log(0.5), 2 - 1 - np.log(2.0), 0.0]
    assert k3_divergence(old, new) == pytest.approx(np.mean(by_hand), rel=1e-6)
    assert np.isnan(k3_divergence([np.zeros(0)], [np.zeros(0)]))
    assert np.isnan(k3_divergence([], []))


COMPARED_IN = {
    "sampler_drift": "test_cells",
    "sampler_drift_p99": "test_cells",
    "sampler_drift_outside": "test_cells",
    "hinted_prompts": "test_scores_and_hints",
    "hinted_answers": "test_scores_and_hints",
    "hinted_right": "test_scores_and_hints",
}
"""Columns of a step that the hand-made one has nothing of, and the module beside this one that compares them."""


def test_every_column_is_compared_with_its_definition() -> None:
    """A column that nobody fills has its default in every row, and no other test would miss its value."""

    def read_source(module: str) -> str:
        return Path(__file__).with_name(f"{module}.py").read_text("utf-8")

    tree = ast.parse(read_source("test_metrics"))
    here = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    here |= {f"{phase}_seconds" for phase in PHASES}
    assert [column for column, module in COMPARED_IN.items() if column not in read_source(module)] == []
    for row in (StepRow, ExchangeRow):
        assert set(row.__struct_fields__) - here - COMPARED_IN.keys() == set(), "a new column needs its definition here"
