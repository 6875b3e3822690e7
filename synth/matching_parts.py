"""What distribution matching is made of, with differential privacy and without."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from synth import augmentation
from synth.augmentation import Draw

# Pixels of a piece of the real batch, whose memory so does not grow with the number of classes. On
# a GPU so many that it is busy. On a CPU half, twice or eight times as many are no faster: with two
# threads the float32 pass took a tenth to a fifth longer, with one thread the same.
_PIECE_PIXELS = {"cpu": 1 << 15}
_PIECE_PIXELS_ELSEWHERE = 1 << 21


class Embedder(Protocol):
    """What distribution matching asks of a model; the classifiers of `common.models` have it."""

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
        Whether mean logits are matched beside mean embeddings.
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
        draws: Sequence[Draw | None] = [None] * self.iterations
        if transforms:
            draws = augmentation.draws(transforms, self.iterations, generator)
        for draw in draws:
            if self.before_step is not None:
                self.before_step()
            yield draw


@dataclass(frozen=True)
class Shown:
    """What an iteration shows of the synthetic images, for a further term of its loss; gradients reach ``images``.

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
    if precision not in (torch.float32, torch.bfloat16):
        raise ValueError(f"features are computed in float32 or bfloat16, not {precision}")
    mixed = precision == torch.bfloat16
    n = len(images)
    if n == 1 and model.couples_samples:
        # Batch norm makes the same of an image given twice, and torch takes no batch of one value a channel.
        images = images.repeat(2, 1, 1, 1)
    with torch.autocast(images.device.type, torch.bfloat16, enabled=mixed):
        h = model.embed(images)
        return torch.cat((h, model.classify(h)), 1)[:n] if logits else h[:n]


def transformed(images: Tensor, draw: Draw | None) -> Tensor:
    """Return the images after the drawn transform, or as they are where none was drawn."""
    return images if draw is None else augmentation.apply(images, draw)


def pieces(total: int, images: Tensor) -> Sequence[slice]:
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


def require_finite(images: Tensor, losses: Tensor | None = None) -> None:
    """Refuse images that are not finite; FloatingPointError saying from which iteration on where ``losses`` tell."""
    if bool(images.isfinite().all()):
        return
    when = ""
    if losses is not None:
        broken = (~losses.isfinite()).nonzero().flatten().tolist()
        at = f"iteration {broken[0] + 1}" if broken else "the last iteration"
        when = f" at {at} of {len(losses)}"
    raise FloatingPointError(
        f"distillation left the finite numbers{when}: lower the images' learning rate"
    )
