"""MLflow: a run of an experiment, at the server that MLFLOW_TRACKING_URI names or in a store beside the records."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from filelock import FileLock
from PIL import Image

from server_app.record import COMPLETED
from server_app.tracking.figures import figures_of
from server_app.tracking.telling import Line, Pictures

if TYPE_CHECKING:
    from server_app.tracking.tracked import TrackedRun

URI = "MLFLOW_TRACKING_URI"
STORE, ARTIFACTS = "mlflow.db", "mlflow-artifacts"
"""The store of one's own, and its pictures, in the output directory."""

RECORD = "nectar.record"
"""The tag with the record's id, by which a run that continues finds its own."""

#: parameters that MLflow takes at a time
_PARAMETERS = 100

#: characters of a parameter's value that every store takes
_LONGEST = 500


class MLflow:
    """Writes a run of MLflow's."""

    def __init__(self, run: TrackedRun) -> None:
        # MLflow tells its makers what is used of it, unless it is told not to.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow import MlflowClient

        named = os.environ.get(URI, "")
        store = named or f"sqlite:///{run.output_dir / STORE}"
        place = None if named else (run.output_dir / ARTIFACTS).as_uri()
        # The runs of a comparison begin side by side, and a store is made by one of them: by the client, when it is.
        with FileLock(run.output_dir / ".mlflow.lock"):
            self._client: Any = MlflowClient(tracking_uri=store)
            experiment = self._experiment(run.group, place)
        found = self._client.search_runs(
            [experiment], f"tags.`{RECORD}` = '{run.record.name}'", max_results=1
        )
        self.fresh = not found
        self._id = found[0].info.run_id if found else self._created(experiment, run)
        if found:
            self._client.update_run(self._id, status="RUNNING")

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

        created = self._client.create_run(
            experiment, tags={RECORD: run.record.name}, run_name=run.name
        )
        settings = [Param(key, str(value)[:_LONGEST]) for key, value in run.settings.items()]
        for first in range(0, len(settings), _PARAMETERS):
            part = settings[first : first + _PARAMETERS]
            self._client.log_batch(created.info.run_id, params=part)
        return str(created.info.run_id)

    def round(self, line: Line, pictures: Pictures) -> None:
        """Write a round's figures, and its pictures."""
        from mlflow.entities import Metric

        now, step = int(1000 * time.time()), line["round"]
        figures = [Metric(name, value, now, step) for name, value in figures_of(line).items()]
        self._client.log_batch(self._id, metrics=figures)
        for site, path in pictures.items():
            with Image.open(path) as picture:
                self._client.log_image(
                    self._id, picture.convert("RGB"), key=site.replace("~", "_"), step=step
                )

    def close(self, outcome: str) -> None:
        """Say how the run ended."""
        states = {COMPLETED: "FINISHED", "interrupted": "KILLED"}
        self._client.set_terminated(self._id, status=states.get(outcome, "FAILED"))
