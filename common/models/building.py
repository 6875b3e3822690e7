"""Nectar's own models, built by name."""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Mapping
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from common.models.classifier import Classifier
from common.models.registry import MODELS, misfit, network_class, takes

M = TypeVar("M", bound=nn.Module)


def build(
    name: str,
    shape: tuple[int, ...],
    classes: int,
    *,
    depth: int = 3,
    width: int = 128,
    norm: str = "instance",
    embedding: int = 0,
    tied: bool = True,
    projection: int = 0,
    generator: torch.Generator | None = None,
) -> Classifier:
    """Return the model ``name`` for inputs of ``shape``, in training mode.

    ``shape`` is an image's (channels, height, width), a row's (columns, 1, 1), a series' (channels, 1, steps), or
    a text's (tokens,); ``classes`` the number of classes or of tokens in the vocabulary, at least 2. The others are the
    settings of ``model``; a network takes no notice of what it lacks.

    Initial weights are drawn from ``generator``, on its device; None means seed 0, for a model whose weights are
    loaded next. The process-wide random state is neither read nor moved: two calls with generators in one state give
    equal weights, in any process or thread.
    """
    given = {"depth": depth, "width": width, "norm": norm, "embedding": embedding, "tied": tied}
    model = outline(name, shape, classes, projection=projection, **given)
    return drawn(model, generator or torch.Generator().manual_seed(0))


def drawn(model: M, generator: torch.Generator) -> M:
    """Give a model on "meta" memory on the generator's device and initial weights from it, in place."""
    # As Module.to_empty, whose empty_like imports half a second of symbolic algebra for a tensor on "meta".
    empty = {
        name: torch.empty(value.shape, dtype=value.dtype, device=generator.device)
        for name, value in model.state_dict().items()
    }
    model.load_state_dict(empty, assign=True)
    initialise(model, generator)
    return model


def outline(name: str, shape: tuple[int, ...], classes: int, **given: Any) -> Classifier:
    """Return the model on "meta": names and shapes, no memory, no draw; ValueError as of `build`."""
    _check_kind(name, shape)
    cls = network_class(name)
    taken = {key: given[key] for key in inspect.signature(cls).parameters if key in given}
    with torch.device("meta"):
        model: Classifier = cls(shape, classes, **taken)
        size = given.get("projection", 0)
        return Projected(model, size, classes) if size else model


def _check_kind(name: str, shape: tuple[int, ...]) -> None:
    """Refuse an unknown name, a model of images for text and the reverse, saying which to choose."""
    if name not in MODELS:
        near = difflib.get_close_matches(name, MODELS, n=1, cutoff=0.0)
        raise ValueError(
            f"unknown model {name!r}: did you mean {near[0]!r}? "
            f"There are {', '.join(MODELS)} (model.name)"
        )
    # a table's rows and series have the shape of images, and which they are is the run's to know
    kinds = ("text",) if len(shape) == 1 else ("images", "table", "series")
    if not any(takes(name, kind) for kind in kinds):
        raise ValueError(misfit(name, kinds[0]))


# ---- template ------------------------------------------------------------------------------------
# A template, from which models with given weights are made at a fraction of the cost of building one.

#: a module's attributes that are made again instead of copied
_APART = ("_parameters", "_buffers", "_modules")


class ModelTemplate:
    """Makes models that equal a newly built one in every respect except the weights.

    They share no module and no memory, neither with each other nor with the template: a caller may train one,
    freeze it, add hooks and keep it. Besides its state a layer may have only constants and empty containers. One that
    is handed back serves the next caller.
    """

    def __init__(self, model: Classifier) -> None:
        self._rest = {id(module): _rest_of(module) for module in model.modules()}
        self._model = model
        self._device = next((value.device for value in model.parameters()), torch.device("cpu"))
        _empty(model)
        self._state = tuple(model.state_dict(keep_vars=True).items())
        self._nothing = {n: value.new_empty(0, device=self._device) for n, value in self._state}
        self._places = WeakKeyDictionary[Classifier, Mapping[str, Tensor]]()
        self._spare: list[Classifier] = []

    def covers(self, weights: Mapping[str, Tensor]) -> bool:
        """Return whether ``weights`` are all that a model's state has, by name and shape, and nothing else."""
        return len(weights) == len(self._state) and all(
            name in weights and weights[name].shape == value.shape for name, value in self._state
        )

    @torch.no_grad()
    def instantiate(self, weights: Mapping[str, Tensor]) -> Classifier:
        """Return a model with ``weights``, copied, in training mode."""
        as_new: dict[str, Any] = {"copy": True, "memory_format": torch.contiguous_format}
        own = {n: weights[n].to(self._device, value.dtype, **as_new) for n, value in self._state}
        if self._spare:
            spare = self._spare.pop()
            for name, place in self._places[spare].items():
                place.data = own[name]
            return spare
        made: dict[int, Any] = {}
        for name, value in self._state:
            learned = isinstance(value, nn.Parameter)
            made[id(value)] = nn.Parameter(own[name], value.requires_grad) if learned else own[name]
        copied = self._copy(self._model, made)
        assert isinstance(copied, Classifier)
        return copied

    def hand_over(self, model: Classifier) -> dict[str, Tensor]:
        """Return the state of a model of which only that has changed; its modules serve the next caller."""
        places = self._places.get(model) or model.state_dict(keep_vars=True)
        state = {name: place.detach() for name, place in places.items()}
        for name, place in places.items():
            place.data = self._nothing[name]
        self._places[model] = places
        self._spare.append(model)
        return state

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
    """Return what a module has besides its state: constants by name, and empty containers, whose kinds are given."""
    rest = {name: value for name, value in vars(module).items() if name not in _APART}
    containers = [(n, type(v)) for n, v in rest.items() if isinstance(v, dict | set)]
    return {n: v for n, v in rest.items() if not isinstance(v, dict | set)}, containers


# ---- initial -------------------------------------------------------------------------------------
# Initial weights from an explicit generator: torch's own start draws from the process-wide one.


@torch.no_grad()
def initialise(model: nn.Module, generator: torch.Generator) -> None:
    """Give every layer of ``model`` the start that its source gives it, drawn from ``generator``.

    Weights and biases of convolutions and linear layers are uniform in +-1/sqrt(fan in), as torch
    counts it (of a transposed convolution by its output channels); norms
    start as the identity. Token vectors are uniform in +-0.1, as in LEAF: torch's normal ones of
    unit variance would make the logits of a tied output huge. A layer that has a method
    ``draw(generator)`` starts by that instead. Layers draw in the order of ``model.modules()``, so
    a seed gives the same weights in every process.
    """
    for module in model.modules():
        if callable(draw := getattr(module, "draw", None)):
            draw(generator)
        elif isinstance(module, nn.Conv2d | nn.ConvTranspose2d | nn.Linear):
            bound = 1 / math.sqrt(module.weight[0].numel())
            for parameter in module.parameters(recurse=False):
                parameter.uniform_(-bound, bound, generator=generator)
        elif isinstance(module, nn.Embedding):
            module.weight.uniform_(-0.1, 0.1, generator=generator)
        elif isinstance(module, nn.GroupNorm | nn.LayerNorm | _BatchNorm):
            module.reset_parameters()
        elif next(module.parameters(recurse=False), None) is not None:
            raise TypeError(f"no initial weights are defined for a layer {type(module).__name__}")


# ---- projected -----------------------------------------------------------------------------------
# A projection head between a classifier's embedding and its last layer.


class Projected(Classifier):
    """A classifier whose embedding is a projection of another one's.

    Two linear layers with ReLU between them, as wide as the embedding and ``size``, and a new last layer: the heads of
    MOON (Li et al., 2021) and of the contrastive methods before it.
    """

    def __init__(self, base: Classifier, size: int, classes: int) -> None:
        super().__init__(base.continuous_shape)
        if not isinstance(base.head, nn.Linear):
            raise ValueError(
                "model.projection needs a linear last layer: set model.tied=off, or model.projection=0"
            )
        width = base.head.in_features
        base.head = nn.Identity()
        self.base = base
        self.projection = nn.Sequential(
            nn.Linear(width, width), nn.ReLU(inplace=True), nn.Linear(width, size)
        )
        self.head = nn.Linear(size, classes)

    def embed(self, x: Tensor) -> Tensor:
        """Return the projections [n, size]."""
        projected: Tensor = self.projection(self.base.embed(x))
        return projected

    def continuous(self, x: Tensor) -> Tensor:
        """Return the inputs as the base has them."""
        return self.base.continuous(x)
