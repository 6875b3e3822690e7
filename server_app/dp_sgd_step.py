"""One private step on two synthetic rows, before a run starts: a model that cannot take it fails at every site."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from common.code.imports import is_import_path
from common.draws.private_draws import SystemRows
from common.draws.seeding import process_wide
from common.errors import ConfigError, one_line
from common.learning.run import Run
from synth.private_matching import rows_see_each_other
from synth.private_release import example_gradients
from synth.row_draws import LayerDraws

_ROWS = 2


def require_dp_sgd_step(run: Run) -> None:
    """Refuse a model with whose examples a private run cannot do what it promises, naming the layer: ConfigError.

    Batch norm is looked for in every model; a step is taken by one of the user's own.
    """
    config = run.config
    mechanisms = {getattr(each, "mechanism", "none") for each in config.methods.values()}
    matching = bool(
        mechanisms & {"feature", "gradient"}
    )  # sites match images then, and train nothing
    if (
        not config.privacy.active
        or config.clips_updates
        or (config.model.train == "head" and not matching)
    ):
        return
    model, own = run.build_model().train(), is_import_path(config.model.name)
    norm = next((n for n, layer in model.named_modules() if isinstance(layer, _BatchNorm)), None)
    if norm is not None:
        replace = "nn.GroupNorm in its place" if own else "model.norm=group or instance"
        raise _refusal(run, model, norm, "normalises over the batch", replace)
    if not own:
        return
    if matching and rows_see_each_other(model, run.image_shape):
        raise _refusal(run, model, "", "mixes the rows of a batch", "one that treats each alone")
    if not matching:
        with process_wide(config.seed, "private step"):
            _take_step(run, model)


def _take_step(run: Run, model: nn.Module) -> None:
    def loss(model: nn.Module, x: Tensor, targets: Tensor) -> Tensor:
        return run.task.loss(model(x), targets)

    shape, classes = (_ROWS, *run.info.shape), len(run.info.classes)
    texts = not run.info.has_values
    rows = torch.randint(classes, shape) if texts else torch.randn(shape)
    targets = torch.randint(classes, shape if texts else (_ROWS,))
    batch = [rows.to(run.device), targets.to(run.device)]
    inside: list[str] = []
    try:
        with _watched(model, inside), LayerDraws(SystemRows(_ROWS, run.device)):
            slopes = example_gradients(model, loss, batch)
    except Exception as error:  # anything may go wrong in a user's own code
        why = f"has no gradient of an example alone ({one_line(str(error)).strip()[:150]})"
        raise _refusal(run, model, inside[-1] if inside else "", why, _PLAIN) from None
    odd = next((name for name, slope in slopes.items() if not slope.isfinite().all()), None)
    if odd is not None:
        why = "has a gradient of an example alone that is not finite"
        raise _refusal(run, model, odd.rpartition(".")[0], why, _PLAIN)


_PLAIN = "layers that torch.func.vmap takes, such as nn.Linear, nn.Conv2d and nn.GroupNorm"


@contextmanager
def _watched(model: nn.Module, inside: list[str]) -> Iterator[None]:
    """While entered, ``inside`` names the layers whose forward pass is running, the innermost last."""
    handles = []
    for name, layer in model.named_modules():
        begin = layer.register_forward_pre_hook(lambda *_, name=name: inside.append(name))
        end = layer.register_forward_hook(lambda *_: (inside.pop(), None)[1])
        handles += [begin, end]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _refusal(run: Run, model: nn.Module, layer: str, why: str, use: str) -> ConfigError:
    kind = type(model.get_submodule(layer)).__name__ if layer else ""
    what = f"layer {layer} ({kind}) of model.name" if layer else "model.name"
    privacy = run.config.privacy
    return ConfigError(
        f"privacy.noise_multiplier={privacy.noise_multiplier:g} clips the gradient of each example by itself, and "
        f"{what}={run.config.model.name} {why}: use {use}, or set privacy.noise_multiplier=0."
    )
