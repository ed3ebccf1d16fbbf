"""Answers as models write them, by kind: thinking, several boxes or none, upright letters, equations, sets, prices, words.

Each kind has answers of both verdicts, so that neither a verifier that is too strict nor one that is too lenient passes.
"""

from __future__ import annotations

import pytest

from harness.verification.verifier import Verifier

KINDS: dict[str, list[tuple[str, str, bool]]] = {
    "thinking": [
        ("9", r"<think>At first \boxed{8}. But no.</think> So the answer is 9.", True),
        ("8", r"<think>At first \boxed{8}. But no.</think> So the answer is 9.", False),
        (r"\frac25", r"[THINK]maybe \boxed{\frac15}[/THINK] Thus $x=\frac{2}{5}$.", True),
        ("9", r"<|START_THINKING|>\boxed{8}<|END_THINKING|>\boxed{9}", True),
        ("9", r"<think>it is \boxed{9}", False),
        ("9", r"is it \boxed{8}?</think><answer>9</answer>", True),
    ],
    "no box": [
        (r"\frac25", r"Hence $p = \frac{2}{5}$.", True),
        ("5", r"Hence $p = \frac{2}{5}$.", False),
        ("3", r"The side is $5\sqrt{3}$.", False),
        ("24", "The answer is 4! = 24.", True),
        ("128", "The number is $2^7$.", True),
        ("7", "The number is $2^7$.", False),
        ("(2, 9)", r"So the point is $(2, 9)$.", True),
        ("9", "The zeros are 2 and 9.", False),
        ("2, 9", "The zeros are 2 and 9.", True),
        ("40", "The share is 40%.", True),
        ("15", "It covers 15 cm^2 of the paper.", True),
        ("2", "It covers 15 cm^2 of the paper.", False),
        (r"x^2-4", r"So $g(x) = x^2 - 4$.", True),
    ],
    "answer tags": [
        (r"\sqrt{7}", r"<think>…</think><answer>\sqrt{7}</answer>", True),
        ("7", r"<answer>\sqrt{7}</answer>", False),
        ("B", "<answer>B</answer>", True),
        (r"\text{north}", "<answer>north</answer>", True),
        ("(2,9]", "<answer>\n$(2,9]$\n</answer>", True),
        ("9", "<answer>2, 9</answer>", False),
    ],
    "answer phrases": [
        ("14", "The answer should be 14.", True),
        ("14", "Result: 14", True),
        ("14", "Answer: `14`", True),
        ("14", r"\[Answer: 14\]", True),
        ("14", "Ans: $14$", True),
        ("14", "The answer isn't 14.", False),
        (r"\frac14", r"答案是 $\frac{1}{4}$。", True),
        ("4", r"La respuesta es $\frac{1}{4}$.", False),
        ("14", "Die Antwort lautet 14.", True),
        ("B", "The correct option is **B**.", True),
        ("B", "Answer: (B) 42", True),
        ("B", "Answer: (C) 42", False),
        ("2,9", "The solutions are $x=2$ and $x=9$.", True),
        ("14", "Answer: 5 + 9 = 14 pears", True),
    ],
    "boxes side by side": [
        ("2, 9", r"They are $\boxed{2}$ and $\boxed{9}$.", True),
        ("9", r"They are $\boxed{2}$ and $\boxed{9}$.", False),
        ("2, 9", "(a) $\\boxed{2}$\n\n(b) $\\boxed{9}$", True),
        ("9", r"First \boxed{2}. Corrected, \boxed{9}.", True),
        ("(2,9)", r"$x=\boxed{2},\ y=\boxed{9}$", True),
        ("x+2", r"\boxed{x+2} or \boxed{2+x}", True),
    ],
    "an equation as gold": [
        ("u'-3u=0", r"\boxed{0}", False),
        ("a+b=7", r"\boxed{7}", False),
        ("a+b=7", r"\boxed{b=7-a}", True),
        ("a+b=7", r"\boxed{2a+2b=14}", True),
        ("a+b=7", r"\boxed{a-b=7}", False),
        ("g(x)=3x", r"\boxed{3x}", True),
        ("n=12", r"\boxed{12}", True),
        ("MN=8", r"\boxed{8}", True),
        (r"\frac{dy}{dt}=ky", r"\boxed{\frac{dy}{dt}=ky}", True),
    ],
    "powers and factors": [
        ("(y^2+3)^2", r"\boxed{(3+y^2)^2}", True),
        ("y^6", r"\boxed{(y^3)^2}", True),
        ("2^{3^4}", r"\boxed{2^{3^{4^5}}}", False),
        (r"n \cdot 3^{n-1}", r"\boxed{n3^{n-1}}", True),
        ("5^n n!", r"\boxed{n!5^n}", True),
        (r"7^n\pi", r"\boxed{\pi 7^n}", True),
        ("1024", r"\boxed{2^10}", True),
        ("12", r"\boxed{n12}", False),
    ],
    "upright letters": [
        ("4-3i", r"\boxed{4-3\mathrm{i}}", True),
        ("e^3", r"\boxed{\text{e}^3}", True),
        (r"\ln 5", r"\boxed{\operatorname{ln} 5}", True),
        ("4", r"\boxed{4\mathrm{i}}", False),
        ("4", r"\boxed{\mathrm{i}4}", False),
        ("y", r"\boxed{\operatorname{sgn}(y)}", False),
        ("30", r"\boxed{\operatorname{tr} 30}", False),
        ("30", r"\boxed{30\text{ min}}", True),
        ("30", r"\boxed{30\text{ sec}}", True),
        ("30", r"\boxed{\text{Area } 30}", True),
    ],
    "words before a value": [
        ("12", r"\boxed{\text{above } 12}", False),
        ("12", r"\boxed{\text{multiples of } 12}", False),
        ("12", r"\boxed{\text{any sum below } 12}", False),
        ("12", r"\boxed{\text{the value is } 12}", True),
        ("12", r"\boxed{12 \text{ thirties}}", False),
        ("12", r"\boxed{12 \text{ pears}}", True),
    ],
    "brackets and characters": [
        ("|y-2|", r"\boxed{\left\lvert y-2\right\rvert}", True),
        (r"\begin{pmatrix} 3 \\ -1 \end{pmatrix}", r"\boxed{\left(\begin{array}{c}3\\-1\end{array}\right)}", True),
        (r"\begin{pmatrix} 1 & 3 \end{pmatrix}", r"\boxed{\frac12\begin{pmatrix} 2 & 6 \end{pmatrix}}", True),
        (r"1, 3, \ldots, n", r"\boxed{1,3,\dots,n}", True),
        ("(3,4)", "\\boxed{（3，4）}", True),
        (r"\theta", "\\boxed{θ}", True),
        ("(0,300)", r"\boxed{300}", False),
        ("(5,251,252)", r"\boxed{5251252}", False),
        ("(0,300)", r"\boxed{(0,\,300)}", True),
        (r"\frac{7}{9}", r"\boxed{0.\dot{7}}", True),
        ("AA_{16}", r"\boxed{\text{AA}_{16}}", True),
    ],
    "conditions behind a value": [
        ("g(x)=5x", r"\boxed{g(x)=5x \text{ for all } x}", True),
        ("g(x)=5x", r"\boxed{g(x)=5x \text{ for every real } x}", True),
        ("3n", r"\boxed{3n \text{ where } n \text{ counts the rows}}", True),
        ("3n", r"\boxed{3n \text{ if } n>2}", False),
    ],
    "sets of numbers": [
        (r"y \ge 4", r"\boxed{[4,\infty)}", True),
        (r"[4,\infty)", r"\boxed{y \ge 4}", True),
        (r"y \ge 4", r"\boxed{(4,\infty)}", False),
        (r"-1 < y \le 6", r"\boxed{(-1,6]}", True),
        (r"\mathbb{R}", r"\boxed{(-\infty,\infty)}", True),
        (r"\mathbb{R}\setminus\{3\}", r"\boxed{(-\infty,3)\cup(3,\infty)}", True),
        (r"y \ne 3", r"\boxed{\mathbb{R}\setminus\{3\}}", True),
        (r"y \ne 3", r"\boxed{\mathbb{R}\setminus\{4\}}", False),
        (r"y<1 \text{ or } y>5", r"\boxed{(-\infty,1)\cup(5,\infty)}", True),
        ("(1,5)", r"\boxed{[1,5]}", False),
    ],
    "residues": [
        (r"2 \pmod 5", r"\boxed{4 \pmod 5}", False),
        (r"m \equiv 1, 2 \pmod 5", r"\boxed{m \equiv 2 \bmod 5 \text{ or } m \equiv 1 \bmod 5}", True),
        (r"m \equiv 1 \pmod 5", r"\boxed{m \equiv 1 \pmod{6}}", False),
    ],
    "prices and units": [
        ("75", r"\boxed{US\$75}", True),
        ("75", r"\boxed{\text{\$}75}", True),
        ("75", r"\boxed{75¢}", True),
        ("75", "In all $25 + $50 = $75.", True),
        ("120000", "It is $100,000 + $20,000 = $120,000.", True),
        ("75", r"\boxed{75\% \text{ of all}}", True),
        (r"7\text{ degrees}", r"\boxed{7\%}", False),
        ("41_6", r"\boxed{41^\circ}", False),
        ("41_6", r"\boxed{41}", True),
        ("7.5", r"\boxed{7.5\,\frac{\text{km}}{\text{h}}}", True),
        ("3.2", r"\boxed{3.2 \text{ \AA}}", True),
        (r"6 \times 10^{9}", r"\boxed{6 x 10^9}", True),
    ],
    "bound variables": [
        (r"\sum_{k=1}^{n} f(k)", r"\boxed{\sum_{j=1}^{n} f(j)}", True),
        (r"\sum_{k=1}^{n} f(k)", r"\boxed{\sum_{j=1}^{n} f(k)}", False),
        (r"\int_0^1 x^3\cos x\,dx", r"\boxed{\int_0^1 t^3\cos t\,dt}", True),
        (r"\int_0^1 x^3\cos x\,dx", r"\boxed{\int_0^2 t^3\cos t\,dt}", False),
    ],
}
CASES = [(kind, *case) for kind, cases in KINDS.items() for case in cases]


@pytest.mark.parametrize(("kind", "gold", "text", "right"), CASES)
def test_a_kind_of_answer(verifier: Verifier, kind: str, gold: str, text: str, right: bool) -> None:
    verdict = verifier.verify([(gold, text)])[0]
    assert verdict.value == ("right" if right else "wrong"), (kind, verdict)


def test_each_kind_has_both_verdicts() -> None:
    lenient = {kind for kind, cases in KINDS.items() if all(right for *_, right in cases)}
    strict = {kind for kind, cases in KINDS.items() if not any(right for *_, right in cases)}
    assert (lenient, strict) == (set(), set())
