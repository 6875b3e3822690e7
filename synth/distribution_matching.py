"""FedDM's distribution matching (Xiong et al. 2022).

It makes images whose features match those of a device's data near given weights.

The public code of the method runs over the classes, calls the network once for the embedding and
once for the logits, and records the real batch for a backward pass that never comes. Here the same
numbers come from one forward pass a batch, the real one unrecorded and in pieces, so that its
memory does not grow with the batch, and from one product for all class means.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from synth import augmentation
from synth.augmentation import Draw
from synth.descent import SGD, require_finite
from synth.starts import ClassBatches, sample_ball


@dataclass(frozen=True)
class MatchedImages:
    """A synthetic set, in the order of its classes.

    Attributes
    ----------
    images
        [m, C, H, W] in the normalised space.
    labels
        int64 [m], ascending.
    losses
        The matching loss (Eq. 9) before each step, [T]; each at weights and batches of its
        own.
    """

    images: Tensor
    labels: Tensor
    losses: Tensor


def distil(
    model: Embedder,
    inputs: Callable[[Tensor], Tensor],
    labels: Tensor,
    start: Tensor,
    start_labels: Tensor,
    matching: Matching,
    real_batch: int,
    generator: torch.Generator,
    *,
    extra: Extra | None = None,
) -> MatchedImages:
    """Distil a device's data into synthetic images by matching features around given weights.

    An iteration draws weights w ~ P_w, a real batch of every class and, if asked for, a synthetic
    one and an augmentation, and takes one SGD step on the images along the gradient of Eq. 9. The
    weights are drawn into a private copy of ``model``, in training mode: batch norm normalises by
    the batch, class by class, as the public code does. Nothing is copied between host and device
    inside the loop.

    Parameters
    ----------
    model
        An nn.Module at the round's weights w_r; not changed. Everything below lives on its
        device.
    inputs
        Gives the normalised real images, float [b, C, H, W], for indices int64 [b].
    labels
        The real images' classes, int64 [n].
    start
        The images to start from [m, C, H, W]: `noise_start`, `real_start`, or the last
        round's; not changed.
    start_labels
        Their classes, int64 [m], each with at least one real image. Classes not named
        are left out.
    matching
        How; with 0 iterations it returns the start, ordered by class.
    real_batch
        |B_c|, drawn without replacement; a class with fewer gives all it has.
    generator
        The source of every draw.
    extra
        What is minimised in addition to Eq. 9.

    Raises
    ------
    ValueError
        Inconsistent tensors, or a class without real images.
    FloatingPointError
        The images left the finite numbers; the message says from which
        iteration on.
    """
    _check(labels, start, start_labels)
    matcher = _Matcher(model, inputs, labels, start_labels, matching, real_batch, extra)
    by_class = start_labels.argsort(stable=True)
    images = start[by_class].detach().clone().requires_grad_()
    optimizer = SGD([images], matching.image_lr, momentum=matching.image_momentum)
    losses = []
    for draw in matching.steps(generator):
        loss = matcher.loss(images, draw, generator)
        (images.grad,) = torch.autograd.grad(loss, images)
        optimizer.step()
        losses.append(loss.detach())
    history = torch.stack(losses) if losses else images.new_empty(0)
    require_finite([images], "distillation", "the images' learning rate", history)
    return MatchedImages(images.detach(), start_labels[by_class], history)


class Embedder(Protocol):
    """The interface of a model for distribution matching; the classifiers of `common.models` have it."""

    @property
    def couples_samples(self) -> bool:
        """Whether samples of one batch see each other, as with batch norm in training mode."""

    def embed(self, x: Tensor) -> Tensor:
        """Return h [n, d] of images [n, C, H, W]."""

    def classify(self, h: Tensor) -> Tensor:
        """Return the logits z [n, classes] of embeddings [n, d]."""


@dataclass(frozen=True)
class Matching:
    """How images are matched, with privacy or without.

    Attributes
    ----------
    iterations
        T; 0 leaves the images as they begin.
    image_lr
        eta_c.
    image_momentum
        The momentum of the SGD on the images. The public code has 0.5, the paper's
        text plain SGD.
    rho
        The radius of P_w.
    syn_batch
        Synthetic images of a class in an iteration, drawn without replacement; 0 takes
        all.
    augment
        A DSA strategy such as "color_crop_cutout_flip_scale_rotate", or "" for none; one
        draw for real and synthetic images.
    real_precision
        torch.bfloat16 runs the real forward pass under autocast; the rest stays in
        float32.
    before_step
        Called ahead of every iteration, such as one that raises when the time is over.
    weights
        Draws the weights of an iteration around the first argument into the last one, both flat [P]; None draws them
        from P_w.
    logits
        Whether mean logits are matched in addition to mean embeddings.
    """

    iterations: int
    image_lr: float
    image_momentum: float
    rho: float
    syn_batch: int = 0
    augment: str = ""
    real_precision: torch.dtype = torch.float32
    before_step: Callable[[], None] | None = None
    weights: Callable[[Tensor, torch.Generator, Tensor], object] | None = None
    logits: bool = True

    def steps(self, generator: torch.Generator) -> Iterator[Draw | None]:
        """Yield the augmentation of each iteration as it begins; all are drawn before the first."""
        transforms = augmentation.parse(self.augment)
        for draw in augmentation.draws(transforms, self.iterations, generator):
            if self.before_step is not None:
                self.before_step()
            yield draw


@dataclass(frozen=True)
class Shown:
    """An iteration's view of the synthetic images, for a further term of its loss; gradients reach ``images``.

    Attributes
    ----------
    images
        The batch, [m, C, H, W] in the normalised space, after the iteration's augmentation.
    embeddings
        h, [m, d].
    logits
        z, [m, K].
    labels
        Their classes, int64 [m], ascending.
    averages
        [C, m]: the row of a class has 1 / m_c at its images.
    draws
        The source of the distillation's draws.
    """

    images: Tensor
    embeddings: Tensor
    logits: Tensor
    labels: Tensor
    averages: Tensor
    draws: torch.Generator


Extra = Callable[[Shown], Tensor]
"""A further term of a distillation's loss: a scalar."""


class _Matcher:
    """The prepared parts of all iterations for a synthetic set ordered by class: the private model, batch plans."""

    def __init__(
        self,
        model: Embedder,
        inputs: Callable[[Tensor], Tensor],
        labels: Tensor,
        start_labels: Tensor,
        matching: Matching,
        real_batch: int,
        extra: Extra | None,
    ) -> None:
        self.model, self.flat = flat_copy(model)
        self.centre, dtype = self.flat.clone(), self.flat.dtype
        self.inputs, self.matching, self.extra = inputs, matching, extra
        self.held = torch.isin(labels, start_labels).nonzero().flatten()
        self.real = ClassBatches.plan(labels[self.held], real_batch, dtype=dtype)
        ordered = start_labels.sort().values
        self.syn = ClassBatches.plan(ordered, matching.syn_batch, dtype=dtype)

    def loss(self, images: Tensor, draw: Draw | None, generator: torch.Generator) -> Tensor:
        """Return Eq. 9 at fresh weights and batches for the complete set ``images``."""
        how = self.matching
        if how.weights is None:
            sample_ball(self.centre, how.rho, generator, out=self.flat)
        else:
            how.weights(self.centre, generator, self.flat)
        batch = self.held[self.real.draw(generator)]
        if self.matching.syn_batch:
            images = images[self.syn.draw(generator)]

        def real_piece(piece: slice) -> Tensor:
            return augmentation.apply(self.inputs(batch[piece]), draw)

        # Where samples couple, a class at a time; else the real batch by size, the synthetic one at once.
        coupled, model = self.model.couples_samples, self.model
        with torch.no_grad():
            pieces = self.real.slices if coupled else batch_slices(len(batch), images)
            target = class_means(
                model, real_piece, pieces, self.real, how.real_precision, logits=how.logits
            )
        shown = augmentation.apply(images, draw)
        cut = self.syn.slices if coupled else (slice(None),)
        if self.extra is None:
            means = class_means(
                model, shown.__getitem__, cut, self.syn, torch.float32, logits=how.logits
            )
            return (target - means).square().sum()
        averages = self.syn.averages
        h = torch.cat([model.embed(shown[piece]) for piece in cut])
        z = model.classify(h)
        means = averages @ (torch.cat((h, z), 1) if how.logits else h)
        seen = Shown(shown, h, z, self.syn.labels, averages, generator)
        return (target - means).square().sum() + self.extra(seen)


def class_means(
    model: Embedder,
    images: Callable[[slice], Tensor],
    pieces: Iterable[slice],
    batches: ClassBatches,
    precision: torch.dtype,
    *,
    logits: bool = True,
) -> Tensor:
    """Return the means of h and z, or of h, for every class, [C, d + classes], summed piece by piece."""
    means: Tensor | None = None
    for piece in pieces:
        share = batches.averages[:, piece]
        rows = features(model, images(piece), precision, logits=logits).to(share.dtype)
        means = share @ rows if means is None else torch.addmm(means, share, rows)
    assert means is not None  # a plan holds at least one sample
    return means


def _check(labels: Tensor, start: Tensor, start_labels: Tensor) -> None:
    """Refuse tensors that do not belong together."""
    if len(start) != len(start_labels) or start.ndim != 4:
        raise ValueError(
            f"start images of shape {tuple(start.shape)} do not go with {len(start_labels)} "
            "labels: give [m, C, H, W] images and m labels"
        )
    lacking = torch.unique(start_labels[~torch.isin(start_labels, labels)])
    if len(lacking):
        raise ValueError(
            f"start images of classes {lacking.tolist()} have no real images to match: "
            "leave those classes out"
        )


# ---- matching parts ------------------------------------------------------------------------------
# What distribution matching is made of, with differential privacy and without.

# Pixels of a piece of the real batch, whose memory so does not grow with the number of classes. On
# a GPU so many that it is busy. On a CPU half, twice or eight times as many are no faster: with two
# threads the float32 pass took a tenth to a fifth longer, with one thread the same.
_PIECE_PIXELS = {"cpu": 1 << 15}
_PIECE_PIXELS_ELSEWHERE = 1 << 21


def features(
    model: Embedder,
    images: Tensor,
    precision: torch.dtype = torch.float32,
    *,
    logits: bool = True,
) -> Tensor:
    """Return h and z side by side, [n, d + classes], from one forward pass, or h alone.

    With ``precision`` bfloat16 the pass runs under autocast; with float32, in the model's own type.
    """
    mixed = precision == torch.bfloat16
    n = len(images)
    if n == 1 and model.couples_samples:
        # Batch norm makes the same of an image given twice, and torch takes no batch of one value a channel.
        images = images.repeat(2, 1, 1, 1)
    with torch.autocast(images.device.type, torch.bfloat16, enabled=mixed):
        h = model.embed(images)
        return torch.cat((h, model.classify(h)), 1)[:n] if logits else h[:n]


def batch_slices(total: int, images: Tensor) -> Sequence[slice]:
    """Return how a batch of ``total`` images of the size and on the device of ``images`` is cut."""
    pixels = images.shape[-2] * images.shape[-1]
    step = max(1, _PIECE_PIXELS.get(images.device.type, _PIECE_PIXELS_ELSEWHERE) // pixels)
    return [slice(at, min(at + step, total)) for at in range(0, total, step)]


def flat_copy(model: Embedder) -> tuple[Embedder, Tensor]:
    """Return a frozen copy in training mode, and the flat tensor its parameters are views of."""
    private = copy.deepcopy(model)
    if not isinstance(private, nn.Module):
        raise TypeError(f"the model must be an nn.Module, not {type(model).__name__}")
    private.train().requires_grad_(False)
    flat = parameters_to_vector(private.parameters()).clone()
    vector_to_parameters(flat, private.parameters())  # views: writing into flat moves the model
    return private, flat


# ---- half size -----------------------------------------------------------------------------------
# Images distilled at half their size: fewer numbers to learn and to send, of which a network sees them blown up.


def halved(images: Tensor) -> Tensor:
    """Return means of 2 x 2 pixels: float [n, C, H / 2, W / 2] of images [n, C, H, W] of even sides."""
    return F.avg_pool2d(images, 2)


def doubled(images: Tensor) -> Tensor:
    """Return images blown up bilinearly: float [n, C, 2 H, 2 W] of images [n, C, H, W]."""
    return F.interpolate(images, scale_factor=2, mode="bilinear", align_corners=False)


def full_size(images: Tensor, shape: Sequence[int]) -> Tensor:
    """Return images [n, C, *] as large as those of ``shape`` (C, H, W): doubled where they are half as large."""
    return images if tuple(images.shape[-2:]) == tuple(shape[-2:]) else doubled(images)


class OfHalfSize(nn.Module):
    """A model of images of half its size, which sees them doubled.

    Parameters
    ----------
    model
        An nn.Module that embeds and classifies images of full size.
    """

    def __init__(self, model: Embedder) -> None:
        super().__init__()
        self.model = model

    @property
    def couples_samples(self) -> bool:
        """Whether samples of one batch see each other."""
        return self.model.couples_samples

    def embed(self, x: Tensor) -> Tensor:
        """Return h [n, d] of images [n, C, H / 2, W / 2]."""
        return self.model.embed(doubled(x))

    def classify(self, h: Tensor) -> Tensor:
        """Return the logits z [n, classes] of embeddings [n, d]."""
        return self.model.classify(h)
