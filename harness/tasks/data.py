"""The sets of problems as they lie here: in a folder, or in the user's cache of their public sources."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from harness.cache import expand_user
from harness.errors import DataError
from harness.reading import read_bytes
from harness.tasks.data_files import (
    MAX_BYTES,
    absence_error,
    cached_path,
    content_of,
    ensure_downloaded,
    has_digest,
)
from harness.tasks.set_rows import SetProblem, named_by_text
from harness.tasks.sets import SETS, DataSet

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
            state = "present" if has_digest(path, data.sha256) else "altered"
    elif all(cached_path(remote, file).is_file() for file in remote.files):
        origin = str(cached_path(remote, remote.files[0]).parent)
        is_unaltered = all(has_digest(cached_path(remote, file), digest) for file, digest in remote.sha256.items())
        state = "present" if is_unaltered else "altered"
    else:
        origin = f"to be fetched from {remote.host}"
    source = f"{remote.repository}@{remote.revision[:12]}"
    return DataInfo(data.name, data.title, data.rows, state, origin, source, data.licence)


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
        raise absence_error(data, "")
    rows: list[SetProblem] = []
    for file, path in paths.items():
        rows += convert_file(data, file, ensure_downloaded(data, file, path))
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
