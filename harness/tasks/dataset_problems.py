"""One problem of a set, and how each public source's row becomes one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from harness.experience.answers import Prompt
from harness.verification.extraction import extract


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """A problem with its gold. level: 1-5 (MATH). multi_boxed: the solution boxes several contents, of which the gold is one."""

    id: str
    problem: str
    answer: str
    solution: str | None = None
    level: int | None = None
    subject: str | None = None
    multi_boxed: bool = False


def as_prompt(row: Problem) -> Prompt:
    """A problem as a policy's prompt; level and subject become labels."""
    labels = {"level": str(row.level) if row.level else "", "subject": row.subject or ""}
    return Prompt(row.id, row.problem, row.answer, {name: value for name, value in labels.items() if value})


def _integer(answer: object) -> str:
    """`27.0`, `025` and `25` alike."""
    return str(int(float(str(answer))))


def _split(file: str) -> str:
    return "train" if "train" in file else "test"


def math500_row(raw: Mapping[str, Any], file: str, place: int) -> Problem:
    return Problem(
        id=raw["unique_id"],
        problem=raw["problem"],
        answer=raw["answer"],
        solution=raw["solution"],
        level=int(raw["level"]),
        subject=raw["subject"],
    )


def math_row(raw: Mapping[str, Any], file: str, place: int) -> Problem | None:
    """The gold is the last box of the solution; two training rows have an empty one and are left out."""
    answer = extract(raw["solution"]).rstrip(".,") if "boxed" in raw["solution"] else ""
    if not answer:
        return None
    level = re.search(r"\d", raw["level"])
    boxes = re.findall(r"\\boxed\s*\{?([^{}$]*)", raw["solution"])
    return Problem(
        id=f"{_split(file)}/{file.split('/')[0]}/{place}",
        problem=raw["problem"],
        answer=answer,
        solution=raw["solution"],
        level=int(level.group()) if level else None,
        subject=raw["type"],
        multi_boxed=len(set(boxes)) > 1,
    )


def gsm8k_row(raw: Mapping[str, Any], file: str, place: int) -> Problem:
    rationale, _, answer = raw["answer"].partition("####")
    return Problem(
        id=f"gsm8k/{_split(file)}/{place:04}",
        problem=raw["question"],
        answer=answer.strip().replace(",", ""),
        solution=rationale.strip(),
    )


def aime_row(raw: Mapping[str, Any], file: str, place: int) -> Problem:
    exam = re.search(r"(\d{4})_AIME_(I+)_Problems/Problem_(\d+)", raw["url"])
    name = "-".join(exam.groups()) if exam else f"2024-{place}"
    return Problem(id=name, problem=raw["problem"], answer=_integer(raw["answer"]), solution=raw["solution"])


def numbered_row(raw: Mapping[str, Any], file: str, place: int) -> Problem:
    """AIME 2025: exam I, then exam II, fifteen problems each."""
    exam, number = ("I", place + 1) if place < 15 else ("II", place - 14)
    return Problem(
        id=f"2025-{exam}-{number}", problem=raw["problem"], answer=_integer(re.sub(r"\D*$", "", str(raw["answer"])))
    )


def amc_row(raw: Mapping[str, Any], file: str, place: int) -> Problem:
    exam = re.search(r"(\d{4})_AMC_(12[AB])_Problems/Problem_(\d+)", raw["url"])
    name = "-".join(exam.groups()) if exam else f"2023-{place}"
    return Problem(id=name, problem=raw["question"], answer=_integer(raw["answer"]))


def minerva_row(raw: Mapping[str, Any], file: str, place: int) -> Problem:
    """The gold is the solution's box. Its Python-like spellings are turned into LaTeX, which no verifier reads otherwise."""
    answer = extract(raw["solution"])
    if number := re.fullmatch(r"(-?[\d.]+)e([-+]?\d+)", answer):
        answer = rf"{number[1]} \times 10^{{{int(number[2])}}}"
    answer = re.sub(r"np\.([a-z]+)\(([^()]*)\)", r"\\\1(\2)", answer)
    answer = re.sub(r"\\exp\s*\{([^{}]*)\}", lambda m: "e^{" + m[1].replace("*", " ") + "}", answer)
    answer = re.sub(r"(\d)\./(\d)", r"\1/\2", answer).replace("$ $", "")
    return Problem(
        id=f"minerva/{place:03}",
        problem=raw["problem"],
        answer=answer,
        solution=raw["solution"],
        subject=raw.get("type"),
    )


def olympiad_row(raw: Mapping[str, Any], file: str, place: int) -> Problem:
    answer = str(raw["final_answer"][0]).replace("$", "").strip().rstrip(".")
    return Problem(
        id=str(raw["id"]),
        problem=raw["question"],
        answer=answer,
        solution="\n\n".join(raw["solution"]),
        subject=raw.get("subfield"),
    )
