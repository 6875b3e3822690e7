"""`nectar status`: sites by name, who is online, how far the runs are; and what `submit` says when a log is silent."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from deployment import nectar
from federation import server_context
from golden import assert_sentence
from places import ROOT
from small import SMALL

from client_app.app import app as client_app
from nectar.engines.flower.connection import Connection
from nectar.engines.flower.errors import LaunchError
from nectar.engines.flower.federation import Node, Run
from nectar.engines.flower.log import marked_content
from nectar.engines.local_grid import LocalGrid
from nectar.engines.remote import watching as silence
from nectar.engines.remote.watching import breaking_silence
from nectar.operate.keys.authority import make_authority, make_server
from server_app.app import MarkedLines
from server_app.app import app as server_app
from server_app.run_directory import RunDirectory

pytestmark = pytest.mark.promise(
    "Records",
    "Who waits for approval is named by the server's own line alone",
)


SAID = ROOT / "tests" / "golden" / "status.txt"
NODES = [
    Node("north", "11", "online", "2026-11-22 10:00:00Z"),
    Node("south", "12", "offline", "2026-11-22 11:00:00Z"),
    Node("east", "13", "registered"),
    Node("west", "14", "unregistered", "2026-11-22 09:00:00Z"),
]

LOG = """INFO :      the record is /srv/runs/r
nectar-record {"directory": "/srv/runs/r"}
nectar-sites {"nodes": {"the-north": "11", "south": "12"}}
INFO :      round 0/5: accuracy 0.1
nectar-round {"reached": 0, "of": 5}
INFO :      round 2/5: accuracy 0.8
nectar-round {"reached": 2, "of": 5}
WARNING :   round 3: rejected south: the node is unavailable, round 9/9: \x1b[31mred
"""


class Flower:
    """Answers as a SuperLink does."""

    def __init__(self, nodes: list[Node], runs: list[Run], log: str = "") -> None:
        self.known, self.listed, self.logged = nodes, runs, log
        self.asked: list[str] = []

    def nodes(self) -> list[Node]:
        self.asked.append("nodes")
        return self.known

    def runs(self) -> list[Run]:
        self.asked.append("runs")
        return deepcopy(self.listed)

    def log(self, run: str) -> Iterator[tuple[float, str]]:
        self.asked.append(f"log {run}")
        if self.logged:
            yield 1.0, self.logged
        pytest.fail("more was asked of the log than is there now")

    def run(self, number: str) -> Run:
        return self.listed[0]


@pytest.fixture
def flower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Flower]:
    """Put a SuperLink behind the connection `lab`."""
    home = tmp_path / "flower"
    home.mkdir()
    (home / "config.toml").write_text(
        '[superlink.lab]\naddress = "127.0.0.1:9"\ninsecure = true\n', encoding="utf-8"
    )
    monkeypatch.setenv("FLWR_HOME", str(home))
    monkeypatch.delenv("NECTAR_KEYS", raising=False)
    monkeypatch.setattr(Connection, "wait", lambda self, seconds: None)

    def make(*given: Any) -> Flower:
        client = Flower(*given)
        monkeypatch.setattr(Connection, "superlink", lambda self: nullcontext(client))
        return client

    return make


RUNNING = Run("7", "running", seconds=130.0)


WAITS = "waits for its owner's approval: its owner is asked until 2026-11-28 20:00 UTC"
ABOUT_ANOTHER = (
    "WARNING :   round 3: rejected south: {0}\n"
    "WARNING :   node 11 failed the roll call: {0}\n"
    "INFO :      1 of 2 sites are there after 60 of 300 s (a; node 11 failed the roll call: {0})\n"
)
#: of the list of nodes how many there are, the log, what is typed besides, and the exit code
SCENES: dict[str, tuple[int, str, str, int]] = {
    "sites by name and how far the run is": (4, LOG, "", 1),
    "for programs": (1, LOG, "--json", 0),
    # sites judge the last round's weights by one exchange more
    "after the last round": (1, LOG + 'nectar-round {"reached": 5, "of": 5}\n', "--json", 0),
    "nobody": (0, "", "", 1),
    "one that is online and does not answer": (
        1,
        "INFO :      1 of 2 sites are there after 60 of 300 s (a; online and busy or not answering: b (node 11))\n",
        "",
        0,
    ),
    **{
        f"one that waits for its owner, {line.format('...')}": (
            2,
            f"WARNING :   {line.format(WAITS)}\n{'x' * 9}\n",
            "",
            1,
        )
        for line in (
            "the north (node 11) {}",
            "node 11 {}",
            "node 11 is left out, node 11 {}",
            "left out, north (node 11) {}",
        )
    },
    "one that waited and has joined": (
        2,
        f'WARNING :   node 11 {WAITS}\nnectar-sites {{"nodes": {{"the-north": "11"}}}}\n',
        "",
        1,
    ),
    # It is another machine's text: cut, escaped, and of that site alone.
    **{
        f"one that waits and says {said[:9]!r}": (
            2,
            f"WARNING :   node 11 waits for its owner's approval: {said}\n",
            "",
            1,
        )
        for said in (
            "\x1b[2J\x1b[31m red",
            "a" * 5000,
            "\u202eback",
            "node 12 waits for its owner's approval",
        )
    },
    **{
        f"one that says of another, {number}": (
            2,
            ABOUT_ANOTHER.format(said.format(WAITS)),
            "",
            1,
        )
        for number, said in enumerate(
            ("(node 12) {}", "node 12 {}", "x (node 12) {}", "WARNING :   node 12 {}")
        )
    },
}


@pytest.mark.parametrize("scene", SCENES)
def test_what_is_said_of_a_federation(
    scene: str,
    flower: Callable[..., Flower],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    pytestconfig: pytest.Config,
) -> None:
    nodes, log, words, code = SCENES[scene]
    over = Run("6", "finished:completed", seconds=1.0)
    listed = [node if "by name" in scene else replace(node, site="") for node in NODES[:nodes]]
    client = flower(listed, [over, RUNNING] if nodes else [], log)
    assert nectar("status", "lab", "--insecure", *words.split()) == code
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert all(line.isprintable() for line in lines)
    assert client.asked == ["nodes", "runs"] + ["log 7"] * bool(nodes)
    if scene.startswith("one that says of another"):
        assert not any("waits for approval" in line for line in lines)
    said = "\n".join(lines).rstrip().replace(str(tmp_path), "{tmp}")
    assert_sentence(pytestconfig, SAID, scene, said)


def test_the_operator_sees_that_a_certificate_ends(
    flower: Callable[..., Flower], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the compose file they lie where the operator has no keys: `nectar-init` puts copies there."""
    flower([NODES[0]], [])
    keys = tmp_path / "keys"
    make_authority(keys)
    for name, days in (("superlink", 300), ("proxy", 20)):
        make_server(keys, [name], days)
        (keys / "server.pem").rename(keys / f"{name}.pem")
        (keys / "server.key").unlink()
    assert nectar("status", "lab", "--insecure", "--keys", str(keys)) == 0
    *_, last = capsys.readouterr().out.splitlines()
    assert last.startswith("proxy.pem: expires on 20")
    assert last.endswith("in 19 days: make a new one before")
    assert nectar("status", "lab", "--insecure", "--json", "--keys", str(keys)) == 0
    assert json.loads(capsys.readouterr().out)["certificates"] == [last]
    (keys / "old.pem").write_text("not a certificate")
    assert nectar("status", "lab", "--insecure", "--keys", str(keys)) == 0
    assert "old.pem is not a certificate in PEM form" in capsys.readouterr().out
    (keys / "old.pem").unlink()
    assert nectar("keys", "show", str(keys)) == 0
    assert "superlink.pem  valid for superlink, " in capsys.readouterr().out


def test_a_superlink_that_does_not_answer(
    flower: Callable[..., Flower],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse(self: Connection, seconds: float) -> None:
        raise LaunchError("The SuperLink at 127.0.0.1:9 cannot be reached: refused")

    flower([], [])
    monkeypatch.setattr(Connection, "wait", refuse)
    assert nectar("status", "lab", "--insecure") == 2
    assert "cannot be reached" in capsys.readouterr().err


@pytest.mark.extended
def test_a_server_app_names_its_nodes_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a line for programs, which the log's readers hide from people."""
    run_config = {"output-dir": str(tmp_path), "rounds": 2, "set": SMALL, "method": "fedavg"}
    server_app(LocalGrid(client_app, 3, run_config), server_context(run_config))
    lines = capsys.readouterr().out.splitlines()
    (found,) = [marked_content(line, "sites") for line in lines if marked_content(line, "sites")]
    assert found == {"nodes": {f"partition-{i}": str(1000 + i) for i in range(3)}}


# -- a log that says nothing --------------------------------------------------------------------


def sentence(flower: Flower, reading: Run) -> str:
    """Return the first sentence that breaks a silence."""
    message: list[str] = []
    there = threading.Event()

    def say(text: str) -> None:
        message.append(text)
        there.set()

    connection = Connection("127.0.0.1:9", None, True)
    with breaking_silence(connection, reading, say, every=0.1):
        assert there.wait(300)
    return message[0]


def test_submit_says_for_whom_a_silent_run_waits(flower: Callable[..., Flower]) -> None:
    assert sentence(flower([], [Run("7", "starting")]), Run("7")).endswith(
        "run 7 is starting, the server has not started it yet)"
    )
    client = flower(NODES, [RUNNING])
    assert "run 7 is running and waits for its sites; 1 are online)" in sentence(client, Run("7"))
    reading = Run("7")
    for line in LOG.splitlines():
        reading.read(line)
    assert "round 3 waits for replies; online: the-north; away: south)" in sentence(client, reading)


def test_a_log_that_speaks_is_told_once_a_while_until_when(flower: Callable[..., Flower]) -> None:
    reading, message, there = Run("7"), list[str](), threading.Event()
    reading.read('nectar-round {"reached": 2, "of": 5, "left": 200.0}')
    connection = Connection("127.0.0.1:9", None, True)

    def say(text: str) -> None:
        message.append(text)
        if "waits" not in text:  # as it does where this thread was kept from work
            there.set()

    flower(NODES, [RUNNING])
    with breaking_silence(connection, reading, say, every=0.3) as heard:
        while not there.wait(0.02):
            heard()
    assert message[-1].endswith(" s; about 3 min 20 s more after round 2 of 5)")


@pytest.mark.parametrize("left", ["NaN", "Infinity", '"soon"', "null", "[1]"])
def test_a_log_that_tells_odd_seconds_tells_none(left: str) -> None:
    reading = Run("7")
    reading.read(f'nectar-round {{"reached": 2, "of": 5, "left": {left}}}')
    assert (reading.reached, reading.left) == (2, 0.0)


def test_the_server_tells_the_seconds_that_are_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds 3 and 4 of a run that went on after round 2 took 10 s and 14 s: 12 s for each of the six that are left."""
    clock = iter([100.0, 110.0, 124.0])
    monkeypatch.setattr("server_app.app.time", SimpleNamespace(monotonic=lambda: next(clock)))
    marked = MarkedLines()
    for reached in (2, 3, 4):
        marked.round_done(reached, 10, [])
    found = [marked_content(line, "round") for line in capsys.readouterr().out.splitlines()]
    assert [line.get("left") for line in found] == [None, 70.0, 72.0]


def test_a_log_that_speaks_is_not_interrupted(
    flower: Callable[..., Flower], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It speaks every 0.3 s of a clock that goes on here only."""
    now = [0.0]
    monkeypatch.setattr(silence, "time", SimpleNamespace(monotonic=lambda: now[0]))
    message: list[str] = []
    client = flower(NODES, [RUNNING])
    connection = Connection("127.0.0.1:9", None, True)
    with breaking_silence(connection, Run("7"), message.append, every=0.5) as heard:
        for _ in range(16):
            time.sleep(0.05)
            now[0] += 0.3
            heard()
    assert (message, client.asked) == ([], [])


def test_what_a_monitor_reads_of_a_run_is_its_newest_lines(
    flower: Callable[..., Flower], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A round's figures by the server's own test set and books, the disk's room, and the days of certificates."""
    lines = [
        {"round": 1, "test": {"accuracy": 0.5}, "accepted": ["a"], "rejected": {}},
        {
            "round": 2,
            "test": {"accuracy": 0.75, "loss": 1.0},
            "accepted": ["a", "b"],
            "rejected": {"c": "late"},
            "shortened": {"b": 0.5},
            "bytes": {"up": {"a": 10, "b": 5}, "down": {"a": 7}},
            "seconds": {"configure": 0.5, "devices": 2.0, "by_site": {"a": 9.0}},
            "notes": {"spent": {"a": {"epsilon": 1.5}, "b": {"epsilon": None}}},
        },
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "metrics.jsonl").write_text(text)
    marked = MarkedLines()
    marked.begun(RunDirectory(tmp_path), [])
    marked.round_done(2, 5, [])
    log = capsys.readouterr().out
    flower(NODES[:1], [RUNNING], log)
    make_authority(tmp_path / "keys")
    words = ["status", "lab", "--insecure", "--json", "--keys", str(tmp_path / "keys")]
    assert nectar(*words) == 0
    found = json.loads(capsys.readouterr().out)
    figures = found["runs"][0]["figures"]
    assert figures.pop("free") > 0
    assert figures == {
        "round": 2,
        "accuracy": 0.75,
        "replies": {"accepted": 2, "rejected": 1, "shortened": 1},
        "bytes": {"up": 15, "down": 7},
        "seconds": 2.5,
        "epsilon": 1.5,
    }
    assert found["certificate_days"] == {"ca.crt": 3649}
    (tmp_path / "metrics.jsonl").write_text(text + '{"round": 3, "te')
    marked.round_done(3, 5, [])
    assert "figures" not in capsys.readouterr().out, "what is half-written holds up no run"
