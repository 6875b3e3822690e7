"""A model as a graph that needs no code: pixel values in, logits out, for torch.export and ONNX."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from common.errors import ConfigError
from common.models import Classifier
from common.samples.dataset import DatasetInfo
from nectar.export.formats import FORMATS

_LOGGERS = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")


class FromPixels(nn.Module):
    """A classifier behind the normalisation of its data set.

    Parameters
    ----------
    network : Classifier
        Takes normalised images.
    info : DatasetInfo
        Whose mean and deviation, by channel, pixel values are normalised with.
    """

    gain: Tensor
    shift: Tensor

    def __init__(self, network: Classifier, info: DatasetInfo) -> None:
        super().__init__()
        mean, std = (torch.tensor(x, dtype=torch.float64) for x in (info.mean, info.std))
        self.network = network
        self.register_buffer("gain", (1 / std).float()[:, None, None])
        self.register_buffer("shift", (-mean / std).float()[:, None, None])

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the logits [n, classes] of pixel values [n, C, H, W] from 0 to 1."""
        logits: Tensor = self.network(torch.addcmul(self.shift, pixels, self.gain))
        return logits


def write_graphs(
    network: Classifier, info: DatasetInfo, formats: Sequence[str], folder: Path
) -> None:
    """Write ``network`` into ``folder`` in each of ``formats``, with any number of images a batch.

    Raises
    ------
    ConfigError
        If torch cannot follow the network's code; the message says where it gave up.
    """
    with _quiet():
        program = _trace(FromPixels(network, info).eval(), info, formats)
        for name in formats:
            path = folder / FORMATS[name].file
            try:
                _WRITERS[name](program, path)
            except Exception as error:  # whatever an exporter raises over somebody's model
                raise ConfigError(_refusal(name, error)) from None


def _trace(model: FromPixels, info: DatasetInfo, formats: Sequence[str]) -> ExportedProgram:
    example = torch.zeros(2, *info.shape)  # of one image torch would fix the batch's size
    try:
        program = torch.export.export(
            model, (example,), dynamic_shapes={"pixels": {0: Dim("n", min=1)}}
        )
    except Exception as error:  # as above: the network may be anybody's
        raise ConfigError(_refusal(",".join(formats), error)) from None
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # the paths of this machine's source files
    return program


def _refusal(name: str, error: Exception) -> str:
    lines = str(error).strip().splitlines()
    reason = lines[0].strip() if lines else type(error).__name__
    return f"the model cannot be written as {name} ({reason}): leave --format {name} out, or rewrite what it names"


def _write_pt2(program: ExportedProgram, path: Path) -> None:
    torch.export.save(program, path)


def _write_onnx(program: ExportedProgram, path: Path) -> None:
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


_WRITERS = {"pt2": _write_pt2, "onnx": _write_onnx}


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
