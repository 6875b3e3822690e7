"""Whether a site draws its noise from the run's seed: where nobody's privacy rests on it, and nowhere else."""

from __future__ import annotations

from common.config.resolved import Config
from common.errors import FederationError
from common.settings.datasets import is_somebodys_own


def refuse_seeded(config: Config, own_data: bool) -> None:
    """Refuse, with a FederationError, noise that whoever knows the seed can take off, at a site with its own data."""
    if own_data and config.privacy.noise == "seeded":
        raise FederationError(
            "this site has data of its own and draws noise from its system's entropy alone, and the run asks for "
            "privacy.noise=seeded: choose auto or system, or run without this site"
        )


def is_seeded(config: Config, own_data: bool) -> bool:
    """Return whether a site's noise comes from the run's seed.

    Parameters
    ----------
    own_data : bool
        Whether the site has data of its own; if not, it holds a partition of the run's data set.

    Raises
    ------
    FederationError
        If the run asks a site with data of its own for it.
    """
    refuse_seeded(config, own_data)
    asked = config.privacy.noise
    return asked == "seeded" or (
        asked == "auto" and not own_data and not is_somebodys_own(config.dataset)
    )
