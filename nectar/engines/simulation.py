"""A simulation on Flower's Ray engine, in this process: no port, no SuperLink, no program except Ray's own."""

from __future__ import annotations

import ctypes
import logging
import os
import socket
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from common.config.resolved import Config
from nectar.engines.flower.app import client_app
from nectar.engines.flower.errors import LaunchError
from nectar.engines.private_folder import private_folder
from nectar.engines.processes import import_path, until_interrupted
from server_app.app import Observer, Start, serve
from server_app.record import Record

logger = logging.getLogger("flwr")

_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Below `uv run` Ray would carry the working directory to its workers, and in it all that it writes itself.
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    # They would not be used: Flower's actors run in an environment of their own.
    "RAY_prestart_worker_first_driver": "0",
    "FLWR_TELEMETRY_ENABLED": "0",
}

_PREFIX = "nectar-ray-"

#: the longest that Ray appends to its directory up to a socket's name, and the system's limit
_RAY_TAIL = len("/session_2025-01-01_00-00-00_000000_4194304/sockets/plasma_store")
_SOCKET_PATH = 107

#: seconds that the ServerApp has to note that it was interrupted
_TO_END = 10.0


def simulate(
    config: Config,
    workers: int,
    cluster: str = "",
    start: Start | None = None,
    observer: Observer | None = None,
    *,
    verbose: bool = False,
) -> Record:
    """Run ``config`` on Ray, and return its record.

    Parameters
    ----------
    workers : int
        Devices at work at a time, on a Ray of the run's own.
    cluster : str
        The Ray cluster whose cores bound these instead.
    start : Start, optional
        What the check made that the run begins with.
    verbose : bool
        Whether all that Flower and Ray log is shown.

    Raises
    ------
    NectarError
        The run cannot start, or stops.
    Interrupted
        A signal ended it; the record says so, and Ray is gone.
    """
    if not verbose:
        hide_idle_lines()
    from flwr.simulation import run_simulation  # imports Ray, for seconds

    server = ServerApp()
    served = _Served(lambda grid: serve(grid, config, observer or Observer(), start=start))
    server.main()(served)
    client = ConfiguredApp({k: v for k, v in config.to_run_config().items() if v != ""})
    compute = config.compute
    share = {"num_cpus": compute.client_cores, "num_gpus": float(compute.client_gpus)}
    backend: dict[str, Any] = {"client_resources": share}

    def work() -> None:
        try:
            run_simulation(server, client, config.federation.sites, backend_config=backend)
        finally:
            served.end()

    with _ray(workers * compute.client_cores, cluster, verbose=verbose):
        until_interrupted(work)  # after Ray has taken the signals for itself
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
    """

    def __init__(self, run_config: dict[str, Any]) -> None:
        super().__init__()
        self._run_config = run_config

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer ``message`` as the app does."""
        about = context.run_id, context.node_id, context.node_config, context.state
        return client_app()(message, Context(*about, run_config=self._run_config))


# ---- what is shown -------------------------------------------------------------------------------

_IDLE = ("Manually terminating ", "DEPRECATED FEATURE: The `run_simulation`")


def hide_idle_lines() -> None:
    """Hide what Flower and Ray log of every simulation, in this process; Ray calls this in its workers too."""
    warnings.filterwarnings("ignore", category=FutureWarning, module="ray")
    logger.addFilter(lambda record: not record.getMessage().lstrip().startswith(_IDLE))


# ---- Ray -----------------------------------------------------------------------------------------


@contextmanager
def _ray(cores: int, cluster: str, *, verbose: bool) -> Iterator[None]:
    """Start Ray, or join a cluster; end it, and delete its files, at the end."""
    os.environ |= _ENVIRONMENT | {"RAY_COLOR_PREFIX": str(int(sys.stderr.isatty()))}
    import ray

    environment: dict[str, Any] = {"env_vars": import_path()}
    if not verbose:
        environment["worker_process_setup_hook"] = f"{__name__}.{hide_idle_lines.__name__}"
    level = logging.INFO if verbose else logging.ERROR
    given: dict[str, Any] = {"runtime_env": environment, "logging_level": level}
    with ExitStack() as stack:
        if cluster:
            require_cluster(cluster)
        else:
            folder = stack.enter_context(private_folder(_PREFIX, _base()))
            given |= {"num_cpus": cores, "include_dashboard": False, "_temp_dir": str(folder)}
        stack.callback(ray.shutdown)
        try:
            ray.init(cluster or "local", **given)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise no_cluster(cluster, error) from None
        yield


def _base() -> Path:
    """Return where temporary files go, or /tmp if Ray's sockets there would have too long names."""
    name = f"{_PREFIX}{'x' * 8}"  # as tempfile's
    for base in (Path(tempfile.gettempdir()).resolve(), Path("/tmp")):
        if len(os.fsencode(base / name)) + _RAY_TAIL <= _SOCKET_PATH:
            return base
    raise LaunchError(
        f"The temporary directory {tempfile.gettempdir()} has too long a name for Ray's sockets ({_SOCKET_PATH} bytes "
        "with what Ray appends); set TMPDIR to a shorter one."
    )


def require_cluster(address: str) -> None:
    """Check that something listens at ``HOST:PORT``, else LaunchError: Ray tries for minutes; other forms are Ray's."""
    host, colon, port = address.rpartition(":")
    if not colon or "/" in address:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, ValueError, OverflowError) as error:
        raise no_cluster(address, error) from None


def no_cluster(address: str, error: Exception) -> LaunchError:
    """Return the error that no cluster answers."""
    reason = str(error).strip().partition("\n")[0]
    return LaunchError(
        f"No Ray cluster answers at {address} ({reason}): start one with `ray start --head`, and give HOST:PORT of its "
        "head."
    )
