"""The model of sums of features: frozen random filters, principal axes of images drawn by code, a linear layer.

Features without any training, after Coates and Ng (2011). What is drawn is drawn by the run's seed, so that server and
sites have the same model and none is sent. At its end is the model of a second round of sums.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from torch import Tensor, nn

from common.models.classifier import Classifier
from common.models.convnet import ConvNet
from common.storage.files import cache_folder
from common.storage.tensor_file import TensorFileError, load, save

DRAWN = 2000
"""The drawn images whose features give mean, deviation and axes; twice as many as axes where that is more."""

_NEAR, _COLOUR, _FLOOR = 4.0, 0.5, 0.3
"""The covariance of patches: exp(-distance / 4 pixels), times 0.5 between channels, and 0.3 on the diagonal."""

_FAINT, _THRESHOLD, _POWER = 0.3, 0.8, 0.7
"""Answers at a place are divided by their usual size there, as if that were 0.3 larger; less than 0.8 is 0."""


_CHANNELS = 32
"""Channels of the untrained network."""


class RandomFilters(nn.Module):
    """Images [n, C, H, W] -> features [n, ``size``], of each image alone: nothing is learned.

    An image is normalised by its contrast and shown to 128 filters of 6x6, 64 of 4x4 and 64 of 6x6 at half its size, at
    stride 2; one of less than 16 pixels to 256 of 3x3 at stride 1. Of both signs of their answers it has powers of
    the means over 2x2 parts, of one channel 3x3: 2,048 and 4,608 numbers.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        channels, least = shape[0], min(shape[1:])
        large = least >= 16
        banks = ((128, 6), (64, 4), (64, 6)) if large else ((256, min(3, least)),)
        self.stride, self.cells = 2 if large else 1, 2 if channels > 1 else 3
        for place, (count, side) in enumerate(banks):
            self.register_buffer(f"bank{place}", torch.empty(count, channels, side, side))
        self.size = 2 * self.cells**2 * 256

    @torch.no_grad()
    def fill(self, draws: torch.Generator) -> None:
        """Draw the filters: normal ones, times the inverse root of the patches' covariance."""
        for filters in self.buffers():
            channels, side = filters.shape[1:3]
            places = torch.cartesian_prod(*[torch.arange(side, dtype=torch.float64)] * 2)
            near = torch.exp(-torch.cdist(places, places) / _NEAR)
            alike = torch.full((channels, channels), _COLOUR).double().fill_diagonal_(1)
            values, vectors = torch.linalg.eigh(torch.kron(alike, near))
            root = vectors @ ((values + _FLOOR).rsqrt()[:, None] * vectors.mT)
            filters.copy_((_normal(draws, len(filters), len(root)) @ root).view(filters.shape))

    def forward(self, x: Tensor) -> Tensor:
        """Return the features, in the dtype of ``x``."""
        x = F.avg_pool2d(x, _shrunk(x.shape))
        x = x - x.mean((1, 2, 3), keepdim=True)
        x = x / ((x.square().mean((1, 2, 3), keepdim=True) + 1e-6).sqrt() + 0.1)
        pooled = []
        for place, filters in enumerate(self.buffers()):
            seen = F.avg_pool2d(x, 2) if place == 2 else x
            answers = F.conv2d(seen, filters.to(x.dtype), stride=self.stride)
            answers = answers / (answers.square().mean(1, keepdim=True) + _FAINT**2).sqrt()
            pooled += [_means(F.relu(sign * answers - _THRESHOLD), self.cells) for sign in (1, -1)]
        return (torch.cat(pooled, 1) + 1e-6) ** _POWER


class RandomNetwork(nn.Module):
    """Images [n, C, H, W] -> the embedding [n, ``size``] of an untrained ConvNet, of each image alone.

    Blocks of [3x3 convolution with 32 channels, instance norm, ReLU, 2x2 average pool] until a side has about 4 pixels,
    three at most: 512 numbers of an image of 32x32 or 8x8.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        channels, *sides = (shape[0], *(side // _shrunk(shape) for side in shape[1:]))
        depth = max(1, min(3, round(math.log2(min(sides) / 4))))
        for block in range(depth):
            kernel = torch.empty(_CHANNELS, _CHANNELS if block else channels, 3, 3)
            self.register_buffer(f"kernel{block}", kernel)
        self.size = _CHANNELS * math.prod(max(1, side >> depth) for side in sides)

    @torch.no_grad()
    def fill(self, draws: torch.Generator) -> None:
        """Draw the kernels, as torch does a convolution's: uniform, within 1 / sqrt(fan-in)."""
        for kernel in self.buffers():
            kernel.copy_((2 * _uniform(draws, *kernel.shape) - 1) / kernel[0].numel() ** 0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Return the embedding, in the dtype of ``x``."""
        x = F.avg_pool2d(x, _shrunk(x.shape))
        for kernel in self.buffers():
            maps = F.conv2d(x, kernel.to(x.dtype), padding=1)
            x = F.avg_pool2d(F.relu(F.instance_norm(maps)), 2)
        return x.flatten(1)


def _shrunk(shape: tuple[int, ...]) -> int:
    """Return the factor that averages a picture down to 32 pixels or little more, so that filters fit any picture."""
    return max(1, min(shape[-2:]) // 32)


def _means(maps: Tensor, cells: int) -> Tensor:
    """Return the means of maps [n, c, h, w] over cells x cells parts of nearly equal size: [n, c cells cells]."""
    down, across = (
        [
            slice(i * side // cells, max(i * side // cells + 1, (i + 1) * side // cells))
            for i in range(cells)
        ]
        for side in maps.shape[2:]
    )
    return torch.cat(
        [maps[:, :, rows, columns].mean((2, 3)) for rows in down for columns in across], 1
    )


@dataclass(frozen=True)
class Axes:
    """z = features @ axes - offset, [F, K] and [K], and each axis' deviation over the images it is of, [K]."""

    axes: Tensor
    offset: Tensor
    spread: Tensor

    def followed_by(self, *others: Axes) -> Axes:
        """Return the axes of these features followed by those of ``others``."""
        every = (self, *others)
        offset, spread = (torch.cat([getattr(a, n) for a in every]) for n in ("offset", "spread"))
        blocks = torch.block_diag(*[a.axes for a in every])  # type: ignore[no-untyped-call]
        return Axes(blocks, offset, spread)


class RidgeModel(Classifier):
    """A linear layer on ``width`` - 1 axes of frozen features: the embedding is z, [n, K].

    Of an image, features are those of `RandomFilters`, in colour the mean with its mirror image's, and axes the first
    principal ones of images drawn by code. Of a row or a series, features are its numbers as they are, or as many
    random directions in them as there is room for.

    Parameters
    ----------
    shape
        An image's (channels, height, width), a row's (columns, 1, 1), a series' (channels, 1, steps).
    width
        Axes and the constant, at least 2: that many numbers represent an example. `Axes` are its buffers.
    embedding
        How many of the axes, the last ones, are in a `RandomNetwork`'s embedding instead of the filters' answers.
    """

    axes: Tensor
    offset: Tensor
    spread: Tensor

    def __init__(
        self, shape: tuple[int, ...], classes: int, *, width: int = 257, embedding: int = 0
    ) -> None:
        super().__init__(shape)
        if width < 2:
            raise ValueError(
                f"a ridge model needs an axis besides the constant, not width {width} (ridge.width)"
            )
        pictures = min(shape[1:]) > 1
        self.mirrored = pictures and shape[0] > 1
        self.filters = RandomFilters(shape) if pictures else None
        self.network = RandomNetwork(shape) if pictures and embedding else None
        self.size = self.filters.size if self.filters else math.prod(shape)
        deep = self.network.size if self.network else 0
        own = min(embedding, deep)
        kept = min(width - 1 - own, self.size) + own
        self.parts = ((self.size, kept - own), (deep, own))
        self.size += deep
        for name, size in (("axes", (self.size, kept)), ("offset", (kept,)), ("spread", (kept,))):
            self.register_buffer(name, torch.empty(*size))
        self.head = nn.Linear(kept, classes)

    def features(self, x: Tensor) -> Tensor:
        """Return the features [n, F] that axes are taken of."""
        if self.filters is None:
            return x.flatten(1)
        features = self._of_picture(x)
        return (features + self._of_picture(x.flip(3))) / 2 if self.mirrored else features

    def _of_picture(self, x: Tensor) -> Tensor:
        return torch.cat([bank(x) for bank in (self.filters, self.network) if bank is not None], 1)

    def embed(self, x: Tensor) -> Tensor:
        """Return each example's place along the axes, [n, K], in the dtype of ``x``."""
        return self.features(x) @ self.axes.to(x.dtype) - self.offset.to(x.dtype)

    @torch.no_grad()
    def draw(self, generator: torch.Generator) -> None:
        """Draw filters and axes, as a layer's start."""
        seed = int(torch.randint(2**62, (1,), generator=generator, device=generator.device))
        shape, kept = tuple(self.continuous_shape), self.axes.shape[1]
        drawn = _drawn(shape, kept, self.parts[1][1], seed)
        for buffer, values in zip(self.buffers(), drawn, strict=True):
            buffer.copy_(values)

    @torch.no_grad()
    def turn(self, axes: Axes) -> None:
        """Replace the axes by as many others."""
        for name, values in vars(axes).items():
            self.get_buffer(name).copy_(values)

    def along(self, features: Tensor, draws: torch.Generator | None = None) -> Axes:
        """Return as many axes as it has in features float64 [n, F], the filters' and the network's each by itself."""
        parts = torch.split(features, [size for size, _ in self.parts], 1)
        filters, *network = [
            along(part, kept, draws)
            for part, (_, kept) in zip(parts, self.parts, strict=True)
            if kept
        ]
        return filters.followed_by(*network)


def along(features: Tensor, kept: int, draws: torch.Generator | None = None) -> Axes:
    """Return the first principal axes of standardised features, float64 [n, F], or random ones at right angles."""
    mean, deviation = features.mean(0), features.std(0, correction=0).clamp_min(1e-9)
    rows = (features - mean) / deviation
    if draws is not None:
        basis = torch.linalg.qr(_normal(draws, rows.shape[1], kept))[0]
    else:  # of the smaller of the two matrices that have the same eigenvalues
        few = len(rows) < rows.shape[1]
        basis = torch.linalg.eigh(rows @ rows.mT if few else rows.mT @ rows)[1].flip(1)[:, :kept]
        basis = F.normalize(rows.mT @ basis, dim=0) if few else basis
        # the largest part above 0: a sign is the machine's
        basis = basis * basis.gather(0, basis.abs().argmax(0, keepdim=True)).sign()
    axes = basis / deviation[:, None]
    return Axes(axes, mean @ axes, (rows @ basis).square().mean(0).sqrt().clamp_min(1e-9))


def own_axes(model: RidgeModel, draws: torch.Generator, *, random: bool = False) -> Axes:
    """Return axes that no data have a part in: the principal ones of drawn images, or random ones."""
    kept = model.axes.shape[1]
    if model.filters is None:
        unit, none = (
            torch.eye(model.size, dtype=torch.float64),
            torch.zeros(kept, dtype=torch.float64),
        )
        if kept == model.size:
            return Axes(unit, none, none + 1)
        return along(torch.cat([unit, -unit]) * model.size**0.5, kept, draws)
    channels, *sides = model.continuous_shape
    small = (channels, *(side // _shrunk(model.continuous_shape) for side in sides))
    images = drawn_images(small, max(DRAWN, 2 * kept), draws)
    # In float64, so that two machines find the same axes.
    features = torch.cat([model.features(part) for part in torch.split(images, 250)])
    return model.along(features, draws if random else None)


@lru_cache(maxsize=8)
@torch.no_grad()
def _drawn(shape: tuple[int, ...], kept: int, embedding: int, seed: int) -> tuple[Tensor, ...]:
    """Return the values of a model's buffers: of pictures, computed once on a machine, since that takes seconds."""
    draws = torch.Generator().manual_seed(seed)
    model = RidgeModel(shape, 2, width=kept + 1, embedding=embedding)
    if model.filters is None:
        model.turn(own_axes(model, draws))
        return tuple(model.buffers())
    file = _file_of((shape, kept, embedding, seed))
    buffers = dict(model.named_buffers())
    stored = _stored(file, buffers) if file else None
    if stored is not None:
        return stored
    model.filters.fill(draws)
    if model.network is not None:
        model.network.fill(torch.Generator().manual_seed(seed ^ 1))  # the others are as without it
    model.turn(own_axes(model, draws))
    if file:
        _store(file, buffers)
    return tuple(buffers.values())


_FILES = 32
"""How many models' axes stay in the user's cache; the oldest file goes first."""


def _file_of(asked: tuple[object, ...]) -> Path | None:
    """Return where this release's axes are kept, by all that decides their bits; None for a user without a home."""
    cache = cache_folder()
    if cache is None:
        return None
    code = Path(__file__).read_bytes()
    key = repr((asked, torch.__version__)).encode()
    return cache / "axes" / f"{hashlib.sha256(key + code).hexdigest()[:32]}.safetensors"


def _stored(file: Path, like: Mapping[str, Tensor]) -> tuple[Tensor, ...] | None:
    """Return buffers as they were stored; None if they are missing or of another form."""
    try:
        tensors, _ = load(file)
    except TensorFileError:
        return None
    fits = all(n in tensors and tensors[n].shape == t.shape for n, t in like.items())
    return tuple(tensors[n].to(t.dtype) for n, t in like.items()) if fits else None


def _store(file: Path, buffers: Mapping[str, Tensor]) -> None:
    """Keep buffers for the processes after this one; where nothing can be written, each computes its own."""
    with suppress(OSError, SafetensorError):
        file.parent.mkdir(parents=True, exist_ok=True)
        save(file, buffers, {}, flushed=False)
        by_age = sorted(file.parent.glob("*.safetensors"), key=lambda f: f.stat().st_mtime)
        for old in by_age[:-_FILES]:
            old.unlink()


# ---- drawn images --------------------------------------------------------------------------------
# Pictures of nothing, by code: smooth random fields with shapes upon them; of one channel, strokes and blobs.


def drawn_images(shape: tuple[int, ...], count: int, draws: torch.Generator) -> Tensor:
    """Return images of no data, float64 [count, C, H, W], whose features are spread about as those of pictures."""
    channels, height, width = shape
    sides = [(torch.arange(n).double() * 2 + 1 - n) / max(height, width) for n in (height, width)]
    grid = torch.stack(torch.meshgrid(*sides, indexing="ij"))  # the longer side from -1 to 1
    if channels == 1:
        return _strokes(count, grid, draws)[:, None]
    images = _fields(count, channels, grid, draws)
    for _ in range(4):
        there = _uniform(draws, count, 1, 1, 1) < 0.6
        cover = (
            there
            * _shape(count, grid, draws)[:, None]
            * (0.5 + 0.5 * _uniform(draws, count, 1, 1, 1))
        )
        colour = _normal(draws, count, 1, 1, 1) + 0.5 * _normal(draws, count, channels, 1, 1)
        images += cover * (1.5 * colour + 0.3 * _fields(count, channels, grid, draws) - images)
    return images


def _fields(count: int, channels: int, grid: Tensor, draws: torch.Generator) -> Tensor:
    """Return random fields whose amplitude falls with frequency, by a power of each image's own; mostly grey."""
    height, width = grid.shape[1:]
    rates = (
        torch.fft.fftfreq(height)[:, None].double() ** 2 + torch.fft.rfftfreq(width).double() ** 2
    )
    power = 1.0 + 0.5 * _uniform(draws, count, 1, 1, 1)
    fall = rates.sqrt().clamp_min(1 / max(height, width)) ** -power
    noise = torch.fft.rfft2(_normal(draws, count, channels + 1, height, width))
    fields: Tensor = torch.fft.irfft2(noise * fall, s=(height, width))
    fields = fields / fields.std((2, 3), keepdim=True).clamp_min(1e-9)
    return fields[:, :1] + 0.4 * fields[:, 1:]


def _shape(count: int, grid: Tensor, draws: torch.Generator) -> Tensor:
    """Return a soft ellipse, box or half-plane an image, somewhere and turned, from 0 to 1: [count, H, W]."""
    angle, half = 2 * math.pi * _uniform(draws, count), 0.1 + 0.6 * _uniform(draws, count, 2, 1, 1)
    turn = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], 1).view(count, 2, 2)
    moved = grid - 0.8 * (2 * _uniform(draws, count, 2, 1, 1) - 1)
    scaled = torch.einsum("nij,njhw->nihw", turn, moved) / half
    inside = [1 - scaled.square().sum(1).sqrt(), 1 - scaled.abs().amax(1), scaled[:, 0]]
    kind = torch.randint(3, (1, count, 1, 1), generator=draws).expand(1, count, *grid.shape[1:])
    sharp = half.amin(1) * (10 + 40 * _uniform(draws, count, 1, 1))
    return torch.sigmoid(torch.stack(inside).gather(0, kind)[0] * sharp)


def _strokes(count: int, grid: Tensor, draws: torch.Generator) -> Tensor:
    """Return bent strokes, with a blob on some, light on dark, [count, H, W]."""
    images = 0.02 * _normal(draws, count, *grid.shape[1:])
    step = torch.linspace(0, 1, 16).double().view(16, 1)
    for place in range(4):
        there = _uniform(draws, count, 1, 1) < (0.7 if place else 1.0)
        ends = 1.6 * _uniform(draws, 3, count, 1, 2) - 0.8
        path = (1 - step) ** 2 * ends[0] + 2 * step * (1 - step) * ends[1] + step**2 * ends[2]
        away = torch.cdist(path, grid.flatten(1).mT.expand(count, -1, -1)).amin(1).view_as(images)
        drawn = torch.sigmoid((0.06 + 0.12 * _uniform(draws, count, 1, 1) - away) * 25)
        images = torch.maximum(images, drawn * there * (0.6 + 0.4 * _uniform(draws, count, 1, 1)))
    blob = _shape(count, grid, draws) * (_uniform(draws, count, 1, 1) < 0.4)
    return torch.maximum(images, blob * _uniform(draws, count, 1, 1))


def _uniform(draws: torch.Generator, *size: int) -> Tensor:
    return torch.rand(*size, generator=draws, dtype=torch.float64)


def _normal(draws: torch.Generator, *size: int) -> Tensor:
    return torch.randn(*size, generator=draws, dtype=torch.float64)


class RidgeNetwork(Classifier):
    """Logits linear in [z, e]: z of a `RidgeModel`, which nothing trained, e a ConvNet's embedding.

    Parameters
    ----------
    depth, width, norm
        The ConvNet's.
    embedding
        The `RidgeModel`'s axes and its constant; 0: 257.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(
        self,
        shape: tuple[int, int, int],
        classes: int,
        *,
        depth: int = 3,
        width: int = 128,
        norm: str = "instance",
        embedding: int = 0,
    ) -> None:
        super().__init__(shape)
        self.fixed = RidgeModel(shape, classes, width=embedding or 257)
        self.fixed.head = nn.Identity()
        self.network = ConvNet(shape, classes, depth=depth, width=width, norm=norm)
        last = self.network.head
        assert isinstance(last, nn.Linear)
        size = last.in_features
        self.network.head = nn.Identity()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("deviation", torch.ones(size))
        self.head = nn.Linear(len(self.fixed.offset) + size, classes)

    @torch.no_grad()
    def draw(self, generator: torch.Generator) -> None:
        """Start from an existing embedding; all else is drawn by its own layers."""
        self.mean.zero_()
        self.deviation.fill_(1)

    @property
    def spread(self) -> Tensor:
        """Each number's deviation, [K + E]: of an axis that over drawn images, of the network's embedding 1."""
        return torch.cat([self.fixed.spread, torch.ones_like(self.deviation)])

    def seen(self, x: Tensor) -> Tensor:
        """Return the network's embedding [n, E] of images and, in colour, their mirror images, the mean of both."""
        e = self.network.embed(x)
        return (e + self.network.embed(x.flip(3))) / 2 if self.fixed.mirrored else e

    def embed(self, x: Tensor) -> Tensor:
        """Return [z, (e - mean) / deviation], [n, K + E]; e is of float32, as the network was trained."""
        e = (self.seen(x.to(self.mean.dtype)) - self.mean) / self.deviation
        return torch.cat([self.fixed.embed(x), e.to(x.dtype)], 1)
