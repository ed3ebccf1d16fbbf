"""What perfect and wrong answerers score on a set, by surface form, with each falling row."""

from __future__ import annotations

from collections.abc import Callable

from harness.tasks.sets import Problem
from harness.verification.verifier import Verifier

FORMS: dict[str, Callable[[str], str]] = {
    "box": lambda gold: f"\\boxed{{{gold}}}",
    "dollars and full stop": lambda gold: f"So we get $\\boxed{{{gold}}}$.",
    "space after the command": lambda gold: f"Thus \\boxed {{{gold}}}",
    "box, then text": lambda gold: f"Hence $\\boxed{{{gold}}}$ as claimed, since 7 of the 9 cases were excluded.",
    "phrase": lambda gold: f"The answer is {gold}.",
    "phrase in dollars": lambda gold: f"Therefore, the final answer is ${gold}$.",
}


def own_solution(row: Problem) -> str | None:
    """The set's own solution where it states its final answer (a box; for GSM8K the marked last line)."""
    if not row.solution:
        return None
    if row.id.startswith("gsm8k"):
        return f"{row.solution}\n#### {row.answer}"
    return row.solution if "boxed" in row.solution else None


def measure(name: str, rows: list[Problem], verifier: Verifier) -> dict[str, object]:
    result: dict[str, object] = {"set": name, "rows": len(rows)}
    falling: list[dict[str, str]] = []
    pairs: dict[str, list[tuple[Problem, str]]] = {
        form: [(row, write(row.answer)) for row in rows] for form, write in FORMS.items()
    }
    pairs["own solution"] = [(row, text) for row in rows if (text := own_solution(row))]
    for form, asked in pairs.items():
        verdicts = verifier.verify([(row.answer, text) for row, text in asked])
        result[form] = round(sum(v.value == "right" for v in verdicts) / len(verdicts), 5) if asked else None
        falling += [
            {
                "form": form,
                "id": row.id,
                "gold": row.answer,
                "read": v.extracted,
                "verdict": f"{v.value} {v.reason}".strip(),
            }
            for (row, _), v in zip(asked, verdicts, strict=True)
            if v.value != "right"
        ]
    others = [rows[(place + 11) % len(rows)].answer for place in range(len(rows))]
    wrong = [(row, other) for row, other in zip(rows, others, strict=True) if other != row.answer]
    verdicts = verifier.verify([(row.answer, f"\\boxed{{{other}}}") for row, other in wrong])
    result["wrong answerer"] = round(sum(v.value == "right" for v in verdicts) / len(verdicts), 5)
    result["wrong but accepted"] = [
        {"id": row.id, "gold": row.answer, "answer": other}
        for (row, other), v in zip(wrong, verdicts, strict=True)
        if v.value != "wrong"
    ]
    result["falling"] = falling
    return result
