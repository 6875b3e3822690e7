"""The generators that a site can train on its own images, behind one protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import torch
from torch import Tensor

from common.settings.generation import GenerationSettings
from common.specs.generation import schedule, unbuildable, unet
from synth import beta_vae
from synth.diffusion_samplers import sample
from synth.diffusion_training import Plan, Training
from synth.latent_sharing import class_means
from synth.private_diffusion import PrivateDescent

Draws = Callable[[int], torch.Generator]
"""Gives an epoch's generator, from 0 on, the same one each time that it is asked."""


class Generator(Protocol):
    """A class-conditional generator in training; images are float [n, C, H, W] in [-1, 1]."""

    @property
    def epoch(self) -> int:
        """The epochs that are done."""
        ...

    def run(self, epochs: int, after_step: Callable[[], None]) -> Iterator[float]:
        """Train until ``epochs`` are done, yielding each one's mean loss; ``after_step`` may raise at any time."""
        ...

    def state(self) -> Mapping[str, Tensor]:
        """Return all that is needed to go on from here."""
        ...

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Go on from there."""
        ...

    def draw(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        """Return an image of each of ``labels``."""
        ...


class Diffusion:
    """A U-Net trained to predict noise, drawn from by its moving average.

    Parameters
    ----------
    images, labels : Tensor
        Float [n, C, H, W] in [-1, 1], int64 [n].
    precision : str
        ``float32`` or ``bfloat16``.

    Raises
    ------
    ConfigError
        If the settings make no network for such images.
    """

    def __init__(
        self,
        settings: GenerationSettings,
        classes: int,
        images: Tensor,
        labels: Tensor,
        weights: torch.Generator,
        draws: Draws,
        precision: str,
        private: PrivateDescent | None = None,
    ) -> None:
        channels, height, width = images.shape[1:]
        self._settings, self._shape = settings, (channels, height, width)
        self._device = images.device
        with unbuildable():
            model = unet(settings, self._shape, classes, weights)
            self._schedule = schedule(settings)
        plan = Plan(
            batch=settings.batch,
            lr=settings.lr,
            decay=settings.average,
            precision=getattr(torch, precision),
        )
        self._training = Training(model, self._schedule, images, labels, draws, plan, private)

    @property
    def epoch(self) -> int:
        """The epochs that are done."""
        return self._training.epoch

    def run(self, epochs: int, after_step: Callable[[], None]) -> Iterator[float]:
        """Train, by steps."""
        return self._training.run(epochs, after_step)

    def state(self) -> Mapping[str, Tensor]:
        """Return weights, their average and the optimiser's moments."""
        return self._training.state()

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take them back."""
        self._training.load(state)

    def draw(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        """Return images by the sampler that is set."""
        settings, model = self._settings, self._training.model.eval()
        trained = {name: p.detach().clone() for name, p in model.named_parameters()}
        self._training.average.copy_to(model)
        try:
            return sample(
                model,
                self._schedule,
                labels,
                self._shape,
                generator,
                sampler=settings.sampler,
                steps=min(settings.sampling_steps, settings.diffusion_steps),
            )
        finally:
            model.load_state_dict(trained, strict=False)


class BetaVAE:
    """A beta-VAE, drawn from around the mean code of each class; the parameters are those of `Diffusion`.

    It has no private training, and none is asked of it.
    """

    def __init__(
        self,
        settings: GenerationSettings,
        classes: int,
        images: Tensor,
        labels: Tensor,
        weights: torch.Generator,
        draws: Draws,
        precision: str,
        private: PrivateDescent | None = None,
    ) -> None:
        channels, height, width = images.shape[1:]
        self._images, self._labels, self._classes = (images + 1) / 2, labels, classes
        with unbuildable():
            self._model = beta_vae.start((channels, height, width), weights, settings.latent)
        self._training = beta_vae.Training(
            self._model,
            self._inputs,
            len(images),
            draws,
            beta=settings.beta,
            lr=settings.lr,
            batch=settings.batch,
        )

    def _inputs(self, positions: Tensor) -> Tensor:
        return self._images[positions]

    @property
    def epoch(self) -> int:
        """The epochs that are done."""
        return self._training.epoch

    def run(self, epochs: int, after_step: Callable[[], None]) -> Iterator[float]:
        """Train, by epochs."""
        while self.epoch < epochs:
            loss = self._training.train_epoch()
            after_step()
            yield loss

    def state(self) -> Mapping[str, Tensor]:
        """Return the weights and the optimiser's moments."""
        return self._training.state()

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take them back."""
        self._training.restore(state)

    @torch.no_grad()
    def draw(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        """Return what the decoder makes of codes around the mean of each label's class."""
        codes = beta_vae.codes(self._model, self._inputs, len(self._labels))
        there, of_class = torch.unique(labels, return_inverse=True)
        means = class_means(codes, self._labels, there.tolist())[of_class]
        return beta_vae.draw_images(self._model, means, generator) * 2 - 1


GENERATORS: dict[str, type[Diffusion] | type[BetaVAE]] = {
    "diffusion": Diffusion,
    "vae": BetaVAE,
}
"""The generators by the names of `fedssyn.source`."""
