"""FedSynth on the device: synthetic batches whose steps lead to a good model (Algorithm 1, client part)."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import count
from logging import getLogger

import torch
from torch import Tensor, nn

from client_app.device import DeviceClient, phase, refuse_small_classes
from client_app.local_training import (
    charge,
    fidelity,
    refuse_coupled,
    rule_of,
    samples_of,
    train_locally,
)
from common.draws.seeding import generator
from common.learning.compute import counted
from common.learning.steps import DPSGDSteps, planned_examples
from common.learning.task import difference
from common.models import Classifier
from common.settings.fedsynth import FedSynthSettings
from common.specs.fedsynth import (
    SyntheticBatches,
    SyntheticBatchesSpec,
    as_batches,
    spec_of,
    step_loss,
)
from common.wire.weights import Weights
from synth.descent import SGD, Adam
from synth.starts import draw_labels, even_labels, mean_inputs
from synth.synthetic_updates import (
    Batches,
    Loss,
    Objective,
    Parameters,
    along,
    client_update,
    distance,
    distil,
    real_loss,
)

logger = getLogger("flwr")

_PURPOSE = "real-batches"

#: the draws of the start that all sites share
_SHARED = "fedsynth-shared-start"

_MOVERS: dict[str, Callable[[list[Tensor], float], SGD | Adam]] = {"adam": Adam, "sgd": SGD}


class FedSynthClient(DeviceClient):
    """Distils its update into m batches, drawn again every round, or with ``warm`` those of its last round."""

    @phase("synthesize")
    def synthesize(self, w: Weights) -> SyntheticBatches:
        """Return S_k: E steps on S towards a good end of ClientUpdate(S; w)."""
        settings, model = self._settings, self.model(w)
        if settings.start == "statistics":  # the mean of a class of one is that one
            refuse_small_classes(self, 1)
        spec = spec_of(self.run, model)
        loss = step_loss(self.run, model)
        start = parameters(model)
        trained = self._trained(w)
        distilled = distil(
            loss,
            start,
            self._remembered() or self._start(spec, model),
            self._objective(loss, start, trained, model),
            iterations=settings.iterations,
            lr=settings.synthetic_lr,
            learn_step=settings.learn_step,
            mover=_MOVERS[settings.optimizer],
            before_step=counted(settings.iterations, self.deadline.check),
        )
        if len(distilled.losses):
            self.report(synthesis_loss=float(distilled.losses[-1]))
        if settings.warm:
            self.remember({n: t.cpu() for n, t in vars(distilled.batches).items()})
        sent = SyntheticBatches(
            distilled.batches.inputs.cpu(),
            distilled.batches.labels.cpu(),
            distilled.batches.step_size.cpu().float().clamp_max(spec.max_step)
            if spec.learned_step
            else None,
            self.run.config.wire.images,
        )
        if settings.fidelity and trained is not None:
            # The update that the server will replay, and the one of local training.
            received = as_batches(spec.decode(sent.encode()), settings, self.run.device)
            ends, origin = (client_update(loss, start, received), trained), Weights(start)
            self._report_finite(**fidelity(*(difference(Weights(end), origin) for end in ends)))
        return sent

    @property
    def _settings(self) -> FedSynthSettings:
        return self.settings(FedSynthSettings)

    def _trained(self, w: Weights) -> Parameters | None:
        """Return where FedAvg's local training from ``w`` ends, None if it is not needed."""
        settings = self._settings
        if settings.objective == "loss" and not settings.fidelity:
            return None
        self.deadline.steps = settings.iterations  # which follow the training
        model, trained = train_locally(self, w, reported=False)
        if not self.run.config.privacy.active:
            self._report_finite(train_loss=trained.loss)
        return parameters(model)

    def _objective(
        self, loss: Loss, start: Parameters, trained: Parameters | None, model: Classifier
    ) -> Objective:
        asked = self._settings.objective
        if trained is not None and asked == "update":
            return distance(start, trained)
        if asked == "loss" and self.run.config.privacy.active:
            return self._private_loss(model)
        samples, rng, size = self.samples, self.generator(_PURPOSE), self._settings.real_batch
        real = real_loss(loss, samples.inputs, samples.labels, size, rng)
        if trained is None or asked == "loss":
            return real
        near = distance(start, trained)
        return lambda w_syn: real(w_syn) + near(w_syn)

    def _private_loss(self, model: Classifier) -> Objective:
        """Return an objective whose gradient at w_syn is DP-SGD's of F, charged for all of its calls.

        The gradient in S is that one taken back through the m steps, which is post-processing.
        """
        refuse_coupled(model)
        settings = self._settings
        n = planned_examples(self.run.config, len(self.samples))
        steps = DPSGDSteps.of(settings.real_batch or n, settings.iterations, n)
        charge(self, steps)
        rule, rows, taken = rule_of(self, _PURPOSE, steps), self.draws.rows(_PURPOSE), count()
        samples, task = self.samples, self.run.task
        batches = samples_of(self, _PURPOSE, steps, samples)

        def example_loss(model: nn.Module, x: Tensor, targets: Tensor) -> Tensor:
            return task.loss(model(x), targets)

        def gradient(w_syn: Parameters) -> dict[str, Tensor]:
            at = next(batches)
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    parameter.copy_(w_syn[name])
            own = rows(next(taken), at)
            rule(model, example_loss, samples.inputs(at), samples.labels[at], rows=own)
            return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}

        return along(gradient)

    def _remembered(self) -> Batches | None:
        """Return what the site found the last time; None if it is not to begin with that, or has none."""
        last = self.recall() if self._settings.warm else None
        if last is None:
            return None
        return Batches(**{name: value.to(self.run.device) for name, value in last.items()})

    def _start(self, spec: SyntheticBatchesSpec, model: Classifier) -> Batches:
        """Return S to begin with: labels by the site's class frequencies, inputs as ``start`` says."""
        settings, device, shape = self._settings, self.run.device, (spec.m, spec.b)
        targets = (*shape, *spec.targets)
        if settings.start == "shared":
            rng = generator(self.run.config.seed, _SHARED, device=device)
            labels = even_labels(spec.classes, targets, rng)
        else:
            rng = self.generator("start")
            pool = self.run.task.counted(self.samples.labels)
            if self.run.config.private:  # how often each is there is public, and their order is not
                pool = pool.sort().values
            labels = draw_labels(pool, targets, rng)
        inputs = torch.randn((*shape, *spec.shape), generator=rng, device=device) * settings.noise
        if settings.start == "statistics":
            with torch.no_grad():
                real = model.continuous(self.samples.inputs(slice(None)))
                inputs += mean_inputs(real, self.samples.labels, spec.classes)[labels]
        if spec.trained:
            height = settings.label_height if settings.labels == "trained" else 1.0
            labels = nn.functional.one_hot(labels, spec.classes).float() * height
        return Batches(inputs, labels, torch.tensor(settings.step_size, device=device))

    def _report_finite(self, **figures: float) -> None:
        """Report figures with the payload, unless one is not finite: such a figure would cost the site its round.

        The local training that they come from may diverge where the set does not; of a set that does, the server
        says so itself.
        """
        if all(map(math.isfinite, figures.values())):
            self.report(**figures)
        else:
            logger.warning("%s: not finite, and not reported: %s", self.site, ", ".join(figures))


def parameters(model: Classifier) -> dict[str, torch.Tensor]:
    """Return copies of the model's parameters, by name."""
    return {name: p.detach().clone() for name, p in model.named_parameters()}
