"""Load a set from a folder or from its pinned public source, checked; and say what is present."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from harness.errors import DataError
from harness.reading import read_bytes
from harness.tasks.dataset_problems import Problem
from harness.tasks.fetch import cached_path, remote_files
from harness.tasks.sets import SETS, DataSet

MAX_BYTES = 1 << 30
"""Of one file of a set."""
State = Literal["present", "altered", "absent"]


class DataInfo(msgspec.Struct, frozen=True):
    """Where a set would be loaded from. origin: the folder's file, the cached revision, or the source it would be fetched from."""

    name: str
    title: str
    rows: int
    state: State
    origin: str
    source: str
    licence: str


def folder_in_use(data_dir: Path | None) -> Path | None:
    """The data folder: the argument, else HARNESS_DATA, else none (the public sources)."""
    if data_dir is not None:
        return data_dir
    configured = os.environ.get("HARNESS_DATA")
    return Path(configured) if configured else None


def load(name: str, data_dir: Path | None = None, fetch: bool = True) -> list[Problem]:
    """All rows of a set, in the set's order. `fetch`: whether a missing set may be fetched from its public source.

    Raises
    ------
    DataError
        The set is unknown, absent, unreadable, or not what its checksum says.
    """
    data = _known(name)
    folder = folder_in_use(data_dir)
    rows = _from_folder(data, folder) if folder is not None else _from_remote(data, fetch)
    if len(rows) != data.rows:
        raise DataError(f"{name}: {len(rows)} problems instead of {data.rows}")
    return rows


def inventory(data_dir: Path | None = None) -> list[DataInfo]:
    """What is present and from where; fetches nothing."""
    return [_info(data, folder_in_use(data_dir)) for data in SETS.values()]


def _known(name: str) -> DataSet:
    if name not in SETS:
        raise DataError(f"unknown data set {name!r}; there are {', '.join(SETS)}")
    return SETS[name]


def _info(data: DataSet, folder: Path | None) -> DataInfo:
    remote = data.remote
    source = f"{remote.repository}@{remote.revision[:12]}"
    state: State
    if folder is not None:
        path = folder / data.file
        origin = str(path)
        state = "absent" if not path.is_file() else "present" if _content(path)[1] == data.sha256 else "altered"
    else:
        origin = str(cached_path(remote, remote.files[0]).parent)
        state = "present" if all(cached_path(remote, file).is_file() for file in remote.files) else "absent"
        origin = origin if state == "present" else f"to be fetched from {remote.host}"
    return DataInfo(data.name, data.title, data.rows, state, origin, source, data.licence)


def _content(path: Path) -> tuple[bytes, str]:
    """A file and its SHA-256. Raises DataError."""
    try:
        data = read_bytes(path, MAX_BYTES)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error
    return data, hashlib.sha256(data).hexdigest()


def parse_rows(data: bytes, source: str) -> list[Problem]:
    """Rows of a JSON-lines file. Raises DataError naming the line."""
    rows = []
    for number, line in enumerate(data.split(b"\n"), 1):
        try:
            rows += [msgspec.json.decode(line, type=Problem)] if line else []
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise DataError(f"{source}: line {number}: {error}") from None
    return rows


def _from_folder(data: DataSet, folder: Path) -> list[Problem]:
    path = folder / data.file
    if not path.is_file():
        raise DataError(
            f"{data.name}: there is no {data.file} in {folder}; put it there, or leave the data folder out "
            f"(no --data-dir, no HARNESS_DATA) to fetch {data.remote.repository}."
        )
    content, found = _content(path)
    if found != data.sha256:
        raise DataError(
            f"{data.name}: {path} has SHA-256 {found[:12]}..., expected {data.sha256[:12]}...; its content was altered"
        )
    return parse_rows(content, f"{data.name}: {path}")


def _from_remote(data: DataSet, fetch: bool) -> list[Problem]:
    files = zip(data.remote.files, remote_files(data, fetch), strict=True)
    return [row for file, path in files for row in convert(data, file, path)]


def convert(data: DataSet, file: str, path: Path) -> list[Problem]:
    """Rows of one of the set's public files, which lies at `path`. Raises DataError."""
    try:
        converted = [data.convert(raw, file, place) for place, raw in enumerate(_read(path))]
    except Exception as error:  # another form fails wherever a converter first meets it
        raise DataError(
            f"{data.name}: {file} of {data.remote.repository} has another form than expected: {error!r}"
        ) from error
    return [row for row in converted if row is not None]


def _read(path: Path) -> Iterator[Mapping[str, Any]]:
    if path.name.endswith(".parquet"):
        import pyarrow.parquet

        yield from pyarrow.parquet.read_table(path).to_pylist()
    else:
        yield from (json.loads(line) for line in read_bytes(path, MAX_BYTES).decode().split("\n") if line)
