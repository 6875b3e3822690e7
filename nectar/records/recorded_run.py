"""A run as Python has it: figures, model, images and report of what a record holds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL.Image import Image
from torch import nn

from common.config.resolved import Config
from common.division import Division
from common.errors import ConfigError, NectarError
from common.models.registry import KINDS
from common.wire.synthetic_images import SyntheticImages
from nectar.export.learned import network_of
from nectar.records.figures import RunFigures, read_run
from nectar.records.outputs import output_page
from nectar.records.past_run import PastRun
from nectar.report import writing
from server_app.record import KnownRun
from server_app.recorder import grid
from server_app.synthetic_sets import contrast_of

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, repr=False)
class RecordedRun:
    """A run that is over, or was interrupted, or still goes on elsewhere."""

    past: PastRun

    def __repr__(self) -> str:
        config, reached = self.config, self.rounds[-1]["round"] if self.rounds else 0
        judged = "" if math.isnan(self.accuracy) else f", accuracy {self.accuracy:.4f}"
        return (
            f"<{config.method} on {config.dataset}, seed {config.seed}: {reached} of {config.rounds} rounds{judged}; "
            f"{self.directory}>"
        )

    @property
    def directory(self) -> Path:
        """The record: what ``nectar report`` and ``nectar export`` take, and `resume=` continues."""
        return self.past.directory

    @property
    def config(self) -> Config:
        """The resolved configuration, such as ``config.rounds`` and ``config.partition.alpha``."""
        return self.past.config

    @property
    def completed(self) -> bool:
        """Whether it ran to its last round."""
        return self.past.completed

    @property
    def rounds(self) -> list[dict[str, Any]]:
        """All figures of every round, that of round 0 (before training) first."""
        return self.past.lines

    @property
    def accuracy(self) -> float:
        """The accuracy after the newest round: on the test set, else at the sites; NaN if none was taken."""
        return self._figures.final

    def frame(self) -> DataFrame:
        """Return the rounds' main figures, a row a round.

        Returns
        -------
        pandas.DataFrame
            Columns round, accuracy, loss, validation, bytes_up, bytes_down, rejected, seconds_devices and
            seconds_server; bytes and seconds are those of all sites.

        Raises
        ------
        NectarError
            If pandas is not installed.
        """
        try:
            from pandas import DataFrame
        except ImportError:
            raise NectarError(
                "frame() needs pandas, which is not installed: `pip install pandas`, or take the figures from "
                "`rounds`, a list of dicts."
            ) from None
        return DataFrame(
            {
                "round": one.round,
                "accuracy": one.accuracy,
                "loss": _loss(line),
                "validation": one.validation,
                "bytes_up": one.up,
                "bytes_down": one.down,
                "rejected": one.rejected,
                "seconds_devices": one.device_seconds,
                "seconds_server": one.server_seconds,
            }
            for one, line in zip(self._figures.rounds, self.rounds, strict=False)
        )

    @cached_property
    def model(self) -> nn.Module:
        """The network with the weights of the newest round, on the CPU, in evaluation mode.

        It takes images of the data set's shape, normalised by its mean and standard deviation, and returns logits.

        Raises
        ------
        ConfigError
            If it learned several, which ``models`` has, or if the weights do not fit the model or lack the running
            statistics that are the sites' own.
        FederationError
            If the run stopped before its first round was done.
        """
        return network_of(Division(self.config).run, self.past.checkpoint())

    @cached_property
    def models(self) -> dict[str, nn.Module]:
        """The networks by name where a run learned several, such as one for each site; else ``model`` under "".

        Raises
        ------
        FederationError
            If the run stopped before its first round was done.
        """
        run, checkpoint = Division(self.config).run, self.past.checkpoint()
        return {name: network_of(run, checkpoint, name) for name in checkpoint.models}

    @property
    def images(self) -> dict[str, SyntheticImages]:
        """What each site sent in the newest round, by site; empty for a method that sends no images.

        ``images`` of a site is float32 [n, C, H, W] in the model's normalised space, ``labels`` has its classes.
        """
        return self.past.synthetic()[1]

    @property
    def pictures(self) -> dict[str, Image]:
        """The same to look at: by site, a picture with a row a class; ConfigError of tables and series."""
        sets = self.images
        if not sets:
            return {}
        info, contrast = Division(self.config).run.info, contrast_of(self.past.record.last_sets)
        if not info.has_images:
            raise ConfigError(
                f"{self.directory} is a run on {KINDS[info.kind]}, which makes no pictures: `images` has what was "
                "sent, and samples/ in the record has it as tables."
            )
        return {site: grid(sent.images, sent.labels, info, contrast) for site, sent in sets.items()}

    def report(self, path: str | Path | None = None) -> Path:
        """Write what the run did as one HTML file that loads nothing, and return its path.

        Parameters
        ----------
        path : str or Path, optional
            The file (default: report.html in the record).

        Raises
        ------
        ConfigError
            If it cannot be written there.
        """
        to = self.directory / writing.NAME if path is None else _html(path)
        writing.write([self.past], to, "path")
        return to

    @property
    def _figures(self) -> RunFigures:
        return read_run(KnownRun(self.directory, self.past.provenance), self.config.rounds)


def _html(path: str | Path) -> Path:
    return output_page(str(path), "path")


def _loss(line: dict[str, Any]) -> float:
    loss = (line.get("test") or line.get("sites") or {}).get("loss")
    return math.nan if loss is None else float(loss)
