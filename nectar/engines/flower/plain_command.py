"""The plain ``flwr run`` command that is equivalent to a simulation."""

from __future__ import annotations

import shlex
import sysconfig
from pathlib import Path

from common.config.keys import TYPED
from common.config.resolved import Config
from nectar.arguments import to_flwr

RAY_ADDRESS = "RAY_ADDRESS"
"""The variable that takes a process of Ray to a cluster that is there."""


def plain_command(app: Path, config: Config, workers: int, cluster: str = "") -> str:
    """Return the line that simulates the app with nothing but Flower, ready for a POSIX shell.

    Flower's own dependency installation is off in it: it costs time at every run, and its clean-up can make a run that
    went well be reported as failed. The scripts' directory leads PATH because Flower finds its own programs there.

    Parameters
    ----------
    workers : int
        Devices at work at a time.
    cluster : str
        The Ray cluster whose cores bound these instead; empty for a Ray of the run's own.
    """
    compute = config.compute
    stated = {k: v for k, v in config.to_run_config().items() if v != "" and k != TYPED}
    overrides = to_flwr(stated)
    federation = [
        f"num-supernodes={config.federation.sites}",
        f"client-resources-num-cpus={compute.client_cores}",
        f"client-resources-num-gpus={float(compute.client_gpus)}",
    ]
    if not cluster:  # Ray refuses a number of cores for a cluster that is there
        federation.append(f"init-args-num-cpus={workers * compute.client_cores}")
    words = ["--run-config", overrides] if overrides else []
    words += ["--federation-config", " ".join(federation), "--stream"]
    return " ".join(
        [
            f'env PATH={shlex.quote(str(scripts_directory()))}:"$PATH"',
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1",
            *([f"{RAY_ADDRESS}={shlex.quote(cluster)}"] if cluster else []),
            shlex.join(["flwr", "run", str(app), *words]),
        ]
    )


def scripts_directory() -> Path:
    """Give the directory of this environment's programs (``flwr``, ``flower-superlink``)."""
    return Path(sysconfig.get_path("scripts"))
