"""The part of a model that is each site's own: which of its parameters and buffers ``model.personal`` names."""

from __future__ import annotations

from torch import nn

from common.models.classifier import Classifier

_NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)


def personal_names(model: Classifier, personal: str) -> frozenset[str]:
    """Return the names of the parameters and buffers that stay at a site.

    Parameters
    ----------
    personal : str
        none; head, the last layer; norm, all layers that normalise (FedBN's); or names of layers, which have all below
        them, with commas between.

    Raises
    ------
    ValueError
        If one names no layer, or nothing is left that could be learned together.
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


def _below(names: tuple[str, ...], layers: list[str], told: str) -> frozenset[str]:
    own = frozenset(n for n in names if any(n == at or n.startswith(f"{at}.") for at in layers))
    if not own:
        known = dict.fromkeys(name.rpartition(".")[0] or name for name in names)
        raise ValueError(
            f"model.personal={told} names no layer of this model: its layers are {', '.join(known)}."
        )
    return own
