"""Training on all data in one place, the upper bound: nothing is requested of the sites."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from common.division import Division
from common.draws.seeding import generator
from common.errors import FederationError
from common.learning.steps import local_steps
from common.learning.training import train
from common.samples.inputs import Samples, samples
from common.settings.fedavg import CentralSettings
from common.sites import Site
from common.wire.weights import Weights
from strategies.base import Instruction, Strategy
from strategies.exchange.replies import Upload
from strategies.exchange.rules import Rule


class Central(Strategy):
    """Trains the model on the union of the partitions, sum_k E ceil(n_k / B) steps a round.

    Simulation only: a site's own data never leave it.
    """

    def instructions(
        self, server_round: int, weights: Weights, sites: Sequence[Site]
    ) -> Mapping[str, Instruction]:
        """Send nothing; FederationError if a site has its own data, or the server has not read them."""
        own = [site.name for site in sites if not site.partitions]
        if own:
            raise FederationError(
                f"method=central trains on the data of all sites in one place, and {', '.join(own)} "
                f"{'has' if len(own) == 1 else 'have'} data of their own, which do not leave: choose another method"
            )
        return {}

    def validation_rules(self) -> Mapping[str, Rule]:
        """Nothing is sent."""
        return {}

    def update(self, server_round: int, weights: Weights, uploads: Iterable[Upload]) -> Weights:
        """Return the weights after the round's steps."""
        for _ in uploads:
            raise RuntimeError("no site was asked")
        return self.trained_on(self._union(), server_round, weights)

    def trained_on(self, samples: Samples, server_round: int, weights: Weights) -> Weights:
        """Return the weights after as many steps on ``samples`` as FedAvg's sites take together in a round."""
        settings, config = self.run.settings(CentralSettings), self.run.config
        model = self.run.model_with(weights)
        train(
            model,
            samples,
            settings,
            self.run.task,
            generator(config.seed, "central", server_round, device=self.run.device),
            server_round=server_round,
            precision=config.compute.precision,
            steps=sum(local_steps(config, settings, site.examples) for site in self.sites),
        )
        return Weights.of(model, weights.codec)

    def _union(self) -> Samples:
        """Return this round's training sets, in the order of the sites."""
        run, division, number = self.run, Division(self.run.config), self.sites[0].partitions
        dataset, shares = division.dataset, division.partition(number)
        positions = [
            division.share(site.drawn_as, dataset, shares[site.partition])[0] for site in self.sites
        ]
        return samples(dataset.train, run.info, np.concatenate(positions)).to(run.device)
