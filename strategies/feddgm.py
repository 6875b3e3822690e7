"""FedDGM on the server (Jia et al., 2023, Algorithm 1): images distilled of the sites' surrogates, models of those."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from typing import Any

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord
from torch import Tensor

from common.code.imports import load
from common.draws.seeding import generator
from common.errors import ConfigError, PayloadError
from common.learning.run import Run
from common.learning.training import Local
from common.samples.inputs import Samples, from_unit
from common.settings.feddgm import FedDGMSettings, surrogate_of
from common.sites import Site
from common.wire.images import SyntheticImages
from common.wire.weights import Weights
from strategies.base import GLOBAL, LEARNED, Instruction, State, Strategy
from strategies.exchange.instructions import arrays_from
from strategies.exchange.replies import Upload
from strategies.exchange.rules import Rule, model_rule
from strategies.surrogate import GlobalModels, initial
from synth import augmentation
from synth.generators.latents import FeatureSpace, ImageGenerator, Latents, PixelGenerator
from synth.generators.style import StyleNetwork, digits_prior
from synth.synthetic_updates import loss_of
from synth.trajectory_matching import (
    Form,
    InnerTraining,
    Segment,
    distil,
    exact,
    released,
    unrolled,
)


class FedDGM(Strategy):
    """Distils a set of images of every site's trajectory, and trains global models and surrogates on their union.

    The run's weights are the surrogate theta_g of the run's own model; the others, and the global models w_g, are
    kept by the server. Each continues from its values of the last round, on this round's images only.
    """

    def __init__(self, run: Run, record_id: str = "run") -> None:
        super().__init__(run, record_id)
        self.settings = run.settings(FedDGMSettings)
        self.needs_class_counts = self.settings.classes == "known"
        self._distillation = SurrogateDistillation(run)
        self._models = GlobalModels(run, self.settings)
        self._surrogates = {
            name: initial(run, name) for name in run.architectures if name not in self._models
        }
        self._pictures: dict[str, SyntheticImages] = {}

    # ---- a round --------------------------------------------------------------------------------------

    def instructions(
        self, server_round: int, weights: Weights, sites: Sequence[Site]
    ) -> Mapping[str, Instruction]:
        """Send each site theta_g of its architecture, expect it trained."""
        return {site.name: self._train(*self.initial_model(weights, site)) for site in sites}

    def _train(self, start: Weights, architecture: str) -> Instruction:
        return Instruction("train", start, self.run.with_model(architecture).spec)

    def initial_model(self, weights: Weights, site: Site) -> tuple[Weights, str]:
        """Return theta_g of the site's depth, and the name of that architecture."""
        architecture = surrogate_of(self.run, site.name)
        return self._surrogate(weights, architecture), architecture

    def _surrogate(self, weights: Weights, architecture: str) -> Weights:
        if not architecture:
            return weights
        return Weights(self._surrogates[architecture].tensors, weights.codec)

    def validation_rules(self) -> Mapping[str, Rule]:
        """Accept a surrogate whose update is not far longer than those of its depth."""
        return {
            "": model_rule(
                "the distillation of that site's images", "nothing but what is distilled"
            )
        }

    def resulting_model(self, weights: Weights, upload: Upload) -> Weights:
        """Return the site's surrogate."""
        return upload.payload_as(Weights)

    def prepare(self, server_round: int, weights: Weights, upload: Upload) -> Upload:
        """Refuse weights that are those the site was sent: no trajectory leads from there to there."""
        start, _ = self.initial_model(weights, upload.site)
        sent, came = start.tensors, upload.payload_as(Weights).tensors
        if all(torch.equal(tensor, sent[name]) for name, tensor in came.items()):
            raise PayloadError(
                "the weights are those that were sent, and nothing can be distilled of a site that has not trained"
            )
        return upload

    def update(self, server_round: int, weights: Weights, uploads: Iterable[Upload]) -> Weights:
        """Distil each site's images as its weights come, then train on the union of all."""
        self._pictures, self._distillation.notes = {}, {}
        union: list[tuple[Tensor, Tensor]] = []
        for group in self._groups(uploads):
            for upload, images, labels in self._distilled(server_round, weights, group):
                union.append((images, labels))
                self._pictures[upload.site.name] = SyntheticImages(images.cpu(), labels.cpu())
        self.round.require_quorum()
        samples = Samples.of(*(torch.cat(part) for part in zip(*union, strict=True)))
        self._models.train(server_round, samples, Local())
        epochs = self.settings.surrogate_epochs
        for name, held in self._surrogates.items():
            self._surrogates[name] = self._models.trained(
                server_round, name, held, samples, epochs, Local()
            )
        return self._models.trained(server_round, GLOBAL, weights, samples, epochs, Local())

    def _groups(self, uploads: Iterable[Upload]) -> Iterator[list[Upload]]:
        """Yield the uploads, up to ``together`` of equal form and size at a time."""
        for _, alike in groupby(uploads, self._kind):
            while group := list(islice(alike, self.settings.together)):
                yield group

    def _kind(self, upload: Upload) -> tuple[str, int]:
        return surrogate_of(self.run, upload.site.name), len(self._distillation.labels(upload.site))

    def _distilled(
        self, server_round: int, weights: Weights, group: Sequence[Upload]
    ) -> Iterator[tuple[Upload, Tensor, Tensor]]:
        """Yield each upload with its images and labels; one that leads out of the finite numbers is rejected."""
        architecture, _ = self._kind(group[0])
        start = self._surrogate(weights, architecture)
        try:
            sets = self._distillation.distil(server_round, architecture, start, group)
        except FloatingPointError as error:
            if len(group) == 1:
                self.round.screen.reject(group[0], str(error))
                return
            for upload in group:  # whose it was shows where each is alone
                yield from self._distilled(server_round, weights, [upload])
            return
        for upload, (images, labels) in zip(group, sets, strict=True):
            yield upload, images, labels

    # ---- what was learned -----------------------------------------------------------------------------

    def global_models(self, arrays: ArrayRecord) -> Mapping[str, ArrayRecord]:
        """Return the first of the global models."""
        return self._models.global_models(arrays)

    def extra_models(self, arrays: ArrayRecord) -> Mapping[str, ArrayRecord]:
        """Return the other global models, and the surrogates."""
        others = {name: arrays_from(held) for name, held in self._surrogates.items()}
        return {**self._models.extra_models(arrays), **others}

    def pictures(self) -> Mapping[str, SyntheticImages]:
        """Return the images distilled from each site's weights in the last round."""
        return self._pictures

    def notes(self) -> Mapping[str, Any]:
        """Return L_MTT of each site before the first and the last step, and the student's step size."""
        return {"matching": self._distillation.notes}

    def state_dict(self) -> State:
        """Return all models but the run's own surrogate, and the latents where the next round continues from them."""
        return {
            LEARNED: self._models.state_dict(),
            "surrogates": {name: dict(held.tensors) for name, held in self._surrogates.items()},
            "distillation": self._distillation.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        """Restore the state."""
        self._models.load_state_dict(state[LEARNED])
        self._surrogates = {name: Weights(dict(held)) for name, held in state["surrogates"].items()}
        self._distillation.load_state_dict(state["distillation"])


# ---- surrogate distillation ----------------------------------------------------------------------
# A site's trained surrogate distilled into images: FedDGM's trajectory matching, by the run's settings.

_FORMS: Mapping[str, Form] = {"exact": exact, "released": released, "unrolled": unrolled}


class SurrogateDistillation:
    """Distils the sites' surrogates, and keeps their latents where the next round begins from them.

    Raises
    ------
    ConfigError
        If the surrogate has running statistics, or the generator makes no images like the run's.
    """

    def __init__(self, run: Run) -> None:
        self._run, self._settings = run, run.settings(FedDGMSettings)
        self._latents: dict[str, tuple[Tensor, ...]] = {}
        self.notes: dict[str, Any] = {}
        """Of each site of the round, L_MTT before the first and the last step, and the student's step size."""
        if any(True for _ in run.build_model().buffers()):
            raise ConfigError(
                "method=feddgm differentiates the surrogate's training, which a model with running statistics does "
                "not allow: set model.norm to instance, group or none, or choose another model.name"
            )
        self._generator = image_generator(run)

    def distil(
        self, server_round: int, architecture: str, start: Weights, ended: Sequence[Upload]
    ) -> list[tuple[Tensor, Tensor]]:
        """Return for each site images on which a student goes from ``start`` to where the site ended, and labels.

        Parameters
        ----------
        architecture : str
            Of the surrogates, as `Run.with_model` takes it.
        start : Weights
            theta_g.
        ended : sequence of Upload
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
        labels = [self.labels(one.site) for one in ended]
        thetas = [one.payload_as(Weights).tensors for one in ended]
        initial = [
            self._begin(server_round, one.site, of_site)
            for one, of_site in zip(ended, labels, strict=True)
        ]
        pack, unpack = _packing(len(ended))
        found = distil(
            loss_of(model, F.cross_entropy),
            Segment(
                {n: t.to(device) for n, t in start.tensors.items()},
                {n: pack([theta[n].to(device) for theta in thetas]) for n in start.tensors},
            ),
            self._renderer(initial[0], several=len(ended) > 1),
            [pack(parts) for parts in zip(*(z.tensors for z in initial), strict=True)],
            pack(labels),
            pack([torch.tensor(s.step_size, device=device)] * len(ended)),
            training=InnerTraining(s.inner_epochs, s.inner_batch, augmentation.parse(s.dsa)),
            iterations=s.iterations,
            latent_lrs=initial[0].rates,
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
            ends = [round(float(loss[i]), 6) for i in (0, -1)] if len(loss) else []
            self.notes[one.site.name] = {"loss": ends, "step-size": round(float(size), 6)}
            if s.warm:
                self._latents[one.site.name] = kept
        return list(zip(unpack(found.data.images), labels, strict=True))

    def _rows(self, labels: Sequence[Tensor]) -> int:
        """Return the rows that hold ``chunk`` images; a row is one image, or with several sites a full set."""
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

    def labels(self, site: Site) -> Tensor:
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
        return from_unit(self._run.info, (self._generator.images(latents) + 1) / 2)

    def state_dict(self) -> State:
        """Return the latents that the next round begins from."""
        return {site: list(tensors) for site, tensors in self._latents.items()}

    def load_state_dict(self, state: State) -> None:
        """Restore the state."""
        self._latents = {site: tuple(tensors) for site, tensors in state.items()}


def _packing(
    sites: int,
) -> tuple[Callable[[Sequence[Tensor]], Tensor], Callable[[Tensor], list[Tensor]]]:
    """Return the functions that stack and unstack all sites' tensors; a single site's is left unchanged."""
    if sites == 1:
        return lambda tensors: tensors[0], lambda tensor: [tensor]
    return lambda tensors: torch.stack(list(tensors)), lambda tensor: list(tensor)


# ---- the generator -------------------------------------------------------------------------------


def image_generator(run: Run) -> ImageGenerator:
    """Return the generator of the run's settings.

    Raises
    ------
    ConfigError
        If it makes other images or classes than the run's, has not the requested space, or cannot be obtained.
    """
    settings = run.settings(FedDGMSettings)
    if settings.generator == "pixels":
        return PixelGenerator(run.image_shape, settings.latent_lr)
    if settings.generator == "digits":
        return feature_space(run, digits_prior())
    found: ImageGenerator = load(settings.generator)(run)
    return found


def feature_space(run: Run, network: StyleNetwork) -> FeatureSpace:
    """Return the space of the run's settings over a style-based generator; ConfigError if it does not fit the run."""
    settings, form = run.settings(FedDGMSettings), network.form
    shape, classes = run.image_shape, len(run.info.classes)
    if form.shape != shape or form.classes != classes:
        raise ConfigError(
            f"feddgm.generator={settings.generator} makes images of {'x'.join(map(str, form.shape))} of {form.classes} "
            f"classes, and {run.info.name} has images of {'x'.join(map(str, shape))} of {classes} classes: set "
            "feddgm.generator=pixels, or train one with examples/train_prior.py"
        )
    try:
        return FeatureSpace(
            network.to(run.device), settings.space, settings.latent_lr, settings.feature_lr
        )
    except ValueError as error:
        raise ConfigError(f"feddgm.space={settings.space} is not there: {error}.") from None
