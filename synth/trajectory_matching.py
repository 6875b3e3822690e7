"""FedDGM's trajectory matching: images on which a student's training ends where a client's did (Jia et al. 2023).

A student starts at theta_g and takes SGD steps of size eta along the cross-entropy's gradient g on batches of the
synthetic images D,

    theta_{t+1} = theta_t - eta g(theta_t; D),  t = 0 .. T - 1,  theta_0 = theta_g,

and L_MTT (Eq. 2) says how far from the client's theta_m it ends. The gradient of L_MTT with respect to D and eta comes
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

from synth.inner_steps import InnerStep
from synth.synthetic_updates import Loss, Objective, Parameters, distance, gradient

__all__ = ["Form", "Gradients", "Segment", "SyntheticSet", "exact", "released", "unrolled"]


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
    """What the student trains on, and how fast.

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
    student = _Student.prepare(loss, segment, data)
    images = data.images.detach().requires_grad_()
    step_size = data.step_size.detach().requires_grad_()
    theta = _leaves(student.start)
    for step in steps:
        g = student.gradient(theta, images, step, create_graph=True)
        theta = {name: value - _wide(step_size, g[name]) * g[name] for name, value in theta.items()}
    value = student.objective(theta)
    slopes = torch.autograd.grad(value.sum(), (images, step_size))
    return Gradients(value.detach(), *slopes)


def exact(
    loss: Loss, segment: Segment, data: SyntheticSet, steps: Sequence[InnerStep]
) -> Gradients:
    """Return the gradient of `unrolled` by a recursion that runs back through the steps, with one graph at a time.

    With lambda_t = dL/dtheta_t, known for t = T, and s_t = <g(theta_t; D), -eta lambda_{t+1}>, lambda_{t+1} constant:

        dL/dD = sum_t ds_t/dD,  dL/deta = sum_t -<g_t, lambda_{t+1}>,  lambda_t = lambda_{t+1} + ds_t/dtheta_t.

    It takes the steps once more on the way back: about a third more work than `unrolled`.

    Parameters
    ----------
    loss, segment, data, steps
        As for `unrolled`.
    """
    return _two_passes(loss, segment, data, steps, carries=True)


def released(
    loss: Loss, segment: Segment, data: SyntheticSet, steps: Sequence[InnerStep]
) -> Gradients:
    """Return what the published code takes for the gradient: `exact` with every lambda_t held at lambda_T.

    That a batch moves theta, and so all later gradients, is left out. It is the gradient for T = 1 only.

    Parameters
    ----------
    loss, segment, data, steps
        As for `unrolled`.
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
    """Return the gradient from one pass through the steps and one back; ``carries`` tells `exact` from `released`."""
    student = _Student.prepare(loss, segment, data)
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


@dataclass(frozen=True)
class _Student:
    """The functions of theta that all forms share, for one client or, with theta [K, ...], for K.

    Attributes
    ----------
    loss : Loss
        The cross-entropy; of K clients the sum, whose gradient is each client's own.
    start : Parameters
        theta_0.
    objective : Objective
        L_MTT of theta_T, one value a client.
    data : SyntheticSet
        D, its labels and eta.
    """

    loss: Loss
    start: Parameters
    objective: Objective
    data: SyntheticSet

    @classmethod
    def prepare(cls, loss: Loss, segment: Segment, data: SyntheticSet) -> _Student:
        """Return the student of one client, or of as many as eta has values."""
        start, end = segment.start, dict(segment.end)
        if not data.step_size.ndim:
            return cls(loss, start, distance(start, end), data)
        losses = vmap(loss)
        distances = vmap(lambda theta, end: distance(start, end)(theta))
        clients = len(data.step_size)
        return cls(
            lambda theta, x, y: losses(dict(theta), x, y).sum(),
            {name: value.expand(clients, *value.shape) for name, value in start.items()},
            lambda theta: distances(dict(theta), end),
            data,
        )

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
            trajectory.append(
                {
                    name: value.detach() - _wide(eta, g[name]) * g[name]
                    for name, value in theta.items()
                }
            )
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


def _wide(step_size: Tensor, slope: Tensor) -> Tensor:
    """Return eta with as many dimensions as ``slope``, behind the clients'."""
    return step_size.reshape(step_size.shape + (1,) * (slope.ndim - step_size.ndim))
