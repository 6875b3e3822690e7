"""StyleGAN-XL (Sauer et al. 2022) as FedDGM's generator, from its official file: a pickle, which runs code as it opens.

    export STYLEGAN_XL_FILE=/abs/cifar10.pkl STYLEGAN_XL_CODE=/abs/stylegan-xl STYLEGAN_XL_SHA256=...
    export PYTHONPATH=examples
    nectar run feddgm-cifar10 feddgm.generator=stylegan_xl:make feddgm.space=5 feddgm.chunk=10

These variables are the server's. The file is opened only if it has that SHA-256, which should come from a source you
trust. STYLEGAN_XL_CODE is a checkout of the official repository; its code runs too, and no checksum covers it.
Operations are computed in plain PyTorch; STYLEGAN_XL_OPS=compiled asks for the official CUDA kernels.

What is used of the network is the interface of its code: ``z_dim``, ``c_dim``, ``mapping(z, c)``, and of its
``synthesis`` ``input``, ``layer_names``, the layers of these names, and ``output_scale``.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from common.errors import ConfigError, one_line
from common.learning.run import Run
from common.settings.feddgm import FedDGMSettings
from synth.generators.latents import Latents

FILE, SHA256, CODE, OPS = (f"STYLEGAN_XL_{name}" for name in ("FILE", "SHA256", "CODE", "OPS"))

# fmt: off
IMAGENET = {
    "n02123045": 281, "n02123159": 282, "n02123394": 283, "n02123597": 284, "n02124075": 285,
    "n02129165": 291, "n02129604": 292, "n02128925": 290, "n02128757": 289, "n02127052": 287,
    "n02096294": 193, "n02093754": 182, "n02111889": 258, "n02088364": 162, "n02086240": 155,
    "n02089973": 167, "n02087394": 159, "n02115641": 273, "n02099601": 207, "n02105641": 229,
    "n07753275": 953, "n07753592": 954, "n07745940": 949, "n07747607": 950, "n07749582": 951,
    "n07768694": 957, "n07753113": 952, "n07720875": 945, "n07718472": 943, "n07742313": 948,
    "n07697313": 933, "n07697537": 934, "n07695742": 932, "n07873807": 963, "n07684084": 930,
    "n07614500": 928, "n07583066": 924, "n07831146": 959, "n07693725": 931, "n07613480": 927,
    "n09229709": 971, "n03935335": 719, "n06874185": 920, "n03065424": 506, "n03617480": 614,
    "n02992211": 486, "n03075370": 507, "n04486054": 873, "n03388043": 562, "n07716906": 940,
}
# fmt: on
"""ImageNet's number of each class of FedDGM's five subsets (its Table 4), by its folder's name."""

_MODULES = ("dnnlib", "legacy", "torch_utils")
"""What the file's own source imports from the official repository."""

_OPS = ("bias_act", "filtered_lrelu", "upfirdn2d")


def make(run: Run) -> StyleganXL:
    """Return the official network for a run's images, after it has made one.

    Raises
    ------
    ConfigError
        A variable is not set, the file is another one or cannot be opened, or the network makes other images or knows
        other classes than the run's.
    """
    file, sha256, code = (_variable(name) for name in (FILE, SHA256, CODE))
    settings, names = run.settings(FedDGMSettings), run.info.classes
    network = _open(Path(file), sha256, Path(code)).eval().requires_grad_(False).to(run.device)
    try:
        space = StyleganXL(
            network,
            settings.space,
            _numbers(names, network.c_dim),
            settings.latent_lr,
            settings.feature_lr,
            settings.chunk,
        )
        _try(space, run.image_shape, run.device)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(
            f"{FILE}={file}: {error}; change feddgm.space, or give another file"
        ) from None
    except Exception as error:  # third-party code may raise anything
        raise ConfigError(
            f"the network of {FILE}={file} makes no image ({_words(error)}): give an official file of StyleGAN-XL and, "
            f"in {CODE}, its repository; {OPS}=reference needs no compiler"
        ) from error
    return space


def _variable(name: str) -> str:
    value = os.environ.get(name, "")
    if not value:
        raise ConfigError(
            f"feddgm.generator=stylegan_xl:make needs the environment variable {name} at the server: {FILE} and {CODE} "
            f"are the absolute paths of the official .pkl file and of a checkout of its repository, {SHA256} is the "
            "SHA-256 of that file, which runs code as it opens"
        )
    return value


def _open(file: Path, sha256: str, code: Path) -> torch.nn.Module:
    """Return the file's ``G_ema``, by the official code's own loader; what is opened is what was hashed."""
    if lacking := [
        n for n in _MODULES if not ((code / f"{n}.py").is_file() or (code / n).is_dir())
    ]:
        raise ConfigError(
            f"{CODE}={code} is not a checkout of StyleGAN-XL's official repository: it has no {lacking[0]}"
        )
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{FILE}={file} cannot be read: {error.strerror}") from None
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise ConfigError(
            f"{FILE}={file} was not opened: its SHA-256 begins with {found[:16]}, {SHA256} with {sha256[:16]}"
        )
    try:
        with _imported_from(code):
            if os.environ.get(OPS) != "compiled":
                _use_reference_ops()
            loader = importlib.import_module("legacy")
            network = loader.load_network_pkl(io.BytesIO(content))["G_ema"]
    except Exception as error:  # third-party code may raise anything
        raise ConfigError(
            f"{FILE}={file} cannot be opened ({_words(error)}): give an official file of StyleGAN-XL, its repository, "
            "and the modules that its code imports"
        ) from error
    if not isinstance(network, torch.nn.Module):
        raise ConfigError(
            f"{FILE}={file}: its G_ema is a {type(network).__name__} and not a network"
        )
    return network


@contextmanager
def _imported_from(code: Path) -> Iterator[None]:
    """Import the official modules from ``code``, before others of the same names, and unload them afterwards.

    The network keeps those that it has imported.
    """

    def taken() -> dict[str, Any]:
        """Remove the modules of these names from where imports look for them."""
        names = [name for name in sys.modules if name.partition(".")[0] in _MODULES]
        return {name: sys.modules.pop(name) for name in names}

    before = taken()
    sys.path.insert(0, str(code))
    try:
        yield
    finally:
        sys.path.remove(str(code))
        taken()
        sys.modules.update(before)


def _use_reference_ops() -> None:
    """Have the official operations computed by plain PyTorch, on a GPU too.

    Their functions choose by ``impl``, which the network leaves at "cuda", and by whether `_init`, which compiles the
    kernels, says that these are there; on the CPU they never ask.
    """
    for name in _OPS:
        module: Any = importlib.import_module(f"torch_utils.ops.{name}")
        module._init = lambda: False


def _numbers(names: Sequence[str], known: int) -> tuple[int, ...]:
    """Return which of the network's ``known`` classes each of the run's is: those of ImageNet by name, or all."""
    if set(names) <= IMAGENET.keys():
        return tuple(IMAGENET[name] for name in names)
    if known != len(names):
        raise ValueError(
            f"it knows {known} classes, and the run has {len(names)}, which are not of FedDGM's subsets of ImageNet "
            "(add yours to IMAGENET in examples/stylegan_xl.py)"
        )
    return tuple(range(known))


def _try(space: StyleganXL, shape: tuple[int, int, int], device: torch.device) -> None:
    """Make one image of the first class: what the network cannot do shows before any site has worked."""
    draws = torch.Generator(device).manual_seed(0)
    first = space.latents(torch.zeros(1, dtype=torch.int64, device=device), draws)
    with torch.no_grad():
        images = space.images(first)
    if tuple(images.shape[1:]) != shape:
        came, wanted = ("x".join(map(str, sides)) for sides in (images.shape[1:], shape))
        raise ValueError(f"it makes images of {came}, and the run's are of {wanted}")
    if not bool(images.isfinite().all()):
        raise ValueError("it makes images that are not finite")


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {one_line(str(error))[:200]}"


@dataclass(frozen=True, eq=False)
class StyleganXL:
    """F_n of StyleGAN-XL: the features f behind its layer n and the styles w of all layers that follow.

    As in FedDGM's released code every layer has its own w (the space W+), and f of F_0 are the Fourier features
    that the synthesis begins with. Other than there f is not cut to [-10, 10], which half precision asks for: layers
    compute in float32, so that unchanged latents give the network's own images.

    Attributes
    ----------
    network : torch.nn.Module
        The official ``G_ema``, in eval mode; its parameters should ask for no gradients.
    n : int
        From 0 to one less than the number of its layers; the last one makes the image.
    classes : tuple of int
        For each label, which of the network's classes it is.
    rate_w, rate_f : float
        By what the learning rate is multiplied for w and for f: the released code's 1 and 1000.
    chunk : int
        Images of which latents are drawn at a time, which bounds the memory; 0 for all.

    Raises
    ------
    ValueError
        The network knows no classes, or not these, or has no layer n.
    """

    network: Any
    n: int
    classes: tuple[int, ...]
    rate_w: float = 1.0
    rate_f: float = 1000.0
    chunk: int = 0

    def __post_init__(self) -> None:
        """Refuse a space and classes that are not there."""
        last, known = len(self.network.synthesis.layer_names) - 1, self.network.c_dim
        if not 0 <= self.n <= last:
            raise ValueError(f"this generator has the spaces F_0 to F_{last}, and no F_{self.n}")
        if not known:
            raise ValueError("this generator has no classes, but one image of each class is needed")
        if not all(0 <= found < known for found in self.classes):
            raise ValueError(f"this generator has classes from 0 to {known - 1}")

    @torch.no_grad()
    def latents(self, labels: Tensor, generator: torch.Generator) -> Latents:
        """Return the latents of codes z ~ N(0, I), which give the same images in every space.

        Returns
        -------
        Latents
            f, float32 [m, width, H', W'] of m images, and w, [m, L - n, w_dim] for L layers.
        """
        z = torch.randn(len(labels), self.network.z_dim, generator=generator, device=labels.device)
        own = torch.tensor(self.classes, device=labels.device)[labels]
        c = F.one_hot(own, self.network.c_dim).to(z.dtype)
        size = self.chunk or max(1, len(labels))
        rows = zip(torch.split(z, size), torch.split(c, size), strict=True)
        parts = [self._features(*row) for row in rows]
        f, w = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        return Latents((f, w), (self.rate_f, self.rate_w))

    def images(self, latents: Latents) -> Tensor:
        """Return the network's images, float32 [m, C, H, W]."""
        f, w = latents.tensors
        synthesis = self.network.synthesis
        images: Tensor = self._through(f, w, synthesis.layer_names[self.n :])
        return images * float(synthesis.output_scale)

    def _features(self, z: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """Return f and w of codes z and one-hot classes c."""
        styles: Tensor = self.network.mapping(z, c)
        names = self.network.synthesis.layer_names[: self.n]
        f = self._through(self.network.synthesis.input(styles[:, 0]), styles[:, 1:], names)
        return f, styles[:, 1 + self.n :]

    def _through(self, f: Tensor, styles: Tensor, names: list[str]) -> Tensor:
        """Return the features after the layers of these names, whose styles lead ``styles``."""
        for name, w in zip(names, styles.unbind(1), strict=False):
            layer = getattr(self.network.synthesis, name)
            f = layer(f, w, noise_mode="const", force_fp32=True)
        return f
