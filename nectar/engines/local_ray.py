"""A Ray instance for one simulation, which starts while this process imports torch and checks the run."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from nectar.engines.flower.errors import LaunchError
from nectar.engines.private_folder import private_folder
from nectar.engines.processes import Interrupted, end, import_path, living

_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Below `uv run` Ray would carry the working directory to its workers, and in it all that it writes itself.
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "FLWR_TELEMETRY_ENABLED": "0",
}

_PREFIX = "nectar-ray-"

#: the longest that Ray appends to its directory up to a socket's name, and the system's limit
_RAY_TAIL = len("/session_2025-01-01_00-00-00_000000_4194304/sockets/plasma_store")
_SOCKET_PATH = 107

#: Ray's process that would add machines. It ignores SIGTERM, for which Ray's shutdown waits a second.
_AUTOSCALER = "autoscaler/_private/monitor.py"

#: Seconds that an interrupted command waits for Ray to end by itself. On a busy machine Ray takes fifteen to start; if
#: it is killed meanwhile, it ends this process before its folder is removed.
_TO_END = 40.0


@contextmanager
def ray_started(cores: int, cluster: str, *, verbose: bool) -> Iterator[Callable[[], None]]:
    """Start Ray in a thread, or join a cluster; end it, and delete its files, at the end.

    Parameters
    ----------
    cores : int
        The cores of a Ray of this process's own.
    cluster : str
        The address of the Ray cluster to join instead.
    verbose : bool
        Whether all that Ray logs is shown.

    Yields
    ------
    callable
        Waits until Ray has started; LaunchError if it cannot.
    """
    import ray  # before the thread starts, so that no two threads import the same packages

    # Also before it: a C library that reads a variable while another thread sets one may read freed memory.
    os.environ |= _ENVIRONMENT | {"RAY_COLOR_PREFIX": str(int(sys.stderr.isatty()))}
    if not cluster:
        os.environ |= import_path()  # by a runtime_env the workers would start a second later
    if not verbose:
        warnings.filterwarnings("ignore", category=FutureWarning, module="ray")
    given: dict[str, Any] = {"logging_level": logging.INFO if verbose else logging.ERROR}
    started, over, ended = Future[None](), threading.Event(), threading.Event()

    def work() -> None:
        with ExitStack() as last:
            last.callback(ended.set)
            last.callback(ray.shutdown)
            try:
                _start(ray, cluster, given)
            except BaseException as error:
                started.set_exception(error)
            else:
                started.set_result(None)
                over.wait()

    with ExitStack() as stack:
        if cluster:
            given["runtime_env"] = {"env_vars": import_path()}
        else:
            folder = stack.enter_context(private_folder(_PREFIX, _base()))
            stack.callback(_end_processes, folder)
            given |= {"num_cpus": cores, "include_dashboard": False, "_temp_dir": str(folder)}
        try:
            # Linux kills Ray's processes when the thread that started them ends, so that it lasts until they may.
            threading.Thread(target=work, name="ray", daemon=True).start()
            yield started.result
        finally:
            over.set()
            ended.wait(_TO_END if isinstance(sys.exc_info()[1], Interrupted) else None)


def _start(ray: Any, cluster: str, given: dict[str, Any]) -> None:
    """Start Ray, or join a cluster; LaunchError if there is none."""
    if cluster:
        require_cluster(cluster)
    try:
        ray.init(cluster or "local", **given)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise no_cluster(cluster, error) from None
    for process in psutil.Process().children():
        with suppress(psutil.Error):
            if any(word.endswith(_AUTOSCALER) for word in process.cmdline()):
                process.kill()


def _end_processes(folder: Path) -> None:
    """Kill what Ray was still starting when it ended, or did not end in time: its processes name its folder."""

    def is_rays(pid: int) -> bool:
        return any(str(folder) in word for word in psutil.Process(pid).cmdline())

    end(lambda: living(is_rays), ((signal.SIGKILL, _TO_END),))


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
