"""What a site is told whose key its server does not know, and with which exit code it ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from nectar.engines.site import turned_away
from nectar.engines.site.clientapp import Fleet
from nectar.engines.site.turned_away import MARK, exit_code
from nectar.operate.doctor.keys import _known

pytestmark = pytest.mark.promise(
    "A federation in operation",
    "A revoked site keeps no other down, and stays out of a database that is put back by the recipe",
)

UNKNOWN, KNOWN, SILENT = False, True, None

STAYED, STARTED = 0, 1


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that pass by sleeping alone."""
    now = [0.0]
    monkeypatch.setattr(turned_away.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(
        turned_away.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds)
    )
    return now


def ended(code: int, answers: Iterator[bool | None], folder: Path) -> int:
    fleet = Fleet("fl.example.org:8443", None, ec.generate_private_key(ec.SECP384R1()))

    def ask(connection: Any, key: Any) -> bool | None:
        return next(answers)

    return exit_code(code, fleet, folder, ask)


def test_a_site_that_came_back_too_early_is_started_again_and_nothing_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], clock: list[float]
) -> None:
    for answer in (KNOWN, SILENT):
        assert ended(STARTED, iter([answer]), tmp_path) == 1
    assert capsys.readouterr().err == ""
    assert clock == [0.0]
    assert not (tmp_path / MARK).exists()


def test_a_site_that_is_unregistered_while_it_is_online_ends_at_once_with_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], clock: list[float]
) -> None:
    assert ended(STAYED, iter([UNKNOWN]), tmp_path) == 0
    (message,) = capsys.readouterr().err.splitlines()
    assert message.startswith(
        "nectar site: the server fl.example.org:8443 does not know this site's key (SHA256:"
    )
    assert "make and register a new key pair" in message
    assert clock == [0.0]


def test_a_key_that_nobody_registers_is_asked_for_two_minutes_and_is_not_started_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], clock: list[float]
) -> None:
    def answers() -> Iterator[bool | None]:
        yield UNKNOWN
        assert (tmp_path / MARK).exists(), "nectar-healthy sees that it has been told"
        while True:
            yield UNKNOWN
            yield SILENT

    assert ended(STARTED, answers(), tmp_path) == 0
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert clock == [120.0]


def test_a_key_that_is_registered_meanwhile_is_started_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], clock: list[float]
) -> None:
    assert ended(STARTED, iter([UNKNOWN, UNKNOWN, SILENT, KNOWN]), tmp_path) == 1
    assert "the key is registered now" in capsys.readouterr().err
    assert clock == [30.0]


@pytest.mark.parametrize("certificates", [None, "missing.crt"])
def test_where_nobody_can_be_asked_the_supernodes_exit_code_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], certificates: str | None
) -> None:
    fleet = Fleet("127.0.0.1:9", certificates, ec.generate_private_key(ec.SECP384R1()))
    assert exit_code(1, fleet, tmp_path) == 1
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ('{"code": 2003}', True),
        ('{"code": 2004}', False),
        ('{"code": 7}', None),
        ("<html>", None),
        ("[]", None),
    ],
)
def test_what_an_answer_tells(body: str, told: bool | None) -> None:
    assert _known(body) is told
