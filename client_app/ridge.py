"""Ridge regression at a site: sums of its examples' frozen features, once, plain or with noise."""

from __future__ import annotations

import torch
from torch import Tensor

from client_app.device import DeviceClient, phase
from common.errors import FederationError
from common.models.ridge import RidgeModel
from common.privacy.events import Event
from common.secret.cohort import shares_of
from common.specs.ridge import (
    AGAIN,
    MECHANISM,
    PHASE,
    SMALLEST,
    Summing,
    check,
    joint_of,
    joint_spec,
    model_of,
    sent_spec,
)
from common.wire.form import Payload
from common.wire.tensors import Tensors
from common.wire.weights import Weights
from synth.ridge_regression import triangle, unpacked


class RidgeClient(DeviceClient):
    """Sends A_k and B_k. Under ``privacy`` each example gives one row no longer than 1, and both have noise, once."""

    @phase(PHASE, takes=sent_spec)
    def sum(self, given: Payload) -> Tensors:
        """Return the sums, as ``ridge.form`` says; FederationError if no class is large enough to be summed."""
        check(self.run)
        model = self.model(given) if isinstance(given, Weights) else model_of(self.run)
        assert isinstance(model, RidgeModel)
        return self._sent(Summing(self.run, model))

    @phase(AGAIN, takes=joint_spec)
    def sum_again(self, given: Weights) -> Tensors:
        """Send the sums of the axes and of the embedding of the network in ``given``."""
        check(self.run)
        return self._sent(Summing(self.run, joint_of(self.run, given)))

    def _sent(self, summing: Summing) -> Tensors:
        if self.run.config.privacy.active:
            return self._noisy(summing)
        return summing.payload(summing.sums(self.samples, self._large_enough(summing)))

    def _large_enough(self, summing: Summing) -> Tensor | None:
        """Return which classes are summed of somebody's own data, and report how many examples are not."""
        kept = summing.large_enough(self.samples.labels)
        if kept is None:
            return None
        if not bool(kept.any()):
            raise FederationError(
                f"this site has no class of {SMALLEST} examples or more, of which ridge.plain=on sends sums: set "
                "privacy.noise_multiplier above 0, or leave the site out"
            )
        self.report(left_out=float((~kept[self.samples.labels.cpu()]).sum()))
        return kept

    def _noisy(self, summing: Summing) -> Tensors:
        """Return the sums with noise: contributions are cut to the mechanism's grid, summed exactly, released once.

        In a secret sum each site adds a share of the noise, and charges what as many shares cost as there surely are.
        """
        noise = self.run.config.privacy.noise_multiplier
        # Before an example is read: which are there, and how many, is the data's.
        self.draws.charge(summing.event(1.0) if summing.noisy_integers else Event(MECHANISM, noise))
        gaussian = self.draws.gaussian(MECHANISM, noise, summing.sensitivity)
        d, classes = summing.d, summing.classes
        squares = torch.zeros(summing.both * d * (d + 1) // 2, dtype=gaussian.dtype)
        products = torch.zeros(classes, d, dtype=gaussian.dtype)
        for rows, labels in summing.batches(self.samples, d * d if summing.both else d):
            self.deadline.check()
            parts = [rows]
            if summing.both:
                parts.append(triangle(rows[:, :, None] * rows[:, None], as_long=True))
            factors = gaussian.factors(parts)
            cut = [gaussian.steps(part, factors) for part in parts]
            products.index_add_(0, labels, cut[0])
            squares += cut[1].sum(0) if summing.both else 0
        steps = torch.cat([squares, products.mT.flatten()])
        if summing.noisy_integers:
            shares = shares_of(self.run.config.federation)
            return summing.of_integers(gaussian.share(steps, shares))
        released = unpacked(gaussian.released(steps), d, classes, as_long=True)
        return summing.payload(released)
