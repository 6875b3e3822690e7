"""What a run says of its time: how far it is, and when it will be over."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest
from small import SMALL

from common.learning import compute as steps
from nectar import cli
from nectar.arguments import format_duration
from nectar.engines.progress import Progress, progress_shown


def test_a_dry_run_shows_settings_and_trains_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", "--dry-run", "rounds=2", f"output-dir={tmp_path / 'runs'}", *SMALL.split()]
    with steps.watched(lambda *told: pytest.fail(f"a step was taken: {told}")):
        assert cli.main(words) == 0
    assert "  iterations: 3  # the command line" in capsys.readouterr().out
    assert not (tmp_path / "runs").exists()


# --- the line between two lines


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Begun:
    """A record with so many rounds."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def metrics(self) -> list[dict[str, int]]:
        return [{"round": number} for number in range(self.rounds + 1)] if self.rounds else []


def begun(clock: Clock, rounds: int = 0) -> Progress:
    progress = Progress(5, 4, clock)
    progress(4, 4)  # the roll call
    progress.begun(Begun(rounds), [])  # type: ignore[arg-type]
    if not rounds:
        progress.round_done(0, 5, [])
    return progress


def test_the_line_follows_what_was_measured_from_the_first_steps_on() -> None:
    """Sites of 10 s, two at a time, and what the server takes from its own first steps on."""
    clock = Clock()
    progress = begun(clock)
    assert progress.line() == "round 1/5: 0 of 4 sites"
    clock.now = 10.0  # half of what one site has to do, and half of another's
    progress.step("worker 1", 5, 10)
    progress.step("worker 2", 5, 10)
    assert progress.line() == (
        "round 1/5: 0 of 4 sites, 25 % done; 30 s left in this round, 3 min 10 s in the run"
    )
    clock.now = 40.0
    progress(4, 4)
    progress.step("", 1, 4)
    clock.now = 45.0
    assert progress.line() == (
        "round 1/5: at the server, 25 % done; 15 s left in this round, 4 min 15 s in the run"
    )
    clock.now = 60.0
    progress.round_done(1, 5, [])
    clock.now = 70.0
    progress(1, 4)
    assert (
        progress.line() == "round 2/5: 1 of 4 sites; 50 s left in this round, 3 min 50 s in the run"
    )


def test_a_run_that_goes_on_counts_from_where_it_was() -> None:
    clock = Clock()
    progress = begun(clock, rounds=3)
    assert progress.line() == "round 4/5: 0 of 4 sites"
    clock.now = 8.0
    progress(1, 4)
    assert progress.line() == "round 4/5: 1 of 4 sites; 24 s left in this round, 56 s in the run"
    for done in (4, 5):
        progress.round_done(done, 5, [])
    assert progress.line() == ""


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.04, "under 0.1 s"), (0.06, "0.1 s"),
     (9.9, "9.9 s"), (9.96, "10 s"), (59.6, "1 min"), (200, "3 min 20 s"), (1230, "20 min"),
     (3600, "1 h"), (45360, "12 h 36 min"), (9.24e6, "107 days")],
)  # fmt: skip
def test_spans_are_said_as_people_say_them(seconds: float, said: str) -> None:
    assert format_duration(seconds) == said


def test_without_a_terminal_the_log_has_the_line_from_time_to_time(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A minute apart; here as often as can be, until the third."""
    monkeypatch.setattr("nectar.engines.progress._IN_LOG", 0.001)
    message = threading.Event()

    class Told(Progress):
        lines = 0

        def line(self) -> str:
            self.lines += 1
            if self.lines > 3:
                message.set()
            return f"line {self.lines}"

    with caplog.at_level(logging.INFO, "flwr"), progress_shown(Told(5, 4)):
        assert message.wait(60)
        steps.report_progress("", 1, 2)
    assert [record.getMessage() for record in caplog.records][:3] == ["line 1", "line 2", "line 3"]
