"""Nectar's own models, built by name."""

from __future__ import annotations

import difflib
import inspect
from typing import Any, TypeVar

import torch
from torch import nn

from common.models.classifier import Classifier
from common.models.initial import initialise
from common.models.projected import Projected
from common.models.registry import MODELS, misfit, network, takes

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

    It lies on the generator's device. The process-wide random state is neither read nor moved: two
    calls with generators in one state give equal weights, in any process or thread.

    Parameters
    ----------
    name
        One of `MODELS`.
    shape
        An image's (channels, height, width), a row's (columns, 1, 1), a series' (channels, 1, steps), or a text's
        (tokens,).
    classes
        The number of classes or of tokens in the vocabulary, at least 2.
    depth
        Blocks of the ConvNet and the conv1d, layers of the LSTM and the ViT; a model takes no notice of
        what it lacks.
    width
        Channels of the ConvNet's blocks; hidden units of the MLP and the LSTM; the size of
        a ViT's token.
    norm
        The normalisation of the ConvNet and the ResNets: "instance", "group", "batch" or, for
        the ConvNet, "none".
    embedding
        The size of the LSTM's token vectors; 0 for ``width``.
    tied
        Whether the LSTM's output layer uses the embedding's matrix.
    projection
        The size of a projection head in front of the last layer; 0 for none.
    generator
        The source of the initial weights. None stands for seed 0, for a model whose
        weights are loaded next.

    Raises
    ------
    ValueError
        An unknown name, or a model that cannot be built for such inputs.
    """
    given = {
        **{"depth": depth, "width": width, "norm": norm, "embedding": embedding, "tied": tied},
        "projection": projection,
    }
    model = outline(name, shape, classes, **given)
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
    if min(shape) < 1 or classes < 2:
        raise ValueError(
            f"a classifier needs images with pixels and at least 2 classes, "
            f"not shape {shape} and {classes} classes"
        )
    _check_kind(name, shape)
    cls = network(name)
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
