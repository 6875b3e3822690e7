"""Somebody's own network as a classifier: made, looked at once with a batch of the data's shape, and wrapped."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from common.models.classifier import Classifier

_BATCH = 2


def make(
    maker: Callable[..., object], path: str, shape: tuple[int, ...], classes: int
) -> nn.Module:
    """Call what a user named ``path`` and return the network it makes.

    It is called with ``shape`` and ``classes``, or with ``num_classes=classes`` where it does not name both, as
    torchvision's constructors do not.
    """
    takes = "it must take (shape, classes), or num_classes as torchvision's constructors do"
    if isinstance(maker, nn.Module) or not callable(maker):
        raise ValueError(
            f"{path} is a {type(maker).__name__} and cannot be called for a network: {takes}"
        )
    try:
        signature = inspect.signature(maker)
    except (TypeError, ValueError):
        raise ValueError(f"{path} does not say which parameters it has: {takes}") from None
    given: dict[str, Any] = {"shape": shape, "classes": classes}
    if not given.keys() <= signature.parameters.keys():
        given = {"num_classes": classes}
    try:
        signature.bind(**given)
    except TypeError:
        raise ValueError(f"{path} has the parameters {signature}: {takes}") from None
    try:
        module = maker(**given)
    except Exception as error:  # anything may go wrong in a user's own code
        raise ValueError(f"{path} raised {_told(error)}") from error
    if not isinstance(module, nn.Module):
        raise ValueError(f"{path} made a {type(module).__name__}, and must make a torch.nn.Module")
    return module


def adopt(module: nn.Module, path: str, shape: tuple[int, ...], classes: int) -> Classifier:
    """Return ``module`` as a classifier whose state has the module's own names.

    Without its own method ``embed`` the embedding is what enters the last linear layer, whose output must be the
    module's. Its parameters and buffers are left as they were.
    """
    if not any(map(nn.parameter.is_lazy, module.parameters())):
        _check_state(
            module, path
        )  # a dtype that is refused would be reported as an input that does not fit
    _look(module.eval(), path, shape, classes)
    _check_state(module, path)
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    _look(module.train(), path, shape, classes)
    for name, buffer in module.named_buffers():  # running means and variances moved
        buffer.copy_(before[name])
    network = module if isinstance(module, Classifier) else _wrapped(module, path, shape, classes)
    try:
        copy.deepcopy(network)
    except Exception as error:  # anything may go wrong in a user's own code
        raise ValueError(
            f"{path} makes a network that cannot be copied ({_told(error)})"
        ) from error
    return network.train()


def _sample(shape: tuple[int, ...], classes: int) -> Tensor:
    """Return a batch to look at a network with: images of noise, or texts of any tokens."""
    if len(shape) == 1:
        return torch.randint(classes, (_BATCH, *shape))
    return torch.randn(_BATCH, *shape)


def _look(module: nn.Module, path: str, shape: tuple[int, ...], classes: int) -> None:
    """Refuse a network that does not give the logits of the data's inputs, in the mode that it is in."""
    size = "x".join(map(str, shape))
    try:
        with torch.no_grad():
            output = module(_sample(shape, classes))
    except Exception as error:  # anything may go wrong in a user's own code
        raise ValueError(
            f"{path} does not take inputs of {size} ({_told(error)}): choose a data set whose inputs it takes, such "
            "as dataset=cifar10 for colour images, or name your own callable that makes a network for these"
        ) from error
    expected = (_BATCH, *(shape if len(shape) == 1 else ()), classes)
    if not isinstance(output, Tensor) or tuple(output.shape) != expected:
        tensor = isinstance(output, Tensor)
        given = f"shape {tuple(output.shape)}" if tensor else type(output).__name__
        when = "in training" if module.training else "in evaluation"
        raise ValueError(
            f"{path} gives {given} {when} for {_BATCH} inputs of {size}, and must give the logits alone, of shape "
            f"{expected}"
        )


def _check_state(module: nn.Module, path: str) -> None:
    """Refuse a state that cannot be sent, and a network without anything to learn."""
    for name, value in module.state_dict().items():
        plain = isinstance(value, Tensor)
        if (
            not plain
            or value.is_complex()
            or (value.is_floating_point() and value.dtype != torch.float32)
        ):
            kind = str(value.dtype).removeprefix("torch.") if plain else type(value).__name__
            raise ValueError(
                f"{path} has {name} as {kind}: what is learned and sent is float32, so return the network as .float()"
            )
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ValueError(f"{path} has no parameter that can be learned")


def _wrapped(module: nn.Module, path: str, shape: tuple[int, ...], classes: int) -> Classifier:
    """Return the network as a classifier, if its logits are what it makes of its embeddings."""
    network = OwnNetwork(module, shape)
    if network.last is None and not network.classifies:
        raise _unembedded(path)
    x = _sample(shape, classes)
    network.eval()
    try:
        with torch.no_grad():
            # in one pass, where the network is not asked twice: it may draw, or count, in evaluation too
            h, output = (network.embed(x), network(x)) if network.embeds else network.passed(x)
            logits = network.classify(h)
    except Exception as error:  # anything may go wrong in a user's own code
        raise _unembedded(path) from error
    if h.ndim != output.ndim or len(h) != len(x):
        raise ValueError(f"{path} must embed {_BATCH} inputs as [{_BATCH}, d]")
    if logits.shape != output.shape or not torch.allclose(logits, output, rtol=1e-3, atol=1e-5):
        if not network.embeds:
            raise _unembedded(path)
        raise ValueError(
            f"the embeddings of {path} are not what its last layer turns into the logits: give it a method "
            "classify(h) with the logits of an embedding, equal to its output"
        )
    return network


def _unembedded(path: str) -> ValueError:
    return ValueError(
        f"{path} does not end with a linear layer whose output it returns, so that its embedding is unknown: give "
        "it a method embed(x), and classify(h) with the logits of an embedding"
    )


class OwnNetwork(Classifier):
    """A user's network: it holds the network's own parameters, buffers and modules under their own names."""

    plain: Any
    last: str | None

    def __init__(self, module: nn.Module, shape: tuple[int, ...]) -> None:
        super().__init__(shape if len(shape) > 1 else ())
        linear = [n for n, layer in module.named_modules() if isinstance(layer, nn.Linear)]
        own: dict[str, Any] = {"plain": module, "last": linear[-1] if linear else None}
        # One tree for both, not a child: state_dict, functional_call and copies then see the network's own names.
        for shared in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            own[shared] = module.__dict__[shared]
        self.__dict__.update(own)

    @property
    def embeds(self) -> bool:
        """Whether the network has its own method ``embed``."""
        return inspect.ismethod(getattr(self.plain, "embed", None))

    @property
    def classifies(self) -> bool:
        """Whether the network's own method ``classify`` gives the logits."""
        return self.embeds and inspect.ismethod(getattr(self.plain, "classify", None))

    def train(self, mode: bool = True) -> OwnNetwork:
        """Set the mode, of the network too: some ask themselves which one it is."""
        self.plain.train(mode)
        self.training = mode
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Return the network's output."""
        logits: Tensor = self.plain(x)
        return logits

    def embed(self, x: Tensor) -> Tensor:
        """Return the network's own ``embed``, else what enters its last linear layer."""
        if self.embeds:
            own: Tensor = self.plain.embed(x)
            return own
        return self.passed(x)[0]

    def passed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the input of the network's last linear layer in a pass, and the network's output."""
        entering: list[Tensor] = []
        # Held for this pass only: a hook that stays would not follow a copy of the network.
        layer = self.plain.get_submodule(self.last)
        handle = layer.register_forward_pre_hook(lambda _, given: entering.append(given[0]))
        try:
            logits = self.plain(x)
        finally:
            handle.remove()
        return entering[-1], logits

    def classify(self, h: Tensor) -> Tensor:
        """Return the logits of the embeddings ``h``."""
        classify = self.plain.classify if self.classifies else self.plain.get_submodule(self.last)
        logits: Tensor = classify(h)
        return logits

    def is_of_head(self, name: str) -> bool:
        """Return whether the parameter or buffer ``name`` is the last linear layer's."""
        return self.last is not None and name.startswith(f"{self.last}.")


def _told(error: Exception) -> str:
    """Return an error's type and first line."""
    first = str(error).strip().partition("\n")[0].rstrip(".!")[:200]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
