"""How each public source writes a row of its problems, and the one form that we give them.

A converter has the row, the name of its file and its place there; it gives None for a row that is left out."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import msgspec

from harness.experience.answers import Prompt
from harness.verification.response import last_box, read_box
from harness.verification.tolerance import with_tolerance


class SetProblem(msgspec.Struct, frozen=True, kw_only=True):
    """A problem of any set, in our form. level: 1-5 (MATH). multi_boxed: the solution boxes several contents. error: by how much
    an answer may differ from a rounded one (OlympiadBench), as `1e-1`."""

    id: str
    problem: str
    answer: str
    solution: str | None = None
    level: int | None = None
    subject: str | None = None
    multi_boxed: bool = False
    error: str | None = None


def as_prompt(row: SetProblem) -> Prompt:
    """Make a problem's prompt: its gold says by how much an answer may differ, and its labels are those that are known."""
    labels: dict[str, str] = {}
    if row.level:
        labels["level"] = str(row.level)
    if row.subject:
        labels["subject"] = row.subject
    gold = with_tolerance(row.answer, Fraction(row.error)) if row.error else row.answer
    return Prompt(row.id, row.problem, gold, labels)


def _format_integer(answer: object) -> str:
    """Return the one spelling of an integer: `27` for `27.0`, `027` and 27."""
    return str(int(float(str(answer))))


def math500_row(raw: Mapping[str, Any], file: str, place: int) -> SetProblem:
    """Read a problem of MATH-500, whose source has a field for everything."""
    return SetProblem(
        id=raw["unique_id"],
        problem=raw["problem"],
        answer=raw["answer"],
        solution=raw["solution"],
        level=int(raw["level"]),
        subject=raw["subject"],
    )


def math_row(raw: Mapping[str, Any], file: str, place: int) -> SetProblem | None:
    """Read a problem of MATH. Its gold is the last box; two training rows have none."""
    answer = (last_box(raw["solution"]) or "").rstrip(".,")
    if not answer:
        return None
    level = re.search(r"\d", raw["level"])
    starts = re.finditer(r"\\boxed\s*", raw["solution"])
    boxes = {read_box(raw["solution"], start.end()) for start in starts}
    split = "train" if "train" in file else "test"
    subject = file.split("/")[0]
    return SetProblem(
        id=f"{split}/{subject}/{place}",
        problem=raw["problem"],
        answer=answer,
        solution=raw["solution"],
        level=int(level.group()) if level else None,
        subject=raw["type"],
        multi_boxed=len(boxes) > 1,
    )


def named_by_text(rows: Sequence[SetProblem]) -> list[SetProblem]:
    """Give the problems the same ids, in the same order, from every source: their numbers are a source's own."""
    seen = Counter[str]()
    named = []
    for row in sorted(rows, key=lambda row: (row.problem, row.solution or "")):
        signs = "".join(row.problem.split())
        text = hashlib.blake2b(signs.encode(), digest_size=6).hexdigest()
        subject = row.id.rpartition("/")[0]
        name = f"{subject}/{text}"
        seen[name] += 1
        if seen[name] > 1:  # the same problem again
            name = f"{name}-{seen[name]}"
        named.append(msgspec.structs.replace(row, id=name))
    return sorted(named, key=lambda row: row.id)


def gsm8k_row(raw: Mapping[str, Any], file: str, place: int) -> SetProblem:
    """Read a problem of GSM8K. Its gold stands behind `####`, without the commas of thousands."""
    rationale, _, answer = raw["answer"].partition("####")
    return SetProblem(
        id=f"gsm8k/{'train' if 'train' in file else 'test'}/{place:04}",
        problem=raw["question"],
        answer=answer.strip().replace(",", ""),
        solution=rationale.strip(),
    )


def contest_row(raw: Mapping[str, Any], file: str, place: int) -> SetProblem:
    """Read a problem of AIME or AMC 12, whose id is its page's."""
    exam = re.search(r"(\d{4})_(?:AIME|AMC)_(I+|12[AB])_Problems/Problem_(\d+)", raw["url"])
    return SetProblem(
        id="-".join(exam.groups()) if exam else f"{place}",
        problem=raw["problem"] if "problem" in raw else raw["question"],
        answer=_format_integer(raw["answer"]),
        solution=raw.get("solution"),
    )


def numbered_row(raw: Mapping[str, Any], file: str, place: int) -> SetProblem:
    """Read a problem of AIME 2025, whose rows have no number: exam I, then II, fifteen each."""
    exam, number = ("I", place + 1) if place < 15 else ("II", place - 14)
    # `\frac` and `\triangle`, unescaped once too often
    problem = raw["problem"].replace("\f", r"\f").replace("\t", r"\t")
    if problem.count("$") % 2:
        problem = problem.removesuffix("$")
    digits = re.sub(r"\D*$", "", str(raw["answer"]))
    return SetProblem(id=f"2025-{exam}-{number}", problem=problem, answer=_format_integer(digits))


def minerva_row(raw: Mapping[str, Any], file: str, place: int) -> SetProblem:
    """Read a problem of Minerva's set. Its gold is the solution's box, with Python-like spellings as LaTeX."""
    answer = last_box(raw["solution"]) or ""
    if number := re.fullmatch(r"(-?[\d.]+)e([-+]?\d+)", answer):
        answer = rf"{number[1]} \times 10^{{{int(number[2])}}}"
    answer = re.sub(r"np\.([a-z]+)\(([^()]*)\)", r"\\\1(\2)", answer)
    answer = re.sub(r"\\exp\s*\{([^{}]*)\}", lambda m: "e^{" + m[1].replace("*", " ") + "}", answer)
    answer = re.sub(r"(\d)\./(\d)", r"\1/\2", answer).replace("$ $", "")
    return SetProblem(
        id=f"minerva/{place:03}",
        problem=raw["problem"],
        answer=answer,
        solution=raw["solution"],
        subject=raw.get("type"),
    )


def olympiad_row(raw: Mapping[str, Any], file: str, place: int) -> SetProblem:
    """Read a problem of OlympiadBench. Its gold is the first of its final answers, without dollar signs and a full stop."""
    answer = str(raw["final_answer"][0]).replace("$", "").strip().rstrip(".")
    return SetProblem(
        id=str(raw["id"]),
        problem=raw["question"],
        answer=answer,
        solution="\n\n".join(raw["solution"]),
        subject=raw.get("subfield"),
        error=raw.get("error") or None,
    )
