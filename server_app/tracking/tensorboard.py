"""TensorBoard: event files in the record, which `tensorboard --logdir` of the output directory finds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image
from torch.utils import tensorboard
from torch.utils.tensorboard.summary import hparams

from server_app.tracking import EVENTS
from server_app.tracking.figures import figures_of
from server_app.tracking.telling import Line, Pictures

if TYPE_CHECKING:
    from server_app.tracking.tracked import TrackedRun

#: figures that the table of settings has a column for
_SHOWN = ("test/accuracy", "test/loss", "validation/accuracy", "sites/accuracy")


class TensorBoard:
    """Writes a run's event files.

    Parameters
    ----------
    run : TrackedRun
        The run; where one continues, rounds that it does again replace those on file.
    """

    def __init__(self, run: TrackedRun) -> None:
        folder = run.record / EVENTS
        self.fresh = not any(folder.glob("events.*"))
        purged = None if self.fresh else run.next_round
        make: Any = tensorboard.SummaryWriter
        self._writer = make(str(folder), purge_step=purged)
        if self.fresh:
            known = {key: value for key, value in run.settings.items() if value is not None}
            for summary in hparams(known, dict.fromkeys(_SHOWN, 0.0)):  # type: ignore[no-untyped-call]
                self._writer.file_writer.add_summary(summary)

    def round(self, line: Line, pictures: Pictures) -> None:
        """Write a round's figures, and its pictures."""
        step = line["round"]
        for name, value in figures_of(line).items():
            self._writer.add_scalar(name, value, step)
        for site, path in pictures.items():
            with Image.open(path) as picture:
                pixels = np.asarray(picture.convert("RGB"))
            self._writer.add_image(f"images/{site}", pixels, step, dataformats="HWC")
        self._writer.flush()

    def close(self, outcome: str) -> None:
        """Close the file."""
        self._writer.close()
