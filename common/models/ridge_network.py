"""The model of a second round of sums: a linear layer on frozen features' axes and on a trained network's embedding."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from common.models.classifier import Classifier
from common.models.convnet import ConvNet
from common.models.ridge import RidgeModel


class RidgeNetwork(Classifier):
    """Logits linear in [z, e]: z of a `RidgeModel`, which nothing trained, e a ConvNet's embedding.

    Parameters
    ----------
    depth, width, norm
        The ConvNet's.
    embedding
        The `RidgeModel`'s axes and its constant; 0: 257.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(
        self,
        shape: tuple[int, int, int],
        classes: int,
        *,
        depth: int = 3,
        width: int = 128,
        norm: str = "instance",
        embedding: int = 0,
    ) -> None:
        super().__init__(shape)
        self.fixed = RidgeModel(shape, classes, width=embedding or 257)
        self.fixed.head = nn.Identity()
        self.network = ConvNet(shape, classes, depth=depth, width=width, norm=norm)
        last = self.network.head
        assert isinstance(last, nn.Linear)
        size = last.in_features
        self.network.head = nn.Identity()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("deviation", torch.ones(size))
        self.head = nn.Linear(len(self.fixed.offset) + size, classes)

    @torch.no_grad()
    def draw(self, generator: torch.Generator) -> None:
        """Begin with an embedding as it is; all else is drawn by its own layers."""
        self.mean.zero_()
        self.deviation.fill_(1)

    @property
    def spread(self) -> Tensor:
        """Each number's deviation, [K + E]: of an axis that over drawn images, of the network's embedding 1."""
        return torch.cat([self.fixed.spread, torch.ones_like(self.deviation)])

    def seen(self, x: Tensor) -> Tensor:
        """Return the network's embedding [n, E] of images and, in colour, their mirror images, the mean of both."""
        e = self.network.embed(x)
        return (e + self.network.embed(x.flip(3))) / 2 if self.fixed.mirrored else e

    def embed(self, x: Tensor) -> Tensor:
        """Return [z, (e - mean) / deviation], [n, K + E]; e is of float32, as the network was trained."""
        e = (self.seen(x.to(self.mean.dtype)) - self.mean) / self.deviation
        return torch.cat([self.fixed.embed(x), e.to(x.dtype)], 1)
