"""An HTTP server that remembers what it was sent."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Call:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Receiver:
    """`status` is what it answers; `wait(n)` waits until it has had n calls."""

    url: str = ""
    status: int = 200
    calls: list[Call] = field(default_factory=list)
    arrived: threading.Condition = field(default_factory=threading.Condition)

    def wait(self, count: int, timeout_s: float = 10.0) -> list[Call]:
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.calls) >= count, timeout_s), f"{len(self.calls)} of {count} calls came"
            return list(self.calls)


@contextlib.contextmanager
def receiving(status: int = 200) -> Iterator[Receiver]:
    receiver = Receiver(status=status)

    class Handler(BaseHTTPRequestHandler):
        def _take(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            with receiver.arrived:
                receiver.calls.append(Call(self.command, self.path, dict(self.headers), body))
                receiver.arrived.notify_all()
            self.send_response(receiver.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_POST = do_PUT = do_DELETE = _take

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
