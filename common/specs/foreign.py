"""What a Flower strategy may ask of its devices beside plain local training, by the names that Flower gives it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from common.errors import FederationError

PROXIMAL_MU = "proximal-mu"
"""FedProx's: the strength of the pull to the round's weights."""

CLIPPING_NORM = "clipping_norm"
"""That of the wrappers whose clients clip: the length that the whole update is cut to."""

NORM_BIT = "norm-bit"
"""The figure beside a clipped update: 1 if it was longer than that, else 0. Flower writes it ``norm_bit``."""


@dataclass(frozen=True)
class Demands:
    """What of this an instruction asks.

    Attributes
    ----------
    mu : float
        0 for no pull.
    norm : float, optional
        None for an update as long as it is.
    """

    mu: float = 0.0
    norm: float | None = None

    @classmethod
    def of(cls, config: Mapping[str, object]) -> Demands:
        """Read an instruction's configuration, at the server before it leaves and at the device.

        Raises
        ------
        FederationError
            If what is asked is no finite number of 0 or more.
        """
        mu, norm = _checked(config, PROXIMAL_MU), _checked(config, CLIPPING_NORM)
        return cls(mu or 0.0, norm)

    def fields(self) -> dict[str, float]:
        """Return what travels in the instruction; nothing where nothing is asked."""
        clipping = {} if self.norm is None else {CLIPPING_NORM: self.norm}
        return {**({PROXIMAL_MU: self.mu} if self.mu else {}), **clipping}


def _checked(config: Mapping[str, object], key: str) -> float | None:
    value = config.get(key)
    if value is None:
        return None
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value < math.inf:  # type: ignore[operator]
        raise FederationError(
            f"the strategy asks its devices for {key}={value!r:.40} where a finite number of 0 or more is allowed: "
            "correct its arguments"
        )
    return float(value)  # type: ignore[arg-type]
