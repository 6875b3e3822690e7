"""Where synthetic images start: at noise, plain or smooth, at means of a class or of few images, at real images.

Each start takes the real samples' classes ``labels``, int64 [n]; ``ipc``, the images of each class that these hold, 1
or more; an image's ``shape`` (C, H, W), or ``inputs``, which gives the normalised images, float [b, C, H, W], for
indices int64 [b]; and the source of its draws, on the labels' device. It returns images, float32 [m, C, H, W], and
their labels, int64 [m], ascending.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import interpolate
from torch.nn.utils import get_total_norm

MEAN_OF = 10
"""The fewest images of a class of which its mean is a start."""

BESIDE_MEAN = 0.5
"""The standard deviation of the smooth noise upon a class's mean."""

_COARSER, _PIECE = 4, 256


def noise_start(
    labels: Tensor, ipc: int, shape: tuple[int, int, int], generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return ``ipc`` images of standard Gaussian noise for every class that ``labels`` holds.

    Noise of unit variance in the normalised space has the scale of real images and no trace of
    them.
    """
    classes = torch.unique(labels).repeat_interleave(ipc)
    images = torch.randn(len(classes), *shape, generator=generator, device=labels.device)
    return images, classes


def real_start(
    inputs: Callable[[Tensor], Tensor], labels: Tensor, ipc: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return ``ipc`` random real images for every class that ``labels`` holds, without replacement.

    A class with fewer than ``ipc`` images gives each of them once. Their mean is then the class's own,
    so that matching, which moves means alone, has little or nothing to change them by: they leave as
    they are. The images are in memory of their own.
    """
    batches = ClassBatches.plan(labels, ipc)
    return inputs(batches.draw(generator)).clone(), batches.labels


def smooth_noise(images: int, shape: tuple[int, int, int], generator: torch.Generator) -> Tensor:
    """Return noise of low frequencies: Gaussian on a grid a quarter as fine, blown up bilinearly.

    It is scaled to a mean square of 1 over the complete set, as plain noise has it, and nothing else is done to it.

    Parameters
    ----------
    images
        How many, at least 1.
    shape
        An image's (channels, height, width). Its grid has a quarter of each side, rounded up, and at least 2.
    generator
        The source of the noise; its device is the images'.

    Returns
    -------
    float32 [images, C, H, W].
    """
    channels, *sides = shape
    grid = [max(2, -(-side // _COARSER)) for side in sides]
    noise = torch.randn(images, channels, *grid, generator=generator, device=generator.device)
    smooth = interpolate(noise, size=sides, mode="bilinear", align_corners=False)
    return smooth * smooth.square().mean().rsqrt()


def smooth_start(
    labels: Tensor, ipc: int, shape: tuple[int, int, int], generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return ``ipc`` images of `smooth_noise` for every class that ``labels`` holds: no trace of real ones."""
    classes = torch.unique(labels).repeat_interleave(ipc)
    return smooth_noise(len(classes), shape, generator), classes


def mean_start(
    inputs: Callable[[Tensor], Tensor],
    labels: Tensor,
    ipc: int,
    shape: tuple[int, int, int],
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Return ``ipc`` times the mean of every class with smooth noise of deviation ``BESIDE_MEAN`` upon it.

    A class with fewer than ``MEAN_OF`` images begins as `smooth_start` has it: the mean of few shows them.
    """
    images, classes = smooth_start(labels, ipc, shape, generator)
    for one in torch.unique(labels):
        held = (labels == one).nonzero().flatten()
        if len(held) >= MEAN_OF:
            at = classes == one
            images[at] = images[at] * BESIDE_MEAN + _mean(inputs, held)
    return images, classes


def mix_start(
    inputs: Callable[[Tensor], Tensor],
    labels: Tensor,
    ipc: int,
    of: int,
    shape: tuple[int, int, int],
    generator: torch.Generator,
    *,
    small_as_noise: bool = True,
) -> tuple[Tensor, Tensor]:
    """Return ``ipc`` means of ``of`` distinct images of a class, for every class that ``labels`` holds.

    The images of one mean are drawn without replacement, those of different means by themselves. Such a mean has
    1 / sqrt(``of``) of an image's deviation from the class's mean; nothing is done about that.

    Parameters
    ----------
    of
        Images a mean, K, at least 1.
    small_as_noise
        Whether a class with fewer than ``of`` images begins as smooth noise; else it is left out.
    """
    images, classes = smooth_start(labels, ipc, shape, generator)
    kept = torch.ones_like(classes, dtype=torch.bool)
    for one in torch.unique(labels):
        held = (labels == one).nonzero().flatten()
        if len(held) < of:
            kept &= small_as_noise | (classes != one)
            continue
        for place in (classes == one).nonzero().flatten():
            drawn = torch.randperm(len(held), generator=generator, device=labels.device)[:of]
            images[place] = _mean(inputs, held[drawn])
    return images[kept], classes[kept]


def _mean(inputs: Callable[[Tensor], Tensor], positions: Tensor) -> Tensor:
    """Return the mean of the images at ``positions``, summed in pieces that bound memory."""
    total = torch.stack([inputs(piece).sum(0) for piece in torch.split(positions, _PIECE)]).sum(0)
    return total / len(positions)


# ---- batch starts --------------------------------------------------------------------------------
# Where the synthetic batches of FedSynth start: labels by frequency; noise, or class means under noise.


def draw_labels(pool: Tensor, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Return labels of ``shape``, int64, each drawn from ``pool`` [n], so by the classes' frequencies.

    Each is drawn by itself: for text the targets of a sequence are single tokens, never a sequence
    that was written by hand.
    """
    places = torch.randint(len(pool), shape, generator=generator, device=pool.device)
    return pool[places]


def even_labels(classes: int, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Return labels of ``shape``, int64, each class as often as any other, or once more, in an order that is drawn."""
    count = math.prod(shape)
    order = torch.randperm(count, generator=generator, device=generator.device)
    first = torch.randperm(classes, generator=generator, device=generator.device)
    return first[order % classes].view(shape)


def mean_inputs(inputs: Tensor, targets: Tensor, classes: int) -> Tensor:
    """Return the mean input of every class, [classes, ...]; zero for a class without one.

    For text ``inputs`` are vectors [n, T, d] with a target each, [n, T], and the mean of a class is
    that of the vectors behind which its token came.

    Parameters
    ----------
    inputs
        float [*t, ...], the first dimensions those of ``targets``.
    targets
        int64 [*t].
    """
    flat = inputs.reshape(targets.numel(), *inputs.shape[targets.ndim :])
    sums = torch.zeros(classes, *flat.shape[1:], dtype=flat.dtype, device=flat.device)
    sums.index_add_(0, targets.reshape(-1), flat)
    counts = torch.bincount(targets.reshape(-1), minlength=classes).clamp_min(1)
    return sums / counts.reshape(-1, *[1] * (flat.ndim - 1)).to(flat.dtype)


# ---- ball ----------------------------------------------------------------------------------------
# The ball of radius rho around a round's weights, in which FedDM's surrogate holds.


@torch.no_grad()
def sample_ball(
    centre: Tensor, rho: float, generator: torch.Generator, *, out: Tensor | None = None
) -> Tensor:
    """Draw w ~ P_w(w_r) = Clip(N(w_r, I), rho), FedDM's weights around a round's weights.

    The noise runs over all parameters at once, and noise longer than ``rho`` is scaled to that
    length. In the dimension of a network the clip always binds: w is on the sphere.

    Parameters
    ----------
    centre
        w_r, flat, of shape [P].
    rho
        The ball's radius, at least 0; ``math.inf`` leaves the Gaussian as drawn.
    generator
        The source of the noise, on the device of ``centre``.
    out
        Where to write w, of the shape of ``centre``; by default a new tensor.

    Returns
    -------
    w, of shape [P]; the same tensor as ``out`` where that was given.
    """
    noise = torch.empty_like(centre) if out is None else out
    noise.normal_(generator=generator)
    return noise.mul_((rho / noise.norm()).clamp(max=1)).add_(centre)


@torch.no_grad()
def project_ball(parameters: Iterable[Tensor], centre: Iterable[Tensor], rho: float) -> None:
    """Project weights, in place, back into the ball of radius ``rho`` around ``centre``.

    Weights inside the ball are left as they are, to the bit. Nothing is copied between host and
    device.

    Parameters
    ----------
    parameters
        The weights w, tensor by tensor, as ``model.parameters()`` gives them.
    centre
        w_r in the same order and shapes; none of its tensors shares memory with
        ``parameters``.
    rho
        The ball's radius, at least 0.
    """
    weights = list(parameters)
    offsets = [weight - middle for weight, middle in zip(weights, centre, strict=True)]
    excess = (rho / get_total_norm(offsets)).clamp(max=1) - 1
    for weight, offset in zip(weights, offsets, strict=True):
        weight.add_(offset * excess)


# ---- class batches -------------------------------------------------------------------------------
# Batches of so many samples of every class, drawn for all classes at once.


@dataclass(frozen=True)
class ClassBatches:
    """A plan that draws, class after class, a set number of samples without replacement.

    Only the random order changes from draw to draw; what place of a batch belongs to which class
    never does. So the class means of a batch's rows X are one product ``averages @ X``, the same
    sum in the same order on every device.

    Attributes
    ----------
    classes
        The classes in ascending order, int64 [C].
    slices
        The places of each class in a drawn batch, C slices one after the other.
    averages
        Row c holds 1/b_c at the places of class c and 0 elsewhere, [C, b].
    """

    classes: Tensor
    slices: tuple[slice, ...]
    averages: Tensor
    _by_class: Tensor
    _rank: Tensor
    _picks: Tensor

    @classmethod
    def plan(
        cls,
        labels: Tensor,
        size: int = 0,
        *,
        dtype: torch.dtype | None = None,
    ) -> ClassBatches:
        """Return the plan for samples with these ``labels``.

        Parameters
        ----------
        labels
            The samples' classes, int64 [n]; their device is the plan's.
        size
            Samples a class in a batch; a class with fewer gives all it has. 0 means all.
        dtype
            The type of ``averages``; by default torch's default type.

        Raises
        ------
        ValueError
            There are no labels.
        """
        if labels.ndim != 1 or labels.numel() == 0:
            raise ValueError(f"labels must be a list of at least one, not {tuple(labels.shape)}")
        classes, rank, counts = torch.unique(labels, return_inverse=True, return_counts=True)
        by_class = rank.argsort(stable=True)
        picks, slices, first, place = [], [], 0, 0
        for count in counts.tolist():
            taken = min(size or count, count)
            picks.append(first + torch.arange(taken))
            slices.append(slice(place, place + taken))
            first, place = first + count, place + taken
        averages = torch.zeros(len(slices), place, dtype=dtype)
        for row, where in enumerate(slices):
            averages[row, where] = 1 / (where.stop - where.start)
        return cls(
            classes=classes,
            slices=tuple(slices),
            averages=averages.to(labels.device),
            _by_class=by_class,
            _rank=rank[by_class].double(),
            _picks=torch.cat(picks).to(labels.device),
        )

    def draw(self, generator: torch.Generator) -> Tensor:
        """Return a batch's indices into the labels, int64 [b]: class-major, each class shuffled."""
        # One sort shuffles within every class: the class's rank separates classes, the fraction
        # orders its samples (double, so that the fraction keeps its bits next to a rank in the
        # hundreds).
        fraction = torch.rand(
            self._rank.shape, generator=generator, dtype=torch.double, device=self._rank.device
        )
        return self._by_class[(self._rank + fraction).argsort()[self._picks]]

    @property
    def labels(self) -> Tensor:
        """The classes of a drawn batch, the same for every draw, int64 [b]."""
        return self.classes.repeat_interleave(
            torch.tensor([s.stop - s.start for s in self.slices], device=self.classes.device)
        )
