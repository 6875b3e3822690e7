"""A SuperLink's Control API as Nectar reads it, and the log as it is shown."""

from __future__ import annotations

import io
import socket
import threading
from collections.abc import Callable, Iterator

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto import control_pb2 as api
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.run_pb2 import Run as FlowerRun
from flwr.proto.run_pb2 import RunStatus
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from google.protobuf.message import Message

from nectar.engines.flower import superlink as module
from nectar.engines.flower.connection import Connection
from nectar.engines.flower.errors import CommandRefused, LaunchError
from nectar.engines.flower.federation import Node, Run
from nectar.engines.flower.log import Screen
from nectar.engines.flower.superlink import SuperLink
from nectar.operate.keys.authority import fingerprint

Answer = Callable[[httpx.Request], httpx.Response]


def answering(answer: Answer) -> SuperLink:
    """Return a SuperLink that gives this answer to everything."""
    client = ControlHttpClient("http://lab")
    client._client = httpx.Client(transport=httpx.MockTransport(answer))
    return SuperLink(client, "lab:8000")


def giving(message: Message) -> Answer:
    return lambda request: httpx.Response(200, content=message.SerializeToString())


def frame(text: str, time: float) -> bytes:
    piece = api.StreamLogsResponse(log_output=text, latest_timestamp=time).SerializeToString()
    return len(piece).to_bytes(4, "big") + piece


def test_a_refusal_is_told_in_flowers_words() -> None:
    refused = {"code": 23, "detail": "Public key already in use."}
    superlink = answering(lambda request: httpx.Response(409, json=refused))
    with pytest.raises(CommandRefused, match=r"^\[code: 23\] Public key already in use\.$"):
        superlink.unregister("17")
    with pytest.raises(LaunchError, match=r"^Flower did not start the run: \[code: 23\] Public"):
        superlink.start(b"", {})


@pytest.mark.parametrize("code", [502, 404])
def test_what_a_proxy_says_is_no_refusal(code: int) -> None:
    """A SuperLink behind it that is gone may come back."""
    superlink = answering(lambda request: httpx.Response(code, text="<html>"))
    with pytest.raises(LaunchError, match=f"^The SuperLink at lab:8000 answers {code}$") as error:
        superlink.run("17")
    assert not isinstance(error.value, CommandRefused)


def test_what_is_none_of_flowers_answers() -> None:
    superlink = answering(lambda request: httpx.Response(200, content=b"\xff<html>"))
    with pytest.raises(LaunchError, match=r"lab:8000 does not answer .*is it reachable"):
        superlink.nodes()


def test_what_is_submitted_is_the_bundle_and_what_is_stated() -> None:
    asked: list[api.StartRunRequest] = []

    def start(request: httpx.Request) -> httpx.Response:
        asked.append(api.StartRunRequest.FromString(request.content))
        return giving(api.StartRunResponse(run_id=2**63 + 17))(request)

    config = {"rounds": 3, "set": "a.b='x'", "resume": "", "x": True, "y": 0.5}
    assert answering(start).start(b"the app", config) == str(2**63 + 17)
    (request,) = asked
    assert request.fab.content == b"the app"
    stated = dict(request.override_config.items())
    assert stated.keys() == {"rounds", "set", "x", "y"}
    assert (stated["rounds"].sint64, stated["x"].bool, stated["y"].double) == (3, True, 0.5)
    superlink = answering(giving(api.StartRunResponse(note="no room")))
    with pytest.raises(LaunchError, match=r"^Flower did not start the run: no room$"):
        superlink.start(b"", {})


def test_runs_and_nodes_are_read_as_flowers_command_line_shows_them() -> None:
    day = "2026-11-22T1{}:00:00.5+00:00".format
    runs = {
        6: FlowerRun(run_id=6, pending_at=day(0), status=RunStatus(status="pending")),
        7: FlowerRun(run_id=7, pending_at=day(1), running_at=day(2)),
    }
    runs[7].status.CopyFrom(RunStatus(status="finished", sub_status="failed", details="No room"))
    superlink = answering(giving(api.ListRunsResponse(run_dict=runs, now=day(3))))
    ended, pending = superlink.runs()
    assert ended == Run("7", "finished:failed", "No room", 3600.0)
    assert (ended.finished, ended.completed) == (True, False)
    assert ended.reason == "The run did not complete (failed): No room"
    assert pending == Run("6", "pending")
    key = ec.generate_private_key(ec.SECP384R1()).public_key()
    nodes = [
        NodeInfo(
            node_id=1,
            public_key=public_key_to_bytes(key),
            name="north",
            status="online",
            last_activated_at=day(0),
        ),
        NodeInfo(node_id=2, status="offline", last_activated_at=day(0), last_deactivated_at=day(1)),
        NodeInfo(node_id=3, status="registered"),
    ]
    assert answering(giving(api.ListNodesResponse(nodes_info=nodes))).nodes() == [
        Node("north", "1", "online", "2026-11-22 10:00:00Z", fingerprint(key)),
        Node("", "2", "offline", "2026-11-22 11:00:00Z"),
        Node("", "3", "registered"),
    ]


def test_a_log_goes_on_behind_what_was_read() -> None:
    asked: list[float] = []

    def stream(request: httpx.Request) -> httpx.Response:
        asked.append(api.StreamLogsRequest.FromString(request.content).after_timestamp)
        return httpx.Response(200, content=frame("a\n", 1.5) + frame("b", 2.5) + b"\0")

    lines = answering(stream).log("17", 0.5)
    assert (next(lines), next(lines), asked) == ((1.5, "a\n"), (2.5, "b"), [0.5])
    with pytest.raises(LaunchError, match="does not answer"):  # it broke within a piece
        next(lines)


@pytest.fixture
def frozen() -> Iterator[int]:
    """The port of a SuperLink that begins a log and says nothing more."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            connection.recv(65536)
            head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
            piece = frame("at work\n", 1.5)
            connection.sendall(head + f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            over.wait(60)
            connection.close()

        over = threading.Event()
        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        over.set()
        thread.join()


def test_a_log_of_which_nothing_more_comes_is_left(
    frozen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a network is cut nothing ever comes, and nobody says so."""
    monkeypatch.setattr(module, "_SILENCE", 0.2)
    with Connection(f"127.0.0.1:{frozen}", None, True).superlink() as superlink:
        assert list(superlink.log("17")) == [(1.5, "at work\n")]


def test_nobody_listens() -> None:
    with (
        Connection("127.0.0.1:1", None, True).superlink() as superlink,
        pytest.raises(LaunchError, match=r"127\.0\.0\.1:1 does not answer .*refused.*reachable"),
    ):
        superlink.runs()


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("\x1b[92mINFO \x1b[0m:      \t\n", ""),
        ("WARNING :   \n", ""),
        ("\x1b[92mINFO \x1b[0m:      Start `flwr-serverapp` process\n", ""),
        ("\x1b[92mINFO \x1b[0m:      round 1: accuracy 0.93\n", "round 1: accuracy 0.93\n"),
        ("\x1b[91mERROR \x1b[0m:     \n", "ERROR :     \n"),
        ("Traceback (most recent call last):\n", "Traceback (most recent call last):\n"),
        ("\n", "\n"),
    ],
)
def test_idle_lines_are_cut_and_nothing_else(line: str, shown: str) -> None:
    for verbose in (False, True):
        out = io.StringIO()
        Screen(out, verbose=verbose).show(line)
        assert verbose or out.getvalue() == shown
        assert not verbose or out.getvalue()


@pytest.mark.parametrize(
    ("reason", "killed"),
    [
        ("The run did not complete (failed): Task failed with unknown error.", True),
        ("The run did not complete (failed): No heartbeat received from the task", True),
        ("The run did not complete (stopped): Flower gives no reason", False),
    ],
)
def test_a_run_whose_process_was_killed_is_said_to_be_continued(reason: str, killed: bool) -> None:
    out = io.StringIO()
    Screen(out, verbose=False).say_failed(reason)
    assert out.getvalue().startswith(reason)
    assert ("was killed or stopped. If the run has a record" in out.getvalue()) == killed
    assert ("resume=RECORD-ID" in out.getvalue()) == killed
