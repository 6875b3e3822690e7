"""Models by name."""

from __future__ import annotations

import difflib

import torch

from common.models.classifier import Classifier
from common.models.cnn import CNN
from common.models.convnet import ConvNet
from common.models.initial import initialise

MODELS = ("convnet", "cnn")
"""The names that `build` knows."""


def build(
    name: str,
    shape: tuple[int, int, int],
    classes: int,
    *,
    depth: int = 3,
    width: int = 128,
    norm: str = "instance",
    generator: torch.Generator | None = None,
) -> Classifier:
    """Return the model ``name`` for images of ``shape``, in training mode.

    It lies on the generator's device. The process-wide random state is neither read nor moved: two
    calls with generators in one state give equal weights, in any process or thread.

    Args:
        name: One of `MODELS`.
        shape: An image's (channels, height, width).
        classes: The number of classes, at least 2.
        depth: Blocks of the ConvNet; "cnn" has a fixed shape and takes no notice of the three.
        width: Channels of the ConvNet's blocks.
        norm: The ConvNet's normalisation: "instance", "group", "batch" or "none".
        generator: The source of the initial weights. None stands for seed 0, for a model whose
            weights are loaded next.

    Raises:
        ValueError: An unknown name, or a model that cannot be built for such images.
    """
    if min(shape) < 1 or classes < 2:
        raise ValueError(
            f"a classifier needs images with pixels and at least 2 classes, "
            f"not shape {shape} and {classes} classes"
        )
    # On "meta" a layer's own start costs no draw from the process-wide generator.
    with torch.device("meta"):
        model: Classifier
        if name == "convnet":
            model = ConvNet(shape, classes, depth=depth, width=width, norm=norm)
        elif name == "cnn":
            model = CNN(shape, classes)
        else:
            near = difflib.get_close_matches(name, MODELS, n=1, cutoff=0.0)
            raise ValueError(
                f"unknown model {name!r}: did you mean {near[0]!r}? "
                f"There are {', '.join(MODELS)} (model.name)"
            )
    generator = generator or torch.Generator().manual_seed(0)
    # As Module.to_empty, whose empty_like imports half a second of symbolic algebra for a tensor on "meta".
    empty = {
        name: torch.empty(value.shape, dtype=value.dtype, device=generator.device)
        for name, value in model.state_dict().items()
    }
    model.load_state_dict(empty, assign=True)
    initialise(model, generator)
    return model
