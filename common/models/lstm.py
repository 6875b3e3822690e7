"""A language model of stacked LSTM layers, as LEAF trains on Reddit (Caldas et al., 2018)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common.models.classifier import Classifier


class LSTMLayer(nn.Module):
    """One LSTM layer (Hochreiter and Schmidhuber, 1997), written in plain matrix products.

    Unlike ``nn.LSTM`` it can be differentiated twice on every device and runs under ``vmap``. The
    gates are in torch's order i, f, g, o; there is one bias, and none is added to the forget
    gate.
    """

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.inward = nn.Parameter(torch.empty(4 * width, inputs))
        self.recurrent = nn.Parameter(torch.empty(4 * width, width))
        self.bias = nn.Parameter(torch.empty(4 * width))

    def draw(self, generator: torch.Generator) -> None:
        """Draw torch's own start: uniform in +-1/sqrt(width)."""
        bound = 1 / math.sqrt(self.recurrent.shape[1])
        for parameter in self.parameters():
            parameter.uniform_(-bound, bound, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        """Return the hidden units after every place, from a state of zeros: [n, T, d] -> [n, T, width]."""
        inward = F.linear(x, self.inward, self.bias)  # of all places in one product
        cell = hidden = inward.new_zeros(len(x), self.recurrent.shape[1])
        after = []
        for place in inward.unbind(1):
            i, f, g, o = (place + F.linear(hidden, self.recurrent)).chunk(4, 1)
            cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
            hidden = o.sigmoid() * cell.tanh()
            after.append(hidden)
        return torch.stack(after, 1)


class TiedOutput(nn.Module):
    """A linear layer that has only its bias: the matrix is the embedding's own (Press and Wolf, 2017)."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.empty(classes))

    def draw(self, generator: torch.Generator) -> None:
        """Begin with a bias of zero."""
        self.bias.zero_()

    def forward(self, h: Tensor, matrix: Tensor) -> Tensor:
        """Return the logits [..., classes] of ``h`` [..., d], for ``matrix`` [classes, d]."""
        return F.linear(h, matrix, self.bias)


class LSTM(Classifier):
    """Token vectors, ``depth`` LSTM layers of ``width`` hidden units, logits of the next token at every place.

    With depth 1, width 96 and a tied output it has 1,044,112 parameters for 10,000 tokens. It takes
    token ids int64 [n, T], or their vectors float [n, T, d] as ``continuous`` gives them; any T. ``shape`` is (T,),
    ``classes`` the size of the vocabulary, ``embedding`` is d, 0 for ``width``. With ``tied`` the output layer's matrix
    is the embedding's own.
    """

    def __init__(
        self,
        shape: tuple[int],
        classes: int,
        *,
        depth: int = 1,
        width: int = 128,
        embedding: int = 0,
        tied: bool = True,
    ) -> None:
        size = embedding or width
        if tied and size != width:
            raise ValueError(
                f"a tied output needs token vectors as wide as the LSTM, not {size} and {width}: "
                "set model.embedding=0, or model.tied=false"
            )
        super().__init__((*shape, size))
        # As nn.Embedding(classes, size), whose own start imports a second and a half of symbolic algebra on "meta".
        self.embedding: nn.Embedding = nn.Embedding.from_pretrained(  # type: ignore[no-untyped-call]
            torch.empty(classes, size), freeze=False
        )
        self.layers = nn.Sequential(
            *(LSTMLayer(width if layer else size, width) for layer in range(depth))
        )
        self.head = TiedOutput(classes) if tied else nn.Linear(width, classes)

    def continuous(self, x: Tensor) -> Tensor:
        """Return the token vectors [n, T, d] of token ids [n, T]; vectors come back as they are.

        The embedding takes part in gradients: detach the result where it must not.
        """
        vectors: Tensor = x if x.is_floating_point() else self.embedding(x)
        return vectors

    def embed(self, x: Tensor) -> Tensor:
        """Return the last layer's hidden units at every place, [n, T, width], for ids or vectors ``x``."""
        hidden: Tensor = self.layers(self.continuous(x))
        return hidden

    def classify(self, h: Tensor) -> Tensor:
        """Return the logits [n, T, classes] of the hidden units [n, T, width]."""
        tied = isinstance(self.head, TiedOutput)
        logits: Tensor = self.head(h, self.embedding.weight) if tied else self.head(h)
        return logits
