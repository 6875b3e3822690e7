"""Distribution matching with differential privacy, by two mechanisms.

The paper (Xiong et al. 2022, Algorithm 1) clips the averaged gradient and adds noise that is
divided by the batch size. That bounds the gradient's length and not one example's influence: an
example can reverse a clipped average, by 2 C, while the noise is for C / |B|. Here
what one example contributes is clipped, then summed, then given noise, and divided by the expected
size of a Poisson sample. Adding or removing an example moves the sum of its class by C at most and
no other class's, so that an iteration is one subsampled Gaussian release with noise of sigma times
the sensitivity, of the example's class alone.

``gradient`` (the paper's intent) clips the gradients with respect to the synthetic images, in as
many dimensions as a class has pixels there. ``feature`` clips the embeddings of which the matching
loss is made: noise in fewer dimensions, and what follows is post-processing.

The model is at rest (eval): with layers that draw by an example's place in the batch, or normalise
by the batch, one example would move what others contribute.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from synth import augmentation
from synth.augmentation import Draw
from synth.descent import SGD, require_finite
from synth.distribution_matching import (
    Embedder,
    Matching,
    batch_slices,
    features,
    flat_copy,
)
from synth.private_release import (
    Contributions,
    Gaussian,
    means_of_equal_classes,
    noisy_gradients,
    noisy_means,
)
from synth.starts import ClassBatches, sample_ball

Mechanism = Literal["gradient", "feature"]

#: by how much a row may differ in a batch of others, as a share of its length: that much is rounding
_ROUNDING = 1e-3

#: that many images are tried together, and with a seed of their own
_TRIED, _SEED = 5, 20261124


@torch.no_grad()
def rows_see_each_other(model: Embedder, shape: tuple[int, ...]) -> bool:
    """Try whether an image's features depend on the other images of its batch, or change the model for the next.

    A batch norm is recognised by its class; what else a user's model does to a batch is not.

    Parameters
    ----------
    model
        An nn.Module; a copy of it is tried, at rest, as the matching has it.
    shape
        An image's (C, H, W).
    """
    tried, flat = flat_copy(model)
    assert isinstance(tried, nn.Module)
    tried.eval()
    before = {name: value.clone() for name, value in tried.state_dict().items()}
    draws = torch.Generator().manual_seed(_SEED)
    images = torch.randn(_TRIED, *shape, generator=draws).to(flat.device, flat.dtype)
    images[2:] *= 100
    alone = torch.cat([features(tried, image[None]) for image in images])
    others = [features(tried, images), features(tried, images.flip(0)).flip(0)]
    again = torch.cat([features(tried, image[None]) for image in images])
    lengths = alone.norm(dim=1).clamp_min(1e-6)
    changes = [(each - alone).norm(dim=1) / lengths for each in (*others, again)]
    changed = any(not torch.equal(before[n], v) for n, v in tried.state_dict().items())
    return changed or not bool((torch.stack(changes) <= _ROUNDING).all())


def distil_privately(
    model: Embedder,
    inputs: Callable[[Tensor], Tensor],
    batches: PoissonClasses,
    start: Tensor,
    matching: Matching,
    *,
    mechanism: Mechanism,
    gaussian: Gaussian,
    sample: Callable[[Tensor], Tensor],
    generator: torch.Generator,
    values: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Distil a device's data as `synth.distribution_matching.distil` does, with differential privacy.

    An iteration releases once of every class, from a Poisson sample of it. Weights, augmentation
    and choice of synthetic images depend on no data, and may come from a seed.

    Parameters
    ----------
    model
        An nn.Module at the round's weights w_r; not changed.
    inputs
        Gives the normalised real images, float [b, C, H, W], for indices int64 [b].
    batches
        Which real images an iteration draws, and what their sums are divided by.
    start
        The images to start from [C m, C, H, W], class by class in the order of ``batches``,
        equally many of each: noise, or an earlier result of this function, never real images.
        Not changed.
    gaussian
        How contributions are clipped and sums released.
    sample
        chances [n] -> the positions of a Poisson sample, as `PoissonClasses.draw` takes
        it: of a source that no one else can draw from.
    generator
        The source of the draws that depend on no data.
    values
        The least and the greatest value that a pixel may take, each to be broadcast over
        images: noise in many steps would carry them far out. None leaves them as they come.

    Returns
    -------
    The synthetic images, in the order of ``start``.

    Raises
    ------
    ValueError
        The images to start from are not equally many of every class, or the model's
        samples see each other in training mode (batch norm).
    FloatingPointError
        The images left the finite numbers.
    """
    count = len(batches.classes)
    if start.ndim != 4 or len(start) == 0 or len(start) % count:
        raise ValueError(
            f"start images of shape {tuple(start.shape)} are not equally many of {count} classes"
        )
    private, flat = flat_copy(model)
    if private.couples_samples:
        raise ValueError(
            "samples of a batch see each other in this model (batch norm), so that no example's "
            "contribution can be clipped: choose a model with another normalisation"
        )
    assert isinstance(private, nn.Module)
    private.eval()
    centre = flat.clone()
    ranks = torch.arange(count, device=start.device).repeat_interleave(len(start) // count)
    plan = ClassBatches.plan(ranks, matching.syn_batch, dtype=flat.dtype)
    images = start.detach().clone()
    optimizer = SGD([images], matching.image_lr, momentum=matching.image_momentum)
    every, precision = torch.arange(len(images), device=flat.device), matching.real_precision
    for draw in matching.steps(generator):
        sample_ball(centre, matching.rho, generator, out=flat)
        used = plan.draw(generator) if matching.syn_batch else every

        def embed(
            x: Tensor, precision: torch.dtype = torch.float32, draw: Draw | None = draw
        ) -> Tensor:
            return features(private, augmentation.apply(x, draw), precision)

        real = _drawn(partial(embed, precision=precision), inputs, batches, sample, images)
        step = _STEPS[mechanism](embed, real, images[used], batches.expected, gaussian)
        images.grad = torch.zeros_like(images).index_copy_(0, used, step)
        optimizer.step()
        if values is not None:
            images.clamp_(*values)
    require_finite([images], "distillation", "the images' learning rate")
    return images


def _drawn(
    embed: Callable[[Tensor], Tensor],
    inputs: Callable[[Tensor], Tensor],
    batches: PoissonClasses,
    sample: Callable[[Tensor], Tensor],
    images: Tensor,
) -> Contributions:
    """Return the features of a Poisson sample of every class, none at all of an empty one."""
    at, ranks = batches.draw(sample)
    with torch.no_grad():
        parts = [embed(inputs(at[piece])) for piece in batch_slices(len(at), images)]
        parts = parts or [embed(images[:1])[:0]]  # as wide, of no data
        return Contributions(torch.cat(parts).to(images.dtype), ranks, len(batches.classes))


def _feature_step(
    embed: Callable[[Tensor], Tensor],
    real: Contributions,
    images: Tensor,
    expected: Tensor,
    gaussian: Gaussian,
) -> Tensor:
    """Return the gradient of the distance to noisy class means, which is post-processing of these."""
    targets = noisy_means(real, expected, gaussian)
    leaf = images.detach().requires_grad_()
    loss = (means_of_equal_classes(embed(leaf), len(targets)) - targets).square().sum()
    (gradient,) = torch.autograd.grad(loss, leaf)
    return gradient


_STEPS = {"feature": _feature_step, "gradient": noisy_gradients}


# ---- poisson classes -----------------------------------------------------------------------------
# Batches in which each sample of a class is with an independent chance: what subsampling's privacy asks for.


@dataclass(frozen=True)
class PoissonClasses:
    """A plan that draws a Poisson sample of every class, all classes at once.

    A batch's size is itself random, and a class may have none in it. What a mean divides by is the
    expected size, which is a function of the counts that the plan was given and of nothing else.

    Attributes
    ----------
    classes
        The classes in ascending order, int64 [C].
    rates
        q_c = min(1, B / n_c), float64 [C].
    expected
        q_c n_c, float64 [C].
    """

    classes: Tensor
    rates: Tensor
    expected: Tensor
    _rank: Tensor

    @classmethod
    def plan(cls, labels: Tensor, batch: int, counts: Tensor | None = None) -> PoissonClasses:
        """Return the plan for samples with these ``labels``.

        Parameters
        ----------
        labels
            The samples' classes, int64 [n]; their device is the plan's.
        batch
            B, the expected size of a class in a batch; a smaller class gives all it has.
        counts
            n_c as they may be known, [C] in the order of the classes, such as counts with
            noise; one below 1 is taken for 1. By default the true ones, which are public then.

        Raises
        ------
        ValueError
            There are no labels, no batch, or not as many counts as classes.
        """
        if labels.ndim != 1 or labels.numel() == 0 or batch < 1:
            raise ValueError(
                f"batches of {batch} of labels {tuple(labels.shape)}: give a list of at least one, "
                "and a batch of at least 1"
            )
        classes, rank, held = torch.unique(labels, return_inverse=True, return_counts=True)
        if counts is not None and counts.shape != held.shape:
            raise ValueError(f"{tuple(counts.shape)} counts do not go with {len(held)} classes")
        known = (held if counts is None else counts.to(labels.device)).double().clamp_min(1)
        rates = (batch / known).clamp(max=1)
        return cls(classes, rates, rates * known, rank)

    def draw(self, sample: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """Return a batch's indices into the labels, int64 [b], class by class, and their classes' ranks [b].

        Parameters
        ----------
        sample
            chances, float64 [n] in the order of the labels -> the positions that were drawn,
            each by itself with its chance, int64 [b], ascending, on the plan's device.
        """
        drawn = sample(self.rates[self._rank])
        by_class = drawn[self._rank[drawn].argsort(stable=True)]
        return by_class, self._rank[by_class]

    @property
    def rate(self) -> float:
        """The largest chance of a sample to be drawn.

        Classes are disjoint, so that a sample's privacy is that of its class: no worse than of this one.
        """
        return float(self.rates.max())
