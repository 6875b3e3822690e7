"""A repository and a file like StyleGAN-XL's official ones, of a network of a few thousand weights.

What lies behind a name is small, and the names, the signatures and the way that a file carries its network's source are
the official code's: a loader in ``legacy``, classes rebuilt by ``torch_utils.persistence`` out of source in the pickle,
operations that compile a kernel unless they are told not to. Here they would compile on every device, and fail.
"""

from __future__ import annotations

import hashlib
import importlib
import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

FILES = {
    "dnnlib/__init__.py": """
class EasyDict(dict):
    def __getattr__(self, name):
        return self[name]
""",
    "torch_utils/__init__.py": "",
    "torch_utils/persistence.py": """
import sys
import types
import uuid

import dnnlib

_sources = {}


def persistent_class(original):
    module = sys.modules[original.__module__]
    if module not in _sources:
        with open(module.__file__) as file:
            _sources[module] = file.read()
    source = _sources[module]

    class Decorator(original):
        def __reduce__(self):
            state = dict(self.__dict__)
            meta = dict(type="class", module_src=source, class_name=original.__name__, state=state)
            return _reconstruct_persistent_obj, (meta,)

    Decorator.__name__ = original.__name__
    return Decorator


def _reconstruct_persistent_obj(meta):
    meta = dnnlib.EasyDict(meta)
    found = [module for module, source in _sources.items() if source == meta.module_src]
    if not found:
        found = [types.ModuleType("_imported_module_" + uuid.uuid4().hex)]
        sys.modules[found[0].__name__] = found[0]
        _sources[found[0]] = meta.module_src
        exec(meta.module_src, found[0].__dict__)
    cls = getattr(found[0], meta.class_name)
    rebuilt = cls.__new__(cls)
    rebuilt.__setstate__(meta.state)
    return rebuilt
""",
    "torch_utils/ops/__init__.py": "",
    "torch_utils/ops/bias_act.py": "def _init():\n    return True\n",
    "torch_utils/ops/upfirdn2d.py": "def _init():\n    return True\n",
    "torch_utils/ops/filtered_lrelu.py": """
import torch.nn.functional as F


def _init():
    raise RuntimeError("Could not find nvcc")


def filtered_lrelu(x, b, gain, slope, clamp, impl="cuda"):
    if impl == "cuda" and _init():
        raise AssertionError("there is no such kernel")
    x = F.leaky_relu(x + b[:, None, None], slope) * gain
    return x.clamp(-clamp, clamp)
""",
    "legacy.py": """
import io
import pickle

import torch


class _LegacyUnpickler(pickle.Unpickler):
    def find_class(self, module, name):
        if module == "torch.storage" and name == "_load_from_bytes":
            return lambda b: torch.load(io.BytesIO(b), map_location="cpu")
        return super().find_class(module, name)


def load_network_pkl(f, force_fp16=False):
    return _LegacyUnpickler(f).load()
""",
    "training/__init__.py": "",
    "training/networks.py": """
import math

import torch
import torch.nn.functional as F
from torch_utils import persistence
from torch_utils.ops import filtered_lrelu


def modulated_conv2d(x, w, s, demodulate, padding):
    if demodulate:
        w = w * w.square().mean([1, 2, 3], keepdim=True).rsqrt()
        s = s * s.square().mean().rsqrt()
    w = w[None] * s[:, None, :, None, None]
    if demodulate:
        w = w * (w.square().sum([2, 3, 4], keepdim=True) + 1e-8).rsqrt()
    n = len(x)
    x = F.conv2d(x.reshape(1, -1, *x.shape[2:]), w.flatten(0, 1), padding=padding, groups=n)
    return x.reshape(n, -1, *x.shape[2:])


@persistence.persistent_class
class MappingNetwork(torch.nn.Module):
    def __init__(self, z_dim, c_dim, w_dim, num_ws):
        super().__init__()
        self.num_ws = num_ws
        self.c_dim = c_dim
        self.embed = torch.nn.Embedding(max(c_dim, 1), z_dim)
        self.fc0 = torch.nn.Linear(2 * z_dim, w_dim)

    def forward(self, z, c, truncation_psi=1.0, truncation_cutoff=None, update_emas=False):
        assert truncation_psi == 1 and not update_emas
        assert c.shape == (len(z), self.c_dim)
        z = z.to(self.fc0.weight.dtype)
        z = z * (z.square().mean(1, keepdim=True) + 1e-8).rsqrt()
        x = self.fc0(torch.cat([z, self.embed(c.argmax(1))], dim=1))
        return F.leaky_relu(x, 0.2).unsqueeze(1).repeat([1, self.num_ws, 1])


@persistence.persistent_class
class SynthesisInput(torch.nn.Module):
    def __init__(self, w_dim, channels, size):
        super().__init__()
        self.size = size
        self.affine = torch.nn.Linear(w_dim, 2)
        self.register_buffer("freqs", torch.randn(channels, 2))
        self.register_buffer("phases", torch.rand(channels) - 0.5)

    def forward(self, w):
        at = torch.linspace(-0.5, 0.5, self.size, dtype=w.dtype)
        grid = torch.stack(torch.meshgrid(at, at, indexing="ij"), -1)
        moved = grid[None] + self.affine(w)[:, None, None]
        return torch.sin((moved @ self.freqs.T + self.phases) * 2 * math.pi).permute(0, 3, 1, 2)


@persistence.persistent_class
class SynthesisLayer(torch.nn.Module):
    def __init__(self, w_dim, is_torgb, in_channels, out_channels, out_size):
        super().__init__()
        self.is_torgb = is_torgb
        self.out_size = out_size
        self.kernel = 1 if is_torgb else 3
        self.use_fp16 = True
        self.affine = torch.nn.Linear(w_dim, in_channels)
        self.weight = torch.nn.Parameter(
            torch.randn(out_channels, in_channels, self.kernel, self.kernel)
        )
        self.bias = torch.nn.Parameter(torch.zeros(out_channels))
        self.register_buffer("magnitude_ema", torch.ones([]))

    def forward(self, x, w, noise_mode="random", force_fp32=False, update_emas=False):
        assert noise_mode in ["random", "const", "none"] and not update_emas
        assert w.shape == (len(x), self.affine.in_features)
        dtype = self.weight.dtype if force_fp32 else torch.float16
        styles = self.affine(w) * (1 if not self.is_torgb else self.affine.out_features**-0.5)
        x = modulated_conv2d(x.to(dtype), self.weight, styles, not self.is_torgb, self.kernel // 2)
        x = F.interpolate(x, self.out_size, mode="bilinear")
        gain, slope = (1, 1) if self.is_torgb else (math.sqrt(2), 0.2)
        return filtered_lrelu.filtered_lrelu(x, self.bias, gain, slope, clamp=256)


@persistence.persistent_class
class SynthesisNetwork(torch.nn.Module):
    def __init__(self, w_dim, img_resolution, img_channels, num_layers, channels):
        super().__init__()
        self.num_ws = num_layers + 1
        self.img_resolution = img_resolution
        self.output_scale = 0.25
        self.input = SynthesisInput(w_dim, channels, 4)
        self.layer_names = []
        for idx in range(num_layers):
            is_torgb = idx == num_layers - 1
            size = max(4, round(img_resolution * 2.0 ** -max(0, num_layers // 2 - idx)))
            out = img_channels if is_torgb else channels
            # a stage on top of a smaller network leaves out the number of its last layer
            name = f"L{idx if idx < 2 else idx + 1}_{size}_{out}"
            setattr(self, name, SynthesisLayer(w_dim, is_torgb, channels, out, size))
            self.layer_names.append(name)

    def forward(self, ws, **layer_kwargs):
        ws = ws.unbind(dim=1)
        x = self.input(ws[0])
        for name, w in zip(self.layer_names, ws[1:]):
            x = getattr(self, name)(x, w, **layer_kwargs)
        return x * self.output_scale


@persistence.persistent_class
class Generator(torch.nn.Module):
    def __init__(self, z_dim, c_dim, w_dim, img_resolution, img_channels, **synthesis):
        super().__init__()
        self.z_dim = z_dim
        self.c_dim = c_dim
        self.w_dim = w_dim
        self.img_resolution = img_resolution
        self.img_channels = img_channels
        self.synthesis = SynthesisNetwork(w_dim, img_resolution, img_channels, **synthesis)
        self.num_ws = self.synthesis.num_ws
        self.mapping = MappingNetwork(z_dim, c_dim, w_dim, self.num_ws)

    def forward(self, z, c, truncation_psi=1, **synthesis_kwargs):
        return self.synthesis(self.mapping(z, c, truncation_psi=truncation_psi), **synthesis_kwargs)
""",
}


@dataclass(frozen=True)
class Standin:
    """What a user of the official file has: the file, its checksum, a checkout of the repository."""

    file: Path
    sha256: str
    code: Path

    def named(self, patch: pytest.MonkeyPatch) -> None:
        """Name it to `examples/stylegan_xl.py` as its user does."""
        for name, value in (("FILE", self.file), ("SHA256", self.sha256), ("CODE", self.code)):
            patch.setenv(f"STYLEGAN_XL_{name}", str(value))


def repository(folder: Path) -> Path:
    """Write the repository below ``folder`` and return where it is."""
    for name, text in FILES.items():
        path = folder / "stylegan-xl" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "stylegan-xl"


def network(code: Path, shape: tuple[int, int, int], classes: int, layers: int = 4) -> Any:
    """Return a network of the repository's, with weights of a seed; it computes without kernels."""
    with importable(code), torch.random.fork_rng():
        torch.manual_seed(0)
        importlib.import_module("torch_utils.ops.filtered_lrelu")._init = lambda: False  # type: ignore[attr-defined]
        made = importlib.import_module("training.networks").Generator(
            z_dim=5,
            c_dim=classes,
            w_dim=6,
            img_resolution=shape[1],
            img_channels=shape[0],
            num_layers=layers,
            channels=4,
        )
    return made.eval().requires_grad_(False)


def standin(
    folder: Path, shape: tuple[int, int, int] = (1, 8, 8), classes: int = 10, layers: int = 4
) -> Standin:
    """Write the repository and a file of such a network below ``folder``."""
    code = repository(folder)
    with importable(code):
        made = network(code, shape, classes, layers)
        return written(folder, code, {"G_ema": made})


def written(folder: Path, code: Path, content: object) -> Standin:
    """Pickle anything as the file."""
    file = folder / f"{folder.name}.pkl"
    file.write_bytes(pickle.dumps(content))
    return Standin(file, hashlib.sha256(file.read_bytes()).hexdigest(), code)


@contextmanager
def importable(code: Path) -> Iterator[None]:
    """Let the repository's modules be imported, and forget them at the end unless they were there before."""
    already = str(code) in sys.path
    if not already:
        sys.path.insert(0, str(code))
    try:
        yield
    finally:
        if not already:
            sys.path.remove(str(code))
            for name in list(sys.modules):
                if name.partition(".")[0] in ("dnnlib", "legacy", "torch_utils", "training"):
                    del sys.modules[name]
