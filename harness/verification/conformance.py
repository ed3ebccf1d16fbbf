"""Checks of a scorer in the verifier's processes; they raise AssertionError.

@pytest.mark.parametrize("check", CHECKS, ids=name_of)
def test_scorer(check): check("my-scorer")
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.verification.catalogue import PLUGINS, scorer_called, scorer_of
from harness.verification.verdict import Verdict
from harness.verification.verifier import Verifier

HOSTILE = (
    "\\boxed{" * 5_000,
    "(" * 20_000 + "1" + ")" * 20_000,
    "9" * 100_000,
    "a " * 60_000,
    "\\boxed{" + "{" * 30_000,
    "$10^{10^{10^{10}}}$",
    "\x00\x1b[2J\ufffe \u202e \\boxed{\x07}",
    "```python\nwhile True: pass\n```",
)


def _judge_pairs(name: str, pairs: Sequence[tuple[str, str]]) -> list[Verdict]:
    """Return the verdicts of a scorer on pairs of gold and text."""
    with Verifier(workers=1) as verifier:
        return verifier.by(scorer_called(name)).verify(pairs)


def is_described(name: str) -> None:
    scorer = scorer_of(name)
    assert (type(scorer).__doc__ or "").strip(), "its docstring's first line is its summary"
    assert 0 < scorer.cpu_seconds <= scorer.wall_seconds <= 600, "cpu_seconds, wall_seconds: up to ten minutes"
    assert {right for _, _, right in scorer.examples} == {True, False}, "examples: of right and of wrong answers"
    assert PLUGINS.results_version(name)[1] != "unknown"


def decides_its_examples(name: str) -> None:
    examples = scorer_of(name).examples
    verdicts = _judge_pairs(name, [(gold, text) for gold, text, _ in examples])
    for (gold, text, right), verdict in zip(examples, verdicts, strict=True):
        assert verdict.value == ("right" if right else "wrong"), f"{gold!r}, {text!r}: {verdict}"


def decides_the_same_again(name: str) -> None:
    pairs = [(gold, text) for gold, text, _ in scorer_of(name).examples]
    assert _judge_pairs(name, pairs) == _judge_pairs(name, pairs[::-1])[::-1]


def takes_its_golds(name: str) -> None:
    """Check that no gold of a right example has a fault, that an empty one has, and that perfect answers are right."""
    scorer = scorer_of(name)
    golds = list(dict.fromkeys(gold for gold, _, right in scorer.examples if right))
    assert not [scorer.fault(gold) for gold in golds if scorer.fault(gold)]
    assert scorer.fault(" ")
    perfect = [(gold, text) for gold in golds if (text := scorer.perfect(gold)) is not None]
    assert all(verdict.value == "right" for verdict in _judge_pairs(name, perfect))


def tells_votes_apart(name: str) -> None:
    """Check that `same` is symmetric, and true of an answer and itself; a right answer and a wrong one must be two votes."""
    examples = scorer_of(name).examples
    same = scorer_of(name).same
    verdicts = _judge_pairs(name, [(gold, text) for gold, text, _ in examples])
    said = [(gold, v) for (gold, *_), v in zip(examples, verdicts, strict=True) if v.valid and v.extracted]
    for gold, one in said:
        assert same(one.extracted, one.extracted), f"{one.extracted!r} and itself"
        for other_gold, other in said:
            there = same(one.extracted, other.extracted)
            back = same(other.extracted, one.extracted)
            assert there == back, f"{one.extracted!r} and {other.extracted!r}: the same in one order alone"
            if gold == other_gold and one.value != other.value:
                assert not there, f"{one.extracted!r} and {other.extracted!r}: one is right, the other wrong"


def survives_hostile_texts(name: str) -> None:
    gold, right, _ = next(example for example in scorer_of(name).examples if example[2])
    *hostile, last = _judge_pairs(name, [*((gold, text) for text in ("", " \n", *HOSTILE)), (gold, right)])
    # what time ends is invalid: a busy machine takes longer
    fallen = [
        v for v in hostile if v.value != "wrong" and not (v.value == "invalid" and v.reason.startswith("timeout"))
    ]
    assert (fallen, last.value) == ([], "right"), (hostile, last)


CHECKS: tuple[Callable[[str], None], ...] = (
    is_described,
    decides_its_examples,
    decides_the_same_again,
    takes_its_golds,
    tells_votes_apart,
    survives_hostile_texts,
)


def name_of(check: Callable[[str], None]) -> str:
    return check.__name__
