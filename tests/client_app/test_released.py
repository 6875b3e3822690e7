"""What a site keeps: a line for everything that left, where no server has a word, and nothing that others read."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from image_folders import CLASSES, paint
from real_site import RECORD, Site
from small import Small

from client_app.app import LOG_UNWRITABLE, for_the_owner_alone
from common.errors import FederationError

pytestmark = [
    pytest.mark.usefixtures("fresh_data"),
    pytest.mark.promise(
        "A site is the master of its own machine",
        "What left has a line in the site's own log, in a place that no server chooses, for the "
        "site's user alone; what cannot be noted does not leave",
    ),
]


HOSTILE = [
    "../../up",
    "released.jsonl",
    "Released.JSONL",
    "nectar-store",
    ".hidden",
    "x" * 200,
    "a\nb",
]


def lines(state: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (state / "released.jsonl").read_text().splitlines()]


def at(state: Path) -> dict[str, Any]:
    return {"site": "north", "state-dir": str(state)}


def open_to_others(state: Path) -> list[Path]:
    return [path for path in (state, *state.rglob("*")) if path.stat().st_mode & 0o077]


def test_every_answer_has_a_line_refusals_and_failures_too(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(small(method="fedavg"), **at(tmp_path / "state"))
    site.roll_call()
    site.train("train")
    site.train("unheard-of")
    monkeypatch.setattr("client_app.fedavg.trained_weights", lambda *_: 1 / 0)
    site.train("train")
    called, sent, refused, failed = lines(tmp_path / "state")
    assert (called["phase"], called["figures"]) == ("roll-call", "num-examples num-partitions")
    assert (sent["phase"], sent["kind"], sent["round"]) == ("train", "weights", 1)
    assert sent["array-bytes"] > 1000
    assert (sent["run"], sent["record"], sent["site"]) == (1, RECORD, "north")
    assert refused["kind"] == failed["kind"] == "error"
    assert "has no phase 'unheard-of'" in refused["reason"]
    assert failed["reason"].startswith("site failed: ZeroDivisionError, ")


def test_the_log_lies_in_one_place_whatever_the_server_calls_its_run(
    small: Small, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    site = Site(small(method="fedavg"), **at(state))
    for name in HOSTILE:
        assert site.train("train", record=name).has_error()
    assert [line["kind"] for line in lines(state)] == ["error"] * len(HOSTILE)
    assert [path.name for path in state.iterdir()] == ["released.jsonl"]
    assert not site.train("train", record="20260102-030405-another").has_error()
    assert lines(state)[-1]["record"] == "20260102-030405-another"


def test_nothing_leaves_that_cannot_be_noted(small: Small, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    (state / "released.jsonl").mkdir()
    reply = Site(small(method="fedavg"), **at(state)).train("train")
    assert reply.error.reason == LOG_UNWRITABLE


def test_what_it_keeps_is_its_owners_alone(small: Small, tmp_path: Path) -> None:
    """Decoded copies of its images, its own memory and its log."""
    state, images = tmp_path / "state", tmp_path / "images"
    paint(images, "red", 6)
    settings = f"images.classes={CLASSES} images.size=8 model.depth=2 feddm.warm=on"
    site = Site(small(dataset="images", set=settings), data=str(images), **at(state))
    assert not site.roll_call().has_error()
    assert not site.train("synthesize").has_error()
    kept = {path.name for path in state.rglob("*")}
    assert {"train-images.npy", "store.json", "released.jsonl", "000001.safetensors"} <= kept
    assert open_to_others(state) == []
    assert not (tmp_path / "cache/nectar").exists()


@pytest.mark.parametrize("mode", [0o755, 0o710, 0o707])
def test_a_folder_that_others_may_read_is_refused_and_left_as_it_is(
    small: Small, tmp_path: Path, mode: int
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(mode)
    message = f"others on this machine may read the state directory {state} .mode {mode:o}.: close it with chmod"
    with pytest.raises(FederationError, match=message) as caught, for_the_owner_alone(state):
        pass
    assert str(tmp_path) not in caught.value.reported
    reply = Site(small(method="fedavg"), **at(state)).roll_call()
    assert str(reply.error.reason) == caught.value.reported
    assert stat.S_IMODE(state.stat().st_mode) == mode
