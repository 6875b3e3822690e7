"""The environment in which a run's processes live."""

import os
from pathlib import Path

from common.code.imports import FOLDER
from nectar.engines.flower.client import RAY_ADDRESS, scripts_directory
from nectar.engines.simulation import bytecode, workspace


def environment(directory: Path, cluster: str = "") -> dict[str, str]:
    """Give the environment of the run's processes.

    The user's own, with Flower's home, Ray's temporary directory and the mark in the run's
    directory. PYTHONPATH stays (a method may be a user's own module) but is made absolute, the
    processes having another working directory; the app's code precedes it on the server and on the
    devices alike. The folder in which the command was started is searched last. RAY_ADDRESS is
    ``cluster``, or goes: it would take the devices to a cluster that nobody named.
    """
    variables = dict(os.environ)
    variables.pop(RAY_ADDRESS, None)
    if cluster:
        variables[RAY_ADDRESS] = cluster
    if path := variables.get("PYTHONPATH"):
        entries = [str(Path(entry).absolute()) for entry in path.split(os.pathsep)]
        variables["PYTHONPATH"] = os.pathsep.join(entries)
    for name in ("NO_PROXY", "no_proxy"):
        variables[name] = ",".join(filter(None, [variables.get(name), "127.0.0.1", "localhost"]))
    programs = str(scripts_directory())
    first = (str(directory / "bin"), programs)
    variables["PATH"] = os.pathsep.join(filter(None, [*first, variables.get("PATH")]))
    variables.setdefault("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", "0.1")
    return variables | {
        FOLDER: str(Path.cwd()),
        "FLWR_HOME": str(directory / "flower"),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_TMPDIR": str(directory),
        "RAY_USAGE_STATS_ENABLED": "0",
        # Below `uv run` Ray would carry the working directory to its workers, and in it all that it writes itself.
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        # They would not be used: Flower's actors run in an environment of their own.
        "RAY_prestart_worker_first_driver": "0",
        "PYTHONUNBUFFERED": "1",
        **bytecode.variables(directory),
        **workspace.mark(directory),
    }
