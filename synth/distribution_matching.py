"""FedDM's distribution matching (Xiong et al. 2022).

It makes images whose features match those of a device's data near given weights.

The public code of the method runs over the classes, calls the network once for the embedding and
once for the logits, and records the real batch for a backward pass that never comes. Here the same
numbers come from one forward pass a batch, the real one unrecorded and in pieces, so that its
memory does not grow with the batch, and from one product for all class means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from synth.augmentation import Draw
from synth.ball import sample_ball
from synth.class_batches import ClassBatches
from synth.descent import SGD
from synth.matching_parts import (
    Embedder,
    Extra,
    Matching,
    Shown,
    features,
    flat_copy,
    pieces,
    require_finite,
    transformed,
)


@dataclass(frozen=True)
class Distilled:
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
) -> Distilled:
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
        here are left out.
    matching
        How; with 0 iterations it returns the start, ordered by class.
    real_batch
        |B_c|, drawn without replacement; a class with fewer gives all it has.
    generator
        The source of every draw.
    extra
        What is minimised beside Eq. 9.

    Raises
    ------
    ValueError
        Inconsistent tensors, an unknown augmentation, or a class without real images.
    FloatingPointError
        The images left the finite numbers; the message says from which
        iteration on.
    """
    _check(labels, start, start_labels, real_batch, generator)
    matcher = _Matcher.prepare(model, inputs, labels, start_labels, matching, real_batch, extra)
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
    require_finite(images, history)
    return Distilled(images.detach(), start_labels[by_class], history)


@dataclass(frozen=True)
class _Matcher:
    """What an iteration needs, prepared once: the private model and the batch plans."""

    model: Embedder
    flat: Tensor
    centre: Tensor
    inputs: Callable[[Tensor], Tensor]
    held: Tensor
    real: ClassBatches
    syn: ClassBatches
    matching: Matching
    extra: Extra | None

    @classmethod
    def prepare(
        cls,
        model: Embedder,
        inputs: Callable[[Tensor], Tensor],
        labels: Tensor,
        start_labels: Tensor,
        matching: Matching,
        real_batch: int,
        extra: Extra | None,
    ) -> _Matcher:
        """Copy the model and plan the batches, for a synthetic set ordered by class."""
        private, flat = flat_copy(model)
        held = torch.isin(labels, start_labels).nonzero().flatten()
        return cls(
            model=private,
            flat=flat,
            centre=flat.clone(),
            inputs=inputs,
            held=held,
            real=ClassBatches.plan(labels[held], real_batch, dtype=flat.dtype),
            syn=ClassBatches.plan(start_labels.sort().values, matching.syn_batch, dtype=flat.dtype),
            matching=matching,
            extra=extra,
        )

    def loss(self, images: Tensor, draw: Draw | None, generator: torch.Generator) -> Tensor:
        """Return Eq. 9 at fresh weights and batches for the whole set ``images``."""
        how = self.matching
        if how.weights is None:
            sample_ball(self.centre, how.rho, generator, out=self.flat)
        else:
            how.weights(self.centre, generator, self.flat)
        batch = self.held[self.real.draw(generator)]
        if self.matching.syn_batch:
            images = images[self.syn.draw(generator)]

        def real_piece(piece: slice) -> Tensor:
            return transformed(self.inputs(batch[piece]), draw)

        with torch.no_grad():
            pieces = _pieces(self.model, self.real, images)
            target = _class_means(
                self.model, real_piece, pieces, self.real, how.real_precision, logits=how.logits
            )
        shown = transformed(images, draw)
        if self.extra is None:
            means = _synthetic_means(self.model, shown, self.syn, logits=how.logits)
            return _distance(target, means)
        averages = self.syn.averages
        h, z = self._rows(shown)
        means = averages @ (torch.cat((h, z), 1) if how.logits else h)
        seen = Shown(shown, h, z, self.syn.labels, averages, generator)
        return _distance(target, means) + self.extra(seen)

    def _rows(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the synthetic images' embeddings and logits, a class at a time where samples couple."""
        cut = self.syn.slices if self.model.couples_samples else (slice(None),)
        h = torch.cat([self.model.embed(images[piece]) for piece in cut])
        return h, self.model.classify(h)


def _pieces(model: Embedder, batches: ClassBatches, images: Tensor) -> Sequence[slice]:
    """Return how a real batch is cut: by class where samples couple, else by size."""
    if model.couples_samples:
        return batches.slices
    return pieces(batches.slices[-1].stop, images)


def _synthetic_means(
    model: Embedder, images: Tensor, batches: ClassBatches, *, logits: bool = True
) -> Tensor:
    """Return the class means, recorded: from one pass, or one a class where samples couple."""
    pieces = batches.slices if model.couples_samples else (slice(None),)
    return _class_means(
        model, lambda piece: images[piece], pieces, batches, torch.float32, logits=logits
    )


def _class_means(
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


def _distance(real: Tensor, syn: Tensor) -> Tensor:
    """Return the sum of squares: over classes, embedding and logits at once."""
    return (real - syn).square().sum()


def _check(
    labels: Tensor, start: Tensor, start_labels: Tensor, real_batch: int, generator: torch.Generator
) -> None:
    """Refuse tensors that do not belong together."""
    if len(start) != len(start_labels) or start.ndim != 4:
        raise ValueError(
            f"start images of shape {tuple(start.shape)} do not go with {len(start_labels)} "
            "labels: give [m, C, H, W] images and m labels"
        )
    if real_batch < 1:
        raise ValueError(f"the real batch must hold at least 1 image a class, not {real_batch}")
    lacking = torch.unique(start_labels[~torch.isin(start_labels, labels)])
    if len(lacking):
        raise ValueError(
            f"start images of classes {lacking.tolist()} have no real images to match: "
            "leave those classes out"
        )
    if generator.device.type != start.device.type:
        raise ValueError(
            f"the generator lives on {generator.device}, the images on {start.device}: "
            "make it with torch.Generator(device=...) for the images' device"
        )
