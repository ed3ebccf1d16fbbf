"""Votes of maj@k and of RLCCF: two answers are one where the task's scorer says so."""

from __future__ import annotations

import numpy as np
import pytest

from harness.evaluation.metrics import EvaluationSample, MetricSpec, summarise_samples, votes_of
from harness.experience.answers import Answer, Group, Inbox, PeerAnswer, Prompt
from harness.learning.regime import Context
from harness.learning.registry import build
from harness.verification import catalogue
from harness.verification.catalogue import same_by, scorer_called, scorer_of
from harness.verification.scorer import Math, Score, Scorer, beginning_of, digest_if_long
from harness.verification.verdict import KEPT, Verdict
from harness.verification.verifier import Verifier

LONG = "\n".join(f"    y = {i}" for i in range(80))
PROGRAM = f"```python\ndef f(x):\n{LONG}\n    return {{}}\n```"


def sampled(scorer: str, gold: str, texts: list[str]) -> list[EvaluationSample]:
    with Verifier(workers=1) as verifier:
        verdicts = verifier.by(scorer_called(scorer)).verify([(gold, text) for text in texts])
    return [
        EvaluationSample(
            task="t", mode="sampled", document="d", repeat=i, prompt="?", text=text, gold=gold, verdict=verdict, tokens=3,
            finished=True, scorer=scorer,
        )
        for i, (text, verdict) in enumerate(zip(texts, verdicts, strict=True))
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("scorer", "gold", "texts", "expected"),
    [
        ("math", "0.5", [r"\boxed{1/2}", r"\boxed{0.5}", r"\boxed{2}", ""], [0, 0, 2, -1]),
        ("exact", "Paris, France", ["Paris, France", "France, Paris", "Paris,  France", "1/2", "0.5"], [0, 1, 0, 3, 4]),
        ("choice", "B", ["(b).", r"\boxed{B}", r"\boxed{A}"], [0, 0, 2]),
        ("qwen_grader", "1/2", ["so 0.5", r"\boxed{\frac12}", r"\boxed{50\%}", r"\boxed{2}"], [0, 0, 0, 3]),
        ("python", "assert f(1) == 1", [PROGRAM.format(i) for i in ("x", "x + 1", "x")], [0, 1, 0]),
    ],
)
def test_votes_are_told_apart_by_the_tasks_scorer(
    scorer: str, gold: str, texts: list[str], expected: list[int]
) -> None:
    """Programs that differ behind their first half thousand characters are two."""
    assert votes_of(sampled(scorer, gold, texts)) == expected


def test_the_majority_of_long_programs_is_not_that_of_their_beginnings() -> None:
    wrong = [PROGRAM.format(f"x + {i}") for i in (1, 2)]
    samples = sampled("python", "assert f(1) == 1", [*wrong, PROGRAM.format("x"), PROGRAM.format("x")])
    assert summarise_samples("t", [MetricSpec.parse("maj@4")], samples)[0].value == 1.0


def learnt(scorer: str, own: list[str], peers: list[str]) -> list[float]:
    tokens = np.array([1, 0], dtype=np.int32)

    def read(text: str) -> Verdict:
        return Verdict("wrong", extracted=text)

    answers = tuple(Answer(tokens.copy(), np.zeros(2, np.float32), "t", True, read(text)) for text in own)
    sent = tuple(PeerAnswer("p1", 0, 1, "x", i, tokens, "t", True, read(text)) for i, text in enumerate(peers))
    group = Group(Prompt("x", "x", "?"), "p0", 0, 1, answers)
    context = Context("p0", ("p0", "p1"), 1, np.random.default_rng(0), 9, same=same_by(scorer))
    (term,) = build("rlccf", {}).learn([group], Inbox({"x": sent}), context)
    return [float(answer.advantage) for answer in term.answers]


def test_rlccf_gives_no_vote_for_another_text_where_text_is_what_counts() -> None:
    own, peers = ["Paris, France", "France, Paris"], ["France, Paris", "France, Paris"]
    exact, mathematics = learnt("exact", own, peers), learnt("math", own, peers)
    assert exact[0] < 0 < exact[1]
    assert mathematics == [0.0, 0.0], "as a set of two things both are one answer, and nothing is learnt"


def test_what_is_kept_of_a_long_answer_is_told_apart_by_all_of_it() -> None:
    one, other = "x" * 600, "x" * 599 + "y"
    assert digest_if_long("x" * KEPT) == "x" * KEPT
    assert digest_if_long(one) != digest_if_long(other)
    assert len(digest_if_long(one)) == KEPT
    assert one.startswith(beginning_of(digest_if_long(one)))
    assert beginning_of("short") == "short"


class Earlier(Scorer):
    """Made before `judge` had its name"""

    def score(self, gold: str, text: str) -> Score:
        return Score(gold == text, text)


class Later(Scorer):
    """Defines `judge` alone"""

    def judge(self, text: str, gold: str) -> Score:
        return Score(gold == text, text)


class Neither(Scorer):
    """Decides nothing"""


def test_scorers_of_both_kinds_answer_to_both_names() -> None:
    for scorer in (Earlier(), Later(), scorer_of("exact")):
        assert scorer.judge("b", "a").right is scorer.score("a", "b").right is False
        assert scorer.judge("a", "a") == scorer.score("a", "a") == Score(True, "a")
        assert scorer.same("a", "a")
        assert not scorer.same("a", "b")
    with pytest.raises(TypeError, match=r"Neither defines no judge\(text, gold\)"):
        Neither()


class Raises(Later):
    """Whose votes fail"""

    def same(self, a: str, b: str) -> bool:
        raise KeyError(a)


def test_a_scorer_whose_votes_fail_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "scorer_of", lambda name: Raises())
    same = same_by("raises")
    assert same("a", "a")
    assert not same("a", "b")
    monkeypatch.undo()
    assert same_by("lm_eval")("1/2", "1/2")
    assert not same_by("lm_eval")("1/2", "0.5")


def test_long_mathematics_votes_by_all_of_its_text():
    shared = " + ".join(f"x_{{{i}}}" for i in range(200))
    with Verifier() as verifier:
        one, other = verifier.verify([("1", f"\\boxed{{{shared} + 1}}"), ("1", f"\\boxed{{{shared} + 2}}")])
    assert one.extracted != other.extracted
    assert not Math().same(one.extracted, other.extracted)
    assert Math().same(one.extracted, one.extracted)
