"""Training on the server's own labelled images alone: what a server reaches without any site."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from common.division import Division
from common.errors import ConfigError
from common.learning.run import Run
from common.learning.training import plain
from common.samples.inputs import Samples, samples
from common.sites import Site
from common.wire.weights import Weights
from strategies.base import Instruction
from strategies.central import Central
from strategies.surrogate import learned_from


class Server(Central):
    """Trains as central training does, but on the validation images, and as ``image_training`` says.

    Raises
    ------
    ConfigError
        If the server has no validation images.
    """

    def __init__(self, run: Run, record_id: str = "run") -> None:
        super().__init__(run, record_id)
        if run.config.data.validated_at_sites:
            raise ConfigError(_refused("data.validation_at=sites leaves it none"))
        self._images = self._validation()

    def _validation(self) -> Samples:
        division = Division(self.run.config)
        if not len(held := division.validation):
            share = f"data.validation={self.run.config.data.validation:g}"
            raise ConfigError(_refused(f"{share} of {len(division.dataset.train)} is no image"))
        return samples(division.dataset.train, self.run.info, held).to(self.run.device)

    def instructions(
        self, server_round: int, weights: Weights, sites: Sequence[Site]
    ) -> Mapping[str, Instruction]:
        """Send nothing to any site."""
        return {}

    def _union(self) -> Samples:
        return self._images

    def trained_on(self, samples: Samples, server_round: int, weights: Weights) -> Weights:
        """Return the weights after the round's training on ``samples``."""
        return learned_from(self.run, server_round, weights, samples, plain(self.run.task))

    def notes(self) -> Mapping[str, int]:
        """Return the number of labelled images that the server trained on."""
        return {"trained_on": len(self._images)}


def _refused(why: str) -> str:
    return (
        f"method=server trains on the validation images that the server holds back, and {why}: set data.validation "
        "above 0, such as 0.1, with data.validation_at=server"
    )
