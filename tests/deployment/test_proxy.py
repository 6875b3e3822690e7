"""The proxy in front of a SuperLink: SuperNodes work through it, and a site reaches nothing else of that port.

Debian's nginx runs with the image's own start.py and nginx.conf, on loopback, before a real SuperLink with TLS.
"""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from deployment import ROOT, Secured, free_port, nectar
from federation import numbers, run
from small import Small

from server_app.record import Record

PATH = f"{os.environ['PATH']}:/usr/sbin"

pytestmark = [
    pytest.mark.extended,
    pytest.mark.skipif(
        shutil.which("nginx", path=PATH) is None and not os.environ.get("CI"),
        reason="Debian's nginx is not installed",
    ),
]

#: an empty ListRunsRequest, which the Control API answers with every run there is
LIST_RUNS = "/v1/control/list-runs"
PROTOBUF = "Content-Type: application/protobuf\r\nAccept: application/protobuf\r\n"


class Proxied(Secured):
    """A SuperLink with TLS and authentication, the proxy, and SuperNodes that know the proxy alone."""

    def __init__(self, directory: Path, nodes: int) -> None:
        sites = {f"partition-{i}": f"partition-id={i} num-partitions={nodes}" for i in range(nodes)}
        super().__init__(directory, sites)
        self.proxy_port = free_port()

    @property
    def superlink_port(self) -> int:
        return self._port

    def start_nodes(self) -> None:
        """Start the proxy first."""
        self._start_proxy()
        super().start_nodes()

    def supernode(self, site: str, **options: Any) -> subprocess.Popen[bytes]:
        """Start a SuperNode that knows the proxy."""
        return super().supernode(site, **options, address=f"127.0.0.1:{self.proxy_port}")

    def _start_proxy(self) -> None:
        run_directory = self.directory / "nginx"
        run_directory.mkdir()
        settings = {
            "PATH": PATH,
            "PROXY_LISTEN": f"127.0.0.1:{self.proxy_port}",
            "PROXY_SUPERLINK": f"127.0.0.1:{self._port}",
            "PROXY_KEYS": str(self.keys),
            "PROXY_RUN": str(run_directory),
        }
        with (self.directory / "proxy.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-I", str(ROOT / "docker" / "proxy" / "start.py")],
                env=os.environ | settings,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._started.append(process)

    def asked_of_superlink(self) -> list[str]:
        """Return the request lines in the SuperLink's own log."""
        lines = self.log("superlink").splitlines()
        return [line.split('"')[1] for line in lines if line.count('"') == 2 and "HTTP/1" in line]


@pytest.fixture(scope="module")
def federation() -> Iterator[Proxied]:
    # Not below pytest's own directory, which is closed to the user as whom nginx started by root works.
    directory = Path(tempfile.mkdtemp(prefix="nectar-proxy-"))
    directory.chmod(0o755)
    try:
        with Proxied(directory, 2) as deployment:
            wait_for(lambda: reached(deployment.proxy_port), "the proxy")
            wait_for(lambda: reached(deployment.superlink_port), "the SuperLink")
            yield deployment
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def wait_for(there: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 300
    while not there():
        assert time.monotonic() < end, f"{what} does not answer"
        time.sleep(0.2)


def reached(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def ask(federation: Proxied, port: int, request: bytes) -> bytes:
    """Send ``request`` over TLS as it is and return everything that comes back."""
    context = ssl.create_default_context(cafile=federation.keys / "ca.crt")
    answer = b""
    with (
        socket.create_connection(("127.0.0.1", port), 60) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
    ):
        connection.sendall(request)
        while piece := connection.recv(65536):
            answer += piece
    return answer


def post(target: str, *, version: str = "HTTP/1.1", method: str = "POST", extra: str = "") -> bytes:
    head = (
        f"{method} {target} {version}\r\nHost: 127.0.0.1\r\nConnection: close\r\n{PROTOBUF}{extra}"
    )
    return f"{head}Content-Length: 0\r\n\r\n".encode("latin-1")


def status(answer: bytes) -> int:
    return int(answer.split(maxsplit=2)[1])


def test_a_round_through_the_proxy_gives_the_numbers_of_this_process(
    federation: Proxied, small: Small, tmp_path: Path
) -> None:
    settings = "feddm.start=noise feddm.warm=on federation.sites=2"
    here = run(small(rounds=1, set=settings))
    there = federation.directory / "runs"
    identity = federation.submit(small(rounds=1, set=settings) | {"output-dir": str(there)})
    assert federation.wait(identity, 600) == "finished:completed"
    (directory,) = there.iterdir()
    assert numbers(Record(directory)) == numbers(here)
    assert "refused" not in federation.log("proxy")


def test_the_operator_reaches_what_sites_must_not(federation: Proxied) -> None:
    """The tricks below would work on the SuperLink itself: it decodes %63 and answers."""
    for target in (LIST_RUNS, "/v1/%63ontrol/list-runs", f"{LIST_RUNS}?x=/v1/fleet/"):
        assert status(ask(federation, federation.superlink_port, post(target))) == 200, target
    assert status(ask(federation, federation.superlink_port, post("/health", method="GET"))) == 200
    acquire = post("/v1/runtime/acquire-task")
    assert status(ask(federation, federation.superlink_port, acquire)) != 404


@pytest.mark.parametrize(
    "target",
    [
        LIST_RUNS,
        "/v1/control/start-run",
        "/v1/control/register-node",
        "/v1/runtime/acquire-task",
        "/health",
        "/docs",
        "/openapi.json",
        "/",
        "*",
        "/v1/fleet",
        "/v1/fleet/",
        "/v1/fleet/pull-messages/",
        "/v1/fleet/pull-messages?x=1",
        "/v1/fleet/pull-messages;x=1",
        "/v1/fleet/pull-messages#/../control/list-runs",
        # encoded
        "/v1/%63ontrol/list-runs",
        "/v1%2fcontrol%2flist-runs",
        "/%76%31/control/list-runs",
        "/v1/fleet/%2e%2e/control/list-runs",
        "/v1/fleet/%2E%2E%2Fcontrol%2Flist-runs",
        "/v1/fleet/..%2fcontrol/list-runs",
        "/v1/fleet/%252e%252e/control/list-runs",
        "/v1/fleet/..%c0%afcontrol/list-runs",
        "/v1/fleet/pull-messages%00",
        # doubled
        "//v1/control/list-runs",
        "/v1//control/list-runs",
        "/v1/fleet//control/list-runs",
        "//127.0.0.1/v1/control/list-runs",
        # dotted
        "/v1/fleet/../control/list-runs",
        "/v1/fleet/x/../../control/list-runs",
        "/v1/./control/list-runs",
        "/v1/fleet/..\\control\\list-runs",
        "/v1/fleet/..;/control/list-runs",
        # in another case
        "/V1/CONTROL/LIST-RUNS",
        "/v1/Control/list-runs",
        "/v1/FLEET/../control/list-runs",
        # as a whole address
        f"https://127.0.0.1{LIST_RUNS}",
        f"http://superlink{LIST_RUNS}",
        "https://127.0.0.1/v1/fleet/../control/list-runs",
        "https://127.0.0.1/v1/fleet/pull-messages",
        "/v1/fleet/http://127.0.0.1/v1/control/list-runs",
        # as something that is no path
        "v1/control/list-runs",
        "?/v1/fleet/pull-messages",
    ],
)
@pytest.mark.parametrize("method", ["POST", "GET"])
def test_a_site_reaches_the_fleet_api_alone(federation: Proxied, target: str, method: str) -> None:
    answer = ask(federation, federation.proxy_port, post(target, method=method))
    assert status(answer) in (400, 404)
    assert b"\r\nServer: nginx\r\n" in answer
    assert b"<center>nginx</center>" in answer  # its own page: nothing was passed on


@pytest.mark.parametrize(
    "request_bytes",
    [
        post(LIST_RUNS, version="HTTP/1.0"),
        post("/v1/fleet/pull-messages", version="HTTP/1.0"),
        f"GET {LIST_RUNS}\r\n\r\n".encode(),
        post(LIST_RUNS, method="PUT"),
        post(LIST_RUNS, method="post"),
        post("127.0.0.1:8000", method="CONNECT"),
        post("/v1/fleet/pull-messages", method="GET"),
        post(f"/v1/fleet/pull-messages HTTP/1.1 {LIST_RUNS}"),
        post(LIST_RUNS, extra="X-Original-URL: /v1/fleet/pull-messages\r\n"),
        f"\r\n\r\nPOST {LIST_RUNS} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode(),
        f"POST /v1/fleet/x\n{LIST_RUNS} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode(),
    ],
)
def test_nor_by_another_protocol_or_method(federation: Proxied, request_bytes: bytes) -> None:
    answer = ask(federation, federation.proxy_port, request_bytes)
    assert b"<center>nginx</center>" in answer
    assert b"200 OK" not in answer


@pytest.mark.parametrize(
    "hidden",
    [
        "Content-Length: 0\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: identity\r\nContent-Length: 0\r\n\r\n",
        "Transfer-Encoding: \x0bchunked\r\nContent-Length: 0\r\n\r\n",
        "Content-Length: 0\r\nContent-Length: 100\r\n\r\n",
    ],
)
def test_nor_behind_a_request_that_is_allowed(federation: Proxied, hidden: str) -> None:
    """One connection, two requests: the second must meet the same rule, however the first one's end is written."""
    first = f"POST /v1/fleet/get-run HTTP/1.1\r\nHost: x\r\n{PROTOBUF}{hidden}".encode("latin-1")
    answer = ask(federation, federation.proxy_port, first + post(LIST_RUNS))
    # 501 is nginx's own to an encoding that it does not know.
    assert 400 <= status(answer) < 500 or status(answer) == 501
    assert b"200 OK" not in answer
    assert answer.rstrip().endswith(b"</html>")  # what came last is the proxy's own page


def test_what_was_tried_never_got_to_the_superlink(federation: Proxied) -> None:
    """Last of all: a request of no SuperNode is in the SuperLink's log only if the operator made it, not the proxy."""
    before = federation.asked_of_superlink()
    for target in (LIST_RUNS, "/v1/fleet/../control/list-runs", "/v1/%63ontrol/list-runs"):
        ask(federation, federation.proxy_port, post(target))
    refusal = f'refused: "POST {LIST_RUNS} HTTP/1.1" 404'
    wait_for(lambda: refusal in federation.log("proxy"), "the proxy's log")
    time.sleep(1)
    news = federation.asked_of_superlink()[len(before) :]
    assert [line for line in news if not line.startswith("POST /v1/fleet/")] == []


def test_an_unsigned_call_is_refused_by_the_superlink_itself(federation: Proxied) -> None:
    """What is allowed does pass, with a body well above a piece of Flower's: 413 would be the proxy's."""
    body = bytes(20_000_000)
    head = f"POST /v1/fleet/get-run HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{PROTOBUF}"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    assert status(ask(federation, federation.proxy_port, request)) in (400, 401)
    empty = ask(federation, federation.proxy_port, post("/v1/fleet/get-run"))
    assert status(empty) == 401
    assert b"<center>nginx</center>" not in empty


def test_the_doctor_sees_the_superlink_through_it(
    federation: Proxied, capsys: pytest.CaptureFixture[str]
) -> None:
    ca = str(federation.keys / "ca.crt")
    assert nectar("doctor", f"127.0.0.1:{federation.proxy_port}", "--ca", ca, "--site") == 0
    message = " ".join(capsys.readouterr().out.split())
    assert "ok server the SuperLink answers sites at this address" in message
    assert "ok control api cannot be reached from this machine, as intended" in message


def test_a_superlink_that_says_500_is_one_that_is_asked_again() -> None:
    """Of all that it says, a 500 alone is passed on as something else: a SuperNode asks again at a 503."""
    directory = Path(tempfile.mkdtemp(prefix="nectar-proxy-"))
    directory.chmod(0o755)
    proxied = Proxied(directory, 0)
    try:
        with answering(proxied.keys, proxied.superlink_port):
            proxied._start_proxy()
            wait_for(lambda: reached(proxied.proxy_port), "the proxy")
            message = {
                code: status(ask(proxied, proxied.proxy_port, post(f"/v1/fleet/{word}")))
                for code, word in CODES.items()
            }
    finally:
        proxied.__exit__(None, None, None)
        shutil.rmtree(directory, ignore_errors=True)
    assert message == {code: 503 if code == 500 else code for code in CODES}


#: what a SuperLink may say, each to a method of its own
CODES = {200: "a", 401: "b", 403: "c", 404: "d", 413: "e", 500: "f", 502: "g", 503: "h"}


@contextmanager
def answering(keys: Path, port: int) -> Iterator[None]:
    """Be a SuperLink that answers each of those methods with its status."""
    codes = {f"/v1/fleet/{word}": code for code, word in CODES.items()}

    class Answer(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.send_response(codes[self.path])
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Answer)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys / "server.pem", keys / "server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
