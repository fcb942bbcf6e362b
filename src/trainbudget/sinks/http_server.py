"""A small HTTP server for read-only pages: GET and HEAD, one daemon thread a connection, never in the way of process exit."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from trainbudget.config import Listen
from trainbudget.errors import ConfigError

#: Ports tried after a taken one: more than the ranks of any host.
TRIES = 64
#: A connection that says nothing for this long is closed; scrapers ask at least every two minutes.
IDLE_S = 130.0
#: More connections at once than this are refused: a scraper or two and a few open pages need less.
MOST_CONNECTIONS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What a path answers."""

    content_type: str
    body: bytes


class ReadOnlyServer:
    """Serves `pages` (path -> function that makes the page) until `close()`.

    Args:
        strict: the port must be free; otherwise the next free one of `TRIES` is taken.

    Raises:
        ConfigError: no port could be had; the text says which and why.
    """

    def __init__(
        self, listen: Listen, pages: Mapping[str, Callable[[], Page]], *, strict: bool = False, name: str = "trainbudget-http"
    ) -> None:
        self._server = _bind(listen, dict(pages), tries=1 if strict or listen.port == 0 else TRIES)
        self.host = listen.host
        self.port: int = self._server.server_address[1]
        self.moved = listen.port not in (0, self.port)
        self._thread = threading.Thread(target=self._server.accept_forever, name=name, daemon=True)
        self._thread.start()
        _close_in_forked_children(self._server)

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    def close(self) -> None:
        """Free the port at once."""
        self._server.stop()
        self._thread.join(1.0)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 32

    def __init__(self, address: tuple[str, int], pages: dict[str, Callable[[], Page]], family: socket.AddressFamily) -> None:
        self.address_family = family
        self.pages = pages
        self.closing = False
        self.slots = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._open: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Without the look-up of the host's name that the base class makes: it can take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def accept_forever(self) -> None:
        """Without the base class's polling: the training process is not woken for nothing."""
        while not self.closing:
            try:
                request, address = self.socket.accept()
            except OSError:
                if self.closing:
                    return
                time.sleep(0.1)  # out of file descriptors, most likely: a connection's end will help
                continue
            try:
                self.process_request(request, address)
            except Exception:  # noqa: BLE001 - no thread could be started: the next scrape finds out whether that has passed
                self.shutdown_request(request)

    def stop(self) -> None:
        self.closing = True
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)  # wakes accept() where the system does that; closing alone does not
        with contextlib.suppress(OSError):
            socket.create_connection((self.server_name, self.server_port), timeout=0.2).close()  # ... and where it does not
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self.slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        self._open.add(request)
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.slots.release()

    def server_close(self) -> None:
        super().server_close()
        for request in list(self._open):
            self.shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is nobody's news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "trainbudget"
    sys_version = ""
    timeout = IDLE_S
    wbufsize = -1  # headers and body leave in one send: each more costs a wait for the interpreter lock
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _refuse(self) -> None:
        self.close_connection = True
        self._send(405, Page(content_type="text/plain; charset=utf-8", body=b"read only\n"), with_body=True)

    do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = _refuse

    def _answer(self, *, with_body: bool) -> None:
        make = self.server.pages.get(self.path.partition("?")[0])
        if make is None:
            self._send(404, Page(content_type="text/plain; charset=utf-8", body=b"not found\n"), with_body=with_body)
            return
        try:
            page = make()
        except Exception as err:  # noqa: BLE001 - a page that fails must not end the connection without an answer
            text = f"{type(err).__name__}\n".encode()
            self._send(500, Page(content_type="text/plain; charset=utf-8", body=text), with_body=with_body)
            return
        self._send(200, page, with_body=with_body)

    def _send(self, status: int, page: Page, *, with_body: bool) -> None:
        self.send_response_only(status)
        self.send_header("Content-Type", page.content_type)
        self.send_header("Content-Length", str(len(page.body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        if self.close_connection:
            self.send_header("Connection", "close")
        if status == 405:
            self.send_header("Allow", "GET, HEAD")
        self.end_headers()
        if with_body:
            self.wfile.write(page.body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a scrape is not worth a line in somebody's training log."""


def _bind(listen: Listen, pages: dict[str, Callable[[], Page]], *, tries: int) -> _Server:
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    error: OSError | None = None
    for port in range(listen.port, min(listen.port + tries, 65536)):
        try:
            return _Server((listen.host, port), pages, family)
        except (OSError, UnicodeError) as err:
            error = err if isinstance(err, OSError) else OSError(str(err))
    raise ConfigError(f"listen: {listen.host}:{listen.port} cannot be had ({error}); set TRAINBUDGET_LISTEN=host:port or off")


_servers: weakref.WeakSet[_Server] = weakref.WeakSet()
_fork_hook = threading.Lock()


def _close_in_forked_children(server: _Server) -> None:
    """A forked data-loader worker inherits the listening socket; it would hold the port after the parent's end."""
    with _fork_hook:
        if not _servers and hasattr(os, "register_at_fork") and not getattr(_close_inherited, "registered", False):
            os.register_at_fork(after_in_child=_close_inherited)
            _close_inherited.registered = True  # type: ignore[attr-defined]
        _servers.add(server)


def _close_inherited() -> None:
    for server in list(_servers):
        server.socket.close()
    _servers.clear()
