"""A short version of benchmarks/soak.py, and the parts that it is made of."""

import http.client
import http.server
import ssl
import threading
from pathlib import Path

import pytest
import torch

from feddwa.engine import Cohort
from feddwa.flower.credentials import make_certificates
from feddwa.results.runs import METRICS, read_lines

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
BODIES = [f"request {number}".encode() for number in range(40)]


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))


class Counted(http.server.BaseHTTPRequestHandler):
    """Answers with what it gets, and keeps it."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.received.append((self.path, self.headers["X-Signature"], body))
        self.send_response(201)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Nothing: it is a test."""


@pytest.fixture
def superlink(tmp_path):
    """A server with TLS, and its certificates."""
    certificates = make_certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.certificate, certificates.key)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Counted)
    server.daemon_threads, server.received = True, []
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server, certificates
    server.shutdown()
    server.server_close()


def test_requests_arrive_unchanged_some_twice_and_some_late(superlink, monkeypatch):
    import unreliable

    monkeypatch.setattr(unreliable, "LONGEST", 0.01)
    monkeypatch.setattr(unreliable, "DUPLICATED", 0.3)
    server, certificates = superlink
    forwarder = unreliable.Forwarder(server.server_address[1], certificates, seed=0)
    trust = ssl.create_default_context(cafile=str(certificates.authority))
    connection = http.client.HTTPSConnection("127.0.0.1", forwarder.port, timeout=30, context=trust)
    for body in BODIES:
        for path in ("/v1/fleet/push-messages", "/v1/fleet/pull-messages"):
            connection.request("POST", path, body, {"X-Signature": "signed"})
            answer = connection.getresponse()
            assert (answer.status, answer.read()) == (201, body)
    connection.close()
    forwarder.close()
    assert {(signature, body) for _, signature, body in server.received} == {("signed", body) for body in BODIES}
    paths = [path for path, _, _ in server.received]
    assert paths.count("/v1/fleet/pull-messages") == len(BODIES)
    assert paths.count("/v1/fleet/push-messages") == len(BODIES) + forwarder.duplicated
    assert forwarder.requests == 2 * len(BODIES)
    assert forwarder.duplicated > 2
    assert forwarder.delayed > 2


def test_who_had_trained_is_late_and_who_had_not_is_absent():
    import soak

    told = soak.Told({3: {0, 2}}, {0: {1, 3}, 1: {3}, 2: {1}})
    cohorts = [Cohort(torch.tensor([0, 1, 2]), torch.ones(3), round, 3) for round in (2, 3)]
    assert [told.absent(0, cohort).tolist() for cohort in cohorts] == [[False] * 3, [False, False, True]]
    assert [told.late(0, cohort).tolist() for cohort in cohorts] == [[False] * 3, [True, False, False]]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")
def test_a_maltreated_federation_is_the_simulator_that_is_told_the_absences(tmp_path):
    """Four nodes, of which some are killed, and so is the SuperLink; requests are delayed and repeated."""
    import soak

    options = {"nodes": 4, "rounds": 6, "minutes": 14.0, "every": 2, "seed": 0, "deadline": 60.0}
    assert not soak.soaked(tmp_path, **options, algorithm="fedrod")
    assert len(read_lines(tmp_path / "out" / METRICS)) == 7  # with that of the final models
