"""A record through a log and back: the same bytes, nothing but its files, and nothing outside where it belongs."""

from __future__ import annotations

import io
import json
import random
import stat
import sys
import threading
import time
import tracemalloc
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deployment import nectar
from federation import run, server_context
from places import contents
from small import Small

from common.config.loading import load
from common.config.sources import SCHEMA
from common.errors import ConfigError, FederationError
from nectar.commands.fetch import bring
from nectar.engines.flower.client import CommandOutcome
from nectar.engines.remote import fetching
from nectar.engines.remote.fetching import Arrival, FetchError, text_of, unpack
from server_app import sending
from server_app.record import Record
from server_app.sending import (
    LINE_BYTES,
    FetchRequest,
    pack_record,
    send,
    wire_lines,
)


def stated(outcome: str = "running") -> str:
    """Return a provenance in the least words that make one."""
    return json.dumps({"schema": SCHEMA, "run-config": {}, "outcome": outcome})


def a_record(runs: Path, name: str = "20260101-000000-feddm-digits-seed0-abc", mb: int = 0) -> Path:
    """Lay out what looks like a record, with the memory of devices in it."""
    record = runs / name
    for folder in ("checkpoint", "samples/round-001", "state/partition-0"):
        (record / folder).mkdir(parents=True)
    (record / "provenance.json").write_text(stated())
    (record / "metrics.jsonl").write_text('{"round": 0}\n')
    (record / "checkpoint" / "last.safetensors").write_bytes(bytes(range(256)) * 400)
    (record / "samples" / "round-001" / "partition-0.png").write_bytes(b"\x89PNG")
    (record / "state" / "partition-0" / "memory.npz").write_bytes(b"private")
    (record / ".metrics.jsonl.17.tmp").write_text("half")
    if mb:
        (record / "checkpoint" / "best.safetensors").write_bytes(
            random.Random(0).randbytes(mb * 1_000_000)
        )
    return record


def joined(lines: Iterable[str]) -> Arrival:
    """Return what lines of a log carry."""
    arrival = Arrival()
    for line in lines:
        arrival.take(line)
    return arrival


def names(content: bytes) -> list[str]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return archive.namelist()


FILES = [
    "checkpoint/last.safetensors",
    "metrics.jsonl",
    "provenance.json",
    "samples/round-001/partition-0.png",
]


def test_the_record_and_not_what_devices_remember(tmp_path: Path) -> None:
    record = a_record(tmp_path)
    packed = pack_record(tmp_path, FetchRequest(record.name))
    assert names(packed.content) == FILES
    assert packed.left_out == ()
    assert packed.directory == record


def test_equal_files_give_equal_archives(tmp_path: Path) -> None:
    one = pack_record(tmp_path / "a", FetchRequest(a_record(tmp_path / "a").name))
    other = pack_record(tmp_path / "b", FetchRequest(a_record(tmp_path / "b").name))
    assert one.content == other.content


def test_a_real_record_goes_through_a_log_to_the_same_files(small: Small, tmp_path: Path) -> None:
    record = run(small(rounds=1))
    packed = pack_record(record.directory.parent, FetchRequest("latest"))
    log = [f"INFO :      something\n{line}\n" for line in wire_lines(packed)]
    arrival = joined("".join(log).splitlines())
    assert arrival.whole().record == record.id
    target = tmp_path / "home" / record.id
    assert unpack(arrival.whole().content, target)
    there = contents(record.directory)
    kept = {k: v for k, v in there.items() if not k.startswith(("state/", "."))}
    assert contents(target) == kept
    assert "checkpoint/last.safetensors" in kept


def test_latest_is_the_one_begun_last(tmp_path: Path) -> None:
    for day in ("20260103", "20260105", "20260104"):
        a_record(tmp_path, f"{day}-000000-feddm")
    (tmp_path / "zzz-no-record").mkdir()
    assert pack_record(tmp_path, FetchRequest("latest")).record == "20260105-000000-feddm"


def test_parts_can_stay(tmp_path: Path) -> None:
    record = a_record(tmp_path)
    less = pack_record(tmp_path, FetchRequest(record.name, without=("checkpoint", "samples")))
    assert names(less.content) == ["metrics.jsonl", "provenance.json"]
    one = pack_record(
        tmp_path, FetchRequest(record.name, without=("checkpoint/last.safetensors", "samp"))
    )
    assert names(one.content) == [name for name in FILES if not name.startswith("checkpoint")]
    least = pack_record(tmp_path, FetchRequest(record.name, only=("provenance.json",)))
    assert names(least.content) == ["provenance.json"]


@pytest.mark.parametrize("name", ["../runs", "/etc", "a/b", "..", ".", "", ".hidden", "a b"])
def test_a_path_is_no_record(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError):
        FetchRequest.parse(name)
    assert nectar("fetch", "lab", name) == 2


def test_state_cannot_be_asked_for(tmp_path: Path) -> None:
    record = a_record(tmp_path)
    assert names(pack_record(tmp_path, FetchRequest(record.name, only=("state",))).content) == []


def test_links_are_neither_followed_nor_sent(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    record = a_record(runs)
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("private")
    (record / "report.html").symlink_to(secret / "key")
    (record / "more").symlink_to(secret)
    (record / "samples" / "round-002").symlink_to(secret)
    packed = pack_record(runs, FetchRequest(record.name))
    assert names(packed.content) == FILES
    assert packed.left_out == ("more", "report.html", "samples/round-002")
    (runs / "linked").symlink_to(record)
    with pytest.raises(FederationError, match="there is no record linked"):
        pack_record(runs, FetchRequest("linked"))


def test_a_record_too_large_says_what_makes_it_smaller(tmp_path: Path) -> None:
    record = a_record(tmp_path, mb=3)
    with pytest.raises(FederationError, match=r"--without \(checkpoint/best.safetensors 3 MB"):
        pack_record(tmp_path, FetchRequest(record.name), limit=2_000_000)
    less = FetchRequest(record.name, without=("checkpoint/best.safetensors",))
    assert names(pack_record(tmp_path, less, limit=2_000_000).content) == FILES
    for i in range(5):
        (record / "samples" / f"{i}.bin").write_bytes(random.Random(i).randbytes(1_000_000))
    with pytest.raises(FederationError, match=r"--without \(samples 5 MB, checkpoint/best"):
        pack_record(tmp_path, FetchRequest(record.name), limit=2_000_000)


def test_a_record_larger_than_the_memory_is_no_harm(tmp_path: Path) -> None:
    """Nothing is read whole, and packing ends where the limit is: 4 GB of noise would take minutes."""
    record = a_record(tmp_path)
    with (record / "checkpoint" / "best.safetensors").open("wb") as file:
        file.write(random.Random(0).randbytes(3_000_000))
        file.truncate(4_000_000_000)
    tracemalloc.start()
    began = time.process_time()
    try:
        with pytest.raises(FederationError, match=r"best.safetensors 4000 MB"):
            pack_record(tmp_path, FetchRequest(record.name), limit=2_000_000)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()
    assert time.process_time() - began < 10


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (FileNotFoundError(2, "No such file", "x"), "changed while it was read: try again"),
        (PermissionError(13, "Permission denied", "x"), "cannot be read on the server"),
    ],
)
def test_a_file_that_cannot_be_read_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, said: str
) -> None:
    """A run that goes on writes its checkpoints by rename, and may be tidied up meanwhile."""
    record, real = a_record(tmp_path), Path.open

    def fail(self: Path, *words: Any, **options: Any) -> Any:
        if self.name == "metrics.jsonl":
            raise error
        return real(self, *words, **options)

    monkeypatch.setattr(Path, "open", fail)
    with pytest.raises(FederationError, match=f"{record.name} {said}"):
        pack_record(tmp_path, FetchRequest(record.name))


def test_a_request_survives_its_way(tmp_path: Path) -> None:
    request = FetchRequest("latest", ("checkpoint/best.safetensors", "samples"), ("metrics.jsonl",))
    assert FetchRequest.parse(text_of(request)) == request
    with pytest.raises(ConfigError):
        FetchRequest.parse("latest with=everything")
    with pytest.raises(ConfigError):
        FetchRequest.parse("latest without=../x")


@pytest.mark.extended
def test_lines_may_come_in_any_order_but_must_all_come(tmp_path: Path) -> None:
    record = a_record(tmp_path, mb=1)
    packed = pack_record(tmp_path, FetchRequest(record.name))
    lines = list(wire_lines(packed))
    assert len(lines) == 1 + -(-len(packed.content) // LINE_BYTES) > 20
    assert joined([lines[0], *reversed(lines[1:])]).whole().content == packed.content
    with pytest.raises(FetchError, match=r"1 of \d+ lines of the record are missing"):
        joined(lines[:-1]).whole()
    with pytest.raises(FetchError, match="missing"):
        joined([*lines[:-1], lines[-1][:-9] + "\x00\x00"]).whole()
    forged = [lines[0], *lines[1:-1], lines[-1][:-5] + "00000"]
    with pytest.raises(FetchError, match="SHA-256"):
        joined(forged).whole()
    with pytest.raises(FetchError, match="no record"):
        joined(["INFO : round 1"]).whole()


@pytest.mark.parametrize(
    "head",
    [
        "{}",
        "[]",
        "x",
        '{"bytes": 1e30}',
        '{"bytes": -1}',
        "null",
        '{"bytes": 1e999}',
        "[" * 100_000,
    ],
    ids=lambda head: head[:20],
)
def test_a_head_that_is_none_is_as_good_as_missing(head: str) -> None:
    with pytest.raises(FetchError, match="no record"):
        joined([f"nectar-fetch head {head}", "nectar-fetch 0 abcde", "nectar-fetch x y"]).whole()


def test_a_server_cannot_choose_where_its_record_comes_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = replace(
        pack_record(tmp_path, FetchRequest(a_record(tmp_path).name)), record="../../evil"
    )
    sent = joined(wire_lines(packed)).whole()
    monkeypatch.setattr(fetching, "request_record", lambda *rest: sent)
    connection: Any = None
    with pytest.raises(ConfigError, match="not a record's id"):
        bring(connection, FetchRequest("latest"), tmp_path / "a" / "b", "", replace=False)
    assert not (tmp_path / "evil").exists()


def fetched(
    monkeypatch: pytest.MonkeyPatch, server: Path, record: str, request: FetchRequest, home: Path
) -> Path:
    """Fetch with a server that answers ``request`` by sending ``record``."""
    lines = list(wire_lines(replace(pack_record(server, FetchRequest(record)), record=record)))

    def follow(_: Any, run_id: str, see: Callable[[str], object]) -> Any:
        for line in lines:
            see(f"{line}\n")
        return CommandOutcome("finished:completed", "")

    monkeypatch.setattr(fetching, "follow", follow)
    connection: Any = type("C", (), {"client": lambda self: FakeClient()})()
    return bring(connection, request, home, "", replace=False)


def test_no_record_is_taken_but_the_one_that_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hostile server's answer under the name of a record at home would have taken that one's place."""
    server, home = tmp_path / "server", tmp_path / "home"
    evil = a_record(server, "20260202-000000-mine")
    (evil / "metrics.jsonl").write_text("evil")
    mine = a_record(home, evil.name)
    before = contents(mine)
    with pytest.raises(FetchError, match=r"sent the record '20260202-000000-mine' where asked-for"):
        fetched(monkeypatch, server, evil.name, FetchRequest("asked-for"), home)
    assert contents(mine) == before
    assert [path.name for path in home.iterdir()] == [evil.name]


def test_a_run_of_this_machine_is_not_replaced_by_the_latest_of_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What broke off here counted as a copy that may be brought up to date, unasked."""
    server, home = tmp_path / "server", tmp_path / "home"
    evil = a_record(server, "20260202-000000-mine")
    (evil / "metrics.jsonl").write_text("evil")
    mine = a_record(home, evil.name)
    (mine / "provenance.json").write_text(stated("failed: no room"))
    record = Record(mine)
    record.begin_writing()
    before = contents(mine)
    with pytest.raises(FetchError, match="is being written by a run on this machine"):
        fetched(monkeypatch, server, evil.name, FetchRequest("latest"), home)
    record.close()
    with pytest.raises(FetchError, match="is there already, and otherwise"):
        fetched(monkeypatch, server, evil.name, FetchRequest("latest"), home)
    assert contents(mine) == before


def archive_of(name: str, mode: int = 0o100644, content: bytes = b"x") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        info = zipfile.ZipInfo(name)
        info.external_attr = mode << 16
        archive.writestr(info, content)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("../evil", 0o100644),
        ("/abs", 0o100644),
        ("a/../../evil", 0o100644),
        ("a\\..\\evil", 0o100644),
        ("C:evil", 0o100644),
        (".hidden", 0o100644),
        ("link", stat.S_IFLNK | 0o777),
        ("folder", stat.S_IFDIR | 0o755),
        ("a//b", 0o100644),
    ],
)
def test_nothing_is_unpacked_that_is_no_file_of_a_record(
    tmp_path: Path, name: str, mode: int
) -> None:
    with pytest.raises(FetchError, match="nothing is unpacked"):
        unpack(archive_of(name, mode), tmp_path / "home" / "record")
    assert list(tmp_path.iterdir()) == []


def archive_of_files(files: Mapping[str, bytes | str]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = 0o100644 << 16
            archive.writestr(info, content)
    return buffer.getvalue()


def test_what_is_there_stays_unless_it_may_go(tmp_path: Path) -> None:
    target = tmp_path / "record"
    assert unpack(archive_of("a", content=b"old"), target)
    (target / "report.html").write_text("mine")
    assert not unpack(archive_of("a", content=b"old"), target)
    with pytest.raises(FetchError, match="is there already, and otherwise"):
        unpack(archive_of("a", content=b"new"), target)
    assert (target / "a").read_bytes() == b"old"
    assert unpack(archive_of("a", content=b"new"), target, replace=True)
    assert contents(target) == {"a": b"new", "report.html": b"mine"}
    assert [p.name for p in tmp_path.iterdir()] == ["record"]


def test_what_is_no_directory_stays_too(tmp_path: Path) -> None:
    target = tmp_path / "record"
    target.write_text("mine")
    with pytest.raises(FetchError, match="is there already"):
        unpack(archive_of("a"), target)
    assert target.read_text() == "mine"


@pytest.mark.parametrize("outcome", ["running", "failed: no room", "interrupted", "completed"])
def test_a_copy_of_a_run_that_went_on_is_brought_up_to_date(tmp_path: Path, outcome: str) -> None:
    """What was fetched while it ran, or before it was resumed, asks nobody; one's own files stay."""
    target = tmp_path / "record"
    then = {
        "provenance.json": stated(outcome),
        "metrics.jsonl": "0\n",
        "checkpoint/best.safetensors": "0",
        "samples/0.png": "0",
    }
    now = {"provenance.json": stated("completed"), "metrics.jsonl": "0\n1\n"}
    unpack(archive_of_files(then), target)
    (target / "notes").mkdir()
    (target / "notes" / "mine.txt").write_text("mine")
    (target / "notes" / "link").symlink_to("mine.txt")
    if outcome == "completed":
        with pytest.raises(FetchError, match="is there already"):
            unpack(archive_of_files(now), target, without=["checkpoint"])
        return
    assert unpack(archive_of_files(now), target, without=["checkpoint"])
    kept = {"notes/mine.txt": b"mine", "notes/link": b"mine", "samples/0.png": b"0"}
    assert contents(target) == {k: v.encode() for k, v in now.items()} | kept
    assert (target / "notes" / "link").is_symlink()
    assert [p.name for p in tmp_path.iterdir()] == ["record"]


def test_another_releases_record_is_named_and_not_sent(tmp_path: Path) -> None:
    record = a_record(tmp_path)
    (record / "provenance.json").write_text('{"schema": 1, "run-config": {}}')
    with pytest.raises(FederationError, match="its schema is 1, this one reads 2"):
        pack_record(tmp_path, FetchRequest(record.name))


def test_what_was_left_out_comes_later(tmp_path: Path) -> None:
    target = tmp_path / "record"
    base = {"provenance.json": stated("completed"), "metrics.jsonl": "0\n"}
    best, last = {"checkpoint/best.safetensors": "b"}, {"checkpoint/last.safetensors": "l"}
    unpack(archive_of_files(base), target)
    assert unpack(archive_of_files(base | best), target, without=["checkpoint/last.safetensors"])
    assert unpack(archive_of_files(base | last), target, without=["checkpoint/best.safetensors"])
    assert contents(target) == {k: v.encode() for k, v in (base | best | last).items()}
    assert not unpack(archive_of_files(base | last), target)


def test_what_is_no_archive_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="not an archive"):
        unpack(b"PK nonsense", tmp_path / "record")


@pytest.mark.parametrize(
    ("place", "change"), [("method", 99), ("method", 12), ("flags", 1), ("content", 0xFF)]
)
def test_an_archive_that_cannot_be_read_is_said_to_be_one(
    tmp_path: Path, place: str, change: int
) -> None:
    """Of another method, encrypted, with bytes that are no deflate: in the file's own head and in the directory."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        info = zipfile.ZipInfo("metrics.jsonl")
        info.external_attr, info.compress_type = 0o100644 << 16, zipfile.ZIP_DEFLATED
        archive.writestr(info, b"hello" * 100)
    content = bytearray(buffer.getvalue())
    directory = content.rindex(b"PK\x01\x02")
    places = {"method": (8, directory + 10), "flags": (6, directory + 8), "content": (43, 44, 45)}
    for position in places[place]:
        content[position] ^= change
    with pytest.raises(FetchError, match="what came "):
        unpack(bytes(content), tmp_path / "home" / "record")
    assert not (tmp_path / "home" / "record").exists()


def test_the_server_app_prints_it_and_nothing_else_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Through the ServerApp's own entry point, with a Grid that would fail at the first touch."""

    from server_app.app import app

    record = a_record(tmp_path / "runs", mb=1)
    monkeypatch.setattr(sending, "_PAUSE", 0.0)
    monkeypatch.setattr(sending, "_LAST_PAUSE", 0.0)
    printed: list[str] = []
    monkeypatch.setattr(sys.stdout, "write", lambda text: printed.append(text) or len(text))
    config = dict.fromkeys(("experiment", "set", "resume"), "") | {
        "fetch": record.name,
        "output-dir": str(tmp_path / "runs"),
    }
    app(None, server_context(config))  # type: ignore[arg-type]
    arrival = joined("".join(printed).splitlines())
    assert (
        arrival.whole().content == pack_record(tmp_path / "runs", FetchRequest(record.name)).content
    )


def test_a_record_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FederationError, match=f"no record nope below {tmp_path} on the server"):
        send({"fetch": "nope", "output-dir": str(tmp_path)})


def test_fetch_is_no_setting_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="nectar fetch CONNECTION"):
        load({"fetch": "latest"})
    assert nectar("run", "fetch=latest") == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "Missing argument 'CONNECTION'"),
        (["lab"], "Missing argument 'RECORD-ID|latest'"),
        (["lab", "latest", "method=fedavg"], "takes no method="),
        (["lab", "latest", "output-dir=runs"], "must be absolute"),
        (["lab", "latest", "--without=../b"], "nothing of a record"),
        (["lab", "latest", "--without=a/"], "nothing of a record"),
    ],
)
def test_words_are_checked(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert nectar("fetch", *words) == 2
    assert said in capsys.readouterr().err


def test_a_log_that_lost_a_line_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = a_record(tmp_path / "runs", mb=1)
    lines = [
        f"{line}\n" for line in wire_lines(pack_record(tmp_path / "runs", FetchRequest("latest")))
    ]
    readings = iter([lines[:-2], lines])
    client = FakeClient()
    connection: Any = type("C", (), {"client": lambda self: client})()

    def follow(_: Any, run_id: str, see: Callable[[str], object]) -> Any:
        for line in next(readings):
            see(line)
        return CommandOutcome("finished:completed", "")

    monkeypatch.setattr(fetching, "follow", follow)
    fetched = bring(connection, FetchRequest("latest"), tmp_path / "home", "", replace=False)
    assert contents(fetched)["metrics.jsonl"] == (record / "metrics.jsonl").read_bytes()
    assert client.submitted == 1


class FakeClient:
    """Takes a run and gives it a number."""

    def __init__(self) -> None:
        self.submitted = 0
        self.stopped = threading.Event()

    def submit(self, app: Path, options: list[str]) -> str:
        self.submitted += 1
        return "17"

    def stop(self, run_id: str) -> None:
        self.stopped.set()


def test_the_servers_reason_comes_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connection: Any = type("C", (), {"client": lambda self: FakeClient()})()

    def follow(_: Any, run_id: str, see: Callable[[str], object]) -> Any:
        see("\x1b[91mERROR \x1b[0m:     the run stopped: there is no record x below /srv\n")
        see('nectar-stopped {"reason": "there is no record x below /srv"}\n')
        return CommandOutcome("finished:failed", "N/A")

    monkeypatch.setattr(fetching, "follow", follow)
    with pytest.raises(FetchError, match=r"^there is no record x below /srv$"):
        bring(connection, FetchRequest("x"), tmp_path, "", replace=False)


def test_a_server_that_never_gets_to_it_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = FakeClient()
    connection: Any = type("C", (), {"client": lambda self: client})()
    monkeypatch.setattr(fetching, "_SECONDS", 0.1)

    def follow(_: Any, run_id: str, see: Callable[[str], object]) -> Any:
        assert client.stopped.wait(60)
        return CommandOutcome("finished:stopped", "Stopped by the user")

    monkeypatch.setattr(fetching, "follow", follow)
    with pytest.raises(FetchError, match=r"did not complete \(stopped\): Stopped by the user"):
        bring(connection, FetchRequest("x"), tmp_path, "", replace=False)
