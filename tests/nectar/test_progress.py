"""What a run says of its time: an estimate by a step that is timed, and how far it is; neither decides a number."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from federation import numbers
from small import SMALL

from common.config.loading import load
from common.learning import compute as steps
from nectar import cli
from nectar.arguments import format_duration
from nectar.engines.progress import Estimate, Progress, progress_shown, rehearse
from server_app.record import Record

LONG = SMALL.replace("feddm.iterations=3", "feddm.iterations=1500")


def small(output: Path, **keys: Any) -> dict[str, Any]:
    extra = keys.pop("set", "")
    return {"output-dir": str(output), "rounds": 2, **keys, "set": f"{SMALL} {extra}"}


def ticking() -> Callable[[], float]:
    """Return a clock that goes on by a second each time that it is looked at."""
    looks = count()
    return lambda: float(next(looks))


@pytest.fixture
def taken() -> Iterator[list[tuple[int, int]]]:
    """Every step of this process, as (done, to do)."""
    found: list[tuple[int, int]] = []
    with steps.watched(lambda where, done, of: found.append((done, of))):
        yield found


def test_a_step_is_timed_and_all_of_them_follow(tmp_path: Path) -> None:
    """By hand: a look at the beginning, then one ahead of each step, a second apart: 1 + 1 x 40 a site.

    At the server 5 passes over 2 images of each class of each site, 60 at most and so one batch: 1 + 1 x 5.
    """
    config = load(small(tmp_path, set="feddm.iterations=40"))
    estimate = rehearse(config, ticking())
    assert estimate is not None
    assert (estimate.site, estimate.server, estimate.asked, estimate.rounds) == (41.0, 6.0, 3, 2)
    twice = rehearse(
        load(small(tmp_path, set="feddm.iterations=80 image_training.epochs=10")), ticking()
    )
    assert twice is not None
    assert (twice.site, twice.server) == (81.0, 11.0)


@pytest.mark.parametrize(
    ("method", "sites", "server"),
    [("fedavg", True, False), ("central", False, True), ("real", True, True)],
)
def test_who_works_is_who_is_timed(tmp_path: Path, method: str, sites: bool, server: bool) -> None:
    estimate = rehearse(load(small(tmp_path, method=method)), ticking())
    assert estimate is not None
    assert (estimate.asked > 0, estimate.server is not None) == (sites, server)


def test_the_estimate_takes_few_steps_and_leaves_nothing(tmp_path: Path) -> None:
    """Thousands of steps are asked for; the process's generator and the output directory are as they were."""
    config = load(small(tmp_path, set="feddm.iterations=100000 image_training.epochs=100000"))
    before = torch.get_rng_state()
    looked: list[float] = []

    def clock() -> float:
        looked.append(0.0)
        return float(len(looked))

    assert rehearse(config, clock) is not None
    assert len(looked) < 50
    assert torch.equal(torch.get_rng_state(), before)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.extended
@pytest.mark.parametrize("method", ["feddm", "scaffold"])
def test_a_run_that_was_estimated_gives_the_numbers_of_one_that_was_not(
    tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Methods with a memory at the sites, and images that go on from the last ones."""
    found = []
    for name in ("with", "without"):
        if name == "without":
            monkeypatch.setattr("nectar.engines.progress.rehearse", lambda config: None)
        note = tmp_path / f"{name}.txt"
        words = ["run", f"method={method}", "rounds=2", f"output-dir={tmp_path / name}"]
        assert cli.main([*words, *SMALL.split(), "--note-record", str(note)]) == 0
        found.append(numbers(Record(Path(note.read_text().strip()))))
    assert found[0] == found[1]


@pytest.mark.extended
def test_images_that_are_made_once_are_counted_once(tmp_path: Path) -> None:
    """By hand: 7 epochs of one batch are 1 + 7, and FedAvg's one epoch of at most 64 images a step follows."""
    made = "fedssyn.epochs=7 fedssyn.batch=1000 fedssyn.width=4 fedssyn.multipliers=1,1,1 fedssyn.blocks=1"
    many = small(
        tmp_path, method="fedssyn", rounds=5, set=f"{made} fedssyn.attention=1 fedavg.epochs=9"
    )
    estimate = rehearse(load(many), ticking())
    inner = rehearse(load(small(tmp_path, method="fedavg", set="fedavg.epochs=9")), ticking())
    assert estimate is not None
    assert inner is not None
    assert (estimate.making, estimate.site) == (8.0, inner.site)
    assert estimate.run == pytest.approx((8.0 + 4 * inner.site) * 3 / estimate.at_a_time)
    assert "for images in the first round" in estimate.sentence()


@pytest.mark.parametrize("named", ["method=misbehaving_client:METHOD", "model.name=tiny:build"])
def test_what_is_a_users_own_is_not_called_for_an_estimate(tmp_path: Path, named: str) -> None:
    config = load(small(tmp_path))
    key, _, value = named.partition("=")
    own = (
        replace(config, method=value)
        if key == "method"
        else replace(config, model=config.model.model_copy(update={"name": value}))
    )
    assert rehearse(own) is None


def test_a_dry_run_shows_settings_and_estimate_and_trains_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], taken: list[tuple[int, int]]
) -> None:
    words = ["run", "--dry-run", "rounds=2", f"output-dir={tmp_path / 'runs'}", *LONG.split()]
    assert cli.main(words) == 0
    message = capsys.readouterr().out
    assert "  iterations: 1500  # the command line" in message
    assert "estimate: " in message
    assert "for 2 rounds (3 sites of " in message
    assert not (tmp_path / "runs").exists()
    assert {of for _, of in taken} <= {
        1
    }  # a quick round, for the server's step; the estimate watches its own


def test_a_run_says_its_estimate_before_round_1(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "flwr"):
        assert cli.main(["run", "rounds=1", f"output-dir={tmp_path}", *SMALL.split()]) == 0
    message = [record.getMessage() for record in caplog.records]
    at = next(i for i, line in enumerate(message) if line.startswith("estimate: "))
    assert at < next(i for i, line in enumerate(message) if line.startswith("round 0/1"))


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


def begun(clock: Clock, rounds: int = 0, estimate: Estimate | None = None) -> Progress:
    progress = Progress(5, 4, estimate, clock)
    progress(4, 4)  # the roll call
    progress.begun(Begun(rounds), [])  # type: ignore[arg-type]
    if not rounds:
        progress.round_done(0, 5, [])
    return progress


def test_the_line_follows_the_estimate_and_then_what_was_measured() -> None:
    """Sites of 10 s, two at a time, and 5 s at the server: 25 s a round, 5 rounds."""
    clock = Clock()
    progress = begun(clock, estimate=Estimate(10.0, 4, 5.0, 2, 5))
    assert progress.line() == (
        "round 1/5: 0 of 4 sites; the round takes 25 s more, the run 2 min 5 s"
    )
    clock.now = 10.0  # half of what one site has to do, and half of another's
    progress.step("worker 1", 5, 10)
    progress.step("worker 2", 5, 10)
    assert progress.line() == (
        "round 1/5: 0 of 4 sites, 25 % done; the round takes 35 s more, the run 3 min 35 s"
    )
    clock.now = 40.0
    progress(4, 4)
    progress.step("", 1, 4)
    clock.now = 45.0
    assert progress.line() == (
        "round 1/5: at the server, 25 % done; the round takes 15 s more, the run 4 min 15 s"
    )
    clock.now = 60.0
    progress.round_done(1, 5, [])
    clock.now = 70.0
    progress(1, 4)
    assert (
        progress.line() == "round 2/5: 1 of 4 sites; the round takes 50 s more, the run 3 min 50 s"
    )


def test_a_run_that_goes_on_counts_from_where_it_was() -> None:
    clock = Clock()
    progress = begun(clock, rounds=3)
    assert progress.line() == "round 4/5: 0 of 4 sites"
    clock.now = 8.0
    progress(1, 4)
    assert progress.line() == "round 4/5: 1 of 4 sites; the round takes 24 s more, the run 56 s"
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
