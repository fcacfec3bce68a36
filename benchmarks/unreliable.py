"""An unreliable network between SuperNodes and a SuperLink, for benchmarks/soak.py.

A forwarder ends the nodes' TLS with the server's own certificate, reads their HTTP requests and passes them on. Some
requests are delayed, some are passed on twice, of which the second answer is dropped: what a repeated packet, or a
retry whose first attempt did arrive, looks like to the SuperLink. A repeated `push-messages` costs the reply: Flower
1.41 replaces the session in which its objects are sent, and the node gives up.
"""

import http.client
import random
import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from feddwa.flower.credentials import Certificates

DELAYED, LONGEST = 0.1, 2.0  # share of the requests that are delayed; seconds at most
DUPLICATED = 0.01  # share of the requests that are passed on twice
PULL = "/pull-messages"  # asked twice, a SuperLink hands out two messages: the second one would be lost for good
HOP = {"connection", "transfer-encoding", "content-length", "host"}  # headers of one connection, not of the request


class Forwarder:
    """Listens on `port` of the loopback device and forwards to the port `target`."""

    def __init__(self, target: int, certificates: Certificates, seed: int) -> None:
        self.target, self.rng, self.lock = target, random.Random(seed), threading.Lock()
        self.delayed = self.duplicated = self.requests = 0
        self.trust = ssl.create_default_context(cafile=str(certificates.authority))
        own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        own.load_cert_chain(certificates.certificate, certificates.key)
        self.server = _Server(self, own)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def plan(self, path: str) -> tuple[float, bool]:
        """(seconds to wait, whether to pass on twice) for a request."""
        with self.lock:
            delay = self.rng.uniform(0, LONGEST) if self.rng.random() < DELAYED else 0.0
            twice = self.rng.random() < DUPLICATED and not path.endswith(PULL)
            self.requests, self.delayed = self.requests + 1, self.delayed + bool(delay)
            self.duplicated += twice
        return delay, twice

    def connection(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection("127.0.0.1", self.target, timeout=60, context=self.trust)


class _Server(ThreadingHTTPServer):
    daemon_threads, request_queue_size = True, 128

    def __init__(self, forwarder: Forwarder, own: ssl.SSLContext) -> None:
        self.forwarder, self.own = forwarder, own
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, *_: object) -> None:
        """A killed node, or a SuperLink that is down."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def setup(self) -> None:
        self.request = self.server.own.wrap_socket(self.request, server_side=True)  # in the thread of the connection
        super().setup()
        self.onward = self.server.forwarder.connection()

    def finish(self) -> None:
        self.onward.close()
        super().finish()
        self.request.close()  # the server knows the socket below it only

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        delay, twice = self.server.forwarder.plan(self.path)
        time.sleep(delay)
        answer = self._pass_on(body)
        if twice:
            self._pass_on(body)
        if answer is None:
            self.close_connection = True  # as if the SuperLink had hung up
            return
        status, headers, content = answer
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in HOP:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST

    def _pass_on(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes] | None:
        """(status, headers, content) of the SuperLink's answer; None if it is down."""
        headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP}
        for _ in range(2):  # a connection that was kept open may have ended meanwhile
            try:
                self.onward.request(self.command, self.path, body, headers)
                with self.onward.getresponse() as answer:
                    return answer.status, answer.getheaders(), answer.read()
            except (OSError, http.client.HTTPException):
                self.onward.close()
        return None
