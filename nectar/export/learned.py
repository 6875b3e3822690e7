"""What a run learned: its newest or best checkpoint, and the network with those weights."""

from __future__ import annotations

from dataclasses import replace

from common.errors import ConfigError, FederationError
from common.learning.run import Run
from common.models import Classifier
from common.models.registry import KINDS
from nectar.records.record import RunRecord
from server_app.checkpoint import Checkpoint


def require_images(past: RunRecord, run: Run) -> None:
    """Refuse a run whose model takes no images: ConfigError."""
    if not run.info.has_images:
        what = "language model" if run.info.kind == "text" else f"model of {KINDS[run.info.kind]},"
        raise ConfigError(
            f"{past.directory} learned a {what} of {run.info.name}, which cannot be exported: an exported folder reads "
            f"pictures and names their classes; its weights are in {past.last}, which safetensors reads"
        )


def checkpoint_of(past: RunRecord, *, best: bool) -> Checkpoint:
    """Return the newest checkpoint, or that of the round best on validation.

    Raises
    ------
    ConfigError
        If nothing was held back for validation.
    FederationError
        If the run has no checkpoint, or it cannot be read.
    """
    if best and past.last.is_file() and not past.best.is_file():
        raise ConfigError(
            f"{past.directory} has no best round, because nothing was held back for validation: leave --best out"
        )
    if not past.last.is_file():
        raise FederationError(
            f"{past.directory} has no model to export: the run has not finished a round; "
            f"`nectar simulate resume={past.directory}` continues it"
        )
    return past.checkpoint(best=best)


def network_of(run: Run, checkpoint: Checkpoint, name: str = "") -> Classifier:
    """Return the run's model with the checkpoint's weights, on the CPU, in evaluation mode.

    Where the run learned several, ``name`` is that of one of them, and its architecture that one's own.

    Raises
    ------
    ConfigError
        If the model cannot be built, the weights do not fit it, or there is no model of that name.
    """
    on_cpu = run.config.compute.model_copy(update={"device": "cpu"})
    name = checkpoint.named(name)
    network = (
        replace(run, config=replace(run.config, compute=on_cpu)).with_model(name).build_model()
    )
    weights = dict(checkpoint.model(name))
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        if run.config.model.statistics == "local":
            raise ConfigError(
                "with model.statistics=local each site's running statistics are its own: the record has no whole model"
            ) from None
        reason = str(error).splitlines()[-1].strip()
        raise ConfigError(
            f"the checkpoint does not fit the model that the record's settings describe ({reason}): export it with the "
            "release that ran it"
        ) from None
    return network.eval()
