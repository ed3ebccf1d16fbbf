"""A hint never holds the gold or the peer's final answer: with every scorer, wherever and however the peer says it."""

from __future__ import annotations

import re

import pytest

from harness.learning.hints import without_answer
from harness.verification.catalogue import scorer_called, scorer_of
from harness.verification.verifier import Verifier

PROSE = "Let us think about what is asked here and write it down"
CODE = "```python\ndef f(x):\n    return x * x\n```"
LEAKS = {
    "math": [
        ("12", "{prose}. 3 + 4 = 7, 7 + 5 = 12. So \\boxed{12}", "7"),
        ("1/2", "{prose}: it is 0.5, i.e. \\boxed{\\frac{1}{2}}", "it is"),
        ("\\frac{1}{2}", "{prose}, half of it, $\\dfrac{1}{2}$. The answer is 0.5.", "half"),
        ("1200", "{prose} and get 1,200 in all. \\boxed{1200}", "get"),
        ("44", "{prose}; 44% of them. Answer: 44", "think"),
        ("x^2+1", "{prose}, so x^2 + 1 it is: \\boxed{x^2+1}", "so"),
        ("(3,5)", "{prose}, at (3, 5). \\boxed{(3,5)}", "at"),
        ("2\\sqrt{3}", "{prose}. \\sqrt{12} is it. \\boxed{2\\sqrt{3}}", "think"),
        ("7", "{prose}: \\fbox{7} or \\boxed{7}", "down"),
    ],
    "exact": [("Paris, France", "{prose}. Not Rome but paris,  france, so\nParis, France", "Not Rome")],
    "choice": [
        ("B", "{prose}. (b) looks best: the answer is (B)", "think"),
        ("C", "{prose} \\boxed{\\text{C. Paris}}", "down"),
    ],
    "python": [("assert f(3) == 9", f"{{prose}}.\n{CODE}", "down"), ("assert f(3) == 9", f"{CODE}\n{{prose}}", "")],
    "math_verify_plain": [("4", "{prose}: 2+1 is 3, and 8/2 = 4, so \\boxed{4}", "3")],
    "qwen_grader": [("18", "{prose}: 9 and 9 are 18.0 dollars. She makes 18 dollars.", "9")],
}


def stripped(verifier: Verifier, name: str, gold: str, text: str) -> tuple[str, str]:
    """The hint, and what the peer's final answer is read as."""
    judge = verifier.by(scorer_called(name))
    extracted = judge.verify([(gold, text)])[0].extracted
    right = lambda texts: [v.value != "wrong" for v in judge.verify([(gold, t) for t in texts])]  # noqa: E731
    return without_answer(text, (gold, extracted), scorer_of(name).perfect, right), extracted


def squeezed(text: str) -> str:
    return "".join(text.split()).casefold()


def holds(secret: str, hint: str) -> bool:
    own = re.escape(squeezed(secret))
    return bool(secret.strip() and re.search(rf"(?<!\w){own}(?!\w)" if len(secret) < 4 else own, squeezed(hint)))


@pytest.mark.slow_but("math-12", "math-1/2", "math-44", "exact-", "choice-", "python-")
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("name", "gold", "text", "keeps"), [(name, *leak) for name, leaks in LEAKS.items() for leak in leaks]
)
def test_nothing_is_given_away(verifier: Verifier, name: str, gold: str, text: str, keeps: str) -> None:
    text = text.replace("{prose}", PROSE)
    judge = verifier.by(scorer_called(name))
    assert judge.verify([(gold, text)])[0].value == "right", "the peer's answer that a hint is made of"
    hint, extracted = stripped(verifier, name, gold, text)
    assert text.startswith(hint)
    assert keeps in hint, "no more is cut than must be"
    assert not holds(gold, hint)
    assert not holds(extracted, hint)
    beginnings = [hint[: m.end()] for m in re.finditer(r"\S+", hint)]
    alone = [scorer_of(name).perfect(m.group()) for m in re.finditer(r"\S+", hint)]
    every = [*beginnings, *filter(None, alone)]
    assert all(v.value == "wrong" for v in judge.verify([(gold, each) for each in every]))


@pytest.mark.timeout(120)
def test_every_scorer_is_here_and_its_own_right_examples_give_nothing_away(verifier: Verifier) -> None:
    assert set(LEAKS) == {"math", "exact", "choice", "python", "math_verify_plain", "qwen_grader"}
    for name in LEAKS:
        judge = verifier.by(scorer_called(name))
        for gold, text, is_right in scorer_of(name).examples:
            hint, extracted = stripped(verifier, name, gold, text)
            assert not holds(gold, hint), (name, gold, text, hint)
            assert not (is_right and holds(extracted, hint)), (name, gold, text, hint)
            assert judge.verify([(gold, hint)])[0].value == "wrong"


def test_a_peers_wrong_final_answer_is_cut_off_too(verifier: Verifier) -> None:
    hint, extracted = stripped(verifier, "math", "12", "3+4=7, 7+6=13. \\boxed{13}")
    assert (hint, extracted) == ("3+4=7, 7+6=", "13")
