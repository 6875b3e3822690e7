"""Settings that are each allowed but cannot hold together."""

from __future__ import annotations

from pathlib import PurePath

from common.errors import ConfigError
from common.settings.disclosure import Disclosure
from common.settings.sections import (
    DataSettings,
    EvaluationSettings,
    FederationSettings,
    ModelSettings,
)

START_KEY = "model.start"


def check_federation(federation: FederationSettings) -> None:
    """Refuse a quorum that the sites asked in a round can never make.

    Raises
    ------
    ConfigError
        More replies required than there are sites, or than are asked.
    """
    if federation.min_replies > federation.clients:
        raise ConfigError(
            f"federation.min_replies={federation.min_replies} can never be met by "
            f"federation.clients={federation.clients}: lower the one or raise the other."
        )
    asked = max(1, round(federation.participation * federation.clients))
    if federation.min_replies > asked:
        raise ConfigError(
            f"federation.min_replies={federation.min_replies} can never be met where "
            f"federation.participation={federation.participation:g} asks {asked} of "
            f"{federation.clients} sites a round: lower the one or raise the other."
        )


def check_evaluation(evaluation: EvaluationSettings, data: DataSettings) -> None:
    """Refuse an evaluation on the sites without a share held out for it.

    Raises
    ------
    ConfigError
        If the sites are to evaluate and hold nothing out.
    """
    if evaluation.on in ("sites", "both") and data.site_holdout == 0:
        raise ConfigError(
            f"evaluation.on={evaluation.on} needs images the sites hold out for it: "
            "set data.site_holdout above 0, such as 0.1."
        )


def check_private(private: bool, evaluation: EvaluationSettings, method: str) -> None:
    """Refuse figures of the sites' own examples in a run whose sites let nothing out but through a mechanism.

    Raises
    ------
    ConfigError
        If the sites are to evaluate.
    """
    if private and evaluation.on in ("sites", "both"):
        raise ConfigError(
            f"evaluation.on={evaluation.on} has the sites tell accuracies and losses of their own examples, which the "
            f"privacy of this run (method={method}) does not cover: set evaluation.on=server or none."
        )


def check_statistics(
    model: ModelSettings, evaluation: EvaluationSettings, method: str, sent: Disclosure | None
) -> None:
    """Refuse running statistics that stay at the sites where the server needs a whole model.

    Raises
    ------
    ConfigError
        If the server is to evaluate, or the sites send no weights that they trained.
    """
    if model.statistics == "averaged":
        return
    if evaluation.on in ("server", "both"):
        raise ConfigError(
            f"model.statistics=local leaves the server no model to evaluate, and evaluation.on={evaluation.on} asks it "
            "to: set evaluation.on=sites with data.site_holdout above 0, or evaluation.on=none."
        )
    if sent is None or not sent.payload.startswith(("weights", "part of an update")):
        raise ConfigError(
            f"model.statistics=local is for methods whose sites train the model and send its weights, and "
            f"method={method} does not: choose fedavg or one of its kind, or leave it out."
        )


def check_model(model: ModelSettings) -> None:
    """Refuse weights to start from that are no safetensors file by absolute path.

    Raises
    ------
    ConfigError
        Another kind of file, or a relative path.
    """
    if model.start and not (
        model.start.endswith(".safetensors") and PurePath(model.start).is_absolute()
    ):
        raise ConfigError(
            f"{START_KEY}={model.start} must be an absolute path to a .safetensors file, as "
            "safetensors.torch.save_file writes a state_dict."
        )
