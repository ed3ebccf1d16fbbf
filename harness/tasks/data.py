"""The sets of problems, from a folder, or from their public source through the user's cache.

Minerva and OlympiadBench come from Qwen2.5-Math's repository: the hub's OlympiadBench has 674 rows, not 675."""

from __future__ import annotations

import hashlib
import json
import os
import queue
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from harness.cache import cache_folder, expand_user
from harness.errors import DataError
from harness.experience.answers import Prompt
from harness.files import write_atomic
from harness.reading import read_bytes
from harness.verification.response import last_box, read_box
from harness.verification.tolerance import with_tolerance


class SetProblem(msgspec.Struct, frozen=True, kw_only=True):
    """level: 1-5 (MATH). multi_boxed: the solution boxes several contents. error: by how much an answer may differ from a
    rounded one (OlympiadBench), as `1e-1`."""

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
    answer = str(raw["final_answer"][0]).replace("$", "").strip().rstrip(".")
    return SetProblem(
        id=str(raw["id"]),
        problem=raw["question"],
        answer=answer,
        solution="\n\n".join(raw["solution"]),
        subject=raw.get("subfield"),
        error=raw.get("error") or None,
    )


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
    """sha256: where known; the revision pins the rest."""

    host: Literal["hub", "github"]
    repository: str
    revision: str
    files: tuple[str, ...]
    sha256: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DataSet:
    """file, sha256: in a data folder. convert: None drops a row. k, max_new_tokens: 0 for training alone. by_text: ids are made
    from the problems. form: raised when other rows come of the same file."""

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
                convert=math500_row,
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
                convert=gsm8k_row,
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
                convert=contest_row,
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
                convert=numbered_row,
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
                convert=contest_row,
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
                convert=minerva_row,
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
                convert=olympiad_row,
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
                convert=math_row,
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
                convert=math_row,
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
                convert=gsm8k_row,
                licence="MIT",
            ),
        )
    }
)
SOURCES = {"math": "math_train", "gsm8k": "gsm8k_train"}


MAX_BYTES = 1 << 30
CONNECT_SECONDS = 4.0
_TOTAL_SECONDS = 600.0
_MAX_FETCHED = 64 << 20
_TRIES = 3  # of a connection that breaks


State = Literal["present", "altered", "absent"]


class DataInfo(msgspec.Struct, frozen=True):
    """What listings say of a data set. state: whether its file is here and unaltered."""

    name: str
    title: str
    rows: int
    state: State
    origin: str
    source: str
    licence: str


def folder_in_use(data_dir: Path | None) -> Path | None:
    """Return the folder of data: the argument, else HARNESS_DATA; None stands for the public sources."""
    chosen = data_dir or os.environ.get("HARNESS_DATA")
    return expand_user(chosen) if chosen else None


def load_set(name: str, data_dir: Path | None = None, fetch: bool = True) -> list[SetProblem]:
    """Return all rows of a set, in order. Raises DataError."""
    if name not in SETS:
        raise DataError(f"unknown data set {name!r}; there are {', '.join(SETS)}")
    data = SETS[name]
    folder = folder_in_use(data_dir)
    rows = _from_folder(data, folder) if folder is not None else _from_remote(data, fetch)
    if len(rows) != data.rows:
        raise DataError(f"{name}: {len(rows)} problems instead of {data.rows}")
    return named_by_text(rows) if data.by_text else rows


def list_sets(data_dir: Path | None = None) -> list[DataInfo]:
    """List the data sets and whether their files are here; it fetches nothing."""
    folder = folder_in_use(data_dir)
    return [_describe_set(data, folder) for data in SETS.values()]


def _describe_set(data: DataSet, folder: Path | None) -> DataInfo:
    """Return what is known of a data set, and whether its file is here and unaltered."""
    remote = data.remote
    state: State = "absent"
    if folder is not None:
        path = folder / data.file
        origin = str(path)
        if path.is_file():
            state = "present" if _has_digest(path, data.sha256) else "altered"
    elif all(cached_path(remote, file).is_file() for file in remote.files):
        origin = str(cached_path(remote, remote.files[0]).parent)
        is_unaltered = all(_has_digest(cached_path(remote, file), digest) for file, digest in remote.sha256.items())
        state = "present" if is_unaltered else "altered"
    else:
        origin = f"to be fetched from {remote.host}"
    source = f"{remote.repository}@{remote.revision[:12]}"
    return DataInfo(data.name, data.title, data.rows, state, origin, source, data.licence)


def _has_digest(path: Path, digest: str) -> bool:
    """Return whether a file is there and has this SHA-256."""
    with suppress(DataError):
        return content_of(path)[1] == digest
    return False


def content_of(path: Path, limit: int = MAX_BYTES) -> tuple[bytes, str]:
    """Return a file's content and its SHA-256. Raises DataError where it cannot be read, or has more than `limit` bytes."""
    try:
        data = read_bytes(path, limit)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error
    return data, hashlib.sha256(data).hexdigest()


def parse_rows(data: bytes, source: str) -> list[SetProblem]:
    """Read the problems of a file's content. Raises DataError naming the line."""
    rows = []
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line:
            continue
        try:
            rows.append(msgspec.json.decode(line, type=SetProblem))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise DataError(f"{source}: line {number}: {error}") from None
    return rows


def _from_folder(data: DataSet, folder: Path) -> list[SetProblem]:
    """Read a set from a folder of the user's. Raises DataError where the file is absent or altered."""
    path = folder / data.file
    if not path.is_file():
        raise DataError(
            f"{data.name}: there is no {data.file} in {folder}; put it there, or leave the data folder out "
            f"(no --data-dir, no HARNESS_DATA) to fetch {data.remote.repository}."
        )
    content, digest = content_of(path)
    if digest != data.sha256:
        raise DataError(
            f"{data.name}: {path} has SHA-256 {digest[:12]}..., expected {data.sha256[:12]}...; its content was altered"
        )
    return parse_rows(content, f"{data.name}: {path}")


def _from_remote(data: DataSet, fetch: bool) -> list[SetProblem]:
    """Read a set from its public source's files, in their order, through the cache. Raises DataError where one can not be had,
    or, unless `fetch`, is not in the cache."""
    paths = {file: cached_path(data.remote, file) for file in data.remote.files}
    if not fetch and not all(path.exists() for path in paths.values()):
        raise _absence_error(data, "")
    rows: list[SetProblem] = []
    for file, path in paths.items():
        rows += convert_file(data, file, _ensure_downloaded(data, file, path))
    return rows


def convert_file(data: DataSet, file: str, path: Path) -> list[SetProblem]:
    """Read a set's file as its source publishes it into our form. Raises DataError where it has another form than expected."""
    try:
        converted = [data.convert(raw, file, place) for place, raw in enumerate(_read_rows(path))]
    except Exception as error:  # another form fails wherever a converter first meets it
        raise DataError(
            f"{data.name}: {path}, which is {file} of {data.remote.repository}, has another form than expected: {error!r:.200}; "
            "if it is damaged, remove it, and it is fetched again"
        ) from error
    return [row for row in converted if row is not None]


def _read_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield rows of a Parquet, CSV or JSON-lines file as its source publishes it."""
    if path.name.endswith(".parquet"):
        import pyarrow.parquet

        yield from pyarrow.parquet.read_table(path).to_pylist()
    else:
        for line in read_bytes(path, MAX_BYTES).decode().split("\n"):
            if line:
                yield json.loads(line)


def cached_path(remote: Remote, file: str) -> Path:
    """Return where a source's file lies in the user's cache once it was fetched. Of another revision it is another file."""
    kept = cache_folder() / "data"
    return kept / remote.repository.replace("/", "--") / remote.revision[:12] / file.replace("/", "--")


def _ensure_downloaded(data: DataSet, file: str, path: Path) -> Path:
    """Return the `path` of a source's file in the cache, fetched where it is not there. Raises DataError, also where its checksum
    is known and another one; then the file is removed."""
    if not path.exists():
        write_atomic(path, _download_file(data, file))
    _, digest = content_of(path)
    expected = data.remote.sha256.get(file, digest)
    if digest != expected:
        path.unlink()
        raise DataError(
            f"{data.name}: {file} of {data.remote.repository} is not what its checksum says. It was removed; the next run fetches "
            "it anew"
        )
    return path


def _download_file(data: DataSet, file: str) -> bytes:
    """Download a file in a thread, because name resolution knows no time-out."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "ON", "YES"):
        raise _absence_error(data, "HF_HUB_OFFLINE is set")
    connected = threading.Event()
    received = queue.SimpleQueue[bytes | str]()
    work = threading.Thread(target=lambda: received.put(_receive_file(data.remote, file, connected)), daemon=True)
    work.start()
    try:
        connected.wait(CONNECT_SECONDS)
        body = received.get(timeout=_TOTAL_SECONDS if connected.is_set() else 0.0)
    except queue.Empty:
        body = "no answer in time"
    if isinstance(body, str):
        raise _absence_error(data, body)
    return body


def _receive_file(remote: Remote, file: str, connected: threading.Event) -> bytes | str:
    """Return a file's bytes, or why it could not be had. connected: is set once the source answers, and at the end."""
    import httpx  # takes a tenth of a second

    url = _url_of(remote, file)
    headers = _headers_for(remote)
    why = ""
    try:
        with httpx.Client(headers=headers, timeout=CONNECT_SECONDS, follow_redirects=True) as client:
            for _ in range(_TRIES):
                try:
                    with client.stream("GET", url) as response:
                        response.raise_for_status()
                        connected.set()
                        return _read_body(response.iter_bytes(1 << 16))
                except httpx.TransportError as error:
                    why = " ".join(str(error).split()) or type(error).__name__
    except httpx.HTTPStatusError as error:
        why = f"HTTP status {error.response.status_code}"
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        why = " ".join(str(error).split()) or type(error).__name__
    finally:
        connected.set()
    return why


def _url_of(remote: Remote, file: str) -> str:
    """Return the address of a source's file: at the public host, or at that which the environment names in its place."""
    if remote.host == "hub":
        host = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
        return f"{host}/datasets/{remote.repository}/resolve/{remote.revision}/{file}"
    host = os.environ.get("HARNESS_GITHUB", "https://raw.githubusercontent.com").rstrip("/")
    return f"{host}/{remote.repository}/{remote.revision}/{file}"


def _headers_for(remote: Remote) -> dict[str, str]:
    """Return the headers of a request; for the hub with the user's token, where there is one and its use is not switched off."""
    from huggingface_hub import constants, get_token

    headers = {"User-Agent": "experience-sharing-harness"}
    if remote.host == "hub" and not constants.HF_HUB_DISABLE_IMPLICIT_TOKEN:
        token = get_token()
        if token:
            headers["Authorization"] = f"Bearer {token}"
    return headers


def _read_body(chunks: Iterator[bytes]) -> bytes | str:
    """Return what was received as a whole, or words where it is larger than any file of a source."""
    body = bytearray()
    for chunk in chunks:
        body += chunk
        if len(body) > _MAX_FETCHED:
            return "the file is larger than expected"
    return bytes(body)


def _absence_error(data: DataSet, cause: str) -> DataError:
    """Return the error that says how a data set can be had."""
    where = "Hugging Face hub" if data.remote.host == "hub" else "GitHub"
    tried = f"could not be fetched from the {where} ({cause})" if cause else f"was not fetched yet from the {where}"
    return DataError(
        f"{data.name} is not on this machine and {data.remote.repository} {tried}: "
        f"either name a folder that holds {data.file} (--data-dir FOLDER, or HARNESS_DATA=FOLDER), or run once with a network."
    )
