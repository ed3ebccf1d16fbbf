"""The table of the sets of problems: what each is called, where its rows are published, and which bytes these are.

Minerva and OlympiadBench come from Qwen2.5-Math's repository: the hub's OlympiadBench has 674 rows, not 675."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from harness.tasks import set_rows
from harness.tasks.set_rows import SetProblem

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
    """Where a set is published. The revision pins every file; sha256 has a file's digest by its name, where it is known."""

    host: Literal["hub", "github"]
    repository: str
    revision: str
    files: tuple[str, ...]
    sha256: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DataSet:
    """One set of problems.

    rows: how many it has. file, sha256: its name and digest in a data folder. convert: reads a row of the public source; None
    drops it. k, max_new_tokens: answers to a problem and their length where it is evaluated; 0 for training alone. by_text: ids
    are made from the problems. form: raised when other rows come of the same file."""

    name: str
    title: str
    rows: int
    file: str
    sha256: str
    remote: Remote
    convert: Callable[[Mapping[str, Any], str, int], SetProblem | None]
    licence: str
    k: int = 0
    max_new_tokens: int = 0
    by_text: bool = False
    form: int = 0

    @property
    def checksum(self) -> str:
        """Return what names the set's rows: other rows of the same file have another."""
        return f"{self.sha256}.{self.form}" if self.form else self.sha256


def _math_files(split: str) -> tuple[str, ...]:
    return tuple(f"{subject}/{split}-00000-of-00001.parquet" for subject in _MATH_SUBJECTS)


_GSM8K = "740312add88f781978c0658806c59bc2815b9866"
_MATH = "21a5633873b6a120296cce3e2df9d5550074f4a3"

SETS: Mapping[str, DataSet] = MappingProxyType(
    {
        data.name: data
        for data in (
            DataSet(
                name="math500",
                title="MATH-500",
                rows=500,
                file="math500.jsonl",
                sha256="839211e1e51b634ec0419aac9b08e4077be8c51177406c78f34d37760e2a31f6",
                remote=Remote(
                    host="hub",
                    repository="HuggingFaceH4/MATH-500",
                    revision="6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be",
                    files=("test.jsonl",),
                    sha256={"test.jsonl": "35dc41080a3680858b27fa7e0533d2d547825316fc5dafe5d316f4ccc5a06132"},
                ),
                convert=set_rows.math500_row,
                licence="MIT",
                k=4,
                max_new_tokens=3_072,
            ),
            DataSet(
                name="gsm8k",
                title="GSM8K test",
                rows=1_319,
                file="gsm8k_test.jsonl",
                sha256="442e178f9b2b1d8f01d316813d5f538836e68261c6036ae9463664e8dafed390",
                remote=Remote("hub", "openai/gsm8k", _GSM8K, ("main/test-00000-of-00001.parquet",)),
                convert=set_rows.gsm8k_row,
                licence="MIT",
                k=4,
                max_new_tokens=1_024,
            ),
            DataSet(
                name="aime24",
                title="AIME 2024",
                rows=30,
                file="aime24.jsonl",
                sha256="2d116055b07d3a71288366af761ab584ec8e31505dbd0245bb0b696a05260438",
                remote=Remote(
                    host="hub",
                    repository="HuggingFaceH4/aime_2024",
                    revision="2fe88a2f1091d5048c0f36abc874fb997b3dd99a",
                    files=("data/train-00000-of-00001.parquet",),
                    sha256={
                        "data/train-00000-of-00001.parquet": (
                            "26139847601a5037c237d5928b195e7260ca8074cf4f264b794af42847f79ccf"
                        )
                    },
                ),
                convert=set_rows.contest_row,
                licence="Apache-2.0 (problems: MAA)",
                k=32,
                max_new_tokens=8_192,
            ),
            DataSet(
                name="aime25",
                title="AIME 2025",
                rows=30,
                file="aime25.jsonl",
                sha256="8f628ba070e59f4065550f3ff4df766406110670068042ed2f98aa94372dbde8",
                remote=Remote(
                    host="hub",
                    repository="math-ai/aime25",
                    revision="563bb8404243c5f09de6ec262f2db674fe5bce9b",
                    files=("test.jsonl",),
                    sha256={"test.jsonl": "b4e273c02d3e7fe1b74b59eae768fc8230bfb0f79539890cb56f4361caac0331"},
                ),
                convert=set_rows.numbered_row,
                licence="Apache-2.0 (problems: MAA)",
                k=32,
                max_new_tokens=8_192,
                form=1,
            ),
            DataSet(
                name="amc23",
                title="AMC 12 2023",
                rows=40,
                file="amc23.jsonl",
                sha256="8af9dfffc5e3fdda50418b11b29491eb389350012ce9b832fb1e21bf988c9437",
                remote=Remote(
                    host="hub",
                    repository="math-ai/amc23",
                    revision="80815d37005feb82cd7f8fbc6901d5d3eff43057",
                    files=("test-00000-of-00001.parquet",),
                    sha256={
                        "test-00000-of-00001.parquet": "b696e87ba47be4e879a60fd4ef1d4aa522ba78c5ae013c6aff5cc9788a397c5e"
                    },
                ),
                convert=set_rows.contest_row,
                licence="Apache-2.0 (problems: MAA)",
                k=16,
                max_new_tokens=4_096,
            ),
            DataSet(
                name="minerva",
                title="Minerva OCWCourses",
                rows=272,
                file="minerva.jsonl",
                sha256="b4d47bd811812184f09ca03d98e7f5e4697b0a9b8ce930953c1680fbfa5d44ae",
                remote=Remote("github", "QwenLM/Qwen2.5-Math", _QWEN, ("evaluation/data/minerva_math/test.jsonl",)),
                convert=set_rows.minerva_row,
                licence="MIT (questions: MIT OpenCourseWare, CC BY-NC-SA)",
                k=4,
                max_new_tokens=3_072,
            ),
            DataSet(
                name="olympiad",
                title="OlympiadBench (maths, English, text only)",
                rows=675,
                file="olympiad.jsonl",
                sha256="ddef589a5b82bcc058c7aa467d92056260515aba80256cd4b9f8e620cb418f04",
                remote=Remote("github", "QwenLM/Qwen2.5-Math", _QWEN, ("evaluation/data/olympiadbench/test.jsonl",)),
                convert=set_rows.olympiad_row,
                licence="Apache-2.0",
                k=4,
                max_new_tokens=4_096,
                form=1,
            ),
            DataSet(
                name="math",
                title="MATH test",
                rows=5_000,
                file="math_test.jsonl",
                sha256="5e46e4bdedfc149cab213055d7e4c4382bd0f24776b91c3935d3a2ed0d381894",
                remote=Remote("hub", "EleutherAI/hendrycks_math", _MATH, _math_files("test")),
                convert=set_rows.math_row,
                licence="MIT",
                k=4,
                max_new_tokens=3_072,
                by_text=True,
                form=1,
            ),
            DataSet(
                name="math_train",
                title="MATH train",
                rows=7_498,
                file="math_train.jsonl",
                sha256="4d5103e73b5c5806dd8f20a47401e2d43160075b3c273e5664969d999e87749f",
                remote=Remote("hub", "EleutherAI/hendrycks_math", _MATH, _math_files("train")),
                convert=set_rows.math_row,
                licence="MIT",
                by_text=True,
                form=1,
            ),
            DataSet(
                name="gsm8k_train",
                title="GSM8K train",
                rows=7_473,
                file="gsm8k_train.jsonl",
                sha256="0e464ed7526b12ea71bcdc2972375e611cc72a92af067f6ff58f329fa608eca3",
                remote=Remote("hub", "openai/gsm8k", _GSM8K, ("main/train-00000-of-00001.parquet",)),
                convert=set_rows.gsm8k_row,
                licence="MIT",
            ),
        )
    }
)
SOURCES = {"math": "math_train", "gsm8k": "gsm8k_train"}
