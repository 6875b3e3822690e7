"""The plain ``flwr run`` command that a simulation stands for, and what its devices may use."""

from __future__ import annotations

import shlex
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from common.config.keys import TYPED
from nectar.arguments import to_flwr

RAY_ADDRESS = "RAY_ADDRESS"
"""The variable that takes a process of Ray to a cluster that is there."""

Scalar = str | int | float | bool


@dataclass(frozen=True)
class Resources:
    """Simulated devices and what each may use.

    Attributes
    ----------
    client_cores
        Cores a device at work takes.
    client_gpus
        Share of a GPU a device at work takes.
    workers
        Devices at work at a time.
    cluster
        The Ray cluster whose cores bound these instead; empty: a Ray of the run's own.
    """

    supernodes: int
    client_cores: int
    client_gpus: float
    workers: int
    cluster: str = ""

    def federation_config(self) -> str:
        """Give Flower's ``--federation-config`` string."""
        # Ray refuses to be told how many cores a cluster has that is there.
        own = "" if self.cluster else f" init-args-num-cpus={self.workers * self.client_cores}"
        return (
            f"num-supernodes={self.supernodes} "
            f"client-resources-num-cpus={self.client_cores} "
            f"client-resources-num-gpus={float(self.client_gpus)}{own}"
        )


def plain_command(app: Path, run_config: Mapping[str, Scalar], resources: Resources) -> str:
    """Return the line that simulates the app with nothing but Flower, ready for a POSIX shell.

    Flower's own dependency installation is off in it: it costs time at every run, and its clean-up can make a run that
    went well be reported as failed. The scripts' directory leads PATH because Flower finds its own programs there.
    """
    overrides = to_flwr({k: v for k, v in run_config.items() if v != "" and k != TYPED})
    config = ["--run-config", overrides] if overrides else []
    federation = ["--federation-config", resources.federation_config()]
    cluster = resources.cluster
    return " ".join(
        [
            f'env PATH={shlex.quote(str(scripts_directory()))}:"$PATH"',
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1",
            *([f"{RAY_ADDRESS}={shlex.quote(cluster)}"] if cluster else []),
            shlex.join(["flwr", "run", str(app), *config, *federation, "--stream"]),
        ]
    )


def scripts_directory() -> Path:
    """Give the directory of this environment's programs (``flwr``, ``flower-superlink``)."""
    return Path(sysconfig.get_path("scripts"))
