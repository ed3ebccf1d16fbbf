"""Fetching: the user's token, a broken connection, a proxy, a file that never ends."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from harness.errors import DataError
from harness.tasks import fetch
from harness.tasks.sets import SETS, DataSet

BODY = bytes(range(256)) * 1000


@pytest.fixture(autouse=True)
def _isolated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HF_HUB_OFFLINE", "http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_TOKEN", "hf_secret")


@contextmanager
def server(answer: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def log_message(self, format: str, *args: object) -> None:
            pass

    serving = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    serving.daemon_threads = True
    threading.Thread(target=serving.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{serving.server_port}"
    finally:
        serving.shutdown()
        serving.server_close()


def plain(request: BaseHTTPRequestHandler, body: bytes = BODY) -> None:
    request.send_response(200)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)


def small(host: str = "hub") -> DataSet:
    remote = SETS["math500"].remote
    return replace(
        SETS["math500"],
        remote=replace(remote, host=host, files=("f.jsonl",), sha256={"f.jsonl": hashlib.sha256(BODY).hexdigest()}),
    )


@pytest.mark.parametrize(("host", "variable"), [("hub", "HF_ENDPOINT"), ("github", "HARNESS_GITHUB")])
def test_the_token_goes_to_the_hub_alone(host: str, variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str | None] = []

    def answer(request: BaseHTTPRequestHandler) -> None:
        sent.append(request.headers.get("Authorization"))
        plain(request)

    with server(answer) as address:
        monkeypatch.setenv(variable, address)
        (path,) = fetch.remote_files(small(host))
    assert path.read_bytes() == BODY
    assert sent == ["Bearer hf_secret" if host == "hub" else None]


@pytest.mark.parametrize("knows_ranges", [True, False])
def test_a_broken_connection_is_taken_up_where_it_broke(knows_ranges: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str | None] = []

    def answer(request: BaseHTTPRequestHandler) -> None:
        wanted = request.headers.get("Range")
        asked.append(wanted)
        if wanted is None:
            request.send_response(200)
            request.send_header("Content-Length", str(len(BODY)))
            request.end_headers()
            request.wfile.write(BODY[:200_000])
            request.close_connection = True
        elif knows_ranges:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            request.send_response(206)
            request.send_header("Content-Length", str(len(BODY) - start))
            request.end_headers()
            request.wfile.write(BODY[start:])
        else:
            plain(request)

    with server(answer) as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
        (path,) = fetch.remote_files(small())
    assert path.read_bytes() == BODY
    assert asked[0] is None
    (again,) = asked[1:]
    assert again is not None
    assert 100_000 < int(again.removeprefix("bytes=").removesuffix("-")) <= 200_000


def test_the_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def answer(request: BaseHTTPRequestHandler) -> None:
        asked.append(request.path)
        plain(request)

    with server(answer) as address:
        monkeypatch.setenv("HTTP_PROXY", address)
        monkeypatch.setenv("HF_ENDPOINT", "http://hub.invalid")
        fetch.remote_files(small())
    assert asked[0].startswith("http://hub.invalid/datasets/")


def test_a_file_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(fetch, "_MAX_BYTES", 100_000)
    with server(plain) as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
        with pytest.raises(DataError, match="larger than expected") as caught:
            fetch.remote_files(small())
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "cache").rglob("f.jsonl"))
