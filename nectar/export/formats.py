"""The forms of a model in an exported folder: weights, and graphs (torch.export, ONNX) that need no code of Nectar's.

`read_formats` reads what a person asks for, `write_graphs` writes graphs, and `check` holds the logits of what was
written against those of the run's model.
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from common.errors import ConfigError
from common.models import Classifier
from common.samples.dataset import DatasetInfo
from nectar.export.model import ExportedModel, Normalise

SAFETENSORS, PT2 = "safetensors", "pt2"
"""The weights and the program of torch.export: in every folder, the latter where torch can follow the network."""

EXTRA = "`.uv/bin/uv pip install -e '.[onnx]'` in Nectar's clone"

_RAW = "normalised images [n, C, H, W]: (raw / scale - mean) / std"
_PIXELS = (
    "pixel values [n, C, H, W], float32, from 0 to 1, raw / scale, or raw values of rows [n, columns, 1, 1] and series "
    "[n, channels, 1, steps]; normalisation is inside"
)
_LOGGERS = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")


@dataclass(frozen=True)
class Format:
    """A file that holds the model.

    Attributes
    ----------
    takes : str
        What the model takes in this form.
    tolerance : float
        How far its logits may be from the run's model's, as a share of the largest logit or of 1.
    packages : tuple of str
        What writing and checking it needs beyond what every run does.
    """

    file: str
    takes: str
    tolerance: float
    packages: tuple[str, ...] = ()


FORMATS = {
    SAFETENSORS: Format("model.safetensors", _RAW, 1e-5),
    PT2: Format("model.pt2", _PIXELS, 1e-5),
    "onnx": Format("model.onnx", _PIXELS, 1e-4, ("onnx", "onnxscript", "onnxruntime")),
}

ADDED = tuple(name for name in FORMATS if name != SAFETENSORS)
"""The formats that can be requested in addition to the weights."""


def read_formats(text: str) -> tuple[str, ...]:
    """Return the formats that ``text`` names, such as ``onnx,pt2``, each once, in their own order.

    Raises
    ------
    ConfigError
        If one is unknown, or needs a package that is not installed.
    """
    asked = [part.strip() for part in text.split(",")]
    unknown = [name for name in asked if name not in ADDED]
    if unknown:
        raise ConfigError(
            f"--format={text} names {unknown[0]!r}: give {', '.join(ADDED)} or both as {','.join(ADDED)}; "
            "the weights are written as safetensors in any case"
        )
    require_packages(asked)
    return tuple(name for name in ADDED if name in asked)


def require_packages(formats: Sequence[str]) -> None:
    """Refuse a format whose packages are not installed, saying how to install them."""
    for name in formats:
        missing = [package for package in FORMATS[name].packages if find_spec(package) is None]
        if missing:
            raise ConfigError(
                f"--format {name} needs {' and '.join(missing)}, which is not installed: {EXTRA}"
            )


class FromRaw(nn.Module):
    """A classifier behind the normalisation of its data set: of pixel values from 0 to 1, or of rows' raw values."""

    def __init__(self, network: Classifier, info: DatasetInfo) -> None:
        super().__init__()
        ends = info.ends if info.low else ()
        self.normalise = Normalise(info.mean, info.std, 1.0, ends, exact=not info.has_images)
        self.network = network

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the logits [n, classes] of pixel values [n, C, H, W] from 0 to 1, or of raw values."""
        logits: Tensor = self.network(self.normalise(pixels))
        return logits


def write_graphs(
    network: Classifier, info: DatasetInfo, asked: Sequence[str], folder: Path
) -> tuple[dict[str, float], str]:
    """Write the network as pt2 and as what is ``asked`` into ``folder``, read it again and `check` it.

    Returns
    -------
    dict of str to float, str
        What `check` returns by format; why there is no pt2 file that was not requested, empty if there is one.

    Raises
    ------
    ConfigError
        If torch cannot follow the network's code, saying where it gave up, or a graph gives other logits.
    """
    program, differences, no_pt2 = None, dict[str, float](), ""
    for name in (name for name in ADDED if name == PT2 or name in asked):
        path = folder / FORMATS[name].file
        try:
            with _quiet():
                program = program or _traced(network, info)
                read = _READERS[name](program, path)
            differences[name] = check(name, network, info, read)
        except OSError:
            raise
        except Exception as error:  # an exporter may raise anything for a user's model
            reason = str(error) if isinstance(error, ConfigError) else _unwritten(name, error)
            if name in asked:
                raise ConfigError(
                    f"{reason}: leave --format {name} out, or rewrite what this names"
                ) from None
            no_pt2 = reason
            path.unlink(missing_ok=True)
    return differences, no_pt2


def _unwritten(name: str, error: Exception) -> str:
    lines = str(error).strip().splitlines()
    reason = lines[0].strip() if lines else type(error).__name__
    if "to be a constant" in str(error):
        reason = (
            "its code makes the number of images in a batch a constant, as a loop over images, a comparison with "
            "x.shape[0] or a size written out does"
        )
    return f"the model cannot be written as {name} ({reason})"


def _traced(network: Classifier, info: DatasetInfo) -> Any:
    """Return the network as a program that takes pixel values, any number of images a batch."""
    from torch.export import Dim, export  # seconds of imports, for these alone

    example = torch.zeros(2, *info.shape)  # of one image torch would fix the batch's size
    shapes = {"pixels": {0: Dim("n", min=1)}}
    program = export(FromRaw(network, info).eval(), (example,), dynamic_shapes=shapes)
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # the paths of this machine's source files
    return program


def _pt2(program: Any, path: Path) -> Any:
    """Write the program and return it as read again; it was written in this process, so unpickling it is safe."""
    buffer = io.BytesIO()  # torch's own writer aborts the process where the disk is full
    torch.export.save(program, buffer)
    path.write_bytes(buffer.getvalue())
    return torch.export.load(path).module()


def _onnx(program: Any, path: Path) -> Any:
    """Write the graph and return it in onnxruntime."""
    import onnxruntime

    torch.onnx.export(
        program,
        (),
        path,
        input_names=["pixels"],
        output_names=["logits"],
        dynamic_shapes={"pixels": {0: "n"}},  # the axis's name, which is a symbol's otherwise
        external_data=False,
        verbose=False,
        dynamo=True,
    )
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda pixels: torch.from_numpy(session.run(["logits"], {"pixels": pixels.numpy()})[0])


_READERS = {PT2: _pt2, "onnx": _onnx}


def check_weights(network: Classifier, info: DatasetInfo, folder: Path) -> float:
    """Return what `check` does of the weights in ``folder``, read as `nectar score` reads them."""
    exported = ExportedModel.open(folder)
    return check(
        SAFETENSORS,
        network,
        info,
        lambda pixels: exported.network(exported.inputs(pixels * info.scale)),
    )


@torch.no_grad()
def check(name: str, network: Classifier, info: DatasetInfo, read: Any) -> float:
    """Return how far the logits of ``read``, the format ``name`` read again, are from those of ``network``.

    The largest difference over one batch of random images, as a share of the largest logit or of 1. The first image
    goes through what was read alone and the others together, so that a batch of fixed size shows.

    Raises
    ------
    ConfigError
        If it gives other logits.
    """
    generator = torch.Generator().manual_seed(0)
    mean, std, low, high = (
        torch.tensor(x, dtype=torch.float64)[:, None, None]
        for x in (info.mean, info.std, *info.ends)
    )
    pixels = torch.rand((4, *info.shape), generator=generator)
    pixels = pixels if info.has_images else (low + (high - low) * pixels.double()).float()
    expected = network.eval()(((pixels - mean) / std).float()).float()
    found = torch.cat([read(pixels[:1]), read(pixels[1:])]).float()
    distance, allowed = _distance(found, expected), FORMATS[name].tolerance
    if not distance <= allowed:
        raise ConfigError(
            f"the exported {FORMATS[name].file} gives other logits than the run's model (they differ by "
            f"{distance:.1e} of the largest; {allowed:.0e} is allowed): "
            "the model must compute the same for equal images in evaluation mode, whatever the batch"
        )
    return distance


def _distance(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference as a share of the largest logit or of 1; infinity for another shape or NaN."""
    if found.shape != expected.shape:
        return float("inf")
    equal = (found == expected) | (found.isnan() & expected.isnan())
    difference = torch.where(equal, 0.0, (found - expected).abs()).nan_to_num(nan=float("inf"))
    largest = expected[expected.isfinite()].abs().max().item() if expected.isfinite().any() else 1.0
    return difference.max().item() / max(1.0, largest)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporters' remarks on their own workings from a person's screen."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    before = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
