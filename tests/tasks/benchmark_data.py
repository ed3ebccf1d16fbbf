"""Where a checkout finds the benchmark folder, and a small web server that plays the public hosts."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def data_folder() -> Path | None:
    """HARNESS_DATA, or a `shared/data` folder beside the checkout; None where there is neither."""
    configured = os.environ.get("HARNESS_DATA")
    folder = Path(configured) if configured else Path(__file__).resolve().parents[3] / "shared" / "data"
    return folder if (folder / "math500.jsonl").is_file() else None


Answer = Callable[[BaseHTTPRequestHandler, bytes | None], None]


def plain(request: BaseHTTPRequestHandler, body: bytes | None) -> None:
    request.send_response(404 if body is None else 200)
    request.send_header("Content-Length", str(len(body or b"")))
    request.end_headers()
    request.wfile.write(body or b"")


@contextmanager
def serving(files: Mapping[str, bytes], answer: Answer = plain) -> Iterator[tuple[str, list[BaseHTTPRequestHandler]]]:
    """A server; `answer` is given each request and the file of that path, or the one without a name. Yields its address and the
    requests."""
    requests: list[BaseHTTPRequestHandler] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(self)
            answer(self, files.get(self.path, files.get("")))

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        server.server_close()
