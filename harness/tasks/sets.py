"""The sets of problems: source, licence, checksum, and how rows become problems.

Minerva and OlympiadBench come from Qwen2.5-Math's repository: the hub's OlympiadBench has 674 rows today, not 675.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from harness.experience.answers import Prompt
from harness.verification.notation import extract


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """level: 1-5 (MATH). multi_boxed: the solution boxes several contents."""

    id: str
    problem: str
    answer: str
    solution: str | None = None
    level: int | None = None
    subject: str | None = None
    multi_boxed: bool = False


def as_prompt(row: Problem) -> Prompt:
    labels = {"level": str(row.level) if row.level else "", "subject": row.subject or ""}
    return Prompt(row.id, row.problem, row.answer, {name: value for name, value in labels.items() if value})


def _integer(answer: object) -> str:
    """`27.0`, `025` and `25` alike."""
    return str(int(float(str(answer))))


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
    """The gold is the solution's last box; two training rows have none."""
    answer = extract(raw["solution"]).rstrip(".,") if "boxed" in raw["solution"] else ""
    if not answer:
        return None
    level = re.search(r"\d", raw["level"])
    boxes = re.findall(r"\\boxed\s*\{?([^{}$]*)", raw["solution"])
    return Problem(
        id=f"{'train' if 'train' in file else 'test'}/{file.split('/')[0]}/{place}",
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
        id=f"gsm8k/{'train' if 'train' in file else 'test'}/{place:04}",
        problem=raw["question"],
        answer=answer.strip().replace(",", ""),
        solution=rationale.strip(),
    )


def contest_row(raw: Mapping[str, Any], file: str, place: int) -> Problem:
    """Of AIME or AMC 12, by its page."""
    exam = re.search(r"(\d{4})_(?:AIME|AMC)_(I+|12[AB])_Problems/Problem_(\d+)", raw["url"])
    return Problem(
        id="-".join(exam.groups()) if exam else f"{place}",
        problem=raw["problem"] if "problem" in raw else raw["question"],
        answer=_integer(raw["answer"]),
        solution=raw.get("solution"),
    )


def numbered_row(raw: Mapping[str, Any], file: str, place: int) -> Problem:
    """Exam I, then II, fifteen each."""
    exam, number = ("I", place + 1) if place < 15 else ("II", place - 14)
    return Problem(
        id=f"2025-{exam}-{number}", problem=raw["problem"], answer=_integer(re.sub(r"\D*$", "", str(raw["answer"])))
    )


def minerva_row(raw: Mapping[str, Any], file: str, place: int) -> Problem:
    """The gold is the solution's box, Python-like spellings as LaTeX."""
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


Host = Literal["hub", "github"]
_QWEN = "a45202bd16f1ec06f433442dc1152d0074773465"
_MATH_SUBJECTS = (
    "algebra",
    "counting_and_probability",
    "geometry",
    "intermediate_algebra",
    "number_theory",
    "prealgebra",
    "precalculus",
)


@dataclass(frozen=True, slots=True)
class Remote:
    """sha256: where it is known; the revision pins the rest."""

    host: Host
    repository: str
    revision: str
    files: tuple[str, ...]
    sha256: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DataSet:
    """file, sha256: in a data folder. convert: a row with its file and place to ours, or None. k, max_new_tokens: 0 for
    training alone."""

    name: str
    title: str
    rows: int
    file: str
    sha256: str
    remote: Remote
    convert: Callable[[Mapping[str, Any], str, int], Problem | None]
    licence: str
    k: int = 0
    max_new_tokens: int = 0


def _math_files(split: str) -> tuple[str, ...]:
    return tuple(f"{subject}/{split}-00000-of-00001.parquet" for subject in _MATH_SUBJECTS)


_GSM8K = "740312add88f781978c0658806c59bc2815b9866"
_MATH = "21a5633873b6a120296cce3e2df9d5550074f4a3"

SETS: Mapping[str, DataSet] = MappingProxyType(
    {
        data.name: data
        for data in (
            DataSet(
                "math500",
                "MATH-500",
                500,
                "math500.jsonl",
                "839211e1e51b634ec0419aac9b08e4077be8c51177406c78f34d37760e2a31f6",
                Remote(
                    "hub",
                    "HuggingFaceH4/MATH-500",
                    "6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be",
                    ("test.jsonl",),
                    {"test.jsonl": "35dc41080a3680858b27fa7e0533d2d547825316fc5dafe5d316f4ccc5a06132"},
                ),
                math500_row,
                "MIT",
                k=4,
                max_new_tokens=3_072,
            ),
            DataSet(
                "gsm8k",
                "GSM8K test",
                1_319,
                "gsm8k_test.jsonl",
                "442e178f9b2b1d8f01d316813d5f538836e68261c6036ae9463664e8dafed390",
                Remote("hub", "openai/gsm8k", _GSM8K, ("main/test-00000-of-00001.parquet",)),
                gsm8k_row,
                "MIT",
                k=4,
                max_new_tokens=1_024,
            ),
            DataSet(
                "aime24",
                "AIME 2024",
                30,
                "aime24.jsonl",
                "2d116055b07d3a71288366af761ab584ec8e31505dbd0245bb0b696a05260438",
                Remote(
                    "hub",
                    "HuggingFaceH4/aime_2024",
                    "2fe88a2f1091d5048c0f36abc874fb997b3dd99a",
                    ("data/train-00000-of-00001.parquet",),
                    {
                        "data/train-00000-of-00001.parquet": (
                            "26139847601a5037c237d5928b195e7260ca8074cf4f264b794af42847f79ccf"
                        )
                    },
                ),
                contest_row,
                "Apache-2.0 (problems: MAA)",
                k=32,
                max_new_tokens=8_192,
            ),
            DataSet(
                "aime25",
                "AIME 2025",
                30,
                "aime25.jsonl",
                "8f628ba070e59f4065550f3ff4df766406110670068042ed2f98aa94372dbde8",
                Remote(
                    "hub",
                    "math-ai/aime25",
                    "563bb8404243c5f09de6ec262f2db674fe5bce9b",
                    ("test.jsonl",),
                    {"test.jsonl": "b4e273c02d3e7fe1b74b59eae768fc8230bfb0f79539890cb56f4361caac0331"},
                ),
                numbered_row,
                "Apache-2.0 (problems: MAA)",
                k=32,
                max_new_tokens=8_192,
            ),
            DataSet(
                "amc23",
                "AMC 12 2023",
                40,
                "amc23.jsonl",
                "8af9dfffc5e3fdda50418b11b29491eb389350012ce9b832fb1e21bf988c9437",
                Remote(
                    "hub",
                    "math-ai/amc23",
                    "80815d37005feb82cd7f8fbc6901d5d3eff43057",
                    ("test-00000-of-00001.parquet",),
                    {"test-00000-of-00001.parquet": "b696e87ba47be4e879a60fd4ef1d4aa522ba78c5ae013c6aff5cc9788a397c5e"},
                ),
                contest_row,
                "Apache-2.0 (problems: MAA)",
                k=16,
                max_new_tokens=4_096,
            ),
            DataSet(
                "minerva",
                "Minerva OCWCourses",
                272,
                "minerva.jsonl",
                "b4d47bd811812184f09ca03d98e7f5e4697b0a9b8ce930953c1680fbfa5d44ae",
                Remote("github", "QwenLM/Qwen2.5-Math", _QWEN, ("evaluation/data/minerva_math/test.jsonl",)),
                minerva_row,
                "MIT (questions: MIT OpenCourseWare, CC BY-NC-SA)",
                k=4,
                max_new_tokens=3_072,
            ),
            DataSet(
                "olympiad",
                "OlympiadBench (maths, English, text only)",
                675,
                "olympiad.jsonl",
                "ddef589a5b82bcc058c7aa467d92056260515aba80256cd4b9f8e620cb418f04",
                Remote("github", "QwenLM/Qwen2.5-Math", _QWEN, ("evaluation/data/olympiadbench/test.jsonl",)),
                olympiad_row,
                "Apache-2.0",
                k=4,
                max_new_tokens=4_096,
            ),
            DataSet(
                "math",
                "MATH test",
                5_000,
                "math_test.jsonl",
                "5e46e4bdedfc149cab213055d7e4c4382bd0f24776b91c3935d3a2ed0d381894",
                Remote("hub", "EleutherAI/hendrycks_math", _MATH, _math_files("test")),
                math_row,
                "MIT",
                k=4,
                max_new_tokens=3_072,
            ),
            DataSet(
                "math_train",
                "MATH train",
                7_498,
                "math_train.jsonl",
                "4d5103e73b5c5806dd8f20a47401e2d43160075b3c273e5664969d999e87749f",
                Remote("hub", "EleutherAI/hendrycks_math", _MATH, _math_files("train")),
                math_row,
                "MIT",
            ),
            DataSet(
                "gsm8k_train",
                "GSM8K train",
                7_473,
                "gsm8k_train.jsonl",
                "0e464ed7526b12ea71bcdc2972375e611cc72a92af067f6ff58f329fa608eca3",
                Remote("hub", "openai/gsm8k", _GSM8K, ("main/train-00000-of-00001.parquet",)),
                gsm8k_row,
                "MIT",
            ),
        )
    }
)
SOURCES = {"math": "math_train", "gsm8k": "gsm8k_train"}
