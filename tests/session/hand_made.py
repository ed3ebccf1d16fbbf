"""One step made by hand."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from harness.engines.embedded.engine import EmbeddedEngine
from harness.engines.protocol import Optimisation, UpdateReport
from harness.exchange.exchange import Exchange
from harness.exchange.receiving import Received, Receiver
from harness.experience.answers import Answer, Group, PeerAnswer, Prompt
from harness.experience.records import GroupValue, Record, Rollout, Success, encode_record
from harness.learning.regime import Need
from harness.learning.terms import Objective, Term, TermAnswer
from harness.session.cell.judge import Judge
from harness.session.cell.learners import Learner, verdicts_of_answers
from harness.session.cell.step_rows import mark_used
from harness.store.rows import ExchangeRow
from harness.suite.schema import Defences, Policy, Sharing, edges_of
from harness.tokenization.codec import TokenCodec
from harness.verification.verdict import Verdict
from harness.verification.verifier import Verifier
from regimes.graft import GRAFT

STEP = 5
RIGHT, WRONG = r"\boxed{5}", r"\boxed{6}"
PROMPTS = {name: Prompt(name, text, "5") for name, text in (
    ("solved", "2+3="), ("failed", "1+4="), ("hopeless", "11-6="), ("undecided", "3+2="), ("easy", "4+1="), ("earlier", "9-4="),
)}  # fmt: skip
NOW = [p for name, p in PROMPTS.items() if name != "earlier"]

TOKEN = Objective("token", "ppo", 0.8, 1.28)
CROSS = Objective("cross", "hard", 0.8, 1.0, exponent=1.0, log_bound=10.0, aggregation="answer")
IMITATION = Objective(form="nll", aggregation="prompt")
KL = Objective(form="kl")


@dataclass(frozen=True)
class Told:
    """One answer of a term, and what must become of it. ratio: of all its tokens, or of even and odd ones."""

    term: str
    prompt: str
    index: int
    advantage: float
    weight: float
    ratio: float | tuple[float, float]
    becomes: str
    """`moves`, `clipped`, `half` (the even tokens are clipped, the odd ones move) or `silent` (takes no part)."""
    support: bool = False
    """Made likelier on a prompt without any own success."""


TERMS = {
    "own": ("own", TOKEN, 1.0, 0),
    "kl": ("own", KL, 0.01, 0),
    "imitation": ("peer", IMITATION, 0.1, 0),
    "graft": ("peer", TOKEN, 1.0, 1),
    "hacpo": ("peer", CROSS, 1.0, 1),
}
TOLD = (
    Told("own", "solved", 0, 1.0, 1.0, 1.0, "moves"),
    Told("own", "solved", 1, -1.0, 1.0, 1.0, "moves"),
    Told("own", "solved", 3, -1.0, 1.0, 1.5, "moves"),  # outside, on the side where a negative advantage is not clipped
    Told("own", "failed", 0, 0.0, 1.0, 1.0, "silent"),
    Told("own", "failed", 1, 0.0, 1.0, 1.0, "silent"),
    Told("own", "hopeless", 0, 0.0, 1.0, 1.0, "silent"),
    Told("own", "easy", 0, 1.0, 1.0, 1.5, "clipped"),
    Told("own", "easy", 1, 1.0, 0.0, 1.0, "silent"),
    Told("kl", "solved", 0, 1.0, 1.0, 1.1, "moves"),
    Told("kl", "failed", 1, 1.0, 1.0, 0.9, "moves"),
    Told("imitation", "failed", 7, 1.0, 1.0, 1.0, "moves", support=True),
    Told("graft", "failed", 0, 1.0, 0.0, 1.0, "silent"),  # GRAFT: not compatible enough
    Told("graft", "failed", 1, 1.0, 0.9, 1.0, "moves", support=True),
    Told("graft", "failed", 2, -1.0, 0.9, 1.0, "moves"),
    Told("graft", "failed", 3, 1.0, 0.9, 1.5, "clipped"),
    Told("graft", "failed", 4, 2.0, 0.5, (1.5, 1.0), "half", support=True),
    Told("graft", "solved", 0, 0.0, 1.0, 1.5, "silent"),
    Told("graft", "solved", 1, 1.0, 1.0, 0.5, "moves"),
    Told("graft", "solved", 2, -1.0, 1.0, 0.5, "clipped"),
    Told("graft", "earlier", 0, 1.0, 1.0, 1.0, "moves"),  # stale, and on a prompt of which this step says nothing
    Told("hacpo", "hopeless", 0, 1.0, 1.2, 0.9, "moves", support=True),
    Told("hacpo", "hopeless", 1, 1.0, 1.2, 0.5, "clipped"),  # outside HACPO's window
    Told("hacpo", "hopeless", 2, 1.0, 1.2, 1.2, "clipped"),
    Told("hacpo", "hopeless", 3, -1.0, 1.2, 0.5, "clipped"),
    Told("hacpo", "hopeless", 4, 0.0, 1.2, 0.9, "silent"),
    Told("hacpo", "hopeless", 5, 1.0, 0.0, 0.9, "silent"),
    Told("hacpo", "hopeless", 6, 1.0, -1.0, 0.9, "moves"),  # made less likely
)  # fmt: skip


@dataclass(frozen=True)
class HandMade:
    """The step before its update, and after."""

    learner: Learner
    own: list[Group]
    others: list[list[Group]]
    received: Received
    terms: list[Term]
    report: UpdateReport
    ledger: list[ExchangeRow]

    def answer(self, told: Told) -> TermAnswer:
        term = next(t for t in self.terms if t.name == told.term)
        return term.answers[[t for t in TOLD if t.term == told.term].index(told)]


def member_of(folder: Path) -> Learner:
    engine = EmbeddedEngine("a", folder, device="cpu")
    return Learner(Policy(name="a", model=str(folder)), engine, GRAFT(), 4, folder)


def hand_made(folder: Path, peer_codec: TokenCodec, updates: int = 1) -> HandMade:
    """The step, through exchange, THL, verifier and update. The learning rate is 0: ratios stay what they were made."""
    learner = member_of(folder)
    own, others = _groups(learner)
    exchange = Exchange(
        ("a", "b", "c"), edges_of(("a", "b", "c"), [("b", "a"), ("c", "a")]), max_staleness=1, defences=Defences()
    )
    exchange.collect("a", STEP - 1, [PROMPTS["earlier"].id])
    exchange.ledger.clear()
    messages = [encode_record(r) for r in _records(peer_codec)]
    exchange.post("b", STEP, [*messages, messages[0], b"garbage", b"more garbage"])
    verifier = Verifier(workers=1)
    try:
        scored = Need.RECEIVER_OLD in learner.regime.needs
        receiver = Receiver(
            exchange, Sharing(max_staleness=1), partial(verdicts_of_answers, Judge(verifier)), longest=40, scored=scored
        )
        received = receiver.collect(learner, STEP, NOW, [PROMPTS["earlier"]])
    finally:
        verifier.close()
    terms = _terms(learner, own, received)
    optimisation = Optimisation(learning_rate=0.0, updates=updates, measure=updates == 1)
    report = learner.engine.update(list(PROMPTS.values()), terms, optimisation)
    mark_used(received, terms, report.terms)
    return HandMade(learner, own, others, received, terms, report, exchange.ledger)


def _groups(learner: Learner) -> tuple[list[Group], list[list[Group]]]:
    def group(policy: str, name: str, *said: str) -> Group:
        return Group(PROMPTS[name], policy, 0, STEP, tuple(_answer(learner, i, word) for i, word in enumerate(said)))

    own = [
        group("a", "solved", "right", "wrong", "invalid", "truncated"),
        group("a", "failed", "wrong", "truncated"),
        group("a", "hopeless", "wrong", "invalid"),
        group("a", "undecided", "invalid", "invalid"),
        group("a", "easy", "right", "right"),
    ]
    others = [group("b", "solved", "right"), group("b", "failed", "wrong", "right"), group("b", "hopeless", "wrong")]
    return own, [others]


def _answer(learner: Learner, index: int, said: str) -> Answer:
    text = ("12+" * (index + 1)) + (RIGHT if said == "right" else WRONG)
    ids = learner.engine.tokenizer.encode(text)
    tokens = np.array(ids + ([] if said == "truncated" else [learner.engine.tokenizer.eos_token_id]), np.int32)
    logprobs = np.full(tokens.size, -0.5 - 0.25 * index, np.float32)
    verdict = Verdict("wrong", "truncated") if said == "truncated" else Verdict(said, "by hand")  # type: ignore[arg-type]
    return Answer(tokens, logprobs, text, said != "truncated", verdict)


def _records(codec: TokenCodec) -> list[Record]:
    header = {"author": "b", "version": 4, "step": STEP}

    def rollout(name: str, index: int, text: str = RIGHT, **other: object) -> Rollout:
        ids = codec.try_encode([text])[0].ids
        pieces = codec.read([ids])[0].pieces.tolist()
        fields = {"step": STEP, "version": 4, "author": "b", **other}
        return Rollout(
            prompt_id=PROMPTS[name].id if name in PROMPTS else name, index=index, text=text, tokens=ids.tolist(),
            logprobs=[-0.1] * len(ids), pieces=pieces, finished=True, eos_logprob=-0.1, reward=1.0, **fields,  # type: ignore[arg-type]
        )  # fmt: skip

    told = [rollout(t.prompt, t.index) for t in TOLD if t.term in ("graft", "hacpo") and t.prompt != "earlier"]
    return [
        *told,
        rollout("undecided", 0, WRONG),  # accepted, and no term names it
        rollout("earlier", 0, step=STEP - 1, version=3),
        rollout("earlier", 1, step=STEP - 2, version=3),  # too old
        rollout("unheard of", 0),
        rollout("undecided", 1, "12+" * 40 + RIGHT),  # too long
        Success(prompt_id="failed", index=7, text=RIGHT, **header),  # type: ignore[arg-type]
        Success(prompt_id="hopeless", index=8, text=WRONG, **header),  # type: ignore[arg-type]
        GroupValue(prompt_id="solved", count=4, right=2, **header),  # type: ignore[arg-type]
    ]


def _terms(learner: Learner, own: list[Group], received: Received) -> list[Term]:
    inbox = received.inbox
    peers = {
        (a.prompt_id, a.index): a
        for box in (inbox.answers, inbox.successes)
        for of_author in box.values()
        for a in of_author
    }
    mine = {(g.prompt.id, i): a for g in own for i, a in enumerate(g.answers)}
    terms = []
    for name, (source, objective, weight, order) in TERMS.items():
        answers = []
        for told in (t for t in TOLD if t.term == name):
            answer: Answer | PeerAnswer = (mine if source == "own" else peers)[told.prompt, told.index]
            answers.append(_term_answer(learner, told, answer, objective))
        terms.append(Term(name, source, objective, tuple(answers), weight=weight, order=order))  # type: ignore[arg-type]
    return terms


def _term_answer(learner: Learner, told: Told, answer: Answer | PeerAnswer, objective: Objective) -> TermAnswer:
    (scores,) = learner.engine.score([PROMPTS[told.prompt]], [answer.tokens])
    mask = None
    ratios = np.resize(np.atleast_1d(told.ratio), scores.size)
    denominator: np.ndarray | float | None = (scores - np.log(ratios)).astype(np.float32)
    if objective.ratio == "cross":
        mask = np.arange(scores.size) < scores.size - 1  # without EOS
        denominator = float(scores[mask].mean(dtype=np.float64) - np.log(told.ratio))
    elif objective.form == "nll":
        denominator = None
    origin = answer.id if isinstance(answer, PeerAnswer) else None
    return TermAnswer(told.prompt, answer.tokens, told.advantage, denominator, told.weight, mask, origin=origin)
