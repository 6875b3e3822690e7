"""Settings that are each allowed but cannot hold together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.config.images import check_images
from common.errors import ConfigError

if TYPE_CHECKING:
    from common.config.resolved import Config


def check_together(config: Config) -> None:
    """Refuse settings that are each allowed but cannot hold together.

    Raises
    ------
    ConfigError
        More replies required than there are sites; evaluation on the sites without a share held
        out for it; a folder of images whose classes or constants do not fit together.
    """
    check_images(config.images)
    federation = config.federation
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
    if config.evaluation.on in ("sites", "both") and config.data.site_holdout == 0:
        raise ConfigError(
            f"evaluation.on={config.evaluation.on} needs images the sites hold out for it: "
            "set data.site_holdout above 0, such as 0.1."
        )
