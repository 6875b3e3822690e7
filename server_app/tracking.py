"""Trackers, called with each recorded round: a user's function, TensorBoard, MLflow; a failure costs nothing.

A tracker is given numbers by name, and settings; no site's name, reason or path, and no token. MLflow, which keeps
files too, is given the record's figures, report and weights at the end. `require_tracker` and `refuse_own_pictures`
refuse what cannot be tracked.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from logging import getLogger
from pathlib import Path, PurePosixPath, PureWindowsPath
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import yaml
from filelock import FileLock
from PIL import Image

from common.config.keys import PATH_KEYS
from common.config.resolved import Config
from common.config.sources import SCHEMA
from common.config.text import Scalar, dotted
from common.errors import ConfigError, FederationError
from common.settings.sections import TrackSettings
from common.sites import Site
from common.storage.files import write_text
from server_app.checkpoint import Checkpoint
from server_app.record import Record, without_nan
from server_app.report import draw_report
from server_app.run_directory import COMPLETED, REPORT, Line, RunDirectory
from strategies.federated import LEARNED

logger = getLogger("flwr")
T = TypeVar("T")

OnRound = Callable[[Line], object]
"""Called with a copy of each round's line, as soon as the line and its checkpoint are written."""

Pictures = Mapping[str, Path]
"""PNG files of a round's images, by site."""

EVENTS = "tensorboard"
"""The folder of a record with TensorBoard's event files."""

RECORD = "nectar.record"
"""MLflow's tag with the record's id, by which a run that continues finds its own."""

#: seconds for which the end of a run waits for a tracker that is not done
_PATIENCE = 120.0

#: name and password in an address, which a tracker's own error may quote
_CREDENTIALS = re.compile(r"//[^/@\s]+@")

#: parts of a line whose numbers are the run's, none a single site's
_TABLES = ("test", "validation", "sites", "train", "train_median", "copies", "seconds")
#: names of a Flower strategy's arguments that are secrets
_SECRET = re.compile(r"token|secret|passw|credential|api_?key", re.IGNORECASE)
#: what no tracker takes in a name
_ODD = re.compile(r"[^\w./ -]")
#: figures that TensorBoard's table of settings has a column for
_SHOWN = ("test/accuracy", "test/loss", "validation/accuracy", "sites/accuracy")
#: parameters that MLflow takes at a time, and characters of a value that every store takes
_PARAMETERS, _LONGEST = 100, 500


class Notifier:
    """Calls a user's own function and the tracker that the settings choose after each round.

    Parameters
    ----------
    record : Record
        The run's, with the lines of the rounds that are done.
    sites : callable
        Returns the sites that take part at the moment.
    """

    def __init__(
        self,
        config: Config,
        record: Record,
        sites: Callable[[], Sequence[Site]],
        on_round: OnRound | None = None,
    ) -> None:
        self._record, self._images, self._sites = record, config.track.images, sites
        self._on_round, self._guard = on_round, _Guard("on_round")
        self._tracker: InBackground | None = None
        if config.track.by != "none":
            make = partial(begin, config, record, record.metrics())
            self._tracker = InBackground(f"track={config.track.by}", make)

    def __call__(self, line: Mapping[str, Any]) -> None:
        """Tell of a round whose line is on record."""
        if self._tracker is not None:
            self._tracker.round(_as_recorded(line), self._pictures(line["round"]))
        if (on_round := self._on_round) is not None:
            self._guard(lambda: on_round(_as_recorded(line)))

    def _pictures(self, server_round: int) -> Pictures:
        if not self._images or not all(site.partitions for site in self._sites()):
            return {}  # a site with its own data has joined since
        folder = self._record.samples(server_round)
        return {path.stem: path for path in sorted(folder.glob("*.png"))}

    def close(self, outcome: str) -> None:
        """Tell the tracker that the run has ended."""
        if self._tracker is not None:
            self._tracker.close(outcome)


class InBackground:
    """A tracker on a separate thread, so that no round waits for it.

    Parameters
    ----------
    make : callable
        Returns the tracker; it is called on that thread, too.
    """

    def __init__(self, name: str, make: Callable[[], TensorBoard | MLflow]) -> None:
        self._name, self._make = name, make
        self._outcome = ""
        self._rounds: SimpleQueue[tuple[Line, Pictures] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def round(self, line: Line, pictures: Pictures) -> None:
        """Hand over a round."""
        if self._thread.is_alive():
            self._rounds.put((line, pictures))

    def close(self, outcome: str) -> None:
        """Let it finish, for as long as a run has patience."""
        self._outcome = outcome
        self._rounds.put(None)
        self._thread.join(_PATIENCE)
        if self._thread.is_alive():
            logger.warning(
                "%s did not take all rounds within %.0f s and is not waited for; the record has them all",
                *(self._name, _PATIENCE),
            )

    def _work(self) -> None:
        guard = _Guard(self._name)
        tracker = guard(self._make)
        if tracker is None:
            return
        while (arguments := self._rounds.get()) is not None:
            guard(partial(tracker.round, *arguments))
        guard(partial(tracker.close, self._outcome))


class _Guard:
    """Carries out what may fail: the first time the log gets its traceback, later a line."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._failed = False

    def __call__(self, call: Callable[[], T]) -> T | None:
        """Return what ``call`` returns; None if it raised."""
        try:
            return call()
        except Exception as error:
            text = str(error) if self._failed else traceback.format_exc().rstrip()
            message = _CREDENTIALS.sub("//", text)
            logger.warning("%s failed, which costs the run nothing: %s", self._name, message)
            self._failed = True
            return None


def _as_recorded(line: Mapping[str, Any]) -> Line:
    """Return a copy of a line as it is read from metrics.jsonl."""
    copy: Line = json.loads(json.dumps(without_nan({"schema": SCHEMA, **line})))
    return copy


# ---- trackers ------------------------------------------------------------------------------------


def begin(config: Config, record: RunDirectory, before: Sequence[Line]) -> TensorBoard | MLflow:
    """Begin to track a run, or go on: it is given the lines of the rounds ``before`` if it does not know them."""
    make = TensorBoard if config.track.by == "tensorboard" else MLflow
    tracker = make(config, record, before)
    if tracker.fresh:
        for line in before:
            tracker.round(line, {})
    return tracker


class TensorBoard:
    """Writes event files into the record; where a run continues, rounds done again replace those on file."""

    def __init__(self, config: Config, record: RunDirectory, before: Sequence[Line]) -> None:
        from torch.utils import tensorboard
        from torch.utils.tensorboard.summary import hparams

        folder = record.directory / EVENTS
        self.fresh = not any(folder.glob("events.*"))
        following = before[-1]["round"] + 1 if before else 0
        make: Any = tensorboard.SummaryWriter
        self._writer = make(str(folder), purge_step=None if self.fresh else following)
        if self.fresh:
            known = {key: each for key, each in settings_of(config).items() if each is not None}
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
    """Writes a run of an experiment, at the server that MLFLOW_TRACKING_URI names or in a store beside the records.

    With a separate client: MLflow's functions would change the server and the experiment of a notebook that calls us.
    At the end a server gets files, for users without access to the record: ``config.yaml``, the settings by
    ``settings_of``; ``metrics.jsonl``; ``report.html``; the weights of the best checkpoint, else the last.
    """

    def __init__(self, config: Config, record: RunDirectory, before: Sequence[Line]) -> None:
        # MLflow sends usage telemetry unless it is switched off.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException

        self._config, self._record = config, record
        output, group = record.directory.parent, config.track.group or "nectar"
        named = os.environ.get("MLFLOW_TRACKING_URI", "")
        self._gets_files = bool(named)
        store = named or f"sqlite:///{output / 'mlflow.db'}"
        place = None if named else (output / "mlflow-artifacts").as_uri()
        # The runs of a comparison begin side by side, and a store is made by one of them: by the client, when it is.
        with FileLock(output / ".mlflow.lock"):
            self._client: Any = MlflowClient(tracking_uri=store)
            with suppress(MlflowException):  # there is one of that name
                self._client.create_experiment(group, artifact_location=place)
            experiment = str(self._client.get_experiment_by_name(group).experiment_id)
        wanted = f"tags.`{RECORD}` = '{record.id}'"
        found = self._client.search_runs([experiment], wanted, max_results=1)
        self.fresh = not found
        if found:
            self._id = str(found[0].info.run_id)
            self._client.update_run(self._id, status="RUNNING")
        else:
            self._create(experiment)

    def _create(self, experiment: str) -> None:
        from mlflow.entities import Param

        record, values = self._record.id, settings_of(self._config)
        name = self._config.track.name or record
        run = self._client.create_run(experiment, tags={RECORD: record}, run_name=name)
        self._id = str(run.info.run_id)
        settings = [Param(key, str(each)[:_LONGEST]) for key, each in values.items()]
        for first in range(0, len(settings), _PARAMETERS):
            self._client.log_batch(self._id, params=settings[first : first + _PARAMETERS])

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
        """Upload the run's files, and describe how it ended."""
        states = {COMPLETED: "FINISHED", "interrupted": "KILLED"}
        try:
            if self._gets_files:
                self._upload()
        finally:
            self._client.set_terminated(self._id, status=states.get(outcome, "FAILED"))

    def _upload(self) -> None:
        record = self._record
        with TemporaryDirectory() as folder:
            own = Path(folder)
            write_text(own / "config.yaml", yaml.safe_dump(settings_of(self._config)))
            if record.metrics_path.is_file():
                shutil.copyfile(record.metrics_path, own / record.metrics_path.name)
            pages = {record.directory / REPORT: True, own / REPORT: self._config.track.images}
            draw_report(record.directory, pages)
            for checkpoint in (record.best, record.last):
                if checkpoint.is_file():
                    weights_of(Checkpoint.load(checkpoint)).save(own / checkpoint.name)
                    break
            for path in sorted(path for path in own.iterdir() if path.is_file()):
                self._client.log_artifact(self._id, str(path))


def weights_of(checkpoint: Checkpoint) -> Checkpoint:
    """Return what was learned alone: beside it a strategy may keep what sites sent, such as each site's sums."""
    models = checkpoint.models if LEARNED in checkpoint.strategy else {}
    return Checkpoint(
        checkpoint.server_round,
        checkpoint.weights,
        {LEARNED: models} if models else {},
        checkpoint.validation_accuracy,
    )


def figures_of(line: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a round's line of metrics.jsonl by name, such as ``test/accuracy``.

    Of the sites there are means, sums and counts; of what they have spent of their privacy the largest epsilon.
    """
    found: dict[str, Any] = {}
    tables = {table: line.get(table) or {} for table in _TABLES}
    tables |= {f"models/{model}": table for model, table in line.get("models", {}).items()}
    for table, figures in tables.items():
        found |= {f"{table}/{name}": value for name, value in figures.items()}
    if line["round"]:  # no site takes part in round 0, and zeros would bend a smoothed curve
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
    """Return the resolved settings by dotted key, without paths, secrets and the settings of the tracker itself."""
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
            f"track={track.by} needs {track.by}, which is not installed: "
            f"`.uv/bin/uv pip install -e '.[{track.by}]'` in Nectar's clone, or leave track out."
        )


def refuse_own_pictures(track: TrackSettings, sites: Sequence[Site]) -> None:
    """Refuse to show a tracker images of sites with data of their own; FederationError naming some of them."""
    if track.images and (own := [site.name for site in sites if not site.partitions]):
        raise FederationError(
            f"track.images=on would copy images of sites with data of their own ({', '.join(own[:5])}) to a tracker: "
            "leave it out; the figures are tracked without it"
        )
