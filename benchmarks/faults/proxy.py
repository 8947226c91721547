"""A small HTTP proxy that misbehaves, in front of a real server or in place of one."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ANSWERS = {
    "500": (500, "application/json", b'{"error_code": "INTERNAL_ERROR", "message": "oops"}'),
    "429": (429, "text/plain", b"slow down"),
    "503": (503, "text/html", b"<html>try later</html>"),
    "401": (401, "text/plain", b"You are not authenticated."),
    "403": (403, "text/plain", b"Permission denied"),
    "html": (200, "text/html", b"<html><body>Please log in to the network</body></html>"),
    "garbage": (200, "application/json", b'{"run": {"info": \xff\x00'),
}
"""Answers given instead of the server's; a 429 also asks to retry in an hour."""
FAULTS = ("hang", "reset", "lost", "late", "twice", "slow", "down", *ANSWERS)
"""Besides `ANSWERS`:

hang: no answer, and no request to the server;  reset: the connection is cut before the request;
lost: the connection is cut after the request;  late: the same, long after the client gave up;
twice: the server gets the request twice;  slow: the answer is late;  down: refused for a while.
"""

DOWN_SECONDS = LATE_SECONDS = 0.5
Choose = Callable[[str, str], "str | None"]


class Proxy:
    """A context manager that listens on a port of the loopback.

    Args:
        target: port of the real server on the loopback; None if there is none.
        choose: returns the fault of a request, given its method and path; None for no fault.
        hang_seconds: length of a hanging request.

    Attributes:
        port: the port that it listens on.
        faults: the faults so far: (fault, method, path).
    """

    def __init__(self, target: int | None, choose: Choose, *, hang_seconds: float = 3600.0) -> None:
        self.target, self.choose, self.hang_seconds = target, choose, hang_seconds
        self.faults: list[tuple[str, str, str]] = []
        self.down_until = 0.0
        self.over = threading.Event()
        self.late: list[threading.Thread] = []
        handler = type("_Bound", (_Handler,), {"proxy": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    def __enter__(self) -> Proxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self.settle()

    @property
    def uri(self) -> str:
        """The address for clients."""
        return f"http://127.0.0.1:{self.port}"

    def settle(self) -> None:
        """Wait until the server has got every late request."""
        while self.late:
            self.late.pop().join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore cut connections: the proxy cuts them."""


class _Handler(BaseHTTPRequestHandler):
    proxy: Proxy
    protocol_version = "HTTP/1.1"

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        proxy = self.proxy
        if time.monotonic() < proxy.down_until:
            return self._cut()
        fault = proxy.choose(self.command, self.path)
        if fault is not None:
            proxy.faults.append((fault, self.command, self.path))
        if fault in ANSWERS:
            return self._answer(*ANSWERS[fault])
        if fault == "down":
            proxy.down_until = time.monotonic() + DOWN_SECONDS
        if fault in ("down", "reset"):
            return self._cut()
        if fault == "hang" or proxy.target is None:
            proxy.over.wait(proxy.hang_seconds)
            return self._cut()
        if fault == "late":
            return self._ask_late(body)
        if fault == "slow":
            proxy.over.wait(LATE_SECONDS)
        answer = self._ask(body)
        if fault == "twice":
            answer = self._ask(body)
        return self._cut() if fault == "lost" else self._answer(*answer)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = _serve

    def _ask(self, body: bytes) -> tuple[int, str, bytes]:
        """Return the server's answer: status, content type, body."""
        server = http.client.HTTPConnection("127.0.0.1", self.proxy.target, timeout=60)
        kept = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "connection")}
        server.request(self.command, self.path, body or None, {**kept, "Connection": "close"})
        answer = server.getresponse()
        content = answer.read()
        if self.command == "HEAD":  # as long as the answer to a GET
            content = bytes(int(answer.headers.get("Content-Length") or 0))
        server.close()
        return answer.status, answer.headers.get("Content-Type", ""), content

    def _ask_late(self, body: bytes) -> None:
        def ask() -> None:
            time.sleep(LATE_SECONDS)
            self._ask(body)

        thread = threading.Thread(target=ask)
        thread.start()
        self.proxy.late.append(thread)
        self._cut()

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if status == 429:
            self.send_header("Retry-After", "3600")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _cut(self) -> None:
        self.close_connection = True
        self.connection.close()

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""
