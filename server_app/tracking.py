"""Trackers: what of a run's rounds goes to TensorBoard's event files, or to MLflow.

A tracker is given numbers by name, and settings; no site's name, reason or path, and no token. `begin` returns the one
that a run's settings choose, `require_tracker` and `refuse_own_pictures` refuse what cannot be tracked.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from filelock import FileLock
from PIL import Image

from common.config.keys import PATH_KEYS
from common.config.resolved import Config
from common.config.text import Scalar, dotted
from common.errors import ConfigError, FederationError
from common.settings.sections import TrackSettings
from common.sites import Site
from server_app.run_directory import COMPLETED

Line = dict[str, Any]
"""A round's line of metrics.jsonl."""

Pictures = Mapping[str, Path]
"""PNG files of a round's images, by site."""

EVENTS = "tensorboard"
"""The folder of a record in which TensorBoard's event files lie."""

RECORD = "nectar.record"
"""MLflow's tag with the record's id, by which a run that continues finds its own."""

#: parts of a line whose numbers are the run's, none a single site's
_TABLES = ("test", "validation", "sites", "train", "train_median", "copies", "seconds")
#: what an argument of a Flower strategy's may be called that nobody else is to read
_SECRET = re.compile(r"token|secret|passw|credential|api_?key", re.IGNORECASE)
#: what no tracker takes in a name
_ODD = re.compile(r"[^\w./ -]")
#: figures that TensorBoard's table of settings has a column for
_SHOWN = ("test/accuracy", "test/loss", "validation/accuracy", "sites/accuracy")
#: parameters that MLflow takes at a time, and characters of a value that every store takes
_PARAMETERS, _LONGEST = 100, 500


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker knows of a run when it begins, or goes on.

    Parameters
    ----------
    record : Path
        The record; its name is the run's id.
    before : tuple of dict
        The lines of the rounds that are done, for a tracker that does not know them.
    """

    record: Path
    name: str
    group: str
    settings: Mapping[str, Scalar]
    before: tuple[Line, ...] = ()


def begin(name: str, run: TrackedRun) -> TensorBoard | MLflow:
    """Begin to track a run, or go on: it is given the rounds before if it does not know them."""
    tracker = TensorBoard(run) if name == "tensorboard" else MLflow(run)
    if tracker.fresh:
        for line in run.before:
            tracker.round(line, {})
    return tracker


class TensorBoard:
    """Writes event files into the record; where a run continues, rounds done again replace those on file."""

    def __init__(self, run: TrackedRun) -> None:
        from torch.utils import tensorboard
        from torch.utils.tensorboard.summary import hparams

        folder = run.record / EVENTS
        self.fresh = not any(folder.glob("events.*"))
        following = run.before[-1]["round"] + 1 if run.before else 0
        make: Any = tensorboard.SummaryWriter
        self._writer = make(str(folder), purge_step=None if self.fresh else following)
        if self.fresh:
            known = {key: value for key, value in run.settings.items() if value is not None}
            for summary in hparams(known, dict.fromkeys(_SHOWN, 0.0)):  # type: ignore[no-untyped-call]
                self._writer.file_writer.add_summary(summary)

    def round(self, line: Line, pictures: Pictures) -> None:
        """Write a round's figures, and its pictures."""
        import numpy as np

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


class MLflow:
    """Writes a run of an experiment, at the server that MLFLOW_TRACKING_URI names or in a store beside the records."""

    def __init__(self, run: TrackedRun) -> None:
        # MLflow tells its makers what is used of it, unless it is told not to.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow import MlflowClient

        output = run.record.parent
        named = os.environ.get("MLFLOW_TRACKING_URI", "")
        # The runs of a comparison begin side by side, and a store is made by one of them: by the client, when it is.
        with FileLock(output / ".mlflow.lock"):
            self._client: Any = MlflowClient(
                tracking_uri=named or f"sqlite:///{output / 'mlflow.db'}"
            )
            place = None if named else (output / "mlflow-artifacts").as_uri()
            experiment = self._experiment(run.group, place)
        wanted = f"tags.`{RECORD}` = '{run.record.name}'"
        found = self._client.search_runs([experiment], wanted, max_results=1)
        self.fresh = not found
        if found:
            self._id = str(found[0].info.run_id)
            self._client.update_run(self._id, status="RUNNING")
        else:
            self._id = self._created(experiment, run)

    def _experiment(self, name: str, place: str | None) -> str:
        """Return the id of an experiment, which is made if there is none."""
        from mlflow.exceptions import MlflowException

        known = self._client.get_experiment_by_name(name)
        if known is None:
            try:
                return str(self._client.create_experiment(name, artifact_location=place))
            except MlflowException:  # a run on another machine has made it meanwhile
                known = self._client.get_experiment_by_name(name)
                if known is None:
                    raise
        return str(known.experiment_id)

    def _created(self, experiment: str, run: TrackedRun) -> str:
        from mlflow.entities import Param

        tags = {RECORD: run.record.name}
        created = str(self._client.create_run(experiment, tags=tags, run_name=run.name).info.run_id)
        settings = [Param(key, str(value)[:_LONGEST]) for key, value in run.settings.items()]
        for first in range(0, len(settings), _PARAMETERS):
            self._client.log_batch(created, params=settings[first : first + _PARAMETERS])
        return created

    def round(self, line: Line, pictures: Pictures) -> None:
        """Write a round's figures, and its pictures."""
        from mlflow.entities import Metric

        now, step = int(1000 * time.time()), line["round"]
        figures = [Metric(name, value, now, step) for name, value in figures_of(line).items()]
        self._client.log_batch(self._id, metrics=figures)
        for site, path in pictures.items():
            key = site.replace("~", "_")
            with Image.open(path) as picture:
                self._client.log_image(self._id, picture.convert("RGB"), key=key, step=step)

    def close(self, outcome: str) -> None:
        """Describe how the run ended."""
        states = {COMPLETED: "FINISHED", "interrupted": "KILLED"}
        self._client.set_terminated(self._id, status=states.get(outcome, "FAILED"))


def figures_of(line: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a round's line of metrics.jsonl by name, such as ``test/accuracy``.

    Of the sites there are means, sums and counts; of what they have spent of their privacy the largest epsilon.
    """
    found: dict[str, Any] = {}
    tables = {table: line.get(table) or {} for table in _TABLES}
    tables |= {f"models/{model}": table for model, table in line.get("models", {}).items()}
    for table, figures in tables.items():
        found |= {f"{table}/{name}": value for name, value in figures.items()}
    if line["round"]:  # before the first nobody was asked, and noughts would bend a smoothed curve
        for way, account in line.get("bytes", {}).items():
            found[f"bytes/{way}"] = sum(account.values())
        for kind in ("accepted", "rejected", "unevaluated"):
            found[f"replies/{kind}"] = len(line.get(kind, ()))
    spent = [one["epsilon"] for one in line.get("notes", {}).get("spent", {}).values()]
    found["privacy/epsilon"] = max(spent) if spent and None not in spent else None
    return {_ODD.sub("-", name): float(value) for name, value in found.items() if _counts(value)}


def _counts(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def settings_of(config: Config) -> dict[str, Scalar]:
    """Return the resolved settings by dotted key, without paths, secrets and what a tracker is told itself."""
    return {
        key: value
        for key, value in dotted(config.to_dict()).items()
        if key not in PATH_KEYS
        and not key.startswith("track.")
        and not _SECRET.search(key)
        and not _names_a_path(value)
    }


def _names_a_path(value: Any) -> bool:
    """Return whether a setting names a path of this machine, or several."""
    parts = [part.strip() for part in value.split(",")] if isinstance(value, str) else []
    kinds = (PurePosixPath, PureWindowsPath)
    return any(p.startswith("~") or any(kind(p).is_absolute() for kind in kinds) for p in parts)


def require_tracker(track: TrackSettings) -> None:
    """Refuse a tracker that is not installed at the run's server; ConfigError with the line that installs it."""
    if track.by == "none":
        return
    found = find_spec(track.by)
    if found is None or found.origin is None:
        raise ConfigError(
            f"track={track.by} needs {track.by}, which is not installed here: `pip install 'nectar-fl[{track.by}]'` "
            f"(in a clone `.uv/bin/uv pip install -e '.[{track.by}]'`), or leave track out."
        )


def refuse_own_pictures(track: TrackSettings, sites: Sequence[Site]) -> None:
    """Refuse to show a tracker images of sites with data of their own; FederationError naming some of them."""
    if track.images and (own := [site.name for site in sites if not site.partitions]):
        raise FederationError(
            f"track.images=on would copy images of sites with data of their own ({', '.join(own[:5])}) to a tracker: "
            "leave it out; the figures are tracked without it"
        )
