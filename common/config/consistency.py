"""Settings that are each allowed but cannot hold together."""

from __future__ import annotations

from common.errors import ConfigError
from common.settings.sections import DataSettings, EvaluationSettings, FederationSettings


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
