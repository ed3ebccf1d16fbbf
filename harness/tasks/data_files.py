"""Files of data: read with their digest, or fetched once from their public source into the user's cache."""

from __future__ import annotations

import hashlib
import os
import queue
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from harness.cache import cache_folder
from harness.errors import DataError
from harness.files import write_atomic
from harness.reading import read_bytes
from harness.tasks.sets import DataSet, Remote

MAX_BYTES = 1 << 30
CONNECT_SECONDS = 4.0
_TOTAL_SECONDS = 600.0
_MAX_FETCHED = 64 << 20
_TRIES = 3  # of a connection that breaks


def content_of(path: Path, limit: int = MAX_BYTES) -> tuple[bytes, str]:
    """Return a file's content and its SHA-256. Raises DataError where it cannot be read, or has more than `limit` bytes."""
    try:
        data = read_bytes(path, limit)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error
    return data, hashlib.sha256(data).hexdigest()


def has_digest(path: Path, digest: str) -> bool:
    """Return whether a file is there and has this SHA-256."""
    with suppress(DataError):
        return content_of(path)[1] == digest
    return False


def cached_path(remote: Remote, file: str) -> Path:
    """Return where a source's file lies in the user's cache once it was fetched. Of another revision it is another file."""
    kept = cache_folder() / "data"
    return kept / remote.repository.replace("/", "--") / remote.revision[:12] / file.replace("/", "--")


def ensure_downloaded(data: DataSet, file: str, path: Path) -> Path:
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
        raise absence_error(data, "HF_HUB_OFFLINE is set")
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
        raise absence_error(data, body)
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


def absence_error(data: DataSet, cause: str) -> DataError:
    """Return the error that says how a data set can be had."""
    where = "Hugging Face hub" if data.remote.host == "hub" else "GitHub"
    tried = f"could not be fetched from the {where} ({cause})" if cause else f"was not fetched yet from the {where}"
    return DataError(
        f"{data.name} is not on this machine and {data.remote.repository} {tried}: "
        f"either name a folder that holds {data.file} (--data-dir FOLDER, or HARNESS_DATA=FOLDER), or run once with a network."
    )
