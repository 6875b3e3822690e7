"""A model as it was built, from which others are cast with given weights: at a fraction of what building one costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from common.models.classifier import Classifier

#: what two modules may share: nobody can change it in one of them
_CONSTANT = (int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.Size)

#: what of a module is made anew, and not as any other of its attributes
_APART = ("_parameters", "_buffers", "_modules")


class Mould:
    """Casts models that are in every respect as one that was just built, but for the weights.

    Casts share no module and no memory, neither with each other nor with the mould: whoever gets one may train it,
    freeze it, hang hooks into it and keep it.

    Parameters
    ----------
    model
        Just built. Its parameters' values are given up; it is of no use any more.
    """

    def __init__(self, model: Classifier) -> None:
        self._rest = {id(module): _rest_of(module) for module in model.modules()}
        self.fits = all(_is_constant(v) for c, _ in self._rest.values() for v in c.values())
        self._model = model
        self._device = next((value.device for value in model.parameters()), torch.device("cpu"))
        _empty(model)
        self._state = tuple(model.state_dict(keep_vars=True).items())

    def covers(self, weights: Mapping[str, Tensor]) -> bool:
        """Return whether ``weights`` are all that a model's state has, by name and shape, and nothing else."""
        return len(weights) == len(self._state) and all(
            name in weights and weights[name].shape == value.shape for name, value in self._state
        )

    @torch.no_grad()
    def cast(self, weights: Mapping[str, Tensor]) -> Classifier:
        """Return a model with ``weights``, copied, in training mode."""
        made: dict[int, Any] = {
            id(value): self._filled(value, weights[name]) for name, value in self._state
        }
        model = self._copy(self._model, made)
        assert isinstance(model, Classifier)
        return model

    def _filled(self, value: Tensor, given: Tensor) -> Tensor:
        """Return what takes the place of a parameter or buffer, with the values given."""
        own = given.to(self._device, value.dtype, copy=True, memory_format=torch.contiguous_format)
        if isinstance(value, nn.Parameter):
            return nn.Parameter(own, value.requires_grad)
        return own

    def _copy(self, module: nn.Module, made: dict[int, Any]) -> nn.Module:
        """Return a copy of a module; ``made`` has what was copied, by the original's id: layers may share a matrix."""
        if id(module) in made:
            again: nn.Module = made[id(module)]
            return again
        new = made[id(module)] = object.__new__(type(module))
        constants, containers = self._rest[id(module)]
        own = new.__dict__
        own.update(constants)
        for name, kind in containers:
            own[name] = kind()
        own["_parameters"] = {
            name: None if value is None else made[id(value)]
            for name, value in module._parameters.items()
        }
        own["_buffers"] = {
            name: None if value is None else made.setdefault(id(value), value.clone())
            for name, value in module._buffers.items()
        }
        own["_modules"] = {
            name: None if value is None else self._copy(value, made)
            for name, value in module._modules.items()
        }
        return new


def _empty(model: nn.Module) -> None:
    """Replace a model's parameters by ones without memory; one that layers share stays shared."""
    made: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, value in module._parameters.items():
            if value is None:
                continue
            if id(value) not in made:
                shape = torch.empty_like(value, device="meta")
                made[id(value)] = nn.Parameter(shape, value.requires_grad)
            module._parameters[name] = made[id(value)]


def _rest_of(module: nn.Module) -> tuple[dict[str, Any], list[tuple[str, type]]]:
    """Return what a module has beside its state: constants by name, and empty containers, whose kinds are given."""
    rest = {name: value for name, value in vars(module).items() if name not in _APART}
    empty = [(n, type(v)) for n, v in rest.items() if isinstance(v, dict | set) and not v]
    taken = {name for name, _ in empty}
    return {name: value for name, value in rest.items() if name not in taken}, empty


def _is_constant(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_constant, value))
    return isinstance(value, _CONSTANT)
