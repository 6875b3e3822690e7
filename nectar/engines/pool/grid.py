"""The in-process engine, with a pool of workers as soon as they save time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from logging import getLogger
from typing import Any

from flwr.app import Message, MessageType
from flwr.clientapp import ClientApp

from common.code.fingerprint import source_fingerprint
from common.code.imports import HERE
from common.config.code_fingerprint import user_modules_of
from common.config.resolved import Config
from common.learning.compute import gpus, torch_device
from nectar.engines.cores import available_cores, granted_cores
from nectar.engines.local_grid import LocalGrid
from nectar.engines.pool.pool import Setup, WorkerPool

logger = getLogger("flwr")

#: seconds that a pool must save at least: a worker needs five to ten of a core before its first device
LEAST_GAIN = 15.0

#: seconds that a device must take on average: below, carrying messages to and fro costs what a pool saves
LEAST_DEVICE = 0.02

#: devices whose mean is the forecast
_LATEST = 32

Progress = Callable[[int, int], None]


@contextmanager
def local_federation(
    client_app: ClientApp, config: Config, progress: Progress | None = None
) -> Iterator[LocalGrid]:
    """Yield the federation of ``config`` on this machine; its processes are ended on exit.

    Parameters
    ----------
    progress : callable, optional
        Called with (messages carried out, messages pushed together) after each one.
    """
    # What the running program defines is in no other process.
    processes = 1 if HERE in user_modules_of(config) else most_processes(config)
    if processes == 1:
        together = config.compute.batched != "off"
        options = grid_options(config)
        yield LocalGrid(client_app, progress=progress, trains_together=together, **options)
        return
    pooled = PoolGrid(client_app, config, processes, progress)
    try:
        yield pooled
    finally:
        pooled.close()


def grid_options(config: Config) -> dict[str, Any]:
    """Return the arguments of a run's `LocalGrid`."""
    return {
        "clients": config.federation.sites,
        "run_config": config.to_run_config(),
        # parts of one data set, of whose division each node knows the sizes of all
        "one_for_all": not config.site_places,
    }


def most_processes(config: Config) -> int:
    """Return the maximum number of workers of a run, at most one per site of a round; 1: no pool.

    ``compute.workers`` states the number. If it is 0, as many as the cores allow, and one for each GPU, which it keeps
    busy. Neither exceeds the cores that were granted to this process.

    Raises
    ------
    ConfigError
        If ``compute.device`` names a missing GPU, or ``NECTAR_CORES`` is not a number of cores.
    """
    compute, asked = config.compute, devices_asked(config)
    if compute.batched != "off":  # sites are trained together, in this process
        return 1
    granted = granted_cores()
    if not compute.workers and torch_device(compute.device).type == "cuda":
        return min(len(gpus()), asked) if compute.device in ("auto", "cuda") else 1
    if compute.workers and granted is None:
        return min(compute.workers, asked)
    fitting = max(1, available_cores() // compute.client_cores)
    return min(compute.workers or fitting, fitting, asked)


def devices_asked(config: Config) -> int:
    """Return the number of sites that take part in a round."""
    federation = config.federation
    return max(1, round(federation.participation * federation.sites))


class PoolGrid(LocalGrid):
    """A federation of simulated nodes, several of which work at a time.

    The assignment of nodes to processes does not affect results. With ``compute.workers`` above 1 all work goes to the
    pool; with 0 this process carries them out until the devices still to come are worth one
    (`Forecast`). The roll call always runs in this process.

    Parameters
    ----------
    processes : int
        Workers of the pool, at least 2.
    progress : callable, optional
        Called with (messages carried out, messages pushed together) after each one; by the pool in another thread.
    """

    def __init__(
        self,
        client_app: ClientApp,
        config: Config,
        processes: int,
        progress: Progress | None = None,
    ) -> None:
        super().__init__(client_app, progress=progress, **grid_options(config))
        self._config, self._processes = config, processes
        self._forecast = Forecast(config.rounds, devices_asked(config))
        self._pool: WorkerPool | None = None
        self._may_start = True
        if config.compute.workers:
            self._start_pool()

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Queue ``messages``, and give them to workers if there are any; return their ids."""
        self._waiting.clear()
        message_ids = super().push_messages(messages)
        self._hand_over()
        return message_ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies to ``message_ids``, once each; messages without a worker are processed in this process."""
        replies = [self._reply_to(message_id) for message_id in message_ids]
        return [reply for reply in replies if reply is not None]

    def close(self) -> None:
        """End the workers and wait until they have exited."""
        if self._pool is not None:
            self._pool.close()

    def _reply_to(self, message_id: str) -> Message | None:
        if message_id in self._waiting:
            self._hand_over()
        message = self._waiting.pop(message_id, None)
        if message is not None:
            return self._worked(message)
        return None if self._pool is None else self._pool.take(message_id)

    def _hand_over(self) -> None:
        """Give the remaining messages to workers if they are work; wait for workers if the settings ask for some."""
        work = (MessageType.TRAIN, MessageType.EVALUATE)  # this process answers the roll call
        kinds = {message.metadata.message_type for message in self._waiting.values()}
        if not kinds or not kinds.issubset(work):
            return
        if self._pool is not None and self._config.compute.workers:
            self._pool.wait()
        if self._pool is not None and self._pool.problem:
            logger.warning(
                "no worker process could be started; simulating all sites in this process: %s",
                self._pool.problem,
            )
            self._pool.close()
            self._pool = None
        if self._pool is not None and self._pool.ready:
            self._pool.put([*self._waiting.values()])
            self._waiting.clear()

    def _worked(self, message: Message) -> Message:
        started = time.perf_counter()
        reply = super()._worked(message)
        if message.metadata.message_type == MessageType.TRAIN:
            self._forecast.worked(time.perf_counter() - started)
            self._consider(message)
        return reply

    def _consider(self, message: Message) -> None:
        """Start workers if they save time; this process continues until they are ready."""
        group = message.metadata.group_id
        server_round = int(group) if group.isdecimal() else self._config.rounds
        left = len(self._waiting)
        if self._may_start and self._forecast.pays(server_round, left, self._processes):
            self._start_pool()

    def _start_pool(self) -> None:
        self._may_start = False
        setup = Setup(
            run_config=self._config.to_run_config(),
            device=self._config.compute.device,
            sites=self._config.federation.sites,
            source=source_fingerprint(),
            level=getLogger().level,
            flower_level=logger.level,
        )
        logger.info("simulating sites in %d processes", self._processes)
        self._pool = WorkerPool(setup, self._processes, self._report)


class Forecast:
    """Estimates the time of the remaining sites from those measured."""

    def __init__(self, rounds: int, asked: int) -> None:
        self._rounds, self._asked = rounds, asked
        self._seconds: deque[float] = deque(maxlen=_LATEST)
        self._warm = False

    def worked(self, seconds: float) -> None:
        """Note a site's seconds, except the first one's, which include imports and reading the data."""
        if self._warm:
            self._seconds.append(seconds)
        self._warm = True

    def pays(self, server_round: int, waiting: int, processes: int) -> bool:
        """Return whether ``processes`` workers would save more than starting them costs.

        Parameters
        ----------
        waiting : int
            Devices that are still to work in it.
        """
        if not self._seconds or processes < 2:
            return False
        each = sum(self._seconds) / len(self._seconds)
        left = each * (waiting + self._asked * max(0, self._rounds - server_round))
        return each >= LEAST_DEVICE and left * (1 - 1 / processes) >= LEAST_GAIN
