"""FedDGM's trajectory matching: images on which a student's training ends where a client's did (Jia et al. 2023).

A student starts at theta_g and takes SGD steps of size eta along the cross-entropy's gradient g on batches of the
synthetic images D,

    theta_{t+1} = theta_t - eta g(theta_t; D),  t = 0 .. T - 1,  theta_0 = theta_g,

and L_MTT (Eq. 2) is how far from the client's theta_m it ends. The gradient of L_MTT with respect to D and eta comes
in three forms: `unrolled` keeps the graph of all steps; `exact`, the same gradient, and `released`, what the published
code computes in its place, keep the parameters theta_0 .. theta_T and the graph of one step.

Several clients are distilled at once where eta has one value for each: every tensor but theta_g, which they share,
then has the clients in front. On a CPU that is three times as fast for a network so small that calls cost more than
arithmetic (width 16 on 8x8), and half as fast for the papers' (3x128 on 32x32): grouped convolutions are slow there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import vmap

from synth import augmentation
from synth.augmentation import Draw
from synth.descent import SGD, require_finite
from synth.synthetic_updates import Loss, Objective, Parameters, distance, gradient


@dataclass(frozen=True)
class Segment:
    """The trajectory that is matched.

    Attributes
    ----------
    start : Parameters
        theta_g, the server's surrogate, by name.
    end : Parameters
        theta_m, the client's; those of K clients [K, ...].
    """

    start: Parameters
    end: Parameters


@dataclass(frozen=True)
class SyntheticSet:
    """The data and learning rates of the student.

    Attributes
    ----------
    images : Tensor
        D, float [n, C, H, W]; of K clients [K, n, C, H, W].
    labels : Tensor
        Int64 [n] or [K, n].
    step_size : Tensor
        eta, a float scalar; of K clients [K].
    """

    images: Tensor
    labels: Tensor
    step_size: Tensor


@dataclass(frozen=True)
class Gradients:
    """L_MTT and its gradient, without a graph.

    Attributes
    ----------
    loss : Tensor
        L_MTT before any move, of the step size's shape.
    images : Tensor
        dL/dD, of the images' shape.
    step_size : Tensor
        dL/deta, of the step size's shape.
    """

    loss: Tensor
    images: Tensor
    step_size: Tensor


@dataclass(frozen=True)
class InnerStep:
    """The batch and draws of one step; the draws are made before the first step.

    Attributes
    ----------
    batch : Tensor or None
        Int64 [b], positions in D; None for all of D.
    draw : Draw or None
        The augmentation (DSA) of the complete batch, if any.
    """

    batch: Tensor | None = None
    draw: Draw | None = None

    def select(self, images: Tensor, labels: Tensor, lead: int = 0) -> tuple[Tensor, Tensor]:
        """Return the step's images, augmented and differentiable, and their labels.

        Parameters
        ----------
        images : Tensor
            D, float [n, C, H, W], behind ``lead`` dimensions, whose sets share the batch and the augmentation.
        labels : Tensor
            Int64 [n], or float [n, classes], behind the same dimensions.
        lead : int
            0, or 1 for the sets of several clients.
        """
        if self.batch is not None:
            images = images.index_select(lead, self.batch)
            labels = labels.index_select(lead, self.batch)
        if self.draw is not None:
            shape = images.shape
            images = augmentation.apply(images.flatten(0, lead), self.draw).reshape(shape)
        return images, labels


#: (cross-entropy of the student, segment, synthetic set, inner steps) -> L_MTT and its gradient
Form = Callable[[Loss, Segment, SyntheticSet, Sequence[InnerStep]], Gradients]


def unrolled(
    loss: Loss, segment: Segment, data: SyntheticSet, steps: Sequence[InnerStep]
) -> Gradients:
    """Return the gradient by autograd through all steps: the definition, whose memory grows with T.

    Parameters
    ----------
    loss : Loss
        The student's cross-entropy (`synth.synthetic_updates.loss_of`), twice differentiable.
    segment : Segment
        theta_g and theta_m.
    data : SyntheticSet
        D, its labels and eta.
    steps : sequence of InnerStep
        The T steps' batches and augmentations, at least one (`InnerTraining.steps`).
    """
    student = _Student(loss, segment, data)
    images = data.images.detach().requires_grad_()
    step_size = data.step_size.detach().requires_grad_()
    theta = _leaves(student.start)
    for step in steps:
        g = student.gradient(theta, images, step, create_graph=True)
        theta = _stepped(theta, g, step_size)
    value = student.objective(theta)
    slopes = torch.autograd.grad(value.sum(), (images, step_size))
    return Gradients(value.detach(), *slopes)


def exact(
    loss: Loss, segment: Segment, data: SyntheticSet, steps: Sequence[InnerStep]
) -> Gradients:
    """Return the gradient of `unrolled` by a recursion that runs back through the steps, with one graph at a time.

    With lambda_t = dL/dtheta_t, known for t = T, and s_t = <g(theta_t; D), -eta lambda_{t+1}>, lambda_{t+1} constant:

        dL/dD = sum_t ds_t/dD,  dL/deta = sum_t -<g_t, lambda_{t+1}>,  lambda_t = lambda_{t+1} + ds_t/dtheta_t.

    It takes the steps once more on the way back: about a third more work than `unrolled`, whose parameters it has.
    """
    return _two_passes(loss, segment, data, steps, carries=True)


def released(
    loss: Loss, segment: Segment, data: SyntheticSet, steps: Sequence[InnerStep]
) -> Gradients:
    """Return the published code's approximation of the gradient: `exact` with every lambda_t held at lambda_T.

    That a batch moves theta, and so all later gradients, is left out. It is the gradient for T = 1 only.
    """
    return _two_passes(loss, segment, data, steps, carries=False)


def _two_passes(
    loss: Loss,
    segment: Segment,
    data: SyntheticSet,
    steps: Sequence[InnerStep],
    *,
    carries: bool,
) -> Gradients:
    """Return the gradient from one pass through the steps and one back; ``carries``: `exact`, else `released`."""
    student = _Student(loss, segment, data)
    trajectory = student.trajectory(steps)
    value, adjoint = student.end(trajectory.pop())
    images = data.images.detach().requires_grad_()
    d_images, d_step_size = torch.zeros_like(images), torch.zeros_like(data.step_size)
    for step in reversed(steps):
        theta = _leaves(trajectory.pop())
        g = student.gradient(theta, images, step, create_graph=True)
        along = student.inner_product(g, adjoint)
        s = -(data.step_size.detach() * along).sum()
        wanted = [images, *theta.values()] if carries else [images]
        by_images, *by_theta = torch.autograd.grad(
            s, wanted, allow_unused=True, materialize_grads=True
        )
        d_images += by_images
        d_step_size -= along.detach()
        if carries:
            adjoint = {
                name: value + by
                for (name, value), by in zip(adjoint.items(), by_theta, strict=True)
            }
    return Gradients(value, d_images, d_step_size)


class _Student:
    """The functions of theta that all forms share, for one client or, where eta has K values, for K, theta [K, ...].

    ``objective`` is L_MTT of theta_T, one value a client; ``loss``, of K clients, the sum, whose gradient is each
    client's own.
    """

    def __init__(self, loss: Loss, segment: Segment, data: SyntheticSet) -> None:
        start, end = segment.start, dict(segment.end)
        self.data, self.loss, self.start = data, loss, start
        self.objective: Objective = distance(start, end)
        if data.step_size.ndim:
            losses, clients = vmap(loss), len(data.step_size)
            distances = vmap(lambda theta, end: distance(start, end)(theta))
            self.loss = lambda theta, x, y: losses(dict(theta), x, y).sum()
            self.start = {n: value.expand(clients, *value.shape) for n, value in start.items()}
            self.objective = lambda theta: distances(dict(theta), end)

    def gradient(
        self, theta: Parameters, images: Tensor, step: InnerStep, *, create_graph: bool
    ) -> dict[str, Tensor]:
        """Return g(theta; D) on the batch of ``step``."""
        x, y = step.select(images, self.data.labels, self.data.step_size.ndim)
        return gradient(self.loss, theta, x, y, create_graph=create_graph)

    def trajectory(self, steps: Sequence[InnerStep]) -> list[dict[str, Tensor]]:
        """Return theta_0 .. theta_T, without graphs."""
        images, eta = self.data.images.detach(), self.data.step_size.detach()
        trajectory = [{name: value.detach() for name, value in self.start.items()}]
        for step in steps:
            theta = _leaves(trajectory[-1])
            g = self.gradient(theta, images, step, create_graph=False)
            trajectory.append(_stepped({n: v.detach() for n, v in theta.items()}, g, eta))
        return trajectory

    def end(self, theta: Parameters) -> tuple[Tensor, dict[str, Tensor]]:
        """Return L_MTT and lambda_T, its gradient at ``theta`` = theta_T."""
        theta = _leaves(theta)
        value = self.objective(theta)
        slopes = torch.autograd.grad(value.sum(), list(theta.values()))
        return value.detach(), dict(zip(theta, slopes, strict=True))

    def inner_product(self, a: Parameters, b: Parameters) -> Tensor:
        """Return <a, b> over all parameters, one value a client."""
        clients = self.data.step_size.shape
        return torch.stack([(a[name] * b[name]).reshape(*clients, -1).sum(-1) for name in a]).sum(0)


def _leaves(theta: Parameters) -> dict[str, Tensor]:
    return {name: value.detach().requires_grad_() for name, value in theta.items()}


def _stepped(theta: Parameters, g: Parameters, step_size: Tensor) -> dict[str, Tensor]:
    """Return theta - eta g, eta having as many dimensions as each g behind the clients'."""
    own = {
        n: step_size.reshape(step_size.shape + (1,) * (v.ndim - step_size.ndim))
        for n, v in g.items()
    }
    return {n: value - own[n] * g[n] for n, value in theta.items()}


# ---- trajectory distillation ---------------------------------------------------------------------
# FedDGM's server distillation of one client's segment: latents moved such that their images lead to theta_m.
#
# The inner loop of Algorithm 1 (Jia et al. 2023). The images come from latents through any differentiable generator,
# whose memory is its own: the gradient with respect to the images is known before the generator runs again to pull it
# back, part by part.

#: latents, each with as many rows as there are images -> the images of these rows, float [rows, C, H, W]; with several
#: clients a row is a client's complete set. Rows must not see each other.
Renderer = Callable[..., Tensor]

_LEAST_STEP = 0.01
"""How far eta may fall, relative to its start: a student that climbs the loss would turn the images around."""


@dataclass(frozen=True)
class MatchedTrajectory:
    """The result of `distil`.

    Attributes
    ----------
    latents : tuple of Tensor
        Z, as they were given.
    data : SyntheticSet
        D = G(Z), its labels and eta.
    losses : Tensor
        L_MTT before each iteration, [T_d], or [T_d, K] for K clients; each with its own batches and augmentations.
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
        leaves = [z.detach().requires_grad_() for z in rows]
        # as a sum: given grad_outputs, torch would import its symbolic shapes, seconds of a new process
        along = (images_of(*leaves) * by_images).sum()
        pulled.append(torch.autograd.grad(along, leaves))
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
) -> MatchedTrajectory:
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
        The learning rate of eta; 0 leaves it unchanged.
    momentum : float
        Of the steps of Z and of eta.
    generator : torch.Generator
        Draws batches and augmentations, the same for all clients; it lives where the latents do.
    form : Form
        `exact`, `unrolled` or `released`.
    chunk : int
        Rows that the generator takes at a time; 0 for all.

    Raises
    ------
    ValueError
        Not every latent has a learning rate.
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
    rates = "the learning rate of the latents or of the student's step size"
    require_finite(ended, "trajectory matching", rates, history)
    *ended, eta = ended
    return MatchedTrajectory(
        tuple(ended), SyntheticSet(render(images_of, ended, chunk), labels, eta), history
    )


# ---- inner steps ---------------------------------------------------------------------------------
# The student's steps on synthetic images: which batch each one takes, and how it is augmented.


@dataclass(frozen=True)
class InnerTraining:
    """How the student trains on D.

    Attributes
    ----------
    epochs : int
        T_s, passes over D.
    batch : int
        Images of a step; every epoch cuts D into batches in a new order, the last one with what is left. 0, or
        as many as D has, takes all in one step, in D's order.
    transforms : sequence of str
        The names of DSA's transforms (`synth.augmentation.parse`), one of them drawn for each step; none for none.
    """

    epochs: int
    batch: int = 0
    transforms: Sequence[str] = ()

    def steps(self, n: int, generator: torch.Generator) -> list[InnerStep]:
        """Return the steps on ``n`` images, first to last."""
        batches: list[Tensor | None] = [None] * self.epochs
        if 0 < self.batch < n:
            orders = (
                torch.randperm(n, generator=generator, device=generator.device)
                for _ in range(self.epochs)
            )
            batches = [part for order in orders for part in torch.split(order, self.batch)]
        draws = augmentation.draws(self.transforms, len(batches), generator)
        return [InnerStep(*both) for both in zip(batches, draws, strict=True)]
