"""FedDGM's server distillation of one client's segment: latents moved such that their images lead to theta_m.

The inner loop of Algorithm 1 (Jia et al. 2023). The images come from latents through any differentiable generator,
whose memory is its own: the gradient with respect to the images is known before the generator runs again to pull it
back, part by part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from synth.descent import SGD
from synth.inner_steps import InnerTraining
from synth.synthetic_updates import Loss
from synth.trajectory_matching import Form, Segment, SyntheticSet, exact

#: latents, each with as many rows as there are images -> the images of these rows, float [rows, C, H, W]; with several
#: clients a row is a client's whole set. Rows must not see each other.
Renderer = Callable[..., Tensor]

_LEAST_STEP = 0.01
"""How far eta may fall, relative to its start: a student that climbs the loss would turn the images around."""


@dataclass(frozen=True)
class Distilled:
    """What `distil` ends with.

    Attributes
    ----------
    latents : tuple of Tensor
        Z, as they were given.
    data : SyntheticSet
        D = G(Z), its labels and eta.
    losses : Tensor
        L_MTT before each iteration, [T_d], or [T_d, K] for K clients; each with batches and augmentations of its own.
    """

    latents: tuple[Tensor, ...]
    data: SyntheticSet
    losses: Tensor


def render(images_of: Renderer, latents: Sequence[Tensor], chunk: int = 0) -> Tensor:
    """Return the images of all latents, without a graph, ``chunk`` rows at a time; 0 for all at once."""
    with torch.no_grad():
        return torch.cat([images_of(*rows) for rows in _rows(latents, chunk)])


def pull_back(
    images_of: Renderer, latents: Sequence[Tensor], slopes: Tensor, chunk: int = 0
) -> list[Tensor]:
    """Return dL/dZ for each of the latents, from dL/dD: a vector-Jacobian product of the generator.

    Parameters
    ----------
    images_of : Renderer
        G.
    latents : sequence of Tensor
        Z, float, each [n, ...].
    slopes : Tensor
        dL/dD, of the images' shape.
    chunk : int
        Rows at a time, which bounds the memory of G's graph; 0 for all.
    """
    pulled = []
    for *rows, by_images in _rows([*latents, slopes], chunk):
        here = [z.detach().requires_grad_() for z in rows]
        # as a sum: given grad_outputs, torch would import its symbolic shapes, seconds of a new process
        along = (images_of(*here) * by_images).sum()
        pulled.append(torch.autograd.grad(along, here))
    return [torch.cat(parts) for parts in zip(*pulled, strict=True)]


def _rows(tensors: Sequence[Tensor], chunk: int) -> list[tuple[Tensor, ...]]:
    """Return the tensors cut along their first dimension, and the pieces that belong together."""
    size = chunk or max(1, len(tensors[0]))
    return list(zip(*(torch.split(tensor, size) for tensor in tensors), strict=True))


def distil(
    loss: Loss,
    segment: Segment,
    images_of: Renderer,
    latents: Sequence[Tensor],
    labels: Tensor,
    step_size: Tensor,
    *,
    training: InnerTraining,
    iterations: int,
    latent_lrs: Sequence[float],
    step_lr: float,
    momentum: float,
    generator: torch.Generator,
    form: Form = exact,
    chunk: int = 0,
) -> Distilled:
    """Move Z and eta for T_d iterations: D = G(Z), a student's training on D, one SGD step along the gradient of L_MTT.

    Parameters
    ----------
    loss : Loss
        The student's cross-entropy (`synth.synthetic_updates.loss_of`).
    segment : Segment
        theta_g and theta_m.
    images_of : Renderer
        G; the identity where the latents are the pixels.
    latents : sequence of Tensor
        Z to start from, float, each [n, ...]; not changed.
    labels : Tensor
        The images' classes, int64 [n].
    step_size : Tensor
        eta to start from, a float scalar above 0, [K] for K clients; not changed.
    training : InnerTraining
        T_s, the student's batches and augmentation.
    iterations : int
        T_d; 0 returns the start.
    latent_lrs : sequence of float
        The learning rate of each of the latents.
    step_lr : float
        The learning rate of eta; 0 leaves it as it is.
    momentum : float
        Of the steps of Z and of eta.
    generator : torch.Generator
        Draws batches and augmentations, the same for all clients; it lives where the latents do.
    form : Form
        `exact`, `unrolled` or `released`.
    chunk : int
        Rows that the generator takes at a time; 0 for all.

    Returns
    -------
    Distilled
        Z, the images and eta, and the losses on the way.

    Raises
    ------
    ValueError
        The student's training is impossible (`InnerTraining.steps`), or not every latent has a learning rate.
    FloatingPointError
        Latents or eta left the finite numbers.
    """
    moved = [z.detach().clone() for z in latents]
    eta = step_size.detach().clone()
    least = eta * _LEAST_STEP
    movers = [SGD([z], lr, momentum=momentum) for z, lr in zip(moved, latent_lrs, strict=True)]
    movers.append(SGD([eta], step_lr, momentum=momentum))
    schedule = [training.steps(labels.shape[-1], generator) for _ in range(iterations)]
    losses = [eta.new_empty((0, *eta.shape))]
    for steps in schedule:
        data = SyntheticSet(render(images_of, moved, chunk), labels, eta)
        found = form(loss, segment, data, steps)
        slopes = [*pull_back(images_of, moved, found.images, chunk), found.step_size]
        for tensor, slope, mover in zip([*moved, eta], slopes, movers, strict=True):
            tensor.grad = slope
            mover.step()
        eta.clamp_(min=least)
        losses.append(found.loss[None])
    history, ended = torch.cat(losses), [tensor.detach() for tensor in (*moved, eta)]
    _check_finite(ended, history)
    *ended, eta = ended
    return Distilled(
        tuple(ended), SyntheticSet(render(images_of, ended, chunk), labels, eta), history
    )


def _check_finite(ended: Sequence[Tensor], losses: Tensor) -> None:
    """Refuse latents and step sizes that are not numbers any more."""
    if all(bool(tensor.isfinite().all()) for tensor in ended):
        return
    broken = (~losses.isfinite()).nonzero()[:, 0].tolist()
    when = f"iteration {broken[0] + 1}" if broken else "the last iteration"
    raise FloatingPointError(
        f"trajectory matching left the finite numbers at {when} of {len(losses)}: lower the "
        "learning rate of the latents or of the student's step size"
    )
