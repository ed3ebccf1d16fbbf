"""Pinned public files, fetched once into the user's cache. No wait is longer than its deadline."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import threading
from http import HTTPStatus
from pathlib import Path

from harness.cache import cache_folder
from harness.errors import DataError
from harness.tasks.sets import DataSet, Remote

CONNECT_SECONDS = 4.0
_TOTAL_SECONDS = 600.0
_MAX_BYTES = 64 << 20


def cached_path(remote: Remote, file: str) -> Path:
    """Where this file of this revision is kept, whether or not it is there."""
    kept = cache_folder() / "data"
    return kept / remote.repository.replace("/", "--") / remote.revision[:12] / file.replace("/", "--")


def remote_files(data: DataSet, fetch: bool = True) -> list[Path]:
    """All of a set's files in the cache, fetched where they are missing.

    Raises
    ------
    DataError
        A file cannot be fetched, or is not what its checksum says.
    """
    if not fetch and not all(cached_path(data.remote, file).exists() for file in data.remote.files):
        raise _absent(data, "not fetched yet")
    return [_ensure(data, file) for file in data.remote.files]


def _ensure(data: DataSet, file: str) -> Path:
    path = cached_path(data.remote, file)
    if not path.exists():
        body = _download(data, file)
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(body)
            os.replace(temporary, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
    expected = data.remote.sha256.get(file)
    if expected and hashlib.sha256(path.read_bytes()).hexdigest() != expected:
        path.unlink()
        raise DataError(
            f"{data.name}: {file} of {data.remote.repository} is not what its checksum says; fetch it again"
        )
    return path


def _url(remote: Remote, file: str) -> str:
    if remote.host == "hub":
        endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
        return f"{endpoint}/datasets/{remote.repository}/resolve/{remote.revision}/{file}"
    endpoint = os.environ.get("HARNESS_GITHUB", "https://raw.githubusercontent.com").rstrip("/")
    return f"{endpoint}/{remote.repository}/{remote.revision}/{file}"


def _download(data: DataSet, file: str) -> bytes:
    """The file's bytes. A thread does the work, because name resolution knows no time-out."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "ON", "YES"):
        raise _absent(data, "HF_HUB_OFFLINE is set")
    import httpx  # takes a tenth of a second

    url = _url(data.remote, file)
    connected, done = threading.Event(), threading.Event()
    body = bytearray()
    failure: list[str] = []

    def work() -> None:
        try:
            _receive(url, data.remote.host == "hub", body, connected)
        except httpx.HTTPStatusError as error:
            failure.append(f"HTTP status {error.response.status_code}")
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            failure.append(" ".join(str(error).split()) or type(error).__name__)
        finally:
            connected.set()
            done.set()

    threading.Thread(target=work, name=f"fetch {data.name}", daemon=True).start()
    if not connected.wait(CONNECT_SECONDS) or not done.wait(_TOTAL_SECONDS):
        raise _absent(data, "no answer in time")
    if failure:
        raise _absent(data, failure[0])
    return bytes(body)


def _receive(url: str, hub: bool, body: bytearray, connected: threading.Event) -> None:
    """Fill `body`: through the environment's proxies, with the user's token for the hub, and on from where a connection broke
    as long as each brings something."""
    import httpx
    from huggingface_hub import constants, get_token

    token = get_token() if hub and not constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else None
    headers = {"User-Agent": "experience-sharing-harness", "Accept-Encoding": "identity"}  # ranges count what is sent
    headers |= {"Authorization": f"Bearer {token}"} if token else {}
    with httpx.Client(headers=headers, timeout=CONNECT_SECONDS, follow_redirects=True) as client:
        while True:
            had = len(body)
            try:
                with client.stream("GET", url, headers={"Range": f"bytes={had}-"} if had else {}) as response:
                    response.raise_for_status()
                    connected.set()
                    if response.status_code != HTTPStatus.PARTIAL_CONTENT:
                        body.clear()
                    for chunk in response.iter_bytes(1 << 16):
                        body.extend(chunk)
                        if len(body) > _MAX_BYTES:
                            raise OSError("the file is larger than expected")
                    return
            except httpx.TransportError:
                if len(body) <= had:
                    raise


def _absent(data: DataSet, cause: str) -> DataError:
    where = "Hugging Face hub" if data.remote.host == "hub" else "GitHub"
    return DataError(
        f"{data.name} is not on this machine and {data.remote.repository} could not be fetched from the {where} ({cause}): "
        f"either name a folder that holds {data.file} (--data-dir FOLDER, or HARNESS_DATA=FOLDER), or run once with a network."
    )
