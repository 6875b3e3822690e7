"""StyleGAN-XL's official file, opened at the server: a pickle, and so only where all that makes it safe has been said.

A pickle runs whatever its author put in it, and this one cannot be read otherwise: it carries the source of its own
network, which imports more from the official repository. So nothing is opened, nor imported, unless the run says so
(``unpickle``), and the file is the one that was meant (``generator_sha256``).
"""

from __future__ import annotations

import hashlib
import importlib
import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from common.errors import ConfigError, one_line
from common.learning.run import Run
from common.settings.feddgm import FedDGMSettings
from synth.generators.latents import FeatureSpace, ImageGenerator, PixelGenerator
from synth.generators.style import StyleNetwork, decoded, digits_prior
from synth.generators.stylegan_xl import StyleganXL

_MODULES = ("dnnlib", "legacy", "torch_utils")
"""What the file's own source imports of the official repository."""

_OPS = ("bias_act", "filtered_lrelu", "upfirdn2d")


def stylegan_xl(
    settings: FedDGMSettings, shape: tuple[int, int, int], classes: int, device: torch.device
) -> StyleganXL:
    """Return the official network of the settings, which has made an image.

    Parameters
    ----------
    settings : FedDGMSettings
        Of a run with ``generator=stylegan-xl``.
    shape : tuple of int
        The (C, H, W) of the run's images.

    Raises
    ------
    ConfigError
        A setting is missing, the file is another one or cannot be opened, or the network makes other images or knows
        other classes than the run's.
    """
    _refuse_incomplete(settings)
    own = settings.generator_classes()
    if own and len(own) != classes:
        raise ConfigError(
            f"feddgm.stylegan_classes names {len(own)} classes, and the run has {classes}: name one for each, in the "
            "order of the run's"
        )
    network = _opened(settings).eval().requires_grad_(False).to(device)
    space = _space(settings, network, own, classes)
    _try(space, shape, device)
    return space


def _refuse_incomplete(settings: FedDGMSettings) -> None:
    if not settings.unpickle:
        raise ConfigError(
            "feddgm.generator=stylegan-xl opens a pickle, which runs any code that its author put in it, with all that "
            "the server's process may do: set feddgm.unpickle=on if you trust the file of feddgm.stylegan and the code "
            "at feddgm.stylegan_code, or choose another feddgm.generator"
        )
    needed = {
        "stylegan": "the absolute path of the official .pkl file",
        "generator_sha256": "that file's SHA-256, from whoever vouches for it",
        "stylegan_code": "the absolute path of a checkout of the official repository",
    }
    for name, what in needed.items():
        if not getattr(settings, name):
            raise ConfigError(f"feddgm.generator=stylegan-xl needs feddgm.{name}: {what}")


def _opened(settings: FedDGMSettings) -> torch.nn.Module:
    """Return the file's ``G_ema``, by the official code's own loader."""
    code = Path(settings.stylegan_code)
    for name in _MODULES:
        if not ((code / f"{name}.py").is_file() or (code / name).is_dir()):
            raise ConfigError(
                f"feddgm.stylegan_code={code} is not a checkout of StyleGAN-XL's official repository: it has no {name}"
            )
    content = checked("feddgm.stylegan", settings.stylegan, settings.generator_sha256)
    try:
        with _imported_from(code):
            if settings.stylegan_ops == "reference":
                _take_reference_ops()
            found = importlib.import_module("legacy").load_network_pkl(io.BytesIO(content))
        network = found["G_ema"]
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"feddgm.stylegan={settings.stylegan} cannot be opened without the Python module {error.name}, which its "
            "code imports: install it beside Nectar"
        ) from error
    except Exception as error:  # of somebody else's code, which may raise anything
        raise _unusable(settings, "cannot be opened", error) from error
    if not isinstance(network, torch.nn.Module):
        raise ConfigError(
            f"feddgm.stylegan={settings.stylegan} holds a {type(network).__name__} as its G_ema, and no network: give "
            "an official file of StyleGAN-XL's"
        )
    return network


@contextmanager
def _imported_from(code: Path) -> Iterator[None]:
    """Find the official modules at ``code``, whatever others have their names, and leave none of them behind.

    The network keeps those that it has imported.
    """

    def taken() -> dict[str, Any]:
        """Take the modules of these names away from where imports look for them."""
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


def _take_reference_ops() -> None:
    """Let the official operations be computed by plain PyTorch, on a GPU too.

    Their functions choose by ``impl``, which the network leaves at "cuda", and by whether `_init`, which compiles the
    kernels, says that these are there; on the CPU they never ask.
    """
    for name in _OPS:
        module: Any = importlib.import_module(f"torch_utils.ops.{name}")
        module._init = lambda: False


def _space(
    settings: FedDGMSettings, network: torch.nn.Module, own: tuple[int, ...], classes: int
) -> StyleganXL:
    """Return the space of the settings over a network that has what the official one has."""
    try:
        known: Any = network.c_dim
        if not own and known not in (0, classes):
            raise ConfigError(
                f"feddgm.stylegan={settings.stylegan} knows {known} classes, and the run has {classes}: set "
                "feddgm.stylegan_classes to which of them the run's are, in the order of the run's"
            )
        return StyleganXL(
            network,
            settings.space,
            own or tuple(range(classes)),
            settings.latent_lr,
            settings.feature_lr,
            settings.chunk,
        )
    except AttributeError as error:
        raise _unusable(settings, "is not a network of StyleGAN-XL's", error) from error
    except ValueError as error:
        raise ConfigError(
            f"feddgm.stylegan={settings.stylegan}: {error}; change feddgm.space or feddgm.stylegan_classes"
        ) from None


def _try(space: StyleganXL, shape: tuple[int, int, int], device: torch.device) -> None:
    """Make one image of the first class: what the network cannot do shows before any site has worked."""
    generator = torch.Generator(device).manual_seed(0)
    try:
        first = space.latents(torch.zeros(1, dtype=torch.int64, device=device), generator)
        with torch.no_grad():
            images = space.images(first)
    except Exception as error:  # of somebody else's code, which may raise anything
        raise ConfigError(
            f"the network of feddgm.stylegan makes no image ({_said(error)}): give an official file and the code that "
            "it was made with; feddgm.stylegan_ops=reference asks for no compiler"
        ) from error
    if tuple(images.shape[1:]) != shape:
        raise ConfigError(
            f"the network of feddgm.stylegan makes images of {'x'.join(map(str, images.shape[1:]))}, and the run's are "
            f"of {'x'.join(map(str, shape))}: give the file of that resolution, or bring the images to the file's"
        )
    if not bool(images.isfinite().all()):
        raise ConfigError(
            "the network of feddgm.stylegan makes images that are not finite: give another file"
        )


def _unusable(settings: FedDGMSettings, what: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"feddgm.stylegan={settings.stylegan} {what} ({_said(error)}): give an official file of StyleGAN-XL's, and at "
        "feddgm.stylegan_code the repository that it is of"
    )


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {one_line(str(error))[:200]}"


# ---- generator file ------------------------------------------------------------------------------
# A generator's file at the server, read whole and only if it is the one that the run's checksum names.


def checked(key: str, path: str, sha256: str) -> bytes:
    """Return the content of a file.

    What is returned is what was hashed: a file that is changed in between is never taken for the one that was meant.

    Parameters
    ----------
    key : str
        The setting that names the file.
    sha256 : str
        Its SHA-256, in small hexadecimal digits.

    Raises
    ------
    ConfigError
        If there is no such file, or it is another one.
    """
    try:
        if not Path(path).is_file():
            raise ConfigError(f"{key}={path} is not there: the server needs that file")
        content = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{key}={path} cannot be read ({error.strerror}): the server needs that file"
        ) from None
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise ConfigError(
            f"{key}={path} was not opened: its SHA-256 begins with {found[:16]} and feddgm.generator_sha256 with "
            f"{sha256[:16]}, so it is damaged or another file"
        )
    return content


def user_prior(path: str, sha256: str) -> StyleNetwork:
    """Return the generator of ``examples/train_prior.py``; ConfigError without its checksum, or of another file."""
    if not sha256:
        raise ConfigError(
            f"feddgm.generator={path} needs feddgm.generator_sha256: the SHA-256 that examples/train_prior.py printed"
        )
    content = checked("feddgm.generator", path, sha256)
    try:
        return decoded(content, sha256)
    except ValueError as error:
        raise ConfigError(
            f"feddgm.generator={path} holds no generator: {error}; examples/train_prior.py writes such files"
        ) from None


# ---- image generators ----------------------------------------------------------------------------
# The generator that FedDGM's settings name, ready to make images like the run's.


def image_generator(run: Run) -> ImageGenerator:
    """Return the generator of the run's settings.

    Raises
    ------
    ConfigError
        If it makes other images or classes than the run's, has not the space that is asked for, or cannot be had.
    """
    settings, shape, classes = run.settings(FedDGMSettings), run.image_shape, len(run.info.classes)
    if settings.generator == "pixels":
        return PixelGenerator(shape, settings.latent_lr)
    if settings.generator == "stylegan-xl":
        return stylegan_xl(settings, shape, classes, run.device)
    if settings.generator == "digits":
        network = digits_prior()
    else:
        network = user_prior(settings.generator, settings.generator_sha256)
    form = network.form
    if form.shape != shape or form.classes != classes:
        raise ConfigError(
            f"feddgm.generator={settings.generator} makes images of {'x'.join(map(str, form.shape))} of {form.classes} "
            f"classes, and {run.info.name} has images of {'x'.join(map(str, shape))} of {classes} classes: set "
            "feddgm.generator=pixels, or train one with examples/train_prior.py"
        )
    try:
        return FeatureSpace(
            network.to(run.device), settings.space, settings.latent_lr, settings.feature_lr
        )
    except ValueError as error:
        raise ConfigError(f"feddgm.space={settings.space} is not there: {error}.") from None
