"""Which runs had this machine to themselves: the lock that all of them hold, and what a record says by it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from small import SMALL

import nectar
from common.config.text import parse_set
from common.errors import ConfigError
from nectar.engines.alone import TIMED, on_this_machine


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(TIMED, raising=False)


def test_a_run_is_alone_if_no_other_went_on_beside_it_not_even_for_a_while() -> None:
    with on_this_machine() as first:
        assert first()
        with on_this_machine() as second:
            assert not second()
        assert not first(), "the other one has ended, and was there"
    with on_this_machine() as later:
        assert later()


@pytest.mark.parametrize("timed", ["the one that holds it", "the one that comes"])
def test_a_timed_run_and_others_wait_for_each_other(
    timed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there: list[bool] = []

    def come() -> None:
        with on_this_machine() as alone:
            there.append(alone())

    thread = threading.Thread(target=come)
    if timed == "the one that holds it":
        monkeypatch.setenv(TIMED, "1")
    with on_this_machine() as alone:
        monkeypatch.setenv(TIMED, "" if timed == "the one that holds it" else "1")
        thread.start()
        thread.join(0.3)
        assert there == []
        assert alone()
    thread.join(10)
    assert there == [timed == "the one that comes"], "who is not timed cannot know"


def test_without_a_folder_for_the_lock_no_run_is_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_text("a file")
    with on_this_machine() as alone:
        assert not alone()
    monkeypatch.setenv(TIMED, "1")
    with pytest.raises(ConfigError, match="set XDG_CACHE_HOME"), on_this_machine():
        pass


def test_a_record_says_whether_its_run_was_alone(tmp_path: Path) -> None:
    settings = {"rounds": 1, "output_dir": tmp_path, "progress": False, **parse_set(SMALL)}
    assert nectar.run("fedavg", **settings).alone
    with on_this_machine():
        assert not nectar.run("fedavg", seed=1, **settings).alone
