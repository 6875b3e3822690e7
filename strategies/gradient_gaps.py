"""How far the sites' gradients lie apart at a round's weights (Fedssyn, section 2), from what sites replied."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from common.specs.fedssyn import MIXED, MIXED_NOISE, OWN, OWN_NOISE
from common.wire.bundle import Bundle
from common.wire.weights import Weights
from strategies.exchange.replies import Upload
from synth.dissimilarity import distribution_shift, gradient_dissimilarity


class GradientGaps:
    """Keeps one round's mean gradients and tells zeta^2, sigma^2 and delta^2."""

    def __init__(self) -> None:
        self._gradients: dict[str, dict[str, Tensor]] = {}

    def take(self, upload: Upload) -> None:
        """Keep what ``upload`` brought beside the inner method's payload."""
        sent = upload.payload_as(Bundle)
        self._gradients[upload.site.name] = {
            name: _flat(sent.part(name, Weights)) for name in (OWN, MIXED) if name in sent.parts
        }

    def told(
        self, accepted: Mapping[str, Mapping[str, float]], synthetic: Tensor | None
    ) -> dict[str, float]:
        """Return the figures of the sites whose replies were accepted.

        Parameters
        ----------
        synthetic : Tensor, optional
            The mean gradient over all synthetic images, float [d].
        """
        there = [site for site in self._gradients if site in accepted]
        own = [self._gradients[site][OWN] for site in there]
        mixed = [self._gradients[site][MIXED] for site in there if MIXED in self._gradients[site]]
        found: dict[str, float] = {}
        if own:
            found["zeta2"] = float(gradient_dissimilarity(torch.stack(own)))
            found["sigma2"] = _mean(accepted, there, OWN_NOISE)
            if synthetic is not None:
                found["delta2"] = float(distribution_shift(torch.stack(own), synthetic[None]))
        if mixed and len(mixed) == len(own):
            found["zeta2-mixed"] = float(gradient_dissimilarity(torch.stack(mixed)))
            found["sigma2-mixed"] = _mean(accepted, there, MIXED_NOISE)
        self._gradients = {}
        return found


def _flat(gradient: Weights) -> Tensor:
    return torch.cat([t.flatten().double() for t in gradient.tensors.values()])


def _mean(accepted: Mapping[str, Mapping[str, float]], sites: list[str], figure: str) -> float:
    told = [accepted[site][figure] for site in sites if figure in accepted[site]]
    return sum(told) / len(told) if told else float("nan")
