"""avg@k, best@k and maj@k against enumeration; invalid answers count nowhere."""

from __future__ import annotations

import itertools
import math

import msgspec
import pytest

from harness.errors import UsageError
from harness.evaluation.metrics import (
    EvaluationSample,
    MetricSpec,
    Mode,
    judge_pairs,
    pass_at_k,
    rescore_samples,
    summarise_samples,
    votes_of,
)
from harness.evaluation.run import metric_names
from harness.verification.verdict import RIGHT_AS_IT_STANDS, Verdict
from harness.verification.verifier import Verifier


def sample(
    document: str, repeat: int, text: str, value: str, mode: Mode = "sampled", gold: str = "5"
) -> EvaluationSample:
    verdict = Verdict(value, "", text)  # type: ignore[arg-type]
    return EvaluationSample(
        task="t", mode=mode, document=document, repeat=repeat, prompt="?", text=text, gold=gold, verdict=verdict, tokens=3,
        finished=True,
    )  # fmt: skip


@pytest.mark.parametrize(("n", "right", "k"), [(5, 2, 3), (4, 0, 2), (4, 4, 1), (6, 1, 6), (8, 3, 4)])
def test_best_at_k_is_the_share_of_subsets_with_a_right_answer(n: int, right: int, k: int) -> None:
    subsets = list(itertools.combinations(range(n), k))
    share = sum(any(index < right for index in subset) for subset in subsets) / len(subsets)
    assert pass_at_k(n, right, k) == pytest.approx(share)


def test_by_hand() -> None:
    samples = [
        *[sample("a", i, text, "right" if text == "5" else "wrong") for i, text in enumerate(["5", "7", "5.0", "7", "5"])],
        *[sample("b", i, text, "wrong") for i, text in enumerate(["1", "2", "3", "4", "6"])],
        sample("c", 0, "9", "invalid"), sample("c", 1, "5", "right"), sample("c", 2, "9", "invalid"),
        *[sample("d", i, "x", "invalid") for i in range(3)],
        sample("a", 0, "7", "wrong", "greedy"), sample("b", 0, "5", "right", "greedy"),
    ]  # fmt: skip
    names = ["greedy", "avg@5", "avg@2", "best@2", "maj@5", "maj@1"]
    metrics = {m.name: m for m in summarise_samples("t", [MetricSpec.parse(name) for name in names], samples)}
    assert metrics["greedy"].value == 0.5
    assert metrics["avg@5"].value == pytest.approx((2 / 5 + 0 + 1) / 3)
    assert (metrics["avg@5"].documents, metrics["avg@5"].samples, metrics["avg@5"].invalid) == (3, 16, 5)
    assert metrics["avg@2"].value == pytest.approx((1 / 2 + 0 + 1) / 3)
    assert metrics["best@2"].value == pytest.approx((pass_at_k(5, 2, 2) + 0 + 1) / 3)
    assert metrics["maj@5"].value == pytest.approx((1 + 0 + 1) / 3), "5, 5.0 and 5 are one answer with three votes"
    assert metrics["maj@1"].value == pytest.approx((1 + 0 + 0) / 2), (
        "the first answer to c is invalid, so c is left out"
    )
    nothing = summarise_samples("t", [MetricSpec.parse("avg@2")], [sample("d", i, "x", "invalid") for i in range(2)])[0]
    assert (math.isnan(nothing.value), nothing.documents) == (True, 0)


@pytest.mark.parametrize("name", ["acc", "avg@0", "avg@", "best@1.5", "maj@99999"])
def test_unknown_metrics_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="none of greedy"):
        MetricSpec.parse(name)


def test_names_from_a_suite() -> None:
    assert metric_names(True, 4) == ["greedy", "avg@4", "best@4", "maj@4"]
    assert metric_names(False, 1) == ["avg@1"]
    assert metric_names(True, 0) == ["greedy"]


def test_rescoring_gives_the_changed_decisions() -> None:
    stored = [
        sample("a", 0, r"\boxed{5}", "wrong"),
        sample("a", 1, r"\boxed{5.0}", "right"),
        sample("b", 0, r"\boxed{40+2}", "right", gold="42"),
        sample("c", 0, r"\boxed{\frac{2x}{2}}", "invalid", gold="x"),
    ]
    with Verifier(workers=1) as verifier:
        changes = [(c.document, c.before.value, c.after.value) for c in rescore_samples(stored, verifier)]
    assert changes == [("a", "wrong", "right"), ("b", "right", "wrong"), ("c", "invalid", "right")]


CUT = r"So it is \boxed{5}, and I check this once more, as"


def test_an_answer_that_was_cut_off_is_wrong_and_no_vote_whatever_stands_in_it() -> None:
    """As in training and curves; its reason says what it would be as it stands."""
    pairs, ends = [("5", CUT), ("5", CUT), ("5", "So it is"), ("5", CUT), ("5", "")], [True, None, False, False, False]
    with Verifier(workers=1) as verifier:
        verdicts = judge_pairs(verifier, pairs, ends)
    assert [verdict.value for verdict in verdicts] == ["right", "right", "wrong", "wrong", "wrong"]
    assert [verdict.reason for verdict in verdicts[2:]] == ["truncated", RIGHT_AS_IT_STANDS, "truncated"]
    answers = [msgspec.structs.replace(sample("a", i, "5", "right"), verdict=v) for i, v in enumerate(verdicts)]
    assert votes_of(answers) == [0, 0, -1, -1, -1]


def test_cut_off_answers_are_rescored_by_the_same_rule() -> None:
    stored = [
        msgspec.structs.replace(sample("a", i, CUT, "right"), finished=ended) for i, ended in enumerate((True, False))
    ]
    with Verifier(workers=1) as verifier:
        (change,) = rescore_samples(stored, verifier)
    assert (change.repeat, change.before.value, change.after.value) == (1, "right", "wrong")
    assert change.after.reason == RIGHT_AS_IT_STANDS
