"""What is to be simulated, and the plain ``flwr run`` command that does it."""

import shlex
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from common.config.keys import TYPED
from common.errors import NectarError
from nectar.words import to_flwr

RAY_ADDRESS = "RAY_ADDRESS"
"""The variable that takes a process of Ray to a cluster that is there."""

Scalar = str | int | float | bool


class LaunchError(NectarError):
    """A simulation could not be started, or ended without an outcome."""


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


@dataclass(frozen=True)
class Job:
    """One run of a Flower app in simulation.

    Attributes
    ----------
    app
        The app's directory, the one that holds its pyproject.toml.
    run_config
        Overrides of the app's run configuration.
    """

    app: Path
    run_config: Mapping[str, Scalar]
    resources: Resources

    def options(self, *without: str) -> list[str]:
        """Give the options of ``flwr run`` that carry this job, but for some keys of its run configuration."""
        overrides = to_flwr({k: v for k, v in self.run_config.items() if k not in without})
        config = ["--run-config", overrides] if overrides else []
        return [*config, "--federation-config", self.resources.federation_config()]

    def plain_command(self) -> str:
        """Give the line that does the same with nothing but Flower, ready for a POSIX shell.

        Flower's own dependency installation is off in it: it costs time at every run and its
        clean-up can make a run that went well be reported as failed. The scripts' directory leads
        PATH because Flower finds its own programs there.
        """
        words = ["flwr", "run", str(self.app), *self.options(TYPED), "--stream"]
        cluster = self.resources.cluster
        return " ".join(
            [
                f'env PATH={shlex.quote(str(scripts_directory()))}:"$PATH"',
                "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1",
                *([f"{RAY_ADDRESS}={shlex.quote(cluster)}"] if cluster else []),
                shlex.join(words),
            ]
        )


def scripts_directory() -> Path:
    """Give the directory of this environment's programs (``flwr``, ``flower-superlink``)."""
    return Path(sysconfig.get_path("scripts"))
