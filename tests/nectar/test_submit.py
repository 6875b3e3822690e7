"""What `nectar submit` decides before and after Flower works: connections, paths, outcomes, a log that breaks."""

from __future__ import annotations

import io
import json
import signal
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from logging import getLogger
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from deployment import nectar
from flwr.supercore.logger import ConsoleHandler

from common.config import layers
from common.config.keys import PATH_KEYS
from common.config.loading import load
from common.errors import ConfigError, PayloadError
from nectar.arguments import typed_command
from nectar.engines.flower.connection import Connection, connect
from nectar.engines.flower.errors import CommandRefused, LaunchError
from nectar.engines.flower.federation import Run
from nectar.engines.processes import until_interrupted
from nectar.engines.remote import watching
from nectar.engines.remote.submission import parse_submission, resume_submission
from nectar.engines.remote.watching import follow, watch
from server_app.run_directory import REPORT
from strategies.exchange.replies import rejection_reason

COMPLETED, RUNNING = Run("17", "finished:completed"), Run("17", "running")
FAILED = Run("17", "finished:failed", "x")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Flower home with one connection of each kind."""
    found = tmp_path / "flower"
    found.mkdir()
    (tmp_path / "ca.crt").write_text("a certificate")
    (found / "config.toml").write_text(
        f"""
[superlink]
default = "lab"
[superlink.lab]
address = "192.0.2.7:8000"
root-certificates = "{tmp_path}/ca.crt"
[superlink.open]
address = "127.0.0.1:8000"
insecure = true
[superlink.lost]
address = "127.0.0.1:8000"
root-certificates = "/nowhere/ca.crt"
[superlink.local]
address = ":local:"
"""
    )
    monkeypatch.setenv("FLWR_HOME", str(found))
    return found


# -- connections --------------------------------------------------------------------------------


def test_a_named_connection_is_flowers_own(home: Path, tmp_path: Path) -> None:
    found = connect("lab")
    assert found == Connection("192.0.2.7:8000", tmp_path / "ca.crt")
    assert (found.host, found.port) == ("192.0.2.7", 8000)
    assert found.url == "https://192.0.2.7:8000"


def test_an_address_and_a_ca_are_a_connection(tmp_path: Path) -> None:
    ca = tmp_path / "the ca.crt"
    ca.write_text("x")
    found = connect("[::1]:8000", str(ca))
    assert found == Connection("[::1]:8000", ca)
    assert (found.host, found.port) == ("::1", 8000)
    with pytest.raises(LaunchError, match=r"the ca\.crt cannot be used"), found.superlink():
        pass


def test_without_tls_only_when_it_is_said(home: Path) -> None:
    assert connect("open", insecure=True).url == "http://127.0.0.1:8000"
    assert connect("127.0.0.1:8000", insecure=True) == Connection("127.0.0.1:8000", None, True)


# -- what is submitted --------------------------------------------------------------------------


def test_no_path_of_this_machine_reaches_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NECTAR_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("NECTAR_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("HOME", "/home/of-the-laptop")
    submission = parse_submission(["method=fedavg", "output_dir=~/runs", "federation.sites=3"])
    assert {key: submission.run_config.get(key) for key in PATH_KEYS} == {
        "output-dir": "~/runs",
        "data-dir": None,
        "resume": None,
    }
    assert not any(str(tmp_path) in str(value) for value in submission.run_config.values())
    assert str(submission).endswith("; data-dir: each machine's own")


def test_what_is_submitted_is_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says the same where files of settings say something else; a file's paths are not the server's."""
    file = tmp_path / "mine.yaml"
    file.write_text("base: feddm-mnist-small\noutput-dir: /home/me/runs\nfeddm:\n  ipc: 3\n")
    submission = parse_submission(
        ["rounds=7"], str(file), typed_command(["submit", "lab", "rounds=7"])
    )
    monkeypatch.setattr(layers, "CONF", tmp_path)
    there = load(submission.run_config)
    assert there.digest() == submission.config.digest()
    assert (there.rounds, there.settings.ipc) == (7, 3)  # type: ignore[attr-defined]
    assert "output-dir" not in submission.run_config
    assert there.typed == "nectar submit lab rounds=7"


def test_what_is_resumed_is_the_servers_record() -> None:
    """Its settings, with what was typed over them; its place, as the server names it."""
    submission = parse_submission(["resume=20260101-feddm", "rounds=9", "feddm.ipc=3"])
    recorded = {"method": "feddm", "rounds": 4, "seed": 7, "set": "feddm.ipc=5", "resume": ""}
    places = {"output-dir": "/old/place", "data-dir": "/home/of-the-server/nectar/data"}
    again = submission.continuing("/srv/runs/20260101-feddm", {**recorded, **places})
    assert "data-dir" not in again.run_config  # sites have their own
    there = load(again.run_config)
    assert (there.method, there.rounds, there.seed) == ("feddm", 9, 7)
    assert again.run_config["resume"] == "/srv/runs/20260101-feddm"
    assert again.run_config["output-dir"] == "/srv/runs"
    assert there.settings.ipc == 3  # type: ignore[attr-defined]


# -- a run that is watched ----------------------------------------------------------------------


@dataclass
class FakeSuperLink:
    """A SuperLink whose log breaks off: each reading goes on behind the one before, and may end with an error."""

    readings: list[list[str | LaunchError]]
    states: list[Run | LaunchError]
    stopped: list[str] = field(default_factory=list)
    after: list[float] = field(default_factory=list)
    given: int = 0

    def log(self, run: str, after: float) -> Iterator[tuple[float, str]]:
        self.after.append(after)
        for piece in self.readings.pop(0) if self.readings else []:
            if isinstance(piece, LaunchError):
                raise piece
            self.given += 1
            yield float(self.given), piece

    def run(self, number: str) -> Run:
        found = self.states.pop(0)
        if isinstance(found, LaunchError):
            raise found
        return found

    def stop(self, run: str) -> None:
        self.stopped.append(run)


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> Connection:
    monkeypatch.setattr(watching, "_RETRY_SECONDS", 0.0)
    return Connection("127.0.0.1:9", None, True)


def through(monkeypatch: pytest.MonkeyPatch, superlink: object) -> None:
    monkeypatch.setattr(Connection, "superlink", lambda self: nullcontext(superlink))


def test_a_broken_log_is_taken_up_where_it_broke(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A piece of it may end within a line; that of a silent one ends without an error."""
    cut = LaunchError("cut")
    superlink = FakeSuperLink(
        [["a\nb", cut], [CommandRefused("busy")], ["b\nc\n"], ["d\n", "end"]],
        [RUNNING, LaunchError("away"), RUNNING, RUNNING, COMPLETED],
    )
    through(monkeypatch, superlink)
    seen: list[str] = []
    assert follow(connection, "17", seen.append) == COMPLETED
    assert seen == ["a\n", "bb\n", "c\n", "d\n", "end"]
    assert superlink.after == [0.0, 1.0, 1.0, 2.0]


def test_a_log_that_breaks_as_the_run_ends_is_read_to_its_end(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = LaunchError("cut")
    superlink = FakeSuperLink([["a\n"], [cut], ["b\n"]], [RUNNING, COMPLETED, COMPLETED])
    through(monkeypatch, superlink)
    seen: list[str] = []
    assert follow(connection, "17", seen.append) == COMPLETED
    assert seen == ["a\n", "b\n"]
    monkeypatch.setattr(watching, "_GONE_SECONDS", 0.0)
    through(monkeypatch, FakeSuperLink([["a\n", cut]], [COMPLETED]))
    assert follow(connection, "17", seen.append) == COMPLETED


def test_a_superlink_that_stays_away_is_given_up(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "_GONE_SECONDS", 0.0)
    through(monkeypatch, FakeSuperLink([], [LaunchError("no route")]))
    with pytest.raises(LaunchError, match=r"127\.0\.0\.1:9 no longer answers.*no route"):
        follow(connection, "17", lambda line: None)


def test_a_run_that_a_superlink_does_not_know_is_not_waited_for(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it is with one that lost its database."""
    through(monkeypatch, FakeSuperLink([["a\n"]], [RUNNING, CommandRefused("[code: 5] None.")]))
    with pytest.raises(LaunchError, match=r"127\.0\.0\.1:9 has no run 17: \[code: 5\] None\."):
        follow(connection, "17", lambda line: None)


def test_a_port_at_which_nobody_listens(connection: Connection) -> None:
    assert "refused" in replace(connection, address="127.0.0.1:1").health().lower()


A_RECORD = 'nectar-record {"directory": "/srv/runs/2026-feddm"}\n'


def test_the_log_tells_where_the_record_lies(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ["\x1b[92mINFO \x1b[0m:      the record is there\n", A_RECORD, "INFO :      \n"]
    through(monkeypatch, FakeSuperLink([lines], [COMPLETED]))
    out = io.StringIO()
    watched = watch(connection, "17", verbose=False, out=out)
    assert watched.record == "/srv/runs/2026-feddm"
    assert out.getvalue() == "the record is there\n"


def test_what_a_site_says_cannot_pass_for_the_servers_word(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither as a line of its own, nor before the server names the record, nor to the operator's terminal."""
    forged = 'nectar-record {"directory": "/srv/other/20250101-feddm-old"}'
    evil = f"no\r\n{forged}\n\x1b]0;owned\x07 {forged}"
    reply: Any = SimpleNamespace(error=SimpleNamespace(code=100, reason=evil))
    log, out = io.StringIO(), io.StringIO()
    handler = ConsoleHandler(stream=log)
    logger = getLogger("a test's")
    logger.addHandler(handler)
    logger.setLevel("INFO")
    logger.warning("node 5 failed the roll call: %s", rejection_reason(reply))
    logger.warning("%s", PayloadError(evil))
    before = log.getvalue()
    logger.warning("round 1: rejected north: %s", rejection_reason(reply))
    lines = [*before.splitlines(True), A_RECORD, *log.getvalue()[len(before) :].splitlines(True)]
    through(monkeypatch, FakeSuperLink([lines], [COMPLETED]))
    watched = watch(connection, "17", verbose=False, out=out)
    assert watched.record == "/srv/runs/2026-feddm"
    assert len(out.getvalue().splitlines()) == 3
    assert not any(c in out.getvalue() for c in "\x1b\x07\r")


class Interrupting(FakeSuperLink):
    """A log in which Ctrl-C is pressed."""

    def log(self, run: str, after: float) -> Iterator[tuple[float, str]]:
        """Press it behind the first line."""
        yield 1.0, "a\n"
        signal.raise_signal(signal.SIGINT)
        yield 2.0, "b\n"


def test_ctrl_c_ends_the_watching_and_says_how_to_end_the_run(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    superlink = Interrupting([], [RUNNING])
    through(monkeypatch, superlink)
    assert nectar("submit", "lab", "--follow", "17") == 130
    message = capsys.readouterr().out
    assert "run 17 continues at 192.0.2.7:8000." in message
    assert "nectar submit lab --follow 17" in message
    assert "nectar submit lab --stop 17" in message
    assert superlink.stopped == []
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_terminal_is_asked_whether_the_run_is_to_end(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    superlink = Interrupting([], [RUNNING])
    through(monkeypatch, superlink)
    monkeypatch.setattr("builtins.input", lambda prompt: "y")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert nectar("submit", "lab", "--follow", "17") == 130
    assert superlink.stopped == ["17"]


@pytest.mark.parametrize(("outcome", "code"), [(COMPLETED, 0), (FAILED, 1)])
def test_the_exit_code_is_the_outcome(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    outcome: Run,
    code: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    through(monkeypatch, FakeSuperLink([["a\n"]], [outcome]))
    assert nectar("submit", "lab", "--follow", "17") == code
    assert ("The run did not complete (failed): x" in capsys.readouterr().out) == bool(code)


def test_options_of_this_machine_do_not_travel(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was typed goes to the server and to every site, for the record; a certificate's place does not."""
    told: list[object] = []

    def note(settings: object, file: object, words: object) -> None:
        told.append(words)
        raise ConfigError("enough")

    monkeypatch.setattr("nectar.engines.remote.submission.parse_submission", note)
    words = ["lab", "method=fedavg", "--ca", "/home/me/ca.crt", "rounds=2"]
    assert nectar("submit", *words) == 2
    assert told == [{"typed": "nectar submit lab method=fedavg rounds=2"}]


def test_why_a_run_stopped_is_told_once(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Flower says it again behind the ServerApp's own sentence: as a traceback, and as the run's details."""
    lines = [
        "ERROR :     the run stopped: too few replies\n",
        'nectar-stopped {"reason": "too few replies"}\n',
        "ERROR :     Traceback (most recent call last):\n",
        "FederationError: too few replies\n",
    ]
    failed = replace(FAILED, details="FederationError: too few replies")
    for words, times in (([], 1), (["--verbose"], 2)):
        through(monkeypatch, FakeSuperLink([lines], [failed]))
        assert nectar("submit", "lab", "--follow", "17", *words) == 1
        message = capsys.readouterr().out
        assert message.count("too few replies") == times
        assert message.endswith("The run did not complete.\n")


def test_where_the_record_lies_is_told(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On another machine its directory alone; on this one its report, or how that is drawn."""
    record = tmp_path / "runs" / "r1"
    line = f'nectar-record {{"directory": "{record}"}}\n'

    def told() -> str:
        through(monkeypatch, FakeSuperLink([[line]], [COMPLETED]))
        assert nectar("submit", "lab", "--follow", "17") == 0
        return capsys.readouterr().out

    place = f"the record is on the ServerApp's machine: {record}\n"
    assert told() == place
    record.mkdir(parents=True)
    (record / "provenance.json").write_text("{}")
    assert told() == f"{place}to see it: `nectar report {record}`\n"
    (record / REPORT).touch()
    assert told() == f"{place}its report: {record / REPORT}\n"


def test_the_server_says_which_settings_a_record_was_run_with(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a run that trains nothing; what went wrong there is told in the server's own words."""
    asked: list[dict[str, Any]] = []

    @dataclass
    class Server(FakeSuperLink):
        def start(self, bundle: bytes, config: dict[str, Any]) -> str:
            asked.append(config)
            return "17"

    settings = {"method": "feddm", "rounds": 2, "set": "feddm.ipc=3"}
    told = {"directory": "/srv/r1", "run-config": settings, "continued": [{"rounds": 4}]}
    superlink = Server([["a\n", f"nectar-settings {json.dumps(told)}\n"]], [COMPLETED])
    through(monkeypatch, superlink)
    submission = parse_submission(["resume=/srv/r1/", "seed=3"])
    again = resume_submission(connection, submission).run_config
    assert again.items() >= {"resume": "/srv/r1", "rounds": 4, "seed": 3}.items()
    assert asked[0].items() >= {"settings-of": "r1", "output-dir": "/srv"}.items()
    why = 'nectar-stopped {"reason": "there is no record r1 below /srv"}\n'
    through(monkeypatch, Server([[why]], [FAILED]))
    with pytest.raises(LaunchError, match=r"^there is no record r1 below /srv$"):
        resume_submission(connection, submission)


def test_a_run_is_stopped_whatever_is_wrong_with_the_settings_here(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nectar.engines.remote.submission.parse_submission", lambda *_, **__: 1 / 0)
    superlink = FakeSuperLink([], [])
    through(monkeypatch, superlink)
    assert nectar("submit", "lab", "--stop", "17") == 0
    assert superlink.stopped == ["17"]
    assert nectar("submit", "lab", "--stop", "seventeen") == 2
    assert nectar("submit", "lab", "--stop", "17", "method=fedavg") == 2


def test_what_runs_while_watched_is_left_undisturbed() -> None:
    assert until_interrupted(lambda: COMPLETED) == COMPLETED
