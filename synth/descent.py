"""Stochastic gradient descent for processes that live for one round."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.sgd import sgd


class SGD:
    """The steps of ``torch.optim.SGD``, to the bit, by its own functional form.

    The first step of any ``torch.optim.Optimizer`` imports torch's compiler, which nothing uses: as much time
    again as torch itself takes, and in a deployment each device is a new process in every round.

    Parameters
    ----------
    parameters
        What is moved, in place; one without a gradient stays.
    lr
        The learning rate; it may be set again between steps.
    momentum
        The momentum, without dampening.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float,
        *,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
    ) -> None:
        self._parameters = list(parameters)
        self.lr, self._momentum, self._weight_decay = lr, momentum, weight_decay
        self._buffers: dict[int, Tensor | None] = {}

    def zero_grad(self) -> None:
        """Drop the gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Take a step along the gradients in the parameters' ``grad``."""
        if not self._momentum and not self._weight_decay:
            pairs = [(p, p.grad) for p in self._parameters if p.grad is not None]
            for parameter, gradient in pairs:
                parameter.add_(gradient, alpha=-self.lr)
            return
        moved = [i for i, p in enumerate(self._parameters) if p.grad is not None]
        buffers = [self._buffers.get(i) for i in moved]
        sgd(
            [self._parameters[i] for i in moved],
            [g for g in (self._parameters[i].grad for i in moved) if g is not None],
            buffers,
            weight_decay=self._weight_decay,
            momentum=self._momentum,
            lr=self.lr,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )
        self._buffers.update(zip(moved, buffers, strict=True))


class Adam:
    """The steps of ``torch.optim.Adam`` with its defaults, to the bit, by its own functional form.

    Parameters
    ----------
    betas
        The decays of the two moments.
    fused
        Whether each parameter's step is one pass over memory, as with ``fused=True`` of torch's:
        several times as fast on a CPU, and other numbers in the last bit.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
        fused: bool = False,
    ) -> None:
        self._parameters = list(parameters)
        self.lr, self._betas = lr, betas
        self._weight_decay, self._fused = weight_decay, fused
        self._means = [torch.zeros_like(p) for p in self._parameters]
        self._squares = [torch.zeros_like(p) for p in self._parameters]
        # The fused form counts on the parameter's device, the other one on the host.
        self._steps = [
            torch.zeros((), device=p.device if fused else None) for p in self._parameters
        ]

    def zero_grad(self) -> None:
        """Drop the gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Take a step along the gradients in the parameters' ``grad``."""
        moved = [i for i, p in enumerate(self._parameters) if p.grad is not None]
        adam(
            [self._parameters[i] for i in moved],
            [g for g in (self._parameters[i].grad for i in moved) if g is not None],
            [self._means[i] for i in moved],
            [self._squares[i] for i in moved],
            [],
            [self._steps[i] for i in moved],
            amsgrad=False,
            beta1=self._betas[0],
            beta2=self._betas[1],
            lr=self.lr,
            weight_decay=self._weight_decay,
            eps=1e-8,
            maximize=False,
            fused=self._fused or None,
        )

    def state(self) -> list[Tensor]:
        """Return copies of all first moments, then all second ones, then all counts of steps."""
        return [value.clone() for value in self._state()]

    @torch.no_grad()
    def load(self, state: Sequence[Tensor]) -> None:
        """Resume from a `state` of the same parameters."""
        for own, value in zip(self._state(), state, strict=True):
            own.copy_(value)

    def _state(self) -> list[Tensor]:
        return [*self._means, *self._squares, *self._steps]


# ---- states --------------------------------------------------------------------------------------
# A model in its training by Adam as tensors by name, and back.


def state_of(model: nn.Module, adam: Adam, **done: int) -> dict[str, Tensor]:
    """Return a copy of a model's weights, of what Adam keeps, and how much is ``done``."""
    weights = {f"model.{n}": t.clone() for n, t in model.state_dict().items()}
    moments = {f"adam.{place}": t for place, t in enumerate(adam.state())}
    return {**weights, **moments, **{name: torch.tensor(count) for name, count in done.items()}}


def load_state(state: Mapping[str, Tensor], model: nn.Module, adam: Adam) -> None:
    """Restore what `state_of` returned, into a model of the same form."""
    begins = "model."
    weights = {n.removeprefix(begins): t for n, t in state.items() if n.startswith(begins)}
    model.load_state_dict(weights)
    count = sum(name.startswith("adam.") for name in state)
    adam.load([state[f"adam.{place}"] for place in range(count)])


# ---- finite numbers ------------------------------------------------------------------------------
# What a training that diverges ends with: one sentence, of what, when, and what to lower.


def finite(loss: Tensor | float, what: str, when: str) -> float:
    """Return a loss as a number; FloatingPointError if it is not finite."""
    value = float(loss)
    if not math.isfinite(value):
        raise FloatingPointError(
            f"{what} left the finite numbers in {when}: lower its learning rate"
        )
    return value


def require_finite(
    tensors: Sequence[Tensor], what: str, rates: str, losses: Tensor | None = None
) -> None:
    """Refuse tensors that are not finite; FloatingPointError, with the first iteration if ``losses`` [T, ...] has it.

    Parameters
    ----------
    rates : str
        The learning rates that are to be lowered.
    """
    if all(bool(tensor.isfinite().all()) for tensor in tensors):
        return
    when = ""
    if losses is not None:
        broken = (~losses.isfinite()).nonzero()[:, 0].tolist()
        at = f"iteration {broken[0] + 1}" if broken else "the last iteration"
        when = f" at {at} of {len(losses)}"
    raise FloatingPointError(f"{what} left the finite numbers{when}: lower {rates}")
