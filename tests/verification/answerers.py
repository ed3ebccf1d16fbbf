"""What perfect and wrong answerers score on every set, by surface form, with each falling row.

    python benchmarks/answerers.py [--data-dir FOLDER] [--set NAME ...] [--show]

The last line of the output is one JSON object.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

from harness.tasks.data import load
from harness.tasks.dataset_problems import Problem
from harness.tasks.registry import EVALUATION_SETS
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


def wrong_gold(rows: list[Problem], place: int, verifier: Verifier) -> str:
    """Another problem's gold that differs as a string and as a value."""
    gold = rows[place].answer
    for step in range(1, len(rows)):
        other = rows[(place + 7 * step) % len(rows)].answer
        if (
            other != gold
            and verifier.verify([(gold, f"\\boxed{{{other}}}"), (other, f"\\boxed{{{gold}}}")])[1].value != "right"
        ):
            return other
    raise ValueError("all golds are equal")


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--set", action="append", choices=EVALUATION_SETS)
    parser.add_argument("--show", action="store_true", help="list every falling row")
    arguments = parser.parse_args()
    results = []
    with Verifier() as verifier:
        for name in arguments.set or EVALUATION_SETS:
            result = measure(name, load(name, arguments.data_dir), verifier)
            falling, accepted = result.pop("falling"), result.pop("wrong but accepted")
            print(result, flush=True)
            if arguments.show:
                for row in [*falling, *accepted]:  # type: ignore[misc]
                    print("   ", row)
            results.append({**result, "falling": falling, "wrong but accepted": accepted})
    print(json.dumps(results))


if __name__ == "__main__":
    main()
