"""Gradients of single examples as products, for models of linear layers: what clips and adds them without writing them.

An example's gradient of a linear layer is the product b a^T of the slopes b at the layer's outputs and its inputs a: it
is |b| |a| long (Goodfellow, arXiv:1510.01799), and a sum of clipped ones is one product of two matrices.

**Exactness.** Rounded at the end, such a product could change in any of its last bits with one example more. So its
factors become integers first, row by row: a over its length, and b times that length and the example's clip, cut
towards 0 to steps whose product is the step that sums are counted in. An example then contributes the product of two
vectors of integers, no longer than C and independent of all others, and float64 adds those of `FINE_ROWS` examples
exactly, in any order. Coarse factors would lose too much, so these steps are finer than the grid of what leaves:
`synth.private_release.Gaussian.finer` explains the effect.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from synth.private_release import FINE_ROWS, Bound, Gaussian, Products
from synth.private_release import clipped_sum as sum_of_examples

#: C is at most 2^46 steps: 128 contributions stay below 2^53, and 2^16 within half of an int64
_BITS = 46

#: the grid is at most 2^32 steps: noise of 12 deviations stays below 2^61
_FINER = 32

#: examples of a step, in the mean, up to which a Poisson sample never has 2^16
_MOST_EXPECTED = 1 << 15


def finely(gaussian: Gaussian, model: nn.Module, expected: float) -> Gaussian:
    """Return the mechanism with finer steps, for products, or unchanged if they are of no use.

    That follows from what is public: the mechanism, the model, and how many examples a step has in the mean.
    """
    if not gaussian.noise_multiplier or expected > _MOST_EXPECTED or not _layers(model):
        return gaussian
    _, bits = math.frexp(gaussian.clip / gaussian.grid)
    return replace(gaussian, finer=max(0, min(_BITS - bits, _FINER)))


class OtherUseError(Exception):
    """A parameter is used otherwise than in its own layer's product, once, on a single row."""


class _Watched(Tensor):
    """A parameter of a layer whose use is intercepted: ``answer`` computes the layer's outputs."""

    answer: Callable[..., Tensor]

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Answer for the layer; raise `OtherUseError` at any other use of its parameters."""
        answer = getattr(args[1], "answer", None) if func is F.linear and not kwargs else None
        if answer is None:
            raise OtherUseError
        return answer(*args)


def _layers(model: nn.Module) -> dict[str, nn.Linear]:
    """Return the linear layers that train, by name; none if anything else does, or two share a parameter."""
    found = {
        name: layer
        for name, layer in model.named_modules()
        if type(layer) is nn.Linear and any(p.requires_grad for p in layer.parameters())
    }
    own = [id(p) for layer in found.values() for p in layer.parameters() if p.requires_grad]
    every = [id(p) for p in model.parameters() if p.requires_grad]
    return found if sorted(own) == sorted(every) else {}


def factored_gradients(
    model: nn.Module, objective: Callable[..., Tensor], batch: Sequence[Tensor]
) -> dict[str, Tensor | Products]:
    """Return the result of `synth.private_release.example_gradients`, with weights' gradients as products.

    Raises
    ------
    OtherUseError
        If a parameter is more than its layer's, or a layer is used more than once, or on several rows.
    """
    bound = Bound(model, objective)
    trained = _layers(bound)
    layers = {
        name: {kind: p.detach() for kind, p in layer.named_parameters()}
        for name, layer in trained.items()
    }

    def loss(zeros: dict[str, Tensor], *example: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        inputs: dict[str, Tensor] = {}
        given: dict[str, Tensor] = {}

        def answer(name: str, x: Tensor, *own: Tensor | None) -> Tensor:
            expected = [id(given[f"{name}.{kind}"]) for kind in layers[name]]
            used = [id(each) for each in own if each is not None]
            if used != expected or name in inputs or x.shape[:-1] != (1,):
                raise OtherUseError
            inputs[name] = x[0].clone()  # what comes later may write over it
            out = F.linear(x, **layers[name])
            return out + zeros[name].to(out.dtype)

        for name, parameters in layers.items():
            for kind, parameter in parameters.items():
                watched = parameter.as_subclass(_Watched)
                watched.answer, given[f"{name}.{kind}"] = partial(answer, name), watched
        value = functional_call(bound, given, tuple(part[None] for part in example))
        unused = {n: own["weight"].new_zeros(own["weight"].shape[1]) for n, own in layers.items()}
        return value, unused | inputs

    zeros = {name: own["weight"].new_zeros(len(own["weight"])) for name, own in layers.items()}
    dims = (None, *(0 for _ in batch))
    slopes, inputs = vmap(grad(loss, has_aux=True), dims, randomness="different")(zeros, *batch)
    found = {
        f"{name}.{kind}": Products(slopes[name], inputs[name]) if kind == "weight" else slopes[name]
        for name, layer in trained.items()
        for kind, p in layer.named_parameters()
        if p.requires_grad
    }
    return {name.removeprefix("model."): each for name, each in found.items()}


def clipped_sum(
    model: nn.Module,
    objective: Callable[..., Tensor],
    batch: Sequence[Tensor],
    gaussian: Gaussian,
    drawing: Callable[[slice], AbstractContextManager[None]] | None = None,
) -> dict[str, Tensor]:
    """Return what `synth.private_release.clipped_sum` does, by products where ``gaussian`` has finer steps."""
    if gaussian.finer:
        with suppress(OtherUseError):
            return sum_of_examples(
                model, objective, batch, gaussian, FINE_ROWS, drawing, factored_gradients
            )
    return sum_of_examples(model, objective, batch, gaussian, drawing=drawing)
