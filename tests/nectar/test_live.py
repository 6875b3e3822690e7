"""The live view: what it shows, and that nobody else is shown anything."""

from __future__ import annotations

import http.client
import os
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from browser import Browser, Page, find_chromium
from federation import run
from small import SMALL

from nectar.cli import main
from nectar.records.record_imports import import_policy_of
from nectar.report.live import LOOPBACK, LiveView
from nectar.report.page import POLICY
from server_app.record import Record

CHROMIUM = find_chromium()


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    output = str(tmp_path_factory.mktemp("runs"))
    return run({"method": "fedavg", "rounds": 2, "output-dir": output, "set": SMALL})


@contextmanager
def serving(served: LiveView) -> Iterator[LiveView]:
    thread = threading.Thread(target=served.serve)
    thread.start()
    try:
        yield served
    finally:
        served.close()
        thread.join()


@pytest.fixture
def view(record: Record) -> Iterator[LiveView]:
    with serving(LiveView(record.directory.parent, 0, import_policy_of(""))) as served:
        yield served


Answer = tuple[int, str, dict[str, str]]


def get(
    view: LiveView, below: str = "", *, path: str = "", method: str = "GET", host: str = ""
) -> Answer:
    """Ask for what lies below the secret address, or for another path."""
    connection = http.client.HTTPConnection(LOOPBACK, view.port)
    try:
        whole = path or view.address.partition(str(view.port))[2] + below
        connection.request(method, whole, headers={"Host": host} if host else {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), dict(answer.getheaders())
    finally:
        connection.close()


@pytest.mark.extended
def test_the_list_leads_to_each_report(view: LiveView, record: Record) -> None:
    status, page, headers = get(view)
    assert status == 200
    assert f'run/{record.id}"' in page
    assert "<td>2/2</td>" in page
    assert ">completed</td>" in page
    assert headers["Refresh"] == "10"
    assert headers["Content-Security-Policy"] == f"{POLICY}; frame-ancestors 'none'"
    assert (headers["Cache-Control"], headers["Referrer-Policy"]) == ("no-store", "no-referrer")
    status, page, headers = get(view, f"run/{record.id}")
    assert status == 200
    assert "Nectar report</title>" in page
    assert "Refresh" not in headers, "a run that is over does not change"


@pytest.mark.extended
def test_a_run_that_goes_on_is_followed(view: LiveView, record: Record) -> None:
    lines = record.metrics_path.read_bytes().splitlines(keepends=True)
    outcome = (record.stated() or {})["outcome"]
    writer = Record(record.directory)
    writer.begin_writing()
    try:
        record.note(outcome="running")
        record.metrics_path.write_bytes(b"".join(lines[:2]))
        assert ">1/2</td>" in get(view)[1]
        _, before, headers = get(view, f"run/{record.id}")
        assert headers["Refresh"] == "10"
        record.metrics_path.write_bytes(b"".join(lines))
        assert ">2/2</td>" in get(view)[1]
        _, after, _ = get(view, f"run/{record.id}")
        assert after != before
    finally:
        record.metrics_path.write_bytes(b"".join(lines))
        record.note(outcome=outcome)
        writer.close()


@pytest.mark.extended
def test_chosen_records_stand_side_by_side(record: Record, tmp_path: Path) -> None:
    for name in ("a", "b"):
        shutil.copytree(record.directory, tmp_path / name)
    with serving(LiveView(tmp_path, 0, import_policy_of(""))) as view:
        root = view.address.partition(str(view.port))[2]
        assert f'href="{root}beside/a"' in get(view)[1]
        page = get(view, "beside/a")[1]
        assert f'href="{root}beside/a+b"' in page, "another one is added"
        assert f'href="{root}"' in page, "the chosen one is taken out"
        page = get(view, "beside/a+b")[1]
        assert f'href="{root}run/a+b"' in page
        status, page, headers = get(view, "run/a+b")
        assert status == 200
        assert "2 runs side by side" in page
        assert "Refresh" not in headers
        assert get(view, "run/" + "+".join("abababababab"))[0] == 404, "twelve are too many"


@pytest.mark.extended
def test_one_record_is_followed_and_no_other_shown(record: Record, tmp_path: Path) -> None:
    for name in ("a", "b"):
        shutil.copytree(record.directory, tmp_path / name)
    with serving(LiveView(tmp_path, 0, import_policy_of(""), "a")) as view:
        status, page, _ = get(view)
        assert status == 200
        assert "Nectar report</title>" in page
        assert [get(view, f"{what}/{name}")[0] for what in ("run", "beside") for name in "ab"] == [
            404
        ] * 4


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/favicon.ico",
        "/{wrong}/",
        "/{token}",
        "/{token}/?x=1",
        "/{token}/run/",
        "/{token}/run/none",
        "/{token}/run/../{id}",
        "/{token}/run/%2e%2e",
        "/{token}/run/.hidden",
        "/{token}/run/{id}+none",
        "/{token}/beside/none",
        "/{token}/beside/",
        "/{token}/run//{id}",
        "/{token}/run/{id}/config.yaml",
        "/{token}/{id}",
    ],
)
def test_nothing_else_is_there(view: LiveView, record: Record, path: str) -> None:
    token = view.address.rstrip("/").rpartition("/")[2]
    wrong = ("B" if token[0] == "A" else "A") + token[1:]
    (record.directory.parent / ".hidden").mkdir(exist_ok=True)
    status, page, _ = get(view, path=path.format(token=token, wrong=wrong, id=record.id))
    assert status == 404
    assert record.id not in page
    assert str(record.directory.parent) not in page


def test_what_a_link_leads_to_is_not_shown(view: LiveView, record: Record, tmp_path: Path) -> None:
    link = record.directory.parent / "link"
    link.symlink_to(record.directory)
    try:
        assert get(view, "run/link")[0] == 404
        assert 'run/link"' not in get(view)[1]
    finally:
        link.unlink()


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "[::1]:{port}"]
)
def test_another_host_is_refused(view: LiveView, record: Record, host: str) -> None:
    """A page elsewhere whose name was made to lead to this machine sends that name."""
    status, page, _ = get(view, host=host.format(port=view.port))
    assert status == 421
    assert record.id not in page
    assert get(view, host=f"localhost:{view.port}")[0] == 200


@pytest.mark.parametrize("method", ["POST", "HEAD", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH"])
def test_nothing_but_get_is_answered(view: LiveView, record: Record, method: str) -> None:
    status, page, _ = get(view, method=method)
    assert status == 501
    assert record.id not in page


def test_it_listens_on_this_machine_alone_and_two_have_two_secrets(
    view: LiveView, record: Record
) -> None:
    assert view._server.socket.getsockname()[0] == "127.0.0.1"
    other = LiveView(record.directory.parent, 0, import_policy_of(""))
    other._server.server_close()
    assert view._token != other._token
    assert len(view._token) == 43  # 32 bytes of the system's entropy


def test_to_look_writes_nothing(view: LiveView, record: Record) -> None:
    folder = record.directory.parent
    get(view)
    before = {path: path.lstat().st_mtime_ns for path in folder.rglob("*")}
    get(view)
    get(view, f"run/{record.id}")
    assert {path: path.lstat().st_mtime_ns for path in folder.rglob("*")} == before


def test_a_record_that_names_foreign_code_is_told_in_a_sentence(
    view: LiveView, record: Record
) -> None:
    config = record.directory / "config.yaml"
    text = config.read_text()
    config.write_text(text.replace("method: fedavg", "method: evil.module:Thing"))
    record.note(outcome="failed: x")
    try:
        status, page, _ = get(view, f"run/{record.id}")
        assert status == 200
        assert "nothing of it was imported" in page
    finally:
        config.write_text(text)
        record.note(outcome="completed")


def test_a_place_or_a_port_that_cannot_be_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", str(tmp_path / "none")]) == 2
    assert "none is not a directory" in capsys.readouterr().err
    with socket.socket() as taken:
        taken.bind((LOOPBACK, 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["serve", str(tmp_path), "--port", str(port)]) == 2
    assert f"port {port} of 127.0.0.1 is not to be had" in capsys.readouterr().err


@pytest.mark.extended
@pytest.mark.skipif(CHROMIUM is None and not os.environ.get("CI"), reason="no chromium here")
def test_a_browser_shows_list_and_report_without_a_complaint(
    view: LiveView, record: Record, tmp_path: Path
) -> None:
    assert CHROMIUM is not None, "install chromium, or name one in NECTAR_CHROMIUM"
    with Browser(CHROMIUM, tmp_path) as browser:
        listed = Page(browser, view.address)
        assert listed.complaints == []
        assert listed.evaluate("document.querySelectorAll('tbody a').length") == 2
        browser.events.clear()
        listed.evaluate("document.querySelector('tbody a').click()")
        browser.wait_for("Page.loadEventFired")
        assert listed.evaluate("document.title").endswith("Nectar report")
        own = f"request: {view.address}run/{record.id}"
        assert [each for each in listed.complaints if each != own] == []
