"""A site's trained surrogate distilled into images: FedDGM's trajectory matching, by the run's settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from common.draws.seeding import generator
from common.errors import ConfigError
from common.learning.run import Run
from common.sites import Site
from common.specs.feddgm import settings_of
from common.wire.weights import Weights
from strategies.federated import State
from strategies.image_generators import image_generator
from synth import augmentation
from synth.generators.latents import Latents
from synth.inner_steps import InnerTraining
from synth.synthetic_updates import loss_of
from synth.trajectory_distillation import distil
from synth.trajectory_matching import Form, Segment, exact, released, unrolled

_FORMS: Mapping[str, Form] = {"exact": exact, "released": released, "unrolled": unrolled}


@dataclass(frozen=True)
class Ended:
    """Where a site's training ended: theta_m."""

    site: Site
    weights: Weights


class SurrogateDistillation:
    """Distils the sites' surrogates, and keeps their latents where the next round begins from them.

    Raises
    ------
    ConfigError
        If the surrogate has running statistics, or the generator makes no images like the run's.
    """

    def __init__(self, run: Run) -> None:
        self._run, self._settings = run, settings_of(run)
        self._latents: dict[str, tuple[Tensor, ...]] = {}
        self._mean, self._std = (
            torch.tensor(v, device=run.device)[:, None, None] for v in (run.info.mean, run.info.std)
        )
        self.notes: dict[str, Any] = {}
        """Of each site of the round, L_MTT before the first and the last step, and the student's step size."""
        if any(True for _ in run.build_model().buffers()):
            raise ConfigError(
                "method=feddgm differentiates the surrogate's training, which a model with running statistics does "
                "not allow: set model.norm to instance, group or none, or choose another model.name"
            )
        self._generator = image_generator(run)

    def distil(
        self, server_round: int, architecture: str, start: Weights, ended: Sequence[Ended]
    ) -> list[tuple[Tensor, Tensor]]:
        """Return for each site images on which a student goes from ``start`` to where the site ended, and labels.

        Parameters
        ----------
        architecture : str
            Of the surrogates, as `Run.with_model` takes it.
        start : Weights
            theta_g.
        ended : sequence of Ended
            theta_m of sites with equally many labels; they are distilled side by side.

        Returns
        -------
        list of tuple of Tensor
            Float32 [n, C, H, W] in the model's normalised space, and int64 [n].

        Raises
        ------
        FloatingPointError
            If the latents of one of them leave the finite numbers.
        """
        s, device = self._settings, self._run.device
        model = self._run.with_model(architecture).build_model()
        labels = [self._labels(one.site) for one in ended]
        begun = [
            self._begin(server_round, one.site, of_site)
            for one, of_site in zip(ended, labels, strict=True)
        ]
        pack, unpack = _packing(len(ended))
        found = distil(
            loss_of(model, F.cross_entropy),
            Segment(
                _on(start, device),
                {
                    n: pack([one.weights.tensors[n].to(device) for one in ended])
                    for n in start.tensors
                },
            ),
            self._renderer(begun[0], several=len(ended) > 1),
            [pack(parts) for parts in zip(*(z.tensors for z in begun), strict=True)],
            pack(labels),
            pack([torch.tensor(s.step_size, device=device)] * len(ended)),
            training=InnerTraining(s.inner_epochs, s.inner_batch, augmentation.parse(s.dsa)),
            iterations=s.iterations,
            latent_lrs=begun[0].rates,
            step_lr=s.step_lr,
            momentum=s.latent_momentum,
            generator=self._draws("matching", server_round, ended[0].site.drawn_as),
            form=_FORMS[s.gradient],
            chunk=self._rows(labels),
        )
        latents = zip(*(unpack(tensor) for tensor in found.latents), strict=True)
        losses = unpack(found.losses.movedim(0, -1))
        sizes = unpack(found.data.step_size)
        for one, kept, loss, size in zip(ended, latents, losses, sizes, strict=True):
            self._note(one.site.name, loss, size)
            if s.warm:
                self._latents[one.site.name] = kept
        return list(zip(unpack(found.data.images), labels, strict=True))

    def _rows(self, labels: Sequence[Tensor]) -> int:
        """Return the rows that hold ``chunk`` images; a row is an image, of several sites a whole set."""
        chunk = self._settings.chunk
        return chunk if len(labels) == 1 or not chunk else max(1, chunk // len(labels[0]))

    def _renderer(self, like: Latents, *, several: bool) -> Callable[..., Tensor]:
        """Return G for latents of one site, or of several in front, as a model takes its images."""

        def images_of(*tensors: Tensor) -> Tensor:
            if not several:
                return self._inputs(like.holding(tensors))
            flat = self._inputs(like.holding([tensor.flatten(0, 1) for tensor in tensors]))
            return flat.reshape(*tensors[0].shape[:2], *flat.shape[1:])

        return images_of

    def size(self, site: Site) -> int:
        """Return how many images are distilled of a site."""
        return len(self._labels(site))

    def _labels(self, site: Site) -> Tensor:
        """Return ipc labels of each class that is distilled."""
        classes = torch.arange(len(self._run.info.classes), device=self._run.device)
        if self._settings.classes == "known":
            classes = classes[torch.tensor(site.class_counts, device=classes.device) > 0]
        return classes.repeat_interleave(self._settings.ipc)

    def _begin(self, server_round: int, site: Site, labels: Tensor) -> Latents:
        draws = self._draws("latents", server_round, site.drawn_as)
        drawn = self._generator.latents(labels, draws)
        return drawn.holding(self._latents.get(site.name, drawn.tensors))

    def _draws(self, purpose: str, server_round: int, site: str) -> torch.Generator:
        seed = self._run.config.seed
        return generator(seed, f"feddgm-{purpose}", server_round, site, device=self._run.device)

    def _inputs(self, latents: Latents) -> Tensor:
        """Return G(Z) as a model takes it."""
        return ((self._generator.images(latents) + 1) / 2 - self._mean) / self._std

    def _note(self, site: str, losses: Tensor, step_size: Tensor) -> None:
        ends = [round(float(losses[i]), 6) for i in (0, -1)] if len(losses) else []
        self.notes[site] = {"loss": ends, "step-size": round(float(step_size), 6)}

    def state_dict(self) -> State:
        """Return the latents that the next round begins from."""
        return {site: list(tensors) for site, tensors in self._latents.items()}

    def load_state_dict(self, state: State) -> None:
        """Take them back."""
        self._latents = {site: tuple(tensors) for site, tensors in state.items()}


def _packing(
    sites: int,
) -> tuple[Callable[[Sequence[Tensor]], Tensor], Callable[[Tensor], list[Tensor]]]:
    """Return what puts the tensors of all sites into one, and what takes it apart; one site's stays as it is."""
    if sites == 1:
        return lambda tensors: tensors[0], lambda tensor: [tensor]
    return lambda tensors: torch.stack(list(tensors)), lambda tensor: list(tensor)


def _on(weights: Weights, device: torch.device) -> dict[str, Tensor]:
    return {name: tensor.to(device) for name, tensor in weights.tensors.items()}
