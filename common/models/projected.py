"""A projection head between a classifier's embedding and its last layer."""

from __future__ import annotations

from torch import Tensor, nn

from common.models.classifier import Classifier


class Projected(Classifier):
    """A classifier whose embedding is a projection of another one's.

    Two linear layers with ReLU between them, as wide as the embedding and ``size``, and a new last layer: the heads of
    MOON (Li et al., 2021) and of the contrastive methods before it.

    Parameters
    ----------
    base
        A classifier whose ``head`` is a linear layer; it loses it.

    Raises
    ------
    ValueError
        The base has another last layer.
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
