"""FedSynth's mathematics: an update written as a few synthetic batches (Hu et al., Algorithm 1).

A set S is m batches (x_i, y_i). ``client_update`` takes one plain SGD step along each of them; ``distil`` moves S such
that these steps end well. The gradient with respect to S runs back through all m steps, so it is of second order in the
model. Everything is computed in the dtype of the arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call

from synth.descent import SGD, Adam

#: a model's parameters by name
Parameters = Mapping[str, Tensor]
#: (parameters, inputs, targets) -> the scalar loss
Loss = Callable[[Parameters, Tensor, Tensor], Tensor]
#: the replayed parameters -> the scalar that ``distil`` makes small; may differ from call to call
Objective = Callable[[Parameters], Tensor]


@dataclass(frozen=True)
class Batches:
    """A set S: m batches of b examples, and the length of a step along one of them.

    Attributes
    ----------
    inputs
        x, float [m, b, ...].
    labels
        y: int64 [m, b, ...] where they are fixed, or float [m, b, classes], the logits of
        soft labels or the labels themselves, where they are trained.
    step_size
        eta_w, a float scalar above 0.
    """

    inputs: Tensor
    labels: Tensor
    step_size: Tensor


def loss_of(
    model: nn.Module, criterion: Callable[[Tensor, Tensor], Tensor], *, raw: bool = False
) -> Loss:
    """Return F as a function of the parameters of ``model``.

    Parameters
    ----------
    model
        Gives the form; its own parameters are not read. It must have no buffers and treat
        every example alone (no batch normalisation, no dropout).
    criterion
        (outputs, targets) -> the mean loss. Targets that are floats arrive as
        probabilities: the softmax of the logits in S.
    raw
        Whether such targets arrive as they are in S instead, of any sign and sum.
    """

    def loss(parameters: Parameters, inputs: Tensor, targets: Tensor) -> Tensor:
        if targets.is_floating_point() and not raw:
            targets = targets.softmax(-1)
        return criterion(functional_call(model, dict(parameters), (inputs,)), targets)

    return loss


def gradient(
    loss: Loss, w: Parameters, inputs: Tensor, labels: Tensor, *, create_graph: bool
) -> dict[str, Tensor]:
    """Return grad_w F((x, y); w) by name: zero for a parameter that the loss does not use.

    Parameters
    ----------
    loss
        F.
    w
        Where the gradient is taken; every parameter requires one.
    inputs
        x.
    labels
        y.
    create_graph
        Whether the gradient can be differentiated in its turn.
    """
    slopes = torch.autograd.grad(
        loss(w, inputs, labels),
        list(w.values()),
        create_graph=create_graph,
        allow_unused=True,
        materialize_grads=True,
    )
    return dict(zip(w, slopes, strict=True))


def client_update(loss: Loss, w: Parameters, batches: Batches) -> dict[str, Tensor]:
    """Return ClientUpdate(S; w), differentiable with respect to S.

    For i = 1..m: w <- w - eta_w grad_w F((x_i, y_i); w). Of a set that was received this is the server's replay; on a
    CPU with one number of threads the result has the same bits wherever it is computed.

    Parameters
    ----------
    loss
        F, twice differentiable.
    w
        The parameters to start from, as constants.
    batches
        S. Gradients reach those of its tensors that require one; where none does, no graph
        outlives its own step.

    Returns
    -------
    w_syn, by name. A parameter that the loss does not use stays.
    """
    tracked = any(t.requires_grad for t in (batches.inputs, batches.labels, batches.step_size))
    at = {name: value.detach().requires_grad_() for name, value in w.items()}
    for inputs, labels in zip(batches.inputs, batches.labels, strict=True):
        with torch.enable_grad():
            slopes = gradient(loss, at, inputs, labels, create_graph=tracked)
            moved = {name: value - batches.step_size * slopes[name] for name, value in at.items()}
        at = moved if tracked else {k: v.detach().requires_grad_() for k, v in moved.items()}
    return at if tracked else {name: value.detach() for name, value in at.items()}


def real_loss(
    loss: Loss,
    inputs: Callable[[Tensor], Tensor],
    targets: Tensor,
    size: int,
    generator: torch.Generator,
) -> Objective:
    """Return the paper's objective: F(D_k; w_syn), estimated on a new real mini-batch at every call.

    Parameters
    ----------
    loss
        F.
    inputs
        Gives the real inputs for positions int64 [k].
    targets
        The real targets, [n, ...].
    size
        Examples in a mini-batch, without replacement; 0, or n and more, for all of them.
    generator
        Draws them.
    """
    n = len(targets)
    everything = torch.arange(n, device=targets.device)

    def objective(w_syn: Parameters) -> Tensor:
        chosen = everything
        if 0 < size < n:
            chosen = torch.randperm(n, generator=generator, device=targets.device)[:size]
        return loss(w_syn, inputs(chosen), targets[chosen])

    return objective


def distance(w: Parameters, end: Parameters) -> Objective:
    """Return |w_syn - w_end|^2 / |w_end - w|^2: 0 where S leads to ``end``, 1 where it leads nowhere.

    Not the paper's objective; ours, for an update that must be near a given one, such as FedAvg's.
    """
    tiny = torch.finfo(next(iter(w.values())).dtype).tiny
    scale = torch.stack([(end[k] - w[k]).square().sum() for k in w]).sum().clamp_min(tiny)

    def objective(w_syn: Parameters) -> Tensor:
        return torch.stack([(w_syn[k] - end[k]).square().sum() for k in w]).sum() / scale

    return objective


def along(gradient: Callable[[Parameters], Mapping[str, Tensor]]) -> Objective:
    """Return an objective that is known by its gradient alone: <g, w_syn>, with g = ``gradient(w_syn)`` held fixed.

    Its gradient in S is g taken back through the steps, as that of any objective whose gradient in w_syn is g, such as
    a noisy one of a private loss. Its value means nothing.
    """

    def objective(w_syn: Parameters) -> Tensor:
        slopes = gradient({name: value.detach() for name, value in w_syn.items()})
        return torch.stack([(w_syn[k] * slopes[k]).sum() for k in w_syn]).sum()

    return objective


@dataclass(frozen=True)
class DistilledUpdate:
    """The set that ``distil`` ends with, and the objective before each of its steps, [E]."""

    batches: Batches
    losses: Tensor


def distil(
    loss: Loss,
    w: Parameters,
    start: Batches,
    objective: Objective,
    *,
    iterations: int,
    lr: float,
    learn_step: bool,
    mover: Callable[[list[Tensor], float], SGD | Adam] = Adam,
    before_step: Callable[[], None] | None = None,
) -> DistilledUpdate:
    """Move S for E iterations: S <- S - eta grad_S objective(ClientUpdate(S; w)).

    Labels are moved where they are logits, the step size where ``learn_step`` says so, by its
    logarithm, so that it stays above 0. The graph of an iteration is gone before the next begins:
    memory does not grow with ``iterations``.

    Parameters
    ----------
    loss
        F of the inner steps.
    w
        w_r, the server's parameters.
    start
        S to begin with; not changed.
    objective
        Of w_syn; ``real_loss`` or ``distance``.
    iterations
        E.
    lr
        eta.
    learn_step
        Whether eta_w is moved too.
    mover
        The optimiser of S.
    before_step
        Called ahead of every iteration, such as one that raises when the time is over.
    """
    inputs = start.inputs.detach().clone().requires_grad_()
    moved = [inputs]
    labels = start.labels.detach().clone()
    if labels.is_floating_point():
        moved.append(labels.requires_grad_())
    log_step = start.step_size.detach().log()
    if learn_step:
        moved.append(log_step.requires_grad_())
    optimiser = mover(moved, lr)
    losses = torch.zeros(iterations, dtype=inputs.dtype, device=inputs.device)
    for iteration in range(iterations):
        if before_step is not None:
            before_step()
        step_size = log_step.exp() if learn_step else start.step_size
        value = objective(client_update(loss, w, Batches(inputs, labels, step_size)))
        for tensor, slope in zip(moved, torch.autograd.grad(value, moved), strict=True):
            tensor.grad = slope
        optimiser.step()
        losses[iteration] = value.detach()
    step_size = log_step.detach().exp() if learn_step else start.step_size
    return DistilledUpdate(
        replace(start, inputs=inputs.detach(), labels=labels.detach(), step_size=step_size), losses
    )
