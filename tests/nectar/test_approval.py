"""The owner's say: what a run asks is worked out here, and nothing begins without a word on this app and settings."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from real_site import Site

from client_app import app as client_app
from common.config.loading import load
from common.privacy.accounting import epsilon
from common.privacy.events import Event
from nectar.cli import main
from nectar.engines.site import approval
from nectar.engines.site.approval import APPROVED, AWAITS_OWNER, FOLDER, NotApproved, digest_of
from nectar.operate import approvals
from strategies.exchange import membership

APP = b"the bundle"
PRIVATE = "fedavg.batch=8 fedavg.epochs=1 privacy.counts=public privacy.examples=100 privacy.noise_multiplier="


def settings(noise: float = 4.0, method: str = "fedavg") -> dict[str, Any]:
    given = {"method": method, "dataset": "images", "rounds": 3}
    more = "images.classes=cat,dog images.size=16 "
    return load({**given, "set": more + (f"{PRIVATE}{noise}" if noise else "")}).to_run_config()


def cost(noise: float) -> str:
    """Return what three epochs of 13 steps, each on a batch of 8 of 100, come to."""
    return f"epsilon {epsilon([Event('x', noise, 0.08, 39)], 1e-5).value:.3g} at delta 1e-05"


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(approval, "_HOLD", 0.0)
    monkeypatch.delenv(APPROVED, raising=False)
    (tmp_path / "state").mkdir(mode=0o700)
    return {
        "site": "north",
        "data": "/abs/folder",
        "state-dir": str(tmp_path / "state"),
        "approve": "ask",
    }


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Have the installed Nectar answer in this process, and know the app or not."""

    def answers(own: bool) -> None:
        def run(command: list[str], *, input: bytes, **_: object) -> Any:
            told = json.dumps(approvals.worked_out(json.loads(input))).encode()
            return subprocess.CompletedProcess(command, 0, told)

        monkeypatch.setattr(approval.subprocess, "run", run)
        found = approval.hashlib.sha256(APP).hexdigest() if own else "another"
        monkeypatch.setattr(approvals, "own_bundle", lambda: found)

    answers(False)
    return answers


def asked(node: dict[str, Any], run_config: dict[str, Any], app: bytes = APP, run: int = 7) -> None:
    approval.require(run, app, run_config, node, pinned=False)


def refused(node: dict[str, Any], run_config: dict[str, Any], **more: Any) -> NotApproved:
    with pytest.raises(NotApproved) as withheld:
        asked(node, run_config, **more)
    return withheld.value


def word(node: dict[str, Any], *words: str) -> int:
    return main(["site", "approve", *words, "--state", node["state-dir"]])


def read(run_config: dict[str, Any], app: bytes = APP, run: int = 7) -> list[str]:
    """Return what an owner types who has read this question."""
    return [str(run), digest_of(app, run_config)[: approval.DIGITS]]


@pytest.mark.extended
def test_a_run_waits_for_its_owner_whose_server_knows_until_when(
    node: dict[str, Any], known: object, capsys: pytest.CaptureFixture[str]
) -> None:
    first = refused(node, settings())
    assert first.code == AWAITS_OWNER == membership.AWAITS_OWNER
    until = datetime.fromtimestamp(time.time() + approval.PATIENCE, UTC)
    assert f"until {until:%Y-%m-%d %H}" in str(first)
    shown = capsys.readouterr().err
    assert "method    fedavg on images, 3 rounds" in shown
    assert "fedavg.epochs=1" in shown
    assert str(refused(node, settings())) == str(first), "the same sentence, logged once"
    assert word(node) == 0
    assert "run 7, until" in capsys.readouterr().out
    assert word(node, *read(settings())) == 0
    asked(node, settings())
    assert os.environ[APPROVED] == "7"
    assert client_app.APPROVED == APPROVED
    assert word(node) == 0
    assert capsys.readouterr().out.endswith("nothing waits for approval\n")


def test_another_epsilon_another_app_and_another_run_each_ask_again(
    node: dict[str, Any], known: object, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(node, settings(4.0))
    word(node, *read(settings(4.0)))
    assert cost(4.0) in capsys.readouterr().err
    asked(node, settings(4.0))
    assert refused(node, settings(0.5)).code == AWAITS_OWNER, "under the same number"
    assert cost(0.5) in capsys.readouterr().err
    assert refused(node, settings(4.0), app=b"another").code == AWAITS_OWNER
    assert refused(node, settings(4.0), run=8).code == AWAITS_OWNER


def test_the_number_of_a_question_approves_no_other_app_that_came_under_it(
    node: dict[str, Any], known: object, capsys: pytest.CaptureFixture[str]
) -> None:
    """A SuperLink sends A, which the owner reads, and then B under A's number: B waits whatever is typed for A."""
    other = b"another"
    refused(node, settings())
    assert f"site approve {' '.join(read(settings()))} --state" in capsys.readouterr().err
    assert refused(node, settings(), app=other).code == AWAITS_OWNER
    assert word(node, "7") == 2, "the number alone"
    assert "first 16 digits of its hash line" in capsys.readouterr().err
    assert word(node, *read(settings())) == 0
    assert refused(node, settings(), app=other).code == AWAITS_OWNER
    assert refused(node, settings(2.0)).code == AWAITS_OWNER
    asked(node, settings())
    capsys.readouterr()
    assert word(node) == 0
    waiting = capsys.readouterr().out
    assert digest_of(other, settings()) in waiting
    assert digest_of(APP, settings()) not in waiting


def test_an_app_whose_hash_begins_like_an_approved_ones_does_not_begin(
    node: dict[str, Any], known: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2^32 apps have two that agree in 16 digits: all 64 decide."""
    refused(node, settings())
    word(node, *read(settings()))
    alike = digest_of(APP, settings())[: approval.DIGITS] + "0" * 48
    monkeypatch.setattr(approval, "digest_of", lambda app, run_config: alike)
    assert refused(node, settings(), app=b"another").code == approval.RAISED
    place = Path(node["state-dir"], FOLDER)
    (question,) = place.glob("7-*.json")
    assert json.loads(question.read_text())["digest"] == digest_of(APP, settings())


def test_a_word_while_the_run_waits_is_on_what_was_read(
    node: dict[str, Any], known: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B waits in its loop when the owner approves A under the same number."""
    refused(node, settings())
    refused(node, settings(), app=b"another")
    monkeypatch.setattr(approval, "_HOLD", 5.0)
    typed = iter([lambda: word(node, *read(settings()))])
    monkeypatch.setattr(time, "sleep", lambda seconds: next(typed, lambda: None)())
    clock = iter(range(int(time.time()), 10**12))
    monkeypatch.setattr(time, "time", lambda: next(clock))
    assert refused(node, settings(), app=b"another").code == AWAITS_OWNER


def test_who_submitted_is_shown_as_the_superlinks_word(
    node: dict[str, Any], known: object, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(node, {**settings(), "by": "dean@hospital"})
    assert "dean@hospital, as the SuperLink reports it; unchecked" in capsys.readouterr().err


def test_an_app_that_is_not_this_nectars_is_shown_as_that_and_no_method_lets_it_in(
    node: dict[str, Any], known: Callable[[bool], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """What it says of itself is its configuration, and nothing holds it to that."""
    node["approve"] = "list"
    assert word(node, "fedavg") == 0
    refusal = refused(node, settings())
    assert refusal.code == approval.RAISED
    assert "neither run 7's app and settings nor its method" in str(refusal)
    assert "NOT the app of the installed Nectar" in capsys.readouterr().err
    known(True)
    asked(node, settings(), run=8)
    with pytest.raises(NotApproved, match="neither"):
        asked(node, settings(0, "feddm"), run=9)
    assert word(node, "fedavg", "--refuse") == 0
    assert refused(node, settings(), run=10)


def test_a_hash_is_approved_ahead_of_time(node: dict[str, Any], known: object) -> None:
    node["approve"] = "list"
    assert word(node, digest_of(APP, settings())) == 0
    asked(node, settings())
    assert refused(node, settings(2.0), run=8)


def test_a_refusal_and_a_deadline_end_the_wait(
    node: dict[str, Any], known: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused(node, settings())
    word(node, *read(settings()), "--refuse")
    assert refused(node, settings()).code == approval.RAISED
    node["approve-seconds"] = 1
    refused(node, settings(), run=8)
    monkeypatch.setattr(time, "time", lambda now=time.time: now() + 2)
    late = refused(node, settings(), run=8)
    assert late.code == approval.RAISED
    assert "did not approve run 8 by" in str(late)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"approve": "yes"}, "neither 'ask' nor 'list'"), ({"state-dir": ""}, "lacks state-dir")],
)
def test_a_say_that_cannot_be_kept_lets_nothing_begin(
    node: dict[str, Any], change: dict[str, str], message: str
) -> None:
    assert message in str(refused(node | change, settings()))


def test_what_the_installed_nectar_cannot_read_is_said_and_asked(
    node: dict[str, Any], known: object, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(node, {**settings(), "method": "nonsense"}).code == AWAITS_OWNER
    assert "settings  not valid for the installed Nectar" in capsys.readouterr().err


@pytest.mark.extended
def test_the_installed_nectar_answers_from_a_process_of_its_own(node: dict[str, Any]) -> None:
    question = approval._worked_out(7, "d", APP, settings(), node, False)
    assert question.methods == ("fedavg",)
    assert not question.own
    assert question.lines[-1] == "hash      d"


def test_a_site_under_flowers_own_program_takes_part_in_nothing(node: dict[str, Any]) -> None:
    site = Site(settings(), **node)
    assert "which `nectar site` alone keeps" in site.refusal()
