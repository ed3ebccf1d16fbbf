"""Where a checkout finds the benchmark folder, and a small web server that plays the public hosts."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def data_folder() -> Path | None:
    """HARNESS_DATA, or a `shared/data` folder beside the checkout; None where there is neither."""
    configured = os.environ.get("HARNESS_DATA")
    folder = Path(configured) if configured else Path(__file__).resolve().parents[3] / "shared" / "data"
    return folder if (folder / "math500.jsonl").is_file() else None


@contextmanager
def serving(files: Mapping[str, bytes], status: int = 404, silent: bool = False) -> Iterator[tuple[str, list[str]]]:
    """A server with these paths; others get `status`, or no answer at all when `silent`. Yields its address and the requests."""
    requests: list[str] = []
    release = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(self.path)
            if silent:
                release.wait(30)
                return
            body = files.get(self.path)
            self.send_response(status if body is None else 200)
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        release.set()
        server.shutdown()
        server.server_close()
