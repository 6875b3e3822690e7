"""A site's part of a secret sum as integers: on a public grid, none longer than a public length.

An update u is cut to the length C, and rounded to L levels in C. What a site adds is n u in levels, for each number of
it, and then n itself and whether it was cut. So the sites' mean is the total over that of the n, and is off by half a
level at the most. Sums of integers (`ridge`) are added unchanged. All is modulo 2^32 where the largest
total has room there, else modulo 2^64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.config.resolved import Config
from common.errors import ConfigError, PayloadError
from common.privacy.accounting import SKELLAM, gaussian_like
from common.privacy.events import Event
from common.secret.cohort import shares_of
from common.specs.updates import is_model
from common.wire.bundle import Bundle, BundleSpec, leaves
from common.wire.form import Payload, Spec, TensorSpec
from common.wire.tensors import Tensors, TensorsSpec
from common.wire.weights import Weights, WeightsSpec
from synth.private_release import grid_of
from synth.ridge_regression import MOST

Whole = NDArray[np.int64]
Words = NDArray[Any]

MASKED, ACCUSED = "masked", "accused"
"""The tensors of a masked vector, and of which senders' shares its site could not read: a 1 for each of these."""

#: bits of a level, at least and at most, in the length that an update is cut to
_COARSEST, _FINEST = 20, 32

#: deviations of noise that never come, for which the modulus has room
_NEVER = 1000

#: deviations by which noise makes a total longer than it is in the mean, at the most: the chance is below e^-50
_LONGER = 10

#: the numbers that follow a vector: the site's weight, and whether its update was cut
_TAIL = 2


@dataclass(frozen=True)
class Total:
    """The result of a sum: the mean payload of its sites, the sum of their weights, how many updates were clipped."""

    payload: Payload
    weight: int
    shortened: int


@dataclass(frozen=True)
class SumForm:
    """How the sites of a run add up what each would have sent by itself.

    Parameters
    ----------
    spec : Spec
        The form of that: weights, bundles of them, or integers of eight bytes (`Tensors`).
    sites : int
        How many were asked.
    most_weight : int
        A site's weight at the most.
    clip : float
        C.
    largest : int
        The largest number for one unit of weight, where the levels do not give it: for integers, and under noise.
    grid : float
        Under noise on updates: the level, to which they are cut towards 0, so that none becomes longer.
    noise : float
        Under noise on updates: the deviation of one site's share, in levels.
    """

    spec: Spec
    sites: int
    most_weight: int
    clip: float
    largest: int = 0
    grid: float = 0.0
    noise: float = 0.0

    def __post_init__(self) -> None:
        """Refuse a sum for which there is no room, or of numbers that are no parameters, with a ConfigError."""
        for path, part in leaves(self.spec):
            if isinstance(part, WeightsSpec) and set(part.names) != set(part.trained):
                raise ConfigError(
                    "federation.secret adds up parameters, and this model has running statistics"
                    f"{f' in {path}' if path else ''}: set model.norm=group or instance, or model.statistics=local"
                )
        if self.sites * self.most_weight * self.most >= 2**63:
            raise ConfigError(
                f"federation.secret has no room for a total of {self.sites} sites with a weight of up to "
                f"{self.most_weight} each: lower federation.max_examples, or ridge.levels"
            )

    @cached_property
    def bits(self) -> int:
        """The bits of the modulus: 32 or 64."""
        return 32 if self._fine(32) >= (self.largest.bit_length() or _COARSEST) else 64

    @cached_property
    def most(self) -> int:
        """The largest number of a part for one unit of weight: L of updates."""
        return self.largest or 1 << min(_FINEST, max(_COARSEST, self._fine(self.bits)))

    def _fine(self, bits: int) -> int:
        """Return how many bits a number for one unit of weight may have, so that the largest total fits."""
        room: int = ((1 << (bits - 1)) - 1) // (self.sites * self.most_weight)
        return room.bit_length() - 1

    @property
    def step(self) -> float:
        """One level of an update."""
        return self.grid or self.clip / self.most

    @property
    def numbers(self) -> int:
        """How many numbers a vector has."""
        return _TAIL + sum(self._sizes())

    def _sizes(self) -> Iterator[int]:
        for _, part in leaves(self.spec):
            if isinstance(part, WeightsSpec):
                yield sum(map(math.prod, part.shapes))
            else:
                (form,) = part.tensors.values()
                yield form.shape[1]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The integer type in which vectors are added."""
        return np.dtype(f"<u{self.bits // 8}")

    def masked_spec(self, senders: int) -> TensorsSpec:
        """Return the form of a masked vector, of any numbers, and of the reports on so many senders, if any."""
        form = torch.int32 if self.bits == 32 else torch.int64
        half = 2 ** (self.bits - 1)
        parts = {MASKED: TensorSpec((self.numbers,), -half, half - 1, form)}
        if senders:
            parts[ACCUSED] = TensorSpec((senders,), 0, 1, torch.uint8)
        return TensorsSpec(parts)

    # ---- at a site --------------------------------------------------------------------------------

    def summand(
        self,
        made: Payload,
        sent: Weights | None,
        weight: int,
        noise: Callable[[Tensor], Tensor] | None = None,
    ) -> Words:
        """Return a site's part.

        Parameters
        ----------
        made : Payload
            What the site would have sent by itself.
        sent : Weights or None
            The model that it was sent, of which it has made another.
        weight : int
            n.
        noise : callable, optional
            Adds a share of the noise to the numbers, int64 [n].
        """
        if not 1 <= weight <= self.most_weight:
            raise PayloadError(
                f"this site has {weight} examples where federation.max_examples allows {self.most_weight}"
            )
        parts, cut = [], False
        for (path, part), (_, form) in zip(leaves(made), leaves(self.spec), strict=True):
            if isinstance(part, Tensors):
                (levels,) = part.tensors.values()
                parts.append(levels.mT.contiguous().view(torch.int64).flatten().numpy())
                continue
            update = _flat(part, form.names)
            if is_model(path) and sent is not None:
                update -= _flat(sent, form.names)
            length = float(np.linalg.norm(update))
            if not math.isfinite(length) and self.grid:  # nothing is refused for what was read
                update[:] = length = 0.0
            if not math.isfinite(length):
                raise PayloadError(
                    "its update is not finite, and is not added: lower a learning rate"
                )
            if length > self.clip:
                update *= self.clip / length
                cut = not self.grid
            rounded = (np.trunc if self.grid else np.rint)(update / self.step)
            parts.append(rounded.astype(np.int64) * weight)
        body = np.concatenate(parts)
        if noise is not None:
            body = noise(torch.from_numpy(body)).numpy()
        return self.words(np.concatenate([body, np.array([weight, int(cut)])]))

    def words(self, numbers: Whole) -> Words:
        """Return the integers that are added."""
        return numbers.astype(self._signed).view(self.dtype)

    def payload(self, words: Words, accused: Sequence[bool] = ()) -> Tensors:
        """Return the payload of masked words, with the reports on their senders."""
        parts = {MASKED: torch.from_numpy(words.view(self._signed))}
        if accused:
            parts[ACCUSED] = torch.tensor(accused, dtype=torch.uint8)
        return Tensors(parts)

    @property
    def _signed(self) -> np.dtype[Any]:
        return np.dtype(f"<i{self.bits // 8}")

    # ---- at the server ----------------------------------------------------------------------------

    def total(self, words: Words, sites: int, base: Weights, weighing: int = 0) -> Total:
        """Return the mean that a sum of so many ``sites`` encodes, whose model was ``base``.

        ``weighing`` is how much they weigh together, where that is known.
        """
        numbers = words.view(self._signed).astype(np.int64)
        body, (weight, shortened) = numbers[:-_TAIL], numbers[-_TAIL:].tolist()
        inside = sites <= weight <= sites * self.most_weight and 0 <= shortened <= sites
        inside = inside and weight == (weighing or weight) and self._is_short(body, weight, sites)
        largest = max(int(body.max(initial=0)), -int(body.min(initial=0)))
        if not inside or largest > weight * self.most:
            raise PayloadError(
                f"the total is beyond what {sites} sites can add up to: one of them sent something else, and "
                "it is unknown which one"
            )
        return Total(self._payload(body, weight, base), weight, shortened)

    def _is_short(self, body: Whole, weight: int, sites: int) -> bool:
        """Return whether each part of a total is no longer than its sites can make it; of `ridge`, any is.

        For a unit of weight that is the length to which updates are cut, and half a level for each of P numbers that
        is rounded: L + sqrt(P) / 2. Noise of the deviation s in each adds s (sqrt(P) + 10) at the most.
        """
        at, rounded = 0, 0.0 if self.grid else 0.5
        for size in () if isinstance(self.spec, TensorsSpec) else self._sizes():
            longest = weight * (self.clip / self.step + rounded * math.sqrt(size))
            longest += self.noise * math.sqrt(sites) * (math.sqrt(size) + _LONGER)
            if np.linalg.norm(body[at : at + size].astype(np.float64)) > longest:
                return False
            at += size
        return True

    def _payload(self, body: Whole, weight: int, base: Weights) -> Payload:
        if isinstance(self.spec, TensorsSpec):
            (name,) = self.spec.tensors
            bytes_of = torch.from_numpy(body.copy()).view(torch.uint8).view(-1, 8)
            return Tensors({name: bytes_of.mT.contiguous()})
        mean, parts, at = body * (self.step / weight), dict[str, Payload](), 0
        for (path, form), size in zip(leaves(self.spec), self._sizes(), strict=True):
            parts[path] = _shaped(mean[at : at + size], form, base if is_model(path) else None)
            at += size
        return Bundle(parts) if isinstance(self.spec, BundleSpec) else parts[""]


def _flat(part: Payload, names: Sequence[str]) -> NDArray[np.float64]:
    """Return the tensors of a part one after the other, float64, in memory of their own."""
    assert isinstance(part, Weights)
    each = part.read_only
    return torch.cat([each[name].detach().cpu().double().flatten() for name in names]).numpy()


def _shaped(mean: NDArray[Any], form: WeightsSpec, base: Weights | None) -> Weights:
    """Return numbers as tensors, added to those of ``base``."""
    tensors, at = {}, 0
    for name, shape, dtype in zip(form.names, form.shapes, form.dtypes, strict=True):
        size = math.prod(shape)
        tensor = torch.from_numpy(mean[at : at + size]).view(shape)
        tensors[name] = (tensor if base is None else base.read_only[name].double() + tensor).to(
            dtype
        )
        at += size
    return Weights(tensors)


def spec_of(model: WeightsSpec, made: Payload) -> Spec:
    """Return the form of what a phase made, in the order of the run's ``model``."""
    if isinstance(made, Bundle):
        return BundleSpec({name: spec_of(model, part) for name, part in made.parts.items()})
    if isinstance(made, Weights):
        return model.only(made.read_only)
    assert isinstance(made, Tensors)
    return TensorsSpec(
        {n: TensorSpec(tuple(t.shape), 0, 255, t.dtype) for n, t in made.tensors.items()}
    )


def by_counts(config: Config) -> bool:
    """Return whether a site weighs as many as it has examples."""
    return not config.private and getattr(config.settings, "weighting", "counts") == "counts"


def form_of(config: Config, spec: Spec, asked: int) -> SumForm:
    """Return how ``asked`` sites of a run add up what each would send as ``spec``; ConfigError if they cannot."""
    federation, noise, grid = config.federation, config.privacy.noise_multiplier, 0.0
    share = 0.0
    levels: int = getattr(config.settings, "levels", 0)  # ridge's, of integer rows
    largest = int(MOST * levels) ** 2
    if config.clips_updates:
        grid = grid_of(noise, federation.secret_clip)
        largest = int(federation.secret_clip * (1 + _NEVER * noise) / grid)
        share = noise * federation.secret_clip / grid / math.sqrt(shares_of(federation))
    elif config.private:  # rows no longer than 1, on a grid that is no finer than this
        largest = int((federation.max_examples + _NEVER * noise) / grid_of(noise, 1.0))
    weight = federation.max_examples if by_counts(config) else 1
    return SumForm(spec, asked, weight, federation.secret_clip, largest, grid, share)


def event_of(config: Config, form: SumForm, share: float, *, lengths: int) -> Event:
    """Return the privacy event of a total of updates with ``share`` times the variance that the run needs.

    ``lengths`` is how far it is moved, in C: 1 by a complete update that is there or not, 2 by one update in place
    of another, for any change of the site's examples.
    """
    noise = config.privacy.noise_multiplier * math.sqrt(share)
    steps = lengths * form.clip / form.grid
    return Event(f"{SKELLAM} updates", gaussian_like(noise / lengths, steps, form.numbers))
