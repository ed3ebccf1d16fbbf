"""Worked examples for base models that were never taught a chat format. Written for this project."""

from __future__ import annotations

from harness.tasks.task import Example

EXAMPLES = (
    Example(
        "A shop sells pencils in boxes of 12. A school buys 15 boxes and gives 8 pencils to each of 20 pupils. "
        "How many pencils are left?",
        "The school has $15 \\cdot 12 = 180$ pencils. It gives away $20 \\cdot 8 = 160$. "
        "So $180 - 160 = 20$ pencils are left. The answer is $\\boxed{20}$.",
    ),
    Example(
        "Find the sum of the roots of $2x^2 - 7x + 3 = 0$.",
        "By Vieta's formulas the sum of the roots of $ax^2 + bx + c = 0$ is $-\\frac{b}{a}$. "
        "Here it is $\\frac{7}{2}$. The answer is $\\boxed{\\frac{7}{2}}$.",
    ),
    Example(
        "Two fair dice are rolled. What is the probability that the sum is at least 11?",
        "Of the 36 outcomes, the sums 11 (two outcomes) and 12 (one outcome) qualify, so the probability is "
        "$\\frac{3}{36} = \\frac{1}{12}$. The answer is $\\boxed{\\frac{1}{12}}$.",
    ),
    Example(
        "Solve $|x - 3| < 5$ and give the answer in interval notation.",
        "The inequality means $-5 < x - 3 < 5$, so $-2 < x < 8$. The answer is $\\boxed{(-2, 8)}$.",
    ),
)
