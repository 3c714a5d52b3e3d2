"""A proxy in front of a server: counts requests and bytes, and fails as it is told.

A ``Fault`` is met by the next requests that match it: an HTTP status instead of an answer, a body that is cut, a pause
before each part, or nothing but silence. Whatever is not failed passes as it is.
"""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

PART_BYTES = 16 * 2**10


@dataclass
class Fault:
    """``times`` requests of ``method`` whose path holds ``match`` fail: by ``status`` and ``body``, or in their answer.

    ``cut_after``: bytes of the body before the connection ends. ``pause_s``: before each 16 KiB. ``short``: bytes
    left out at the end of an answer that says nothing of it.
    """

    status: int = 0
    body: str = ""
    cut_after: int | None = None
    short: int = 0
    pause_s: float = 0.0
    match: str = ""
    method: str = "GET"
    times: int = 1


@dataclass(frozen=True)
class Seen:
    """One request and what was answered. ``span``: the header Range, '' if there was none."""

    method: str
    path: str
    span: str
    status: int
    num_bytes: int


@dataclass
class Proxy:
    """What the proxy at ``url`` does, and what it has seen. ``connections``: how many were opened."""

    url: str = ""
    faults: list[Fault] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    connections: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def fault(self, method: str, path: str) -> Fault | None:
        """The fault that this request meets, if any."""
        with self.lock:
            for fault in self.faults:
                if fault.times and fault.method == method and fault.match in path:
                    fault.times -= 1
                    return fault
        return None

    @property
    def body_bytes(self) -> int:
        """Bytes of all bodies of GET that were sent."""
        return sum(seen.num_bytes for seen in self.seen if seen.method == "GET")

    def clear(self) -> None:
        """Forget all faults and requests."""
        self.faults.clear()
        self.seen.clear()
        self.connections = 0


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    proxy: Proxy
    upstream: str

    def setup(self) -> None:
        super().setup()
        with self.proxy.lock:
            self.proxy.connections += 1
        self.up = http.client.HTTPConnection(self.upstream, timeout=60)

    def finish(self) -> None:
        self.up.close()
        super().finish()

    def forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.proxy.fault(self.command, self.path)
        if fault is not None and fault.status:
            self.answer(fault.status, {"Content-Type": "application/xml"}, fault.body.encode())
            return
        # Hop by hop, `Expect` is between client and proxy; it was answered by the server class.
        headers = {k: v for k, v in self.headers.items() if k.lower() not in ("connection", "expect")}
        self.up.request(self.command, self.path, body, headers)
        got = self.up.getresponse()
        data = got.read()
        kept = {k: v for k, v in got.getheaders() if k.lower() not in _HOP_BY_HOP}
        if self.command == "HEAD":
            kept["Content-Length"] = got.headers.get("Content-Length") or "0"
        if fault is not None and fault.short:
            data = data[: -fault.short]
        self.answer(got.status, kept, data, fault)

    def answer(self, status: int, headers: dict[str, str], data: bytes, fault: Fault | None = None) -> None:
        cut = fault.cut_after if fault is not None else None
        sent = data if cut is None else data[:cut]
        with self.proxy.lock:  # before the client can know
            seen = Seen(self.command, self.path, self.headers.get("Range") or "", status, len(sent))
            self.proxy.seen.append(seen)
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if "Content-Length" not in headers:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "HEAD":
            return
        for at in range(0, len(sent), PART_BYTES if fault is not None else max(1, len(sent))):
            if fault is not None and fault.pause_s:
                time.sleep(fault.pause_s)
            self.wfile.write(sent[at : at + PART_BYTES] if fault is not None else sent)
        if cut is not None:
            self.wfile.flush()
            self.close_connection = True

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (ConnectionError, TimeoutError, http.client.HTTPException):
            self.close_connection = True

    def log_message(self, *args: object) -> None:
        pass

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = forward


_HOP_BY_HOP = {"connection", "transfer-encoding", "content-length", "keep-alive"}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


@contextmanager
def start_proxy(upstream: str) -> Iterator[Proxy]:
    """A proxy in front of the server at the URL ``upstream``."""
    proxy = Proxy()
    handler = type("Handler", (_Handler,), {"proxy": proxy, "upstream": urlsplit(upstream).netloc})
    with _Server(("127.0.0.1", 0), handler) as server:
        proxy.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            server.shutdown()
            thread.join()
