"""Sets from a folder, or from their public source through the user's cache, checked."""

from __future__ import annotations

import hashlib
import json
import os
import queue
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, cast

import msgspec

from harness.cache import cache_folder
from harness.errors import DataError
from harness.files import write_atomic
from harness.reading import read_bytes
from harness.tasks.sets import SETS, DataSet, Problem, Remote

MAX_BYTES = 1 << 30
CONNECT_SECONDS = 4.0
_TOTAL_SECONDS = 600.0
_MAX_FETCHED = 64 << 20
_TRIES = 3  # of a connection that breaks


State = Literal["present", "altered", "absent"]


class DataInfo(msgspec.Struct, frozen=True):
    """origin: where it would be loaded from."""

    name: str
    title: str
    rows: int
    state: State
    origin: str
    source: str
    licence: str


def folder_in_use(data_dir: Path | None) -> Path | None:
    """The argument, else HARNESS_DATA, else None: the public sources."""
    configured = os.environ.get("HARNESS_DATA")
    return data_dir or (Path(configured) if configured else None)


def load(name: str, data_dir: Path | None = None, fetch: bool = True) -> list[Problem]:
    """All rows of a set, in order. Raises DataError."""
    if name not in SETS:
        raise DataError(f"unknown data set {name!r}; there are {', '.join(SETS)}")
    data, folder = SETS[name], folder_in_use(data_dir)
    rows = _from_folder(data, folder) if folder is not None else _from_remote(data, fetch)
    if len(rows) != data.rows:
        raise DataError(f"{name}: {len(rows)} problems instead of {data.rows}")
    return rows


def inventory(data_dir: Path | None = None) -> list[DataInfo]:
    """What is present and from where; fetches nothing."""
    return [_info(data, folder_in_use(data_dir)) for data in SETS.values()]


def _info(data: DataSet, folder: Path | None) -> DataInfo:
    remote, state = data.remote, "absent"
    if folder is not None:
        path = folder / data.file
        origin = str(path)
        if path.is_file():
            state = "present" if _content(path)[1] == data.sha256 else "altered"
    elif all(cached_path(remote, file).is_file() for file in remote.files):
        state, origin = "present", str(cached_path(remote, remote.files[0]).parent)
    else:
        origin = f"to be fetched from {remote.host}"
    source = f"{remote.repository}@{remote.revision[:12]}"
    return DataInfo(data.name, data.title, data.rows, cast(State, state), origin, source, data.licence)


def _content(path: Path) -> tuple[bytes, str]:
    try:
        data = read_bytes(path, MAX_BYTES)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error
    return data, hashlib.sha256(data).hexdigest()


def parse_rows(data: bytes, source: str) -> list[Problem]:
    """Raises DataError naming the line."""
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
    paths = {file: cached_path(data.remote, file) for file in data.remote.files}
    if not fetch and not all(path.exists() for path in paths.values()):
        raise _absent(data, "not fetched yet")
    return [row for file, path in paths.items() for row in convert(data, file, _ensured(data, file, path))]


def convert(data: DataSet, file: str, path: Path) -> list[Problem]:
    """Rows of a public file. Raises DataError."""
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


def cached_path(remote: Remote, file: str) -> Path:
    """Whether or not it is there."""
    kept = cache_folder() / "data"
    return kept / remote.repository.replace("/", "--") / remote.revision[:12] / file.replace("/", "--")


def _ensured(data: DataSet, file: str, path: Path) -> Path:
    """Raises DataError, also for another checksum."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, _download(data, file))
    if data.remote.sha256.get(file, found := _content(path)[1]) != found:
        path.unlink()
        raise DataError(
            f"{data.name}: {file} of {data.remote.repository} is not what its checksum says; fetch it again"
        )
    return path


def _download(data: DataSet, file: str) -> bytes:
    """In a thread, because name resolution knows no time-out. Raises DataError."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "ON", "YES"):
        raise _absent(data, "HF_HUB_OFFLINE is set")
    connected, received = threading.Event(), queue.SimpleQueue[bytes | str]()
    work = threading.Thread(target=lambda: received.put(_received(data.remote, file, connected)), daemon=True)
    work.start()
    try:
        connected.wait(CONNECT_SECONDS)
        body = received.get(timeout=_TOTAL_SECONDS if connected.is_set() else 0.0)
    except queue.Empty:
        body = "no answer in time"
    if isinstance(body, str):
        raise _absent(data, body)
    return body


def _received(remote: Remote, file: str, connected: threading.Event) -> bytes | str:
    import httpx  # takes a tenth of a second
    from huggingface_hub import constants, get_token

    variable, public, path = {
        "hub": ("HF_ENDPOINT", "https://huggingface.co", "datasets/{}/resolve/{}/{}"),
        "github": ("HARNESS_GITHUB", "https://raw.githubusercontent.com", "{}/{}/{}"),
    }[remote.host]
    url = f"{os.environ.get(variable, public).rstrip('/')}/{path.format(remote.repository, remote.revision, file)}"
    token = get_token() if remote.host == "hub" and not constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else None
    headers = {"User-Agent": "experience-sharing-harness"} | ({"Authorization": f"Bearer {token}"} if token else {})
    why = ""
    try:
        with httpx.Client(headers=headers, timeout=CONNECT_SECONDS, follow_redirects=True) as client:
            for _ in range(_TRIES):
                try:
                    with client.stream("GET", url) as response:
                        response.raise_for_status()
                        connected.set()
                        body = bytearray()
                        for chunk in response.iter_bytes(1 << 16):
                            body += chunk
                            if len(body) > _MAX_FETCHED:
                                return "the file is larger than expected"
                        return bytes(body)
                except httpx.TransportError as error:
                    why = " ".join(str(error).split()) or type(error).__name__
    except httpx.HTTPStatusError as error:
        why = f"HTTP status {error.response.status_code}"
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        why = " ".join(str(error).split()) or type(error).__name__
    finally:
        connected.set()
    return why


def _absent(data: DataSet, cause: str) -> DataError:
    where = "Hugging Face hub" if data.remote.host == "hub" else "GitHub"
    return DataError(
        f"{data.name} is not on this machine and {data.remote.repository} could not be fetched from the {where} ({cause}): "
        f"either name a folder that holds {data.file} (--data-dir FOLDER, or HARNESS_DATA=FOLDER), or run once with a network."
    )
