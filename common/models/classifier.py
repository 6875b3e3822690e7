"""What every classifier offers: an embedding, and logits from that embedding."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def couples_samples(model: nn.Module) -> bool:
    """Return whether one sample's output depends on the others of its batch.

    So it is where a batch normalisation is in training mode: there a batch must not be cut or
    joined for speed.
    """
    return any(isinstance(module, _BatchNorm) and module.training for module in model.modules())


class Classifier(nn.Module, ABC):
    """A classifier in two halves, so that one forward pass can give the embedding and the logits.

    ``forward`` is ``classify(embed(x))`` and nothing else.
    """

    @abstractmethod
    def embed(self, x: Tensor) -> Tensor:
        """Return the flat embeddings h [n, d] of the normalised images ``x`` [n, C, H, W]."""

    @abstractmethod
    def classify(self, h: Tensor) -> Tensor:
        """Return the logits z [n, classes] for the embeddings ``h`` [n, d]."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits [n, classes] for the images ``x`` [n, C, H, W]."""
        return self.classify(self.embed(x))

    @property
    def couples_samples(self) -> bool:
        """Whether samples of one batch see each other (see the function of that name)."""
        return couples_samples(self)
