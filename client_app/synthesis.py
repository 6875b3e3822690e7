"""A site's own generator: trained once, in as many rounds as it takes, and kept where other runs find its images."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable
from functools import cached_property
from logging import getLogger
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError
from torch import Tensor

from client_app.draws import is_seeded
from client_app.state import Tensors
from common.errors import FederationError
from common.learning.compute import counted
from common.privacy.events import Event
from common.samples.inputs import Samples, in_unit
from common.settings.fedssyn import FedssynSettings
from common.settings.generation import GenerationSettings
from common.specs.generation import schedule, unbuildable, unet
from common.storage import tensor_file
from common.storage.tensor_file import TensorFileError
from common.wire.coders import LEVELS
from common.wire.images import Pixels
from synth.beta_vae import VAETraining, start
from synth.diffusion import labels_like
from synth.diffusion_training import DiffusionTraining, Plan, PrivateDescent, steps_of

if TYPE_CHECKING:
    from client_app.device import DeviceClient


logger = getLogger("flwr")

MECHANISM = "dp-ddpm"
"""What the ledger calls the training of a generator."""

#: another number trains every generator again: raise it with a change of how images are made, and with no other
_MADE_BY = 1

#: settings that decide nothing without noise
_PRIVATE = ("noise_multiplier", "clip", "multiplicity")

#: images drawn together; a pause or a kill loses no more than these
_BLOCK = 1000

#: seconds from one copy of a training to the next, and from one line in the log to the next
_SAVED_EVERY, _TOLD_EVERY = 60.0, 30.0

#: seconds of the round's time reserved for saving unfinished work, and for the reply
_MARGIN = 5.0


class Synthesis:
    """The images that one site makes: its generator's training, which a pause or a kill does not lose, and its draws.

    What is made is in the site's artifact cache by all that decides it (the images trained on, the seed, the settings,
    the code), so that another run with the same finds it.

    It is trained on a share rho of the site's images; in a private training that is the chance of each.
    """

    def __init__(self, client: DeviceClient, settings: FedssynSettings, size: int) -> None:
        self._client, self._settings, self._size = client, settings, size
        chosen = self._chosen(settings.rho)
        # How many a private generator is taken to be trained on is public: by the site's number if that is reported.
        config = client.run.config
        known = len(client.samples) if config.tells_counts else config.privacy.examples
        self._examples = max(1, round(settings.rho * known))
        self._labels = client.samples.labels[chosen]
        units = in_unit(client.run.info, client.samples.inputs(chosen))
        self._images = (units * 2 - 1).clamp(-1, 1)
        self._shelf = client.state.artifact_cache
        self.done = 0.0

    def _chosen(self, rho: float) -> Tensor:
        """Return the positions of the images that it is trained on, int64, ascending."""
        client, n = self._client, len(self._client.samples)
        if self._settings.noise_multiplier:
            return client.draws.chosen("synthesis-subset", rho)
        draws = client.generator("synthesis-subset", 0)
        order = torch.randperm(n, generator=draws, device=client.run.device)
        return order[: max(1, round(rho * n))].sort().values

    def images(self) -> Pixels | None:
        """Return the images; None if the round's time does not suffice, and the next round continues.

        Raises
        ------
        FederationError
            If the time does not suffice and the site has no place to save its unfinished work.
        """
        try:
            if self._shelf is None:
                return self._make()
            self._shelf.mkdir(parents=True, exist_ok=True)
            left = self._client.deadline.left
            # a lock has -1 for no timeout
            with FileLock(self._path("lock"), timeout=left if math.isfinite(left) else -1):
                return self._found() or self._finish(self._make())
        except Timeout:  # another run is making the very same ones
            return None
        except _Pause:
            if self._shelf is None:
                raise FederationError(
                    "the round's time was over before this site's generator was trained, and it has no state-dir to "
                    "keep it in: name one in its node config, or raise federation.round_deadline"
                ) from None
            return None

    def _make(self) -> Pixels:
        training = self._training()
        self._train(training)
        return self._draw(training)

    # ---- training -------------------------------------------------------------------------------------

    def _training(self) -> Generator:
        """Return the generator in its current state of training."""
        settings, run = self._settings, self._client.run
        generator = new_generator(
            settings,
            len(run.info.classes),
            self._images,
            self._labels,
            self._client.generator("synthesis-model", 0),
            lambda epoch: self._client.generator(f"synthesis-epoch {epoch}", 0),
            run.config.compute.precision,
            self._descent() if settings.noise_multiplier else None,
        )
        kept = self._read("training")
        self._charge(first=kept is None)
        if kept is not None:
            generator.load(kept)
        return generator

    def _charge(self, *, first: bool) -> None:
        """Charge the training, or go on with one that was charged before; nothing where it has no noise.

        That it is trained on a share of the examples chosen by chance makes it no cheaper, and no such claim is made.
        """
        settings, examples = self._settings, self._examples
        if not settings.noise_multiplier:
            return
        rate = min(settings.batch, examples) / examples
        steps = steps_of(settings.epochs, examples, settings.batch)
        event = Event(MECHANISM, settings.noise_multiplier, rate, steps)
        self._client.draws.charge(*[event] * first, resumable=True)

    def _descent(self) -> PrivateDescent:
        """Return how private steps on the images are taken."""
        settings, draws = self._settings, self._client.draws
        pool = Samples.of(self._images, self._labels)
        return PrivateDescent(
            settings.multiplicity,
            self._examples,
            lambda step, rate: draws.sample(f"synthesis-sample {step}", rate, pool),
            lambda step, at: draws.rows(f"synthesis-draws {step}", pool)(step, at),
            lambda step: draws.gaussian(
                f"synthesis-noise {step}", settings.noise_multiplier, settings.clip
            ),
        )

    def _train(self, training: Generator) -> None:
        """Train to the end, keeping copies; _Pause, with all kept, if the round's time is about to be over."""
        settings, clock = self._settings, _Clock()
        # a beta-VAE reports only its epochs
        reports = math.ceil(len(self._images) / settings.batch) if settings.source != "vae" else 1
        ahead = counted(settings.epochs * reports)

        def after_step() -> None:
            clock.tick()
            ahead()
            self.done = training.epoch / (settings.epochs + 1)  # the draws are still to come
            if self._client.deadline.left < _MARGIN + 2 * clock.longest:
                self._write("training", training.state())
                raise _Pause
            if clock.passed("saved", _SAVED_EVERY):
                self._write("training", training.state())

        for loss in training.run(settings.epochs, after_step):
            if clock.passed("told", _TOLD_EVERY):
                logger.info(
                    "%s: %d of %d epochs of the generator, loss %.4f",
                    *(self._client.site, training.epoch, settings.epochs, loss),
                )

    # ---- drawing --------------------------------------------------------------------------------------

    def _draw(self, training: Generator) -> Pixels:
        """Return the images, drawn in blocks of which each is kept; _Pause if the round's time is about to be over."""
        clock = _Clock()
        # In a private training the classes' counts are public, and which images were chosen is not.
        private = self._settings.noise_multiplier > 0
        like = self._client.samples.labels.sort().values if private else self._labels
        wanted = labels_like(like, self._size, self._client.generator("synthesis-labels", 0))
        blocks = torch.split(wanted, _BLOCK)
        drawn = self._read("draws") or {}
        if not drawn:  # the training is over, even if drawing fails
            self._write("training", training.state())
        for index, labels in enumerate(blocks):
            if str(index) in drawn:
                continue
            if self._client.deadline.left < _MARGIN + 2 * clock.longest:
                raise _Pause
            images = training.draw(labels, self._client.generator(f"synthesis-draws {index}", 0))
            levels = ((images + 1) * (LEVELS / 2)).round().to(torch.uint8).cpu()
            drawn = {**drawn, str(index): levels}
            clock.tick()
            self._write("draws", drawn)
        info = self._client.run.info
        values = torch.cat([drawn[str(index)] for index in range(len(blocks))])
        return Pixels(values, wanted.cpu(), tuple(info.mean), tuple(info.std))

    # ---- the artifact cache ------------------------------------------------------------------------------------

    def _found(self) -> Pixels | None:
        """Return the images where they have been made before."""
        kept, info = self._read("images"), self._client.run.info
        if kept is None:
            return None
        # another release of the same images, charged as a round that is repeated is
        self._charge(first=True)
        return Pixels(kept["images"], kept["labels"], tuple(info.mean), tuple(info.std))

    def _finish(self, made: Pixels) -> Pixels:
        """Keep the images, and let go of what they were made with."""
        self._write("images", {"images": made.values, "labels": made.labels})
        for kind in ("training", "draws"):
            if self._shelf is not None:
                self._path(kind).unlink(missing_ok=True)
        return made

    def _read(self, kind: str) -> Tensors | None:
        """Return what was kept; None if there is nothing, or nothing that can be read, and it is made again."""
        if self._shelf is None or not self._path(kind).is_file():
            return None
        try:
            return tensor_file.load(self._path(kind))[0]
        except TensorFileError as error:
            logger.warning("%s is damaged and made again: %s", self._path(kind), error)
            return None

    def _write(self, kind: str, tensors: Tensors) -> None:
        if self._shelf is None:
            return
        try:
            tensor_file.save(self._path(kind), tensors, {"site": self._client.site})
        except (OSError, SafetensorError) as error:
            logger.error("%s cannot be written: %s", self._path(kind), error)
            raise FederationError(
                f"what this site's generator has learned cannot be kept ({tensor_file.unreadable_reason(error)}): make "
                "room for it there"
            ) from None

    def _path(self, kind: str) -> Path:
        assert self._shelf is not None
        return self._shelf / f"{self._key}.{kind}"

    @cached_property
    def _key(self) -> str:
        """What decides the images, in a name for their files."""
        settings = {name: getattr(self._settings, name) for name in GenerationSettings.model_fields}
        run = self._client.run
        if self._settings.noise_multiplier:
            settings["seeded"] = is_seeded(run.config, self._client.user_data)
            settings["examples"] = self._examples  # by which it was charged
        else:  # the name that it had before there was a private training
            for name in _PRIVATE:
                del settings[name]
        about = {
            "site": self._client.site,
            "seed": run.config.seed,
            "kind": self._settings.source,
            "settings": settings,
            "size": self._size,
            "precision": run.config.compute.precision,
            "device": run.device.type,
            "code": _MADE_BY,
        }
        digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
        for tensor in (self._images, self._labels):
            digest.update(tensor.cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()[:32]


class _Pause(Exception):
    """The round's time is about to be over, and unfinished work is saved."""


class _Clock:
    """The longest time between two ticks, and what has not been done for how long."""

    def __init__(self) -> None:
        self._last = self._begun = time.monotonic()
        self._done: dict[str, float] = {}
        self.longest = 0.0

    def tick(self) -> None:
        """Note that a piece of work is done."""
        now = time.monotonic()
        self.longest, self._last = max(self.longest, now - self._last), now

    def passed(self, what: str, seconds: float) -> bool:
        """Return whether ``what`` has not been done for so long, and note that it is now."""
        if self._last - self._done.get(what, self._begun) < seconds:
            return False
        self._done[what] = self._last
        return True


# ---- generators ----------------------------------------------------------------------------------

Generator = DiffusionTraining | VAETraining
"""A class-conditional generator in its training; images are float [n, C, H, W] in [-1, 1]."""


def new_generator(
    settings: FedssynSettings,
    classes: int,
    images: Tensor,
    labels: Tensor,
    weights: torch.Generator,
    draws: Callable[[int], torch.Generator],
    precision: str = "float32",
    private: PrivateDescent | None = None,
) -> Generator:
    """Return the generator that ``fedssyn.source`` calls so, before its first step.

    Parameters
    ----------
    images, labels : Tensor
        Float [n, C, H, W] in [-1, 1], int64 [n].
    weights : torch.Generator
        The source of the initial weights.
    draws : callable
        Gives an epoch's generator, from 0 on, the same one at each call.
    precision : str
        ``float32`` or ``bfloat16``.
    private : PrivateDescent, optional
        How private steps are taken; a beta-VAE takes none.

    Raises
    ------
    ConfigError
        If the settings make no network for such images.
    """
    channels, height, width = images.shape[1:]
    shape = channels, height, width
    with unbuildable():
        if settings.source == "vae":
            model = start(shape, weights, settings.latent)
            return VAETraining(
                *(model, images, labels, draws),
                beta=settings.beta,
                lr=settings.lr,
                batch=settings.batch,
            )
        network, times = unet(settings, shape, classes, weights), schedule(settings)
    plan = Plan(
        batch=settings.batch,
        lr=settings.lr,
        decay=settings.average,
        precision=getattr(torch, precision),
        sampler=settings.sampler,
        sampling_steps=min(settings.sampling_steps, settings.diffusion_steps),
    )
    return DiffusionTraining(network, times, images, labels, draws, plan, private)
