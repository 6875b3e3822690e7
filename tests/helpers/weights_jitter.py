"""Another processor, imitated: the first weights of every model are multiplied by 1 + 1e-6 N(0, 1).

``pytest --jitter-weights SEED`` sets `SEED`, and `install` has what gives a model its first weights followed by
`jitter`, in this process and, by ``jitter/sitecustomize.py``, in every interpreter that a test starts.

A weight's factor is of the seed and of its tensor's content, not of a running stream: a model that is made twice, in
two processes or in two ways, begins as the same model, so what must be equal stays equal.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Sequence
from hashlib import blake2b
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

SEED = "TESTS_JITTER_SEED"
REACHED = "TESTS_JITTER_REACHED"
"""Names of environment variables: the seed, and a file that is told which tests had a model."""

SIZE = 1e-6

PLACES = {
    "common.models.building": "initialise",
    "common.models.user_model": "make",
    "synth.beta_vae": "start",
    "synth.ensemble_distillation": "ImageGenerator.reset",
    "synth.feature_generator": "start",
    "style_training": "begin",
    "synth.unet": "UNet._silence_branches",
    # what tests lay out themselves
    "torch.nn.modules.conv": "_ConvNd.reset_parameters",
    "torch.nn.modules.linear": "Linear.reset_parameters",
    "torch.nn.modules.sparse": "Embedding.reset_parameters",
}
"""What draws the first weights of the module that it is given or returns."""

_made: set[bytes] = set()
_told: set[str] = set()


def jitter(model: Any, seed: str) -> None:
    """Change a module's parameters in place; what was changed before is left as it is."""
    import torch

    for parameter in model.parameters():
        value = parameter.detach()
        if value.is_meta or not value.is_floating_point():
            continue
        digest = _digest(value, seed)
        if digest in _made:
            continue
        rng = torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))
        factor = 1 + SIZE * torch.randn(
            value.shape, generator=rng, dtype=torch.float64, device="cpu"
        )
        changed = (value.cpu().double() * factor).to(value.dtype)
        with torch.no_grad():
            parameter.copy_(changed)
        _made.add(_digest(changed, seed))


def _digest(value: Any, seed: str) -> bytes:
    content = value.cpu().contiguous().view(-1).double().numpy().tobytes()
    return blake2b(content, digest_size=16, key=seed.encode()).digest()


def _tell() -> None:
    """Add the running test to the file; a child has its name from the environment."""
    test, file = os.environ.get("PYTEST_CURRENT_TEST", ""), os.environ.get(REACHED)
    name = test.rpartition(" (")[0]
    if file and name and name not in _told:
        _told.add(name)
        with Path(file).open("a", encoding="utf-8") as lines:
            lines.write(f"{name}\n")


def _followed(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        if seed := os.environ.get(SEED):
            from torch import nn

            modules = [each for each in (*args[:1], result) if isinstance(each, nn.Module)]
            for module in modules:
                jitter(module, seed)
            if modules:
                _tell()
        return result

    return wrapper


def _patch(module: ModuleType) -> None:
    *classes, name = PLACES[module.__name__].split(".")
    holder: Any = module
    for each in classes:
        holder = getattr(holder, each)
    setattr(holder, name, _followed(getattr(holder, name)))


class _Finder:
    """Finds the modules of `PLACES` as others find them, and patches each once it is executed."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec that the next finder has, with a loader that patches."""
        if name not in PLACES:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                execute = spec.loader.exec_module

                def patched(module: ModuleType, execute: Any = execute) -> None:
                    execute(module)
                    _patch(module)

                spec.loader.exec_module = patched  # type: ignore[method-assign]
                return spec
        return None


def install() -> None:
    """Patch what is imported already, and the rest when it is; once, whoever asks."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    for name in PLACES:
        if name in sys.modules:
            _patch(sys.modules[name])
    sys.meta_path.insert(0, _Finder())  # type: ignore[arg-type]
