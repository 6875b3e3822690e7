"""A simulation on Flower's Ray engine, in this process: no port, no SuperLink, no program except Ray's own."""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from common.config.resolved import Config
from nectar.engines.flower.app import client_app

if TYPE_CHECKING:
    from server_app.app import Start
    from server_app.record import Record

logger = logging.getLogger("flwr")

#: seconds that the ServerApp has to note that it was interrupted
_TO_END = 10.0


def simulate(config: Config, start: Start, *, verbose: bool = False) -> Record:
    """Run ``config`` on Ray, which has been started, and return its record.

    Parameters
    ----------
    start : Start
        What the check made that the run begins with.
    verbose : bool
        Whether all that Flower and Ray log is shown.

    Raises
    ------
    NectarError
        The run cannot start, or stops.
    """
    if not verbose:
        hide_idle_lines()
    from flwr.simulation import ray_transport, run_simulation
    from ray import cloudpickle

    from server_app.app import serve  # Ray's workers, which import this module, need none of it

    # By reference Ray's workers would import all of Flower's engine, SQLAlchemy too, which takes a second.
    cloudpickle.register_pickle_by_value(ray_transport)  # type: ignore[no-untyped-call]
    server = ServerApp()
    served = _Served(lambda grid: serve(grid, config, start=start))
    server.main()(served)
    settings = {k: v for k, v in config.to_run_config().items() if v != ""}
    compute = config.compute
    share = {"num_cpus": compute.client_cores, "num_gpus": float(compute.client_gpus)}
    backend: dict[str, Any] = {"client_resources": share}
    try:
        run_simulation(
            server,
            ConfiguredApp(settings, verbose=verbose),
            config.federation.sites,
            backend_config=backend,
        )
    finally:
        served.end()
    return served.outcome.result(timeout=0)


class _Served:
    """The ServerApp's main function, and its outcome in the thread in which Flower runs it."""

    def __init__(self, work: Callable[[Grid], Record]) -> None:
        self._work = work
        self._thread: threading.Thread | None = None
        self.outcome: Future[Record] = Future()

    def __call__(self, grid: Grid, context: Context) -> None:
        self._thread = threading.current_thread()
        try:
            self.outcome.set_result(self._work(grid))
        except BaseException as error:
            self.outcome.set_exception(error)

    def end(self) -> None:
        """Interrupt a run that has not ended, as Ctrl-C would, and wait for it."""
        if self._thread is not None and self._thread.is_alive():
            number = ctypes.c_ulong(self._thread.ident or 0)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(number, ctypes.py_object(KeyboardInterrupt))
            self._thread.join(_TO_END)


class ConfiguredApp(ClientApp):
    """The ClientApp with a run's configuration, which a context of Flower's engine does not carry.

    Parameters
    ----------
    run_config : dict
        The run's.
    verbose : bool
        Whether all that Flower logs is shown.
    """

    def __init__(self, run_config: dict[str, Any], *, verbose: bool) -> None:
        super().__init__()
        self._run_config, self._verbose = run_config, verbose

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer ``message`` as the app does."""
        if not self._verbose:
            hide_idle_lines()
        about = context.run_id, context.node_id, context.node_config, context.state
        return client_app()(message, Context(*about, run_config=self._run_config))


# ---- what is shown -------------------------------------------------------------------------------

_IDLE = ("Manually terminating ", "DEPRECATED FEATURE: The `run_simulation`")


def hide_idle_lines() -> None:
    """Hide what Flower logs of every simulation, in this process."""
    logger.addFilter(_is_needed)


def _is_needed(record: logging.LogRecord) -> bool:
    return not record.getMessage().lstrip().startswith(_IDLE)
