"""``nectar simulate``: a federation on Ray, by Flower's simulation engine."""

from __future__ import annotations

import importlib
import math
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from common.config.resolved import Config
from common.errors import ConfigError
from common.settings.sections import ComputeSettings
from nectar.arguments import next_step, parse_arguments, resolved, typed_command, with_fitting_sites
from nectar.command_line import command
from nectar.engines.alone import on_this_machine
from nectar.engines.cores import available_cores
from nectar.engines.flower.app import app_folder
from nectar.engines.flower.errors import LaunchError
from nectar.engines.flower.plain_command import plain_command
from nectar.engines.local_ray import ray_started
from nectar.engines.processes import Interrupted, until_interrupted
from nectar.options import config_file_option, settings_words
from nectar.records.outputs import require_room, with_recorded

if TYPE_CHECKING:
    from server_app.record import Record

HELP = """\
Runs the federation on Flower's simulation engine, in a Ray instance that it starts and stops. The exit code is 0 only
if the run completed.

\b
nectar simulate                        FedDM on digits, 10 sites
nectar simulate fedavg compute.workers=2
nectar simulate --cluster 10.0.0.1:6379
"""


@command(HELP)
@click.pass_context
@settings_words
@config_file_option
@click.option(
    "--cluster",
    metavar="ADDRESS",
    default="",
    help="let the devices work on a Ray cluster that is there: HOST:PORT of its head, or auto on a node",
)
@click.option(
    "--print",
    "plain",
    is_flag=True,
    help="print the equivalent flwr command, run nothing",
)
@click.option("--verbose", is_flag=True, help="show every line of Flower's and Ray's log")
def main(
    ctx: click.Context,
    words: tuple[str, ...],
    config_file: str | None,
    cluster: str,
    plain: bool,
    verbose: bool,
) -> int:
    """Run a simulation on Ray; return 0 if it completed, 1 if it failed, 128 + n if signal n ended it.

    Raises
    ------
    NectarError
        The configuration is not valid or Ray is not installed (before any process is started), or
        the run could not be started.
    """
    asked_for = typed_command(ctx.obj) | parse_arguments(words, file=config_file)
    config = resolved(with_recorded(asked_for))
    if not plain:
        _require_ray()
    if cluster and config.compute.workers:
        raise ConfigError(
            f"compute.workers={config.compute.workers} bounds the devices of one machine; on a cluster its cores and "
            "compute.client_cores do: leave out compute.workers, or --cluster"
        )
    config = with_gpu_shares(with_fitting_sites(config), cluster)
    workers = workers_at_a_time(config, available_cores())
    if plain:
        print(plain_command(app_folder(), config, workers, cluster), flush=True)
        return 0
    chosen = f"method={config.method} dataset={config.dataset} rounds={config.rounds}"
    print(f"{chosen} seed={config.seed} (--print gives the plain flwr command)", flush=True)
    require_room(config)
    try:
        record = until_interrupted(lambda: _simulate(config, workers, cluster, verbose=verbose))
    except Interrupted as interrupted:
        print(f"Interrupted ({interrupted.name}).", flush=True)
        # A thread of Flower's engine may wait for an actor that has ended, and Python would wait for that thread.
        os._exit(128 + interrupted.number)
    print(next_step(record.directory), flush=True)
    return 0


def _simulate(config: Config, workers: int, cluster: str, *, verbose: bool) -> Record:
    def work() -> Record:
        imported.result()
        from nectar.commands.run import log_plainly
        from nectar.engines.preflight import check
        from nectar.engines.simulation import simulate

        if not verbose:
            log_plainly()
        return simulate(config, check(config), verbose=verbose)

    cores = workers * config.compute.client_cores
    with (
        on_this_machine(),
        ray_started(cores, cluster, verbose=verbose) as ray_ready,
        ThreadPoolExecutor(1) as imports,  # torch's import would swallow a signal's exception
    ):
        imported = imports.submit(_import)
        ray_ready()
        return until_interrupted(work)  # again, as Ray has taken the signals for itself


def _import() -> None:
    for name in ("nectar.engines.preflight", "nectar.engines.simulation", "flwr.simulation"):
        importlib.import_module(name)


def _require_ray() -> None:
    if find_spec("ray") is None:
        raise LaunchError(
            "`nectar simulate` runs on Ray, which is not installed: get it with `pip install 'flwr[simulation]'` "
            "(in a clone `.uv/bin/uv pip install 'flwr[simulation]'`), or type `nectar run` with the same words, "
            "which needs no Ray and gives the same numbers."
        )


def with_gpu_shares(config: Config, cluster: str) -> Config:
    """Return the configuration with a share of a GPU per client, if ``auto`` finds GPUs and no share is stated.

    Without one Ray would hide them from the clients. A cluster's GPUs are not known to this process: all is on the CPU.
    """
    if config.compute.device != "auto" or config.compute.client_gpus > 0 or not _may_have_gpu():
        return config
    from common.learning.compute import gpus

    if not (seen := len(gpus())):
        return config
    if cluster:
        changed: dict[str, Any] = {"device": "cpu"}
        message = (
            "all is on the CPU: compute.client_gpus=SHARE gives clients one of a cluster's GPUs"
        )
    else:
        workers = workers_at_a_time(config, available_cores())
        share = 1 / math.ceil(workers / seen)
        changed = {"client_gpus": share}
        message = f"{workers} clients at a time, each on {share:.2g} of a GPU (compute.client_gpus)"
    print(message, file=sys.stderr, flush=True)
    return replace(
        config, compute=ComputeSettings.model_validate(config.compute.model_dump() | changed)
    )


def _may_have_gpu() -> bool:
    """Return whether a GPU is possible: without such a device file Linux has none."""
    if sys.platform != "linux":
        return True
    return any(any(Path("/dev").glob(name)) for name in ("nvidia*", "kfd", "dxg"))


def workers_at_a_time(config: Config, cores: int) -> int:
    """Return how many sites are simulated at a time on this number of cores."""
    compute = config.compute
    if compute.device.startswith("cuda") and compute.client_gpus == 0:
        raise ConfigError(
            f"compute.device={compute.device} needs a share of the GPU for every client, or Ray hides it "
            "from them: set compute.client_gpus, such as 0.1"
        )
    fitting = max(1, cores // compute.client_cores)
    return compute.workers or min(fitting, config.federation.sites)
