"""Models by name."""

from __future__ import annotations

import difflib

import torch

from common.models.classifier import Classifier
from common.models.cnn import CNN
from common.models.convnet import ConvNet
from common.models.initial import initialise
from common.models.leafcnn import LeafCNN
from common.models.lstm import LSTM
from common.models.mlp import MLP

_FOR_IMAGES = ("convnet", "cnn", "mlp", "leafcnn")
_FOR_TEXT = ("lstm",)

MODELS = _FOR_IMAGES + _FOR_TEXT
"""The names that `build` knows."""


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
    generator: torch.Generator | None = None,
) -> Classifier:
    """Return the model ``name`` for inputs of ``shape``, in training mode.

    It lies on the generator's device. The process-wide random state is neither read nor moved: two
    calls with generators in one state give equal weights, in any process or thread.

    Args:
        name: One of `MODELS`.
        shape: An image's (channels, height, width), or a text's (tokens,).
        classes: The number of classes or of tokens in the vocabulary, at least 2.
        depth: Blocks of the ConvNet, layers of the LSTM; a model takes no notice of what it lacks.
        width: Channels of the ConvNet's blocks; hidden units of the MLP and the LSTM.
        norm: The ConvNet's normalisation: "instance", "group", "batch" or "none".
        embedding: The size of the LSTM's token vectors; 0 for ``width``.
        tied: Whether the LSTM's output layer uses the embedding's matrix.
        generator: The source of the initial weights. None stands for seed 0, for a model whose
            weights are loaded next.

    Raises:
        ValueError: An unknown name, or a model that cannot be built for such inputs.
    """
    if min(shape) < 1 or classes < 2:
        raise ValueError(
            f"a classifier needs images with pixels and at least 2 classes, "
            f"not shape {shape} and {classes} classes"
        )
    _check_kind(name, shape)
    # On "meta" a layer's own start costs no draw from the process-wide generator.
    with torch.device("meta"):
        model: Classifier
        if name == "lstm":
            model = LSTM(
                (shape[0],), classes, depth=depth, width=width, embedding=embedding, tied=tied
            )
        else:
            model = _for_images(name, shape, classes, depth, width, norm)
    generator = generator or torch.Generator().manual_seed(0)
    # As Module.to_empty, whose empty_like imports half a second of symbolic algebra for a tensor on "meta".
    empty = {
        name: torch.empty(value.shape, dtype=value.dtype, device=generator.device)
        for name, value in model.state_dict().items()
    }
    model.load_state_dict(empty, assign=True)
    initialise(model, generator)
    return model


def _for_images(
    name: str, shape: tuple[int, ...], classes: int, depth: int, width: int, norm: str
) -> Classifier:
    channels, height, columns = shape
    image = (channels, height, columns)
    if name == "convnet":
        return ConvNet(image, classes, depth=depth, width=width, norm=norm)
    if name == "mlp":
        return MLP(image, classes, width=width)
    return LeafCNN(image, classes) if name == "leafcnn" else CNN(image, classes)


def _check_kind(name: str, shape: tuple[int, ...]) -> None:
    """Refuse an unknown name, a model of images for text and the reverse, saying which to choose."""
    if name not in MODELS:
        near = difflib.get_close_matches(name, MODELS, n=1, cutoff=0.0)
        raise ValueError(
            f"unknown model {name!r}: did you mean {near[0]!r}? "
            f"There are {', '.join(MODELS)} (model.name)"
        )
    if name in _FOR_IMAGES and len(shape) == 1:
        raise ValueError(
            f"model.name={name} takes images, this data set is text: choose {', '.join(_FOR_TEXT)}"
        )
    if name in _FOR_TEXT and len(shape) != 1:
        raise ValueError(
            f"model.name={name} takes text, this data set is images: choose one of "
            f"{', '.join(_FOR_IMAGES)}"
        )
