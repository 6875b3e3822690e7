"""What a person sees of a run between two of its lines: how far the round is, and when it and the run will be over."""

from __future__ import annotations

import logging
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message

from common.code.imports import is_import_path
from common.config.resolved import Config
from common.division import Division
from common.learning.compute import use_threads, watched
from common.learning.start import starting_weights
from common.settings.generation import GenerationSettings
from common.settings.ridge import RidgeSettings
from common.settings.surrogate import UnionTrainingSettings
from common.sites import Site
from nectar.arguments import format_duration
from nectar.engines.flower.app import client_app
from nectar.engines.local_grid import LocalGrid
from nectar.engines.pool.grid import LEAST_DEVICE, LEAST_GAIN, devices_asked, most_processes, of_run
from nectar.report.text import plural
from server_app.app import Observer, make_strategy
from server_app.run_directory import RunDirectory
from strategies.federated import Federated

logger = logging.getLogger("flwr")

_ON_TERMINAL, _IN_LOG = 1.0, 60.0
"""Seconds between two lines: one that replaces the last on a terminal, one more where there is none."""


class Progress(Observer):
    """Knows the sites' and the server's work as far as it is told of it.

    Parameters
    ----------
    rounds : int
        The run's last round.
    asked : int
        Sites asked in a round; 0 where the server alone works.
    estimate : Estimate, optional
        What was expected before round 1, which serves until something was measured.
    clock : callable
        Seconds that only grow.
    """

    def __init__(
        self,
        rounds: int,
        asked: int,
        estimate: Estimate | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rounds, self._clock = rounds, clock
        self._round = 0
        self._begun: float | None = None
        self._answered: float | None = None
        self._done, self._asked, self._usually = 0, asked, asked
        self._parts: dict[str, float] = {}
        self._sites = estimate.first_sites if estimate else None
        self._server = (estimate.server or 0.0) if estimate else None
        self._whole: float | None = None

    def begun(self, record: RunDirectory, sites: Sequence[Site]) -> None:
        """Take note of the record, which says how many rounds a resumed run has done: it begins with the next."""
        if lines := record.metrics():
            self._round = max(line["round"] for line in lines)
            self._begin_round()

    def round_done(self, server_round: int, rounds: int, sites: Sequence[Site]) -> None:
        """Take note that a round is over, and the next one begins."""
        self._begin_round()

    def _begin_round(self) -> None:
        now = self._clock()
        if self._begun is not None:
            self._whole = now - self._begun
            self._server = now - (self._begun if self._answered is None else self._answered)
        self._round += 1
        self._begun, self._answered = now, None
        self._done, self._asked, self._parts = 0, self._usually, {}

    def __call__(self, done: int, of: int) -> None:
        """Take note of how many of the sites that were asked have answered."""
        if self._begun is None:
            return  # who is there
        self._done, self._asked, self._parts = done, of, {}
        if done == of:
            self._answered = self._clock()
            self._sites = self._answered - self._begun

    def step(self, where: str, done: int, steps: int) -> None:
        """Take note of how far a site's work is, or the server's."""
        self._parts[where] = min(1.0, done / max(1, steps))

    def line(self) -> str:
        """Return where the run stands; nothing before its first round and after its last."""
        if self._begun is None or self._round > self._rounds:
            return ""
        at_server = self._asked == self._done
        part = sum(self._parts.values())
        if at_server:
            what = f"at the server{f', {100 * part:.0f} % done' if part else ''}"
        else:
            share = f", {100 * (self._done + part) / self._asked:.0f} % done" if part else ""
            what = f"{self._done} of {self._asked} sites{share}"
        left = self._seconds_left(part, at_server)
        if left is None:
            return f"round {self._round}/{self._rounds}: {what}"
        whole = self._whole or self._clock() - self._begun + left
        run = left + whole * (self._rounds - self._round)
        round_left, run_left = format_duration(left), format_duration(run)
        return f"round {self._round}/{self._rounds}: {what}; the round takes {round_left} more, the run {run_left}"

    def _seconds_left(self, part: float, at_server: bool) -> float | None:
        """Return the seconds until the round is over; None if nothing was measured or expected."""
        assert self._begun is not None
        now = self._clock()
        if at_server:
            begun = self._begun if self._answered is None else self._answered
            whole = (now - begun) / part if part else self._server
            return None if whole is None else max(0.0, whole - (now - begun))
        work = self._done + part
        whole = (now - self._begun) * self._asked / work if work else self._sites
        if whole is None:
            return None
        return max(0.0, whole - (now - self._begun)) + (self._server or 0.0)


@contextmanager
def progress_shown(progress: Progress) -> Iterator[None]:
    """Show ``progress`` within: a line that is kept up to date on a terminal, else one a minute in the log."""
    terminal = sys.stderr.isatty()
    over = threading.Event()

    def show() -> None:
        while not over.wait(_ON_TERMINAL if terminal else _IN_LOG):
            line = progress.line()
            if line and terminal:
                print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)
            elif line:
                logger.info("%s", line)

    def wipe(record: logging.LogRecord) -> bool:
        print("\r\033[K", end="", file=sys.stderr, flush=True)
        return True

    handlers = list(logger.handlers) if terminal else []
    for handler in handlers:
        handler.addFilter(wipe)
    shower = threading.Thread(target=show, daemon=True)
    shower.start()
    try:
        with watched(progress.step):
            yield
    finally:
        over.set()
        shower.join()
        for handler in handlers:
            handler.removeFilter(wipe)
        if terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


# ---- rehearsal -----------------------------------------------------------------------------------
# How long a run will take, by timing a step of what it is about to do, on copies of all that it is done with.
#
# Nothing of it is the run's: the strategy, the sites' memory and the record are others, below a folder that is
# removed. Every draw of the run derives from its seed, round and site, never from what was drawn before.

Clock = Callable[[], float]

_TIMED_SITES, _UNION_SITES = 3, 10
"""Sites of which a step is timed, and sites whose images the server's step is timed on."""

_PATIENCE = 5.0
"""Seconds after which no further site is timed."""

_STEPS = 3
"""Calls ahead of a step until which a computation is let on: the time from the second to the third is a step's."""


@dataclass(frozen=True)
class Estimate:
    """Seconds that are expected.

    Parameters
    ----------
    site : float
        Of one site's work in a round, the mean of those that were timed.
    asked : int
        Sites asked in a round.
    server : float, optional
        Of the server's training in a round; None if it was not timed.
    processes : int
        Processes that carry out sites side by side where that pays.
    making : float
        Of one site's work in the first round, where that makes images and no other round does.
    """

    site: float
    asked: int
    server: float | None
    processes: int
    rounds: int
    making: float = 0.0

    @property
    def at_a_time(self) -> int:
        """How many sites work side by side."""
        work = self.asked * (self.site * self.rounds + self.making)
        pays = work * (1 - 1 / self.processes) >= LEAST_GAIN
        return self.processes if pays and self.site + self.making >= LEAST_DEVICE else 1

    @property
    def sites(self) -> float:
        """Seconds of a round until all sites are done."""
        return self.site * self.asked / self.at_a_time

    @property
    def first_sites(self) -> float:
        """Seconds of the first round until all sites are done."""
        return (self.making or self.site) * self.asked / self.at_a_time

    @property
    def run(self) -> float:
        """Seconds of the whole run."""
        return self.first_sites + self.sites * (self.rounds - 1) + (self.server or 0) * self.rounds

    @property
    def round(self) -> float:
        """Seconds of a round."""
        return self.sites + (self.server or 0.0)

    def sentence(self) -> str:
        """Return it as a line for a person."""
        whole, parts = format_duration(self.run), []
        if self.asked:
            side = f", {self.at_a_time} at a time" if self.at_a_time > 1 else ""
            each = " each" if self.asked > 1 else ""
            parts.append(
                f"{plural(self.asked, 'site')} of {format_duration(self.site)}{each}{side}"
            )
        if self.server is not None:
            parts.append(f"{format_duration(self.server)} at the server")
        if self.making:
            parts.append(f"{format_duration(self.first_sites)} for images in the first round")
        beside = "" if self.server is not None else ", without what the server computes"
        return (
            f"estimate: {format_duration(self.round)} a round, {whole} for {plural(self.rounds, 'round')} "
            f"({' and '.join(parts)}{beside}), by timing a step"
        )


def rehearse(config: Config, clock: Clock = time.perf_counter) -> Estimate | None:
    """Return how long ``config`` will take; None if nothing of it can be timed without running it.

    Whatever is a user's own may keep count of its calls: of a method, a model or a Flower strategy named by import path
    no step is taken.
    """
    if is_import_path(config.method) or is_import_path(config.model.name) or config.resume:
        return None
    if isinstance(config.settings, RidgeSettings) and config.settings.refit and config.rounds == 1:
        return None  # the server trains its network before it asks
    with tempfile.TemporaryDirectory() as scratch, _unheard():
        config = replace(config, output_dir=Path(scratch), resume="")
        try:
            return _estimate(config, clock)
        except Exception:  # whatever is wrong, the run itself says it
            return None


def _estimate(config: Config, clock: Clock) -> Estimate:
    use_threads(config.compute.server_cores)
    strategy, grid, messages = _first_round(config)
    made = Estimate(
        _mean_of_sites(grid, _spread(messages, _TIMED_SITES), clock),
        devices_asked(config) if messages else 0,
        _server_seconds(config, strategy, messages, clock),
        most_processes(config),
        config.rounds,
    )
    inner = config.settings.uses()
    if not inner or not isinstance(config.settings, GenerationSettings):
        return made
    after = _estimate(config.of(inner[0]), clock)
    return replace(made, site=after.site, server=after.server, making=made.site)


def _first_round(config: Config) -> tuple[Federated, LocalGrid, list[Message]]:
    """Return a strategy, a federation in this process, and what the first round asks of its sites."""
    run, grid = Division(config).run, LocalGrid(client_app(), **of_run(config))
    strategy = make_strategy(run)
    strategy.ensure_roll_call(grid)
    weights = starting_weights(run, tell=False)
    arrays = ArrayRecord({name: weights[name] for name in run.spec.names})
    return strategy, grid, list(strategy.configure_train(1, arrays, ConfigRecord(), grid))


def _spread(messages: Sequence[Message], count: int) -> list[Message]:
    """Return up to ``count`` of the messages, evenly spaced."""
    every = max(1, len(messages) // count)
    return list(messages[::every][:count])


def _mean_of_sites(grid: LocalGrid, messages: Sequence[Message], clock: Clock) -> float:
    """Return what a site takes; the first is done twice, since its first steps make room for the others'."""
    begun, seconds = clock(), list[float]()
    for message in [*messages[:1], *messages]:
        seconds.append(_site_seconds(grid, message, clock))
        if clock() - begun > _PATIENCE:
            break
    counted = seconds[1:] or seconds
    return sum(counted) / max(1, len(counted))


def _site_seconds(grid: LocalGrid, message: Message, clock: Clock) -> float:
    def work() -> None:
        (reply,) = grid.send_and_receive([message])
        if reply.has_error():
            raise RuntimeError(reply.error.reason)

    return _timed(work, clock)


def _server_seconds(
    config: Config, strategy: Federated, messages: Sequence[Message], clock: Clock
) -> float | None:
    """Return the seconds that the server trains in a round; None of a method whose server's part cannot be timed."""
    if not messages:
        return _timed(lambda: strategy.aggregate_train(1, []), clock)
    if not isinstance(config.settings, UnionTrainingSettings):
        return None
    quick = config.settings.model_dump() | (
        {"iterations": 1} if "iterations" in type(config.settings).model_fields else {}
    )
    settings = type(config.settings).model_validate(quick)
    strategy, grid, messages = _first_round(replace(config, settings=settings))
    some = messages[:_UNION_SITES]
    replies = grid.send_and_receive(some)
    seconds = _timed(lambda: strategy.aggregate_train(1, replies), clock)
    more = 1.0 if config.image_training.steps else len(messages) / len(some)
    return seconds * more


class _Enough(BaseException):
    """Ends a computation of which enough has been seen; no handler of errors takes it for one."""


def _timed(work: Callable[[], object], clock: Clock) -> float:
    """Return the seconds that ``work`` would take, by its first steps where it tells of steps."""
    told: list[float] = []
    wanted = 0

    def watch(where: str, done: int, steps: int) -> None:
        nonlocal wanted
        told.append(clock())
        wanted = steps
        if len(told) == _STEPS:
            raise _Enough

    begun = clock()
    try:
        with watched(watch):
            work()
    except _Enough:
        return told[0] - begun + (told[-1] - told[-2]) * wanted
    return clock() - begun


@contextmanager
def _unheard() -> Iterator[None]:
    """Let nothing of it into the log, and leave torch's own generator and threads as they are."""
    logger, threads = logging.getLogger("flwr"), torch.get_num_threads()
    level, state = logger.level, torch.get_rng_state()
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)
        torch.set_rng_state(state)
        torch.set_num_threads(threads)
