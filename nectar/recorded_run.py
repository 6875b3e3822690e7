"""A recorded run in Python: its figures, model, images and report."""

from __future__ import annotations

import math
from functools import cached_property
from pathlib import Path

from PIL.Image import Image
from torch import nn

from common.division import Division
from common.errors import ConfigError
from common.models.registry import KINDS
from common.wire.images import SyntheticImages
from nectar.export.bundle import network_of
from nectar.records.outputs import output_page
from nectar.records.record import RunRecord
from nectar.records.synthetic_sets import contrast_of
from server_app.pictures import grid
from server_app.run_directory import REPORT


class RecordedRun(RunRecord):
    """A run that has ended, was interrupted or is still in progress elsewhere; its record is in ``directory``."""

    def __repr__(self) -> str:
        config, reached = self.config, self.rounds[-1]["round"] if self.rounds else 0
        judged = "" if math.isnan(self.accuracy) else f", accuracy {self.accuracy:.4f}"
        return (
            f"<{config.method} on {config.dataset}, seed {config.seed}: {reached} of {config.rounds} rounds{judged}; "
            f"{self.directory}>"
        )

    @property
    def accuracy(self) -> float:
        """The accuracy after the newest round: on the test set, else at the sites; NaN if none was taken."""
        rounds = self.frame()
        return float(rounds["accuracy"].iloc[-1]) if rounds["round"].any() else math.nan

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
        return network_of(Division(self.config).run, self.checkpoint())

    @cached_property
    def models(self) -> dict[str, nn.Module]:
        """The networks by name where a run learned several, such as one for each site; else ``model`` under "".

        Raises
        ------
        FederationError
            If the run stopped before its first round was done.
        """
        run, checkpoint = Division(self.config).run, self.checkpoint()
        return {name: network_of(run, checkpoint, name) for name in checkpoint.models}

    @property
    def images(self) -> dict[str, SyntheticImages]:
        """What each site sent in the newest round, by site; empty for a method that sends no images.

        ``images`` of a site is float32 [n, C, H, W] in the model's normalised space, ``labels`` has its classes.
        """
        return self.synthetic()[1]

    @property
    def pictures(self) -> dict[str, Image]:
        """The same to look at: by site, a picture with a row a class; ConfigError of tables and series."""
        sets = self.images
        if not sets:
            return {}
        info, contrast = Division(self.config).run.info, contrast_of(self.last_sets)
        if not info.has_images:
            raise ConfigError(
                f"{self.directory} is a run on {KINDS[info.kind]}, which has no pictures: `images` has what was "
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
        from nectar.report.page import write  # its imports take a second

        to = self.directory / REPORT if path is None else output_page(str(path), "path")
        write([self], to, "path")
        return to
