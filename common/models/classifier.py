"""What every classifier offers: an embedding, and logits from that embedding."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def couples_samples(model: nn.Module) -> bool:
    """Return whether one sample's output depends on the others of its batch.

    So it is where a batch normalisation is in training mode: there a batch must not be cut or
    joined for speed.
    """
    return any(isinstance(module, _BatchNorm) and module.training for module in model.modules())


class Classifier(nn.Module):
    """A classifier in two halves, so that one forward pass can give the embedding and the logits.

    ``forward`` is ``classify(embed(x))`` and nothing else. Every classifier runs under
    ``torch.func.functional_call`` and ``torch.func.vmap`` and can be differentiated twice.

    Attributes
    ----------
    continuous_shape
        The shape of one input that gradients can move: (C, H, W) of an image,
        (T, d) of a text's token vectors.
    features
        All before the last layer, in a model that does not say otherwise by ``embed``.
    head
        The last layer, which ``classify`` is.
    """

    features: Any
    head: nn.Module

    def __init__(self, continuous_shape: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.continuous_shape = continuous_shape

    def embed(self, x: Tensor) -> Tensor:
        """Return the embeddings h [n, d] of the normalised images ``x`` [n, C, H, W]: what ``features`` gives, flat."""
        h: Tensor = self.features(x)
        return h.flatten(1)

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


# ---- the sites' own part -------------------------------------------------------------------------
# Which parameters and buffers ``model.personal`` names: these stay at each site.

_NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)


def personal_names(model: Classifier, personal: str) -> frozenset[str]:
    """Return the names of the parameters and buffers that stay at a site.

    ``personal``: none; head, the last layer; norm, all layers that normalise (FedBN's); or names of layers, which
    have all below them, with commas between.
    """
    names = tuple(model.state_dict())
    if personal == "none":
        return frozenset()
    if personal == "head":
        own = frozenset(filter(model.is_of_head, names))
    elif personal == "norm":
        layers = [name for name, layer in model.named_modules() if isinstance(layer, _NORMS)]
        own = _below(names, layers, "norm")
    else:
        layers = [name.strip() for name in personal.split(",")]
        own = frozenset().union(*(_below(names, [each], each) for each in layers))
    if not own or own.issuperset(name for name, _ in model.named_parameters()):
        left = "nothing of this model" if not own else "all of it"
        raise ValueError(
            f"model.personal={personal} keeps {left} at the sites: name a part of it; its layers are "
            f"{', '.join(dict.fromkeys(name.rpartition('.')[0] or name for name in names))}."
        )
    return own


def _below(names: tuple[str, ...], layers: list[str], typed: str) -> frozenset[str]:
    own = frozenset(n for n in names if any(n == at or n.startswith(f"{at}.") for at in layers))
    if not own:
        known = dict.fromkeys(name.rpartition(".")[0] or name for name in names)
        raise ValueError(
            f"model.personal={typed} names no layer of this model: its layers are {', '.join(known)}."
        )
    return own
