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

    ``forward`` is ``classify(embed(x))`` and nothing else. Every classifier runs under
    ``torch.func.functional_call`` and ``torch.func.vmap`` and can be differentiated twice.

    Attributes
    ----------
    continuous_shape
        The shape of one input that gradients can move: (C, H, W) of an image,
        (T, d) of a text's token vectors.
    head
        The last layer, which ``classify`` is.
    """

    head: nn.Module

    def __init__(self, continuous_shape: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.continuous_shape = continuous_shape

    @abstractmethod
    def embed(self, x: Tensor) -> Tensor:
        """Return the flat embeddings h [n, d] of the normalised images ``x`` [n, C, H, W]."""

    def classify(self, h: Tensor) -> Tensor:
        """Return the logits z [n, classes] for the embeddings ``h`` [n, d]."""
        logits: Tensor = self.head(h)
        return logits

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits [n, classes] for the images ``x`` [n, C, H, W]."""
        return self.classify(self.embed(x))

    def continuous(self, x: Tensor) -> Tensor:
        """Return the inputs ``x`` as floats [n, *continuous_shape], which ``forward`` takes as well.

        An image is that already.
        """
        return x

    def is_of_head(self, name: str) -> bool:
        """Return whether the parameter or buffer ``name`` is the last layer's."""
        return name.startswith("head.")

    @property
    def couples_samples(self) -> bool:
        """Whether samples of one batch see each other (see the function of that name)."""
        return couples_samples(self)
