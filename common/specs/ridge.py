"""What server and sites share in ridge regression: the model, the summed rows and the encoding of sums."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from common.draws.seeding import generator
from common.errors import ConfigError, PayloadError
from common.learning.run import Run
from common.models.ridge import RidgeModel, RidgeNetwork, own_axes
from common.privacy.accounting import SKELLAM, gaussian_like
from common.privacy.events import Event
from common.samples.inputs import Samples
from common.secret.cohort import shares_of
from common.settings.ridge import JOINT, TEACHER, RidgeSettings
from common.settings.sections import is_user_data
from common.wire.coders import ROUNDED
from common.wire.form import Spec, TensorSpec
from common.wire.tensors import Tensors, TensorsSpec
from common.wire.weights import Weights, WeightsSpec
from synth.private_release import grid_of
from synth.ridge_regression import (
    SENSITIVITY,
    Rows,
    Sums,
    coded,
    decoded,
    own_roots,
    triangle,
    unpacked,
)

PHASE, AGAIN = "sum", "sum_again"

#: what a ledger calls the release
MECHANISM = "feature-sums"

SMALLEST = 10
"""Examples of a class below which a site with its own data leaves it out of plain sums."""

_LEVELS, _ROOTS = "levels", "roots"
_BATCH, _NUMBERS = 100, 2**24
"""Examples that are summed together, and the numbers that they may become meanwhile."""


def check(run: Run) -> RidgeSettings:
    """Return the method's settings; ConfigError if a run cannot be, or would let plain sums of own data out."""
    config, settings = run.config, run.settings(RidgeSettings)
    if run.info.task != "classification":
        raise ConfigError(
            f"method=ridge solves for classes, and {run.info.name} is text: choose fedavg"
        )
    if config.rounds > 1 + settings.refit:
        raise ConfigError(
            f"method=ridge with ridge.refit={'on' if settings.refit else 'off'} learns all there is to learn in "
            f"{'one round or two' if settings.refit else 'one round'}, and rounds={config.rounds}: set rounds=1"
        )
    if settings.student and settings.axes == "server":
        raise ConfigError(
            "ridge.student is taught by sums along drawn axes, and ridge.axes=server: leave that out"
        )
    if settings.refit and (settings.student != "convnet" or settings.keep == "sites"):
        raise ConfigError(
            "ridge.refit=on sums the embedding of a convnet that the server trained, and keeps no site's sums: set "
            "ridge.student=convnet and ridge.keep=none"
        )
    if settings.refit and settings.features == "deep":
        raise ConfigError(
            "ridge.refit=on has the axes of ridge.features=random and a network's embedding: leave deep out"
        )
    named = JOINT if settings.refit else settings.student or "ridge"
    for key, own in (("name", named), ("start", ""), ("projection", 0)):
        if (value := getattr(config.model, key)) != own:
            raise ConfigError(
                f"method=ridge has a model that every site draws, and model.{key}={value}: leave it out"
            )
    if bool(config.features.name) != (settings.features == "own"):
        raise ConfigError(
            f"ridge.features={settings.features} and features.name={config.features.name or 'nothing'} do not fit: "
            "ridge.features=own is what the network of features.name makes of pictures, random needs none"
        )
    if settings.alone and (config.rounds > 1 or settings.keep == "sites" or config.secret):
        raise ConfigError(
            "ridge.alone=on asks no site: leave out rounds, ridge.keep and federation.secret"
        )
    if settings.forget and not (config.resume and settings.keep == "sites"):
        raise ConfigError(
            "ridge.forget needs a record (resume=) with each site's own sums (ridge.keep=sites): run again without "
            "the site"
        )
    leave = not (config.privacy.active or settings.plain or settings.alone)
    if is_user_data(config.dataset) and leave:
        raise ConfigError(
            "method=ridge sends sums that reveal who is in them, and this data set is taken to be personal: set "
            "privacy.noise_multiplier above 0, such as 2, or ridge.plain=on if plain sums may leave"
        )
    return settings


@lru_cache(maxsize=4)
def model_of(run: Run) -> RidgeModel:
    """Return the run's model as server and sites draw it, on the run's device; not to be changed."""
    model = run.with_model(TEACHER).build_model().eval()
    assert isinstance(model, RidgeModel)
    if run.settings(RidgeSettings).axes == "random":
        with torch.no_grad():
            drawn = own_axes(model.cpu(), generator(run.config.seed, "ridge-axes"), random=True)
        model.turn(drawn)
    return model.to(run.device)


def joint_of(run: Run, weights: Weights) -> RidgeNetwork:
    """Return the model of the second round with what of ``weights`` went down, all else as server and sites draw it."""
    model = run.build_model()
    weights.only(joint_spec(run)).over(Weights.of(model)).load_into(model)
    assert isinstance(model, RidgeNetwork)
    return model.eval()


def joint_spec(run: Run) -> WeightsSpec:
    """Return the part of the second round's model that sites get: the network, and the scale of its embedding."""
    sent = [n for n in run.spec.names if n.startswith("network.") or n in ("mean", "deviation")]
    return run.spec.only(sent)


@dataclass(frozen=True)
class Summing:
    """How a run's examples are summed, by a model that server and sites have, and the encoding of sums."""

    run: Run
    model: RidgeModel | RidgeNetwork

    @cached_property
    def rows(self) -> Rows:
        """How places become rows."""
        settings, private = self.run.settings(RidgeSettings), self.run.config.privacy.active
        exact = settings.form == "integers" or (self.run.config.secret and not private)
        steps = settings.levels if exact else 0
        return Rows(self.model.spread.double().cpu(), private, steps)

    @property
    def both(self) -> bool:
        """Whether A is sent with B."""
        return self.run.settings(RidgeSettings).sums == "both"

    @property
    def d(self) -> int:
        """The numbers of a row."""
        return len(self.model.spread) + 1

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return len(self.run.info.classes)

    @property
    def sensitivity(self) -> float:
        """By how much an example moves what is sent, where rows are bounded."""
        return SENSITIVITY if self.both else 1.0

    def deviation(self, replies: int) -> float:
        """Return the deviation of the noise in a number of the total of so many replies; 0 without noise."""
        config = self.run.config
        shares = shares_of(config.federation) if config.secret else 1
        return config.privacy.noise_multiplier * self.sensitivity * math.sqrt(replies / shares)

    @property
    def noisy_integers(self) -> bool:
        """Whether sums are sent as steps of the noise's grid: in a secret sum, each with a share of the noise."""
        return self.rows.bound and self.run.config.secret

    def event(self, share: float) -> Event:
        """Return the privacy event of a secret total with ``share`` times the variance that the run needs."""
        noise = self.run.config.privacy.noise_multiplier
        steps = self.sensitivity / grid_of(noise, self.sensitivity)
        like = gaussian_like(noise * math.sqrt(share), steps, self.numbers)
        return Event(f"{SKELLAM} {MECHANISM}", like)

    @property
    def numbers(self) -> int:
        """How many numbers are summed."""
        return self.both * self.d * (self.d + 1) // 2 + self.d * self.classes

    @torch.no_grad()
    def batches(self, samples: Samples, numbers: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the rows of some examples, float64, with their labels, on the CPU: fewer where a row becomes many."""
        size = max(1, min(_BATCH, _NUMBERS // numbers))
        for start in range(0, len(samples), size):
            part = slice(start, start + size)
            x = samples.inputs(part)
            # What is rounded is computed in float64: it must not depend on the other examples of its batch.
            places = self.model.embed(x.double() if self.rows.steps else x)
            yield self.rows.of(places.double().cpu()), samples.labels[part].cpu()

    def sums(self, samples: Samples, kept: Tensor | None = None) -> Sums:
        """Return the sums of some examples, those of ``kept`` classes, bool [classes], alone."""
        empty = torch.zeros(self.d, self.d + self.classes, dtype=torch.float64)
        total = Sums(empty[:, : self.d], empty[:, self.d :])
        for rows, labels in self.batches(samples):
            there = slice(None) if kept is None else kept[labels]
            total = total + Sums.of(rows[there], labels[there], self.classes)
        return total

    def large_enough(self, labels: Tensor) -> Tensor | None:
        """Return which classes a site with these labels, int64 [n], sums: bool [classes]; None if all, for any n."""
        if self.run.config.privacy.active or not is_user_data(self.run.config.dataset):
            return None
        return torch.bincount(labels.cpu(), minlength=self.classes) >= SMALLEST

    def count(self, sums: Sums) -> float:
        """Return how many rows were summed, by the constant's sums; at least 1, since noise may leave fewer."""
        return max(1.0, float(sums.products[-1].sum()) / self.rows.constant)

    # ---- on the wire ------------------------------------------------------------------------------

    @property
    def spec(self) -> Spec:
        """The form of a reply: integers as their bytes, else a byte a number and what it is a share of."""
        if self.run.config.secret:
            return TensorsSpec({_LEVELS: TensorSpec(self._shape, 0, 255, torch.uint8)})
        most = math.prod(self._shape)
        packed = TensorSpec((most + most // 1000 + 64,), 0, 255, torch.uint8, varies=True)
        if self.rows.steps:
            return TensorsSpec({_LEVELS: packed}, require=self._levels)
        form = torch.float32 if self.rows.bound else torch.float16
        roots = TensorSpec((1 if self.rows.bound else self.d + self.classes,), 0, math.inf, form)
        return TensorsSpec({_LEVELS: packed, _ROOTS: roots}, require=self._levels)

    @property
    def _shape(self) -> tuple[int, ...]:
        """The shape of the bytes of what is summed: a row for each byte of integers, else a byte a number."""
        return (8, self.numbers) if self.rows.steps or self.noisy_integers else (self.numbers,)

    def payload(self, sums: Sums) -> Tensors:
        """Return the payload of sums."""
        if self.rows.steps:
            parts = [triangle(sums.squares)] if self.both else []
            return self.of_integers(torch.cat([*parts, sums.products.flatten()]).to(torch.int64))
        if self.rows.bound:
            most = max(
                float(sums.squares.abs().max()) * SENSITIVITY, float(sums.products.abs().max())
            )
            roots = torch.tensor([most]).sqrt()
        else:
            roots = own_roots(sums, both=self.both).half()
        levels = coded(sums, self._roots(roots), both=self.both, as_long=self.rows.bound)
        return Tensors({_LEVELS: _packed(levels), _ROOTS: roots})

    def of_integers(self, integers: Tensor) -> Tensors:
        """Return integers, int64, as they are sent: a row for each byte, of which the upper ones compress."""
        levels = integers.view(torch.uint8).view(-1, 8).mT.contiguous()
        return Tensors({_LEVELS: levels if self.run.config.secret else _packed(levels)})

    def _levels(self, payload: Tensors) -> Tensor:
        """Return the unpacked bytes of what was summed; PayloadError if they are malformed."""
        sent = payload[_LEVELS]
        if self.run.config.secret:
            return sent
        size, stream = math.prod(self._shape), zlib.decompressobj()
        try:
            content = stream.decompress(sent.numpy().tobytes(), size + 1)
        except zlib.error:
            raise PayloadError("the sums' compressed bytes are damaged") from None
        if len(content) != size or not stream.eof or stream.unused_data:
            raise PayloadError(f"the sums' compressed bytes do not hold {size} bytes and no more")
        levels = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        if not self.rows.steps and not int(levels.min()):
            raise PayloadError(f"{_LEVELS} holds 0 where 1 to 255 is allowed")
        return levels.view(self._shape)

    def received(self, payload: Tensors) -> Sums:
        """Return the sums that were sent, float64, or int64 if they are integers."""
        levels = self._levels(payload)
        if self.rows.steps or self.noisy_integers:
            integers = levels.mT.contiguous().view(torch.int64).flatten()
            if self.rows.steps:
                return unpacked(integers, self.d, self.classes)
            grid = grid_of(self.run.config.privacy.noise_multiplier, self.sensitivity)
            return unpacked(integers.double() * grid, self.d, self.classes, as_long=True)
        roots = self._roots(payload[_ROOTS])
        sums = decoded(levels, roots, self.classes, as_long=self.rows.bound)
        if not self.rows.bound:  # what the roots say exactly
            sums.products[-1] = roots[self.d :].square()
            if self.both:
                sums.squares.diagonal().copy_(roots[: self.d].square())
        return sums

    def _roots(self, sent: Tensor) -> Tensor:
        return sent.double().expand(self.d + self.classes)

    def require(self, payload: Tensors, examples: int) -> None:
        """Refuse sums that so many examples cannot have; PayloadError. What noise may move them by is allowed for."""
        sums, slack = self.received(payload), 8 * self.deviation(1)
        most = self.rows.longest
        rows = max(
            float(sums.squares.abs().max()) / most**2,
            float(sums.products.abs().max()) / most,
            abs(float(sums.products[-1].sum())) / self.rows.constant - self.classes * slack,
        )
        if not rows <= examples * (1 + ROUNDED) + slack + 1:
            raise PayloadError(
                f"its sums are of {rows:.4g} rows at least, and it has {examples} examples"
            )
        if float(sums.squares.diagonal().min()) < -slack:
            raise PayloadError("a sum of squares of it is below 0")


def _packed(levels: Tensor) -> Tensor:
    """Return bytes as fewer, uint8 [n]: zlib's level 9 saves nothing over 6."""
    return torch.frombuffer(
        bytearray(zlib.compress(levels.numpy().tobytes(), 6)), dtype=torch.uint8
    )


def sent_spec(run: Run) -> Spec:
    """Return the form of what a site is sent: nothing, or the model, whose axes are the server's."""
    return run.spec if run.settings(RidgeSettings).axes == "server" else TensorsSpec({})
