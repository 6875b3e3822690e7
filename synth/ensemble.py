"""Many models that answer as one, and how far what they are given is from what they were trained on (DENSE)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class Ensemble:
    """D(x), the mean of any number of models' logits, all in evaluation mode.

    The models go one after the other, so they may differ in architecture; on a CPU ``torch.func.vmap`` over stacked
    weights is hardly ever faster, and takes two to four times as long for a ConvNet. A gradient needs the memory of all
    their passes at once.

    Parameters
    ----------
    models : sequence of nn.Module
        Images [n, C, H, W] -> logits [n, classes]. They are set to evaluation mode, and their parameters ask for no
        gradients any more: a model that is to be trained is none of them.

    Raises
    ------
    ValueError
        There is no model.
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        if not models:
            raise ValueError("an ensemble needs a model")
        self._models = [model.eval().requires_grad_(False) for model in models]
        self._norms = [
            module
            for model in models
            for module in model.modules()
            if isinstance(module, _BatchNorm) and module.running_mean is not None
        ]

    def __call__(self, x: Tensor) -> Tensor:
        """Return the logits, float [n, classes]."""
        return torch.stack([model(x) for model in self._models]).mean(0)

    def judge(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits, and L_BN from the same passes.

        L_BN is the sum over the batch norms of all models of ||mu - running mean|| + ||sigma^2 - running variance||,
        mu and sigma^2 being those of each channel of what enters there, over the batch (and the places of a map).
        Models without batch norm have none: it is 0 for them, and says nothing.
        """
        with _entering(self._norms) as distances:
            logits = self(x)
        return logits, torch.stack(distances).sum() if distances else logits.new_zeros(())


@contextmanager
def _entering(norms: Sequence[_BatchNorm]) -> Iterator[list[Tensor]]:
    """Collect each norm's distance between the statistics of what enters and its running ones, pass by pass."""
    distances: list[Tensor] = []

    def note(norm: nn.Module, given: tuple[Tensor, ...]) -> None:
        assert isinstance(norm, _BatchNorm)
        distances.append(statistics_distance(given[0], norm))

    handles = [norm.register_forward_pre_hook(note) for norm in norms]
    try:
        yield distances
    finally:
        for handle in handles:
            handle.remove()


def statistics_distance(x: Tensor, norm: _BatchNorm) -> Tensor:
    """Return ||mu - running mean|| + ||sigma^2 - running variance|| of what enters a batch norm, [n, channels, ...]."""
    variance, mean = torch.var_mean(x.transpose(0, 1).flatten(1), 1, correction=0)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    gaps = mean - norm.running_mean, variance - norm.running_var
    return torch.stack([torch.linalg.vector_norm(gap) for gap in gaps]).sum()
