"""The server's training on images, as ``image_training`` says: what fills the places of the one training loop."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from common.draws.seeding import derive, generator
from common.learning.run import Run
from common.learning.training import Local, Objective, train
from common.samples.inputs import Samples
from common.settings.training import TrainingSettings
from common.wire.weights import Weights
from synth import augmentation
from synth.ball import project_ball
from synth.row_draws import RowDraws

DECAY, DECAYED_AT = 0.3, (6, 8)
"""The schedule ``steps``: what the rate is multiplied by, and after which tenths of the steps."""


def learned_from(
    run: Run, server_round: int, weights: Weights, samples: Samples, objective: Objective
) -> Weights:
    """Return the run's model, trained from ``weights`` on the images that the server received in a round."""
    if not run.config.image_training.steps_on(len(samples)):
        return weights
    model = run.build_model()
    weights.load_into(model)
    draws = generator(run.config.seed, "surrogate-server", server_round, device=run.device)
    train_on_images(run, model, samples, objective, draws)
    return Weights.of(model, weights.codec).only(run.spec)


def train_on_images(
    run: Run, model: nn.Module, samples: Samples, objective: Objective, draws: torch.Generator
) -> None:
    """Train ``model`` in place on the images that the server received.

    ``draws`` orders the batches; augmentation has a generator of its own, derived from its seed.
    """
    s = run.config.image_training
    steps = s.steps_on(len(samples))
    average = TailAverage(model, steps, s.average)
    projected = into_ball(model, s.ball)
    train(
        model,
        samples,
        TrainingSettings(
            lr=s.lr,
            batch=s.batch,
            momentum=s.momentum,
            weight_decay=s.weight_decay,
            augment="flip_crop" if s.augment == "flip_crop" else "none",
        ),
        run.task,
        draws,
        precision=run.config.compute.precision,
        steps=steps,
        local=Local(
            objective=objective,
            rate=rate(s.schedule, steps),
            augment=siamese(steps, draws) if s.augment == "dsa" else None,
            after_step=each(projected, average if average.wanted else None),
        ),
    )
    average.copy_to(model)


def rate(schedule: str, steps: int) -> Callable[[int], float] | None:
    """Return what the learning rate is multiplied by in a step, by how many were taken before; None: by nothing."""
    if schedule == "cosine":
        return lambda done: (1 + math.cos(math.pi * done / steps)) / 2
    if schedule == "steps":
        return lambda done: DECAY ** sum(10 * done >= tenths * steps for tenths in DECAYED_AT)
    return None


def siamese(steps: int, generator: torch.Generator) -> Callable[[Tensor, RowDraws | None], Tensor]:
    """Return what puts each batch through one of the six transforms of DSA, drawn for every step ahead of the first."""
    numbers = torch.Generator().manual_seed(derive(generator.initial_seed(), "augmentation"))
    drawn = iter(augmentation.draws(tuple(augmentation.TRANSFORMS), steps, numbers))
    return lambda images, rows: augmentation.apply(images, next(drawn))


def into_ball(model: nn.Module, radius: float) -> Callable[[nn.Module], None] | None:
    """Return what projects a model back into the ball around its weights of now; None for no radius."""
    if not radius:
        return None
    centre = [p.detach().clone() for p in model.parameters()]
    return lambda moved: project_ball(moved.parameters(), centre, radius)


def each(*calls: Callable[[nn.Module], None] | None) -> Callable[[nn.Module], None] | None:
    """Return what makes all of these calls, one after the other; None where there are none."""
    made = [call for call in calls if call is not None]
    if len(made) < 2:
        return made[0] if made else None

    def all_of_them(model: nn.Module) -> None:
        for call in made:
            call(model)

    return all_of_them


class TailAverage:
    """The mean of a model's parameters after each of the last steps, at least one of a share above 0.

    Running statistics stay those that the last step left: they are of the images, and few steps old.

    Parameters
    ----------
    share : float
        The share of them that counts, the last ones; 0: none.
    """

    def __init__(self, model: nn.Module, steps: int, share: float) -> None:
        self.wanted = max(1, round(share * steps)) if share else 0
        self._before = steps - self.wanted
        self._mean = [p.detach().clone() for p in model.parameters()] if self.wanted else []
        self._done = 0

    @torch.no_grad()
    def __call__(self, model: nn.Module) -> None:
        """Take note of the parameters after a step."""
        self._done += 1
        counted = self._done - self._before
        if counted > 0:
            torch._foreach_lerp_(self._mean, list(model.parameters()), 1 / counted)

    @torch.no_grad()
    def copy_to(self, model: nn.Module) -> None:
        """Give the model the mean, if one is wanted."""
        if self.wanted:
            torch._foreach_copy_(list(model.parameters()), self._mean)
