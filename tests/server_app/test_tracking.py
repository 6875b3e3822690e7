"""Who is told of a run's rounds hears what the record has, and costs it nothing."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from comparing import options_of
from federation import numbers, resumed, run
from small import SMALL, Small
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2
from torch.utils.tensorboard import SummaryWriter

from client_app.app import app as client_app
from common.config.loading import load
from common.errors import FederationError
from common.settings.sections import TrackSettings
from common.sites import Site
from nectar.arguments import parse_arguments
from nectar.cli import main
from nectar.comparison.comparison import Comparison
from nectar.comparison.request import parse
from nectar.engines.local_grid import LocalGrid
from server_app import tracking
from server_app.app import serve
from server_app.checkpoint import Checkpoint
from server_app.record import Record
from server_app.report import draw_report, has_report
from server_app.tracking import (
    EVENTS,
    InBackground,
    OnRound,
    figures_of,
    refuse_own_pictures,
    settings_of,
)

BOTH = "evaluation.on=both data.site_holdout=0.2"


def told(run_config: Mapping[str, Any], on_round: OnRound) -> Record:
    config = load(run_config)
    grid = LocalGrid(client_app, config.federation.sites, run_config)
    return serve(grid, config, on_round=on_round)


def events(record: Record) -> EventAccumulator:
    found = EventAccumulator(str(record.directory / EVENTS), size_guidance={"images": 0})
    found.Reload()
    return found


def steps(record: Record, name: str = "test/accuracy") -> list[int]:
    return [each.step for each in events(record).Scalars(name)]


# -- a function of one's own --------------------------------------------------------------------


@pytest.mark.parametrize("settings", ["", BOTH])
def test_on_round_is_told_each_line_as_the_record_has_it(small: Small, settings: str) -> None:
    lines: list[dict[str, Any]] = []
    record = told(small(method="fedavg", rounds=2, set=settings), lines.append)
    assert lines == record.metrics()


def test_when_it_is_told_a_round_that_round_is_safe(small: Small, tmp_path: Path) -> None:
    on_record: list[list[int]] = []

    def look(line: dict[str, Any]) -> None:
        (record,) = (Record(path) for path in tmp_path.rglob("2*-fedavg-*"))
        on_record.append([each["round"] for each in record.metrics()])
        line.clear()  # a copy of its own

    record = told(small(method="fedavg", rounds=2, **{"output-dir": str(tmp_path)}), look)
    assert on_record == [[0], [0, 1], [0, 1, 2]]
    assert all(line["test"] for line in record.metrics())


@pytest.mark.extended
def test_what_it_raises_is_a_warning_with_one_traceback(
    small: Small, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(line: dict[str, Any]) -> None:
        raise RuntimeError(f"no answer from https://me:pa55@example.org in round {line['round']}")

    config = small(method="fedavg", rounds=2)
    with caplog.at_level(logging.WARNING, "flwr"):
        record = told(config, fail)
    assert numbers(record) == numbers(run(config))
    message = [r.message for r in caplog.records if r.message.startswith("on_round failed")]
    assert len(message) == 3
    assert "Traceback" in message[0]
    assert "in fail\n" in message[0]
    assert message[1:] == [
        "on_round failed, which costs the run nothing: no answer from https://example.org in "
        f"round {n}"
        for n in (1, 2)
    ]
    assert "pa55" not in caplog.text


# -- TensorBoard --------------------------------------------------------------------------------


@pytest.mark.extended
def test_event_files_hold_the_records_figures_and_nothing_of_the_machine(
    small: Small, tmp_path: Path
) -> None:
    config = small(rounds=2, set=f"track.by=tensorboard track.images=on {BOTH}")
    record = run(config)
    plain = {**config, "set": config["set"].partition(" track")[0] + f" {BOTH}"}
    assert load(plain).digest() == load(config).digest()
    assert numbers(run(plain)) == numbers(record)
    read = events(record)
    for line in record.metrics():
        figures = figures_of(line)
        at = {
            name: each.value
            for name in read.Tags()["scalars"]
            for each in read.Scalars(name)
            if each.step == line["round"]
        }
        assert at.keys() == figures.keys()
        np.testing.assert_allclose(list(at.values()), [figures[name] for name in at], rtol=1e-6)
    last = record.metrics()[-1]
    assert figures_of(last)["bytes/up"] == sum(last["bytes"]["up"].values())
    assert {"test/accuracy", "sites/loss", "replies/accepted"} <= figures_of(last).keys()
    pictures = read.Tags()["images"]
    assert pictures == [f"images/partition-{i}" for i in range(3)]
    assert [each.step for each in read.Images(pictures[0])] == [1, 2]
    (content,) = (path.read_bytes() for path in (record.directory / EVENTS).iterdir())
    assert str(tmp_path).encode() not in content
    assert str(record.directory.parent).encode() not in content


def test_event_files_hold_the_settings(small: Small) -> None:
    record = run(small(method="fedavg", rounds=1, set="track.by=tensorboard"))
    summary = events(record).summary_metadata["_hparams_/session_start_info"]
    start = plugin_data_pb2.HParamsPluginData.FromString(summary.plugin_data.content)
    shown = start.session_start_info.hparams
    assert shown["method"].string_value == "fedavg"
    assert shown["federation.sites"].number_value == 3
    assert not any(key.startswith(("track", "output")) for key in shown)


@pytest.mark.extended
def test_a_run_that_continues_goes_on_in_its_event_files(small: Small) -> None:
    record = run(small(method="fedavg", rounds=1, set=f"track.by=tensorboard {BOTH}"))
    resumed(record, rounds=3)
    assert steps(record) == [0, 1, 2, 3]
    assert steps(record, "sites/accuracy") == [1, 2, 3]


@pytest.mark.extended
def test_a_tracker_that_fails_costs_nothing(
    small: Small, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError("no space left")

    config = small(method="fedavg", rounds=2)
    plain = numbers(run(config))
    monkeypatch.setattr(SummaryWriter, "add_scalar", full)
    with caplog.at_level(logging.WARNING, "flwr"):
        record = run(config | {"set": f"{config['set']} track.by=tensorboard"})
    assert (record.stated() or {})["outcome"] == "completed"
    assert numbers(record) == plain
    message = [r.message for r in caplog.records if "track=tensorboard failed" in r.message]
    assert ["Traceback" in each for each in message] == [True, False, False]


def test_the_end_of_a_run_does_not_wait_for_a_tracker_for_ever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracking, "_PATIENCE", 0.01)
    released = threading.Event()

    def hang() -> Any:
        released.wait()

    tracker = InBackground("track=slow", hang)
    tracker.round({"round": 0}, {})
    tracker.close("completed")
    released.set()
    assert "track=slow did not take all rounds" in caplog.text


# -- MLflow -------------------------------------------------------------------------------------

#: stands in for MLflow: keeps what its client is told, in the form in which the client is told it
DOUBLE = {
    "__init__.py": """
from pathlib import Path
from types import SimpleNamespace as Some

from filelock import FileLock, Timeout
from mlflow.exceptions import MlflowException

CALLS, RUNS, ALONE = [], [], []


class MlflowClient:
    def __init__(self, tracking_uri):
        CALLS.append(("at", tracking_uri))
        store = Path(tracking_uri.removeprefix("sqlite:///"))
        if store.is_absolute():
            try:
                with FileLock(store.with_name(".mlflow.lock"), timeout=0):
                    ALONE.append(False)
            except Timeout:
                ALONE.append(True)

    def get_experiment_by_name(self, name):
        return Some(experiment_id="7")

    def create_experiment(self, name, artifact_location):
        CALLS.append(("experiment", name, artifact_location))
        if RUNS:
            raise MlflowException

    def search_runs(self, experiments, filter_string, max_results):
        assert (experiments, max_results) == (["7"], 1)
        return [run for run in RUNS if run.wanted == filter_string]

    def create_run(self, experiment, tags, run_name):
        ((key, value),) = tags.items()
        run = Some(info=Some(run_id="r1"), wanted=f"tags.`{key}` = '{value}'")
        RUNS.append(run)
        CALLS.append(("run", experiment, tags, run_name))
        return run

    def update_run(self, run, status):
        CALLS.append(("update", run, status))

    def log_batch(self, run, metrics=(), params=()):
        assert len(params) <= 100
        CALLS.append(("batch", metrics, params))

    def log_image(self, run, picture, key, step):
        CALLS.append(("image", picture.size, key, step))

    def log_artifact(self, run, path):
        CALLS.append(("file", Path(path).name, Path(path).read_bytes()))

    def set_terminated(self, run, status):
        CALLS.append(("end", run, status))
""",
    "entities.py": """
from collections import namedtuple

Metric = namedtuple("Metric", "key value timestamp step")
Param = namedtuple("Param", "key value")
""",
    "exceptions.py": "class MlflowException(Exception): ...\n",
}


@pytest.fixture
def mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return the double."""
    folder = tmp_path / "double" / "mlflow"
    folder.mkdir(parents=True)
    for name, text in DOUBLE.items():
        (folder / name).write_text(text)
    for name in [name for name in sys.modules if name.partition(".")[0] == "mlflow"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(folder.parent)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(tracking, "draw_report", lambda *_, **__: None)
    yield importlib.import_module("mlflow")
    for name in ("mlflow", "mlflow.entities", "mlflow.exceptions"):
        sys.modules.pop(name, None)


def test_mlflow_is_told_figures_and_settings_and_knows_the_run_again(
    small: Small, mlflow: Any
) -> None:
    record = run(small(rounds=1, set="track.by=mlflow track.images=on track.group=mine"))
    calls: list[Any] = list(mlflow.CALLS)
    output = record.directory.parent
    assert calls[:3] == [
        ("at", f"sqlite:///{output / 'mlflow.db'}"),
        ("experiment", "mine", (output / "mlflow-artifacts").as_uri()),
        ("run", "7", {"nectar.record": record.id}, record.id),
    ]
    params = {p.key: p.value for call in calls if call[0] == "batch" for p in call[2]}
    assert params == {key: str(v) for key, v in settings_of(load_of(record)).items()}
    batches = [call[1] for call in calls if call[0] == "batch" and call[1]]
    assert [{m.key: m.value for m in each} for each in batches] == [
        figures_of(line) for line in record.metrics()
    ]
    assert [any(m.key.startswith(("bytes", "replies")) for m in each) for each in batches] == [
        False,
        True,
    ]
    assert [{m.step for m in each} for each in batches] == [{0}, {1}]
    assert [call[2:] for call in calls if call[0] == "image"] == [
        (f"partition-{i}", 1) for i in range(3)
    ]
    assert calls[-1] == ("end", "r1", "FINISHED")
    assert not files_of(mlflow), "the store lies beside the record, which has them"
    assert mlflow.ALONE == [
        True
    ]  # the real client makes the store's tables, which two at once cannot
    resumed(record, rounds=2)
    more = mlflow.CALLS[len(calls) :]
    assert ("update", "r1", "RUNNING") in more
    assert not [call for call in more if call[0] == "run"]
    assert [{m.step for m in call[1]} for call in more if call[0] == "batch"] == [{2}]


def files_of(mlflow: Any) -> dict[str, bytes]:
    return {call[1]: call[2] for call in mlflow.CALLS if call[0] == "file"}


def test_a_server_of_mlflows_is_given_settings_figures_and_weights_alone(
    small: Small, mlflow: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a path of the server's nor what the sites sent: of ridge's checkpoint not the sites' sums."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://localhost:1")
    drawn: list[Mapping[Path, bool]] = []
    monkeypatch.setattr(tracking, "draw_report", lambda _, images: drawn.append(images))
    record = run(small(method="ridge", rounds=1, set="track.by=mlflow data.site_holdout=0.2"))
    files = files_of(mlflow)
    assert sorted(files) == ["best.safetensors", "config.yaml", "metrics.jsonl"]
    (pages,) = drawn  # in one process: the record's own, and the one for MLflow without images
    assert pages.pop(record.directory / "report.html")
    assert [*pages.values()] == [False]
    assert yaml.safe_load(files["config.yaml"]) == settings_of(load_of(record))
    assert str(record.directory.parent).encode() not in b"".join(files.values())
    assert files["metrics.jsonl"] == record.metrics_path.read_bytes()
    given = record.directory / "given.safetensors"
    given.write_bytes(files["best.safetensors"])
    whole, weights = Checkpoint.load(record.best), Checkpoint.load(given)
    assert whole.strategy
    assert not weights.strategy
    assert weights.weights.keys() == whole.weights.keys()
    for name, tensor in whole.weights.items():
        torch.testing.assert_close(weights.weights[name], tensor, rtol=0, atol=0)


@pytest.mark.extended
@pytest.mark.parametrize("images", [False, True])
def test_the_report_shows_no_image_unless_images_are_tracked(
    small: Small, tmp_path: Path, images: bool
) -> None:
    record = run(small(rounds=1))
    assert not has_report(record)
    page, own = tmp_path / "report.html", record.directory / "report.html"
    draw_report(record.directory, {page: images, own: True})
    assert has_report(record)
    os.utime(own, (0, 0))  # of the run before this one was continued
    assert not has_report(record)
    assert "data:image" in own.read_text()
    assert "</html>" in page.read_text()
    assert ("data:image" in page.read_text()) == images


def test_a_report_that_cannot_be_drawn_costs_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "flwr"):
        draw_report(tmp_path, {tmp_path / "report.html": True})
    assert "the report was not drawn: nectar: " in caplog.text
    assert list(tmp_path.iterdir()) == []


def load_of(record: Record) -> Any:
    stated = record.stated()
    assert stated is not None
    return load(stated["run-config"])


def test_mlflow_goes_where_its_variable_says(
    small: Small, mlflow: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://localhost:1")
    run(small(method="fedavg", rounds=1, set="track.by=mlflow"))
    assert mlflow.CALLS[:2] == [("at", "http://localhost:1"), ("experiment", "nectar", None)]


@pytest.mark.extended
def test_the_real_mlflow_gives_the_figures_back(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client_of = pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    record = run(small(method="fedavg", rounds=1, set="track.by=mlflow"))
    resumed(record, rounds=2)
    client = client_of.MlflowClient(f"sqlite:///{record.directory.parent / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("nectar")
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.data.params["method"] == "fedavg"
    assert found.info.status == "FINISHED"
    assert set(found.data.tags) <= {"nectar.record", "mlflow.runName"}
    history = client.get_metric_history(found.info.run_id, "test/accuracy")
    assert {(each.step, each.value) for each in history} == {
        (line["round"], line["test"]["accuracy"]) for line in record.metrics()
    }


# -- what is told, and what is refused ----------------------------------------------------------


def test_no_path_and_no_secret_is_told(tmp_path: Path) -> None:
    config = load(
        {
            "method": "flwr.serverapp.strategy:FedAdam",
            "set": "model.start=/srv/secret/start.safetensors strategy.eta=0.1",
            "output-dir": str(tmp_path),
            "typed": "nectar run token=abc",
        }
    )
    settings = settings_of(config)
    assert settings["strategy.eta"] == 0.1
    assert settings["method"] == "flwr.serverapp.strategy:FedAdam"
    assert not any("/" in str(value) for value in settings.values())
    assert "token" not in str(settings)


def test_figures_of_sites_are_sums_and_counts() -> None:
    line = {
        "round": 3,
        "test": {"accuracy": 0.5, "loss": None, "per_class": [0.5, 0.5]},
        "models": {"conv/net": {"accuracy": 0.25}},
        "accepted": ["here", "there"],
        "rejected": {"nowhere": "/home/it is late"},
        "bytes": {"up": {"here": 2, "there": 3}, "down": {}},
        "seconds": {"devices": 1.5, "by_site": {"here": 1.0}},
        "notes": {"spent": {"here": {"epsilon": 1.0}, "there": {"epsilon": 2.0}}},
    }
    assert figures_of(line) == {
        "test/accuracy": 0.5,
        "models/conv/net/accuracy": 0.25,
        "replies/accepted": 2,
        "replies/rejected": 1,
        "replies/unevaluated": 0,
        "bytes/up": 5,
        "bytes/down": 0,
        "seconds/devices": 1.5,
        "privacy/epsilon": 2.0,
    }


def test_a_tracker_that_is_not_installed_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    assert main(["run", "track=tensorboard", f"output-dir={tmp_path}"]) == 2
    message = capsys.readouterr().err
    assert "track=tensorboard needs tensorboard, which is not installed" in message
    # by the extra: uv's pins let a bare mlflow be that of 2022
    assert "`.uv/bin/uv pip install -e '.[tensorboard]'` in Nectar's clone" in message
    assert list(tmp_path.iterdir()) == []


def test_images_of_sites_with_data_of_their_own_are_refused() -> None:
    track = TrackSettings(by="tensorboard", images=True)
    refuse_own_pictures(track, [Site("partition-0", 1, 9, partition=0, partitions=1)])
    with pytest.raises(FederationError, match=r"sites with data of their own \(clinic\)"):
        refuse_own_pictures(track, [Site("clinic", 1, 9)])


def test_a_file_of_settings_may_say_it_shortly(tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text("track: mlflow\n")
    config = load(parse_arguments([], file=str(file)))
    assert config.track.by == "mlflow"
    again = load(config.to_run_config())
    assert again.track == config.track
    assert "track" not in load({}).sections()


# -- a comparison -------------------------------------------------------------------------------


@pytest.mark.extended
def test_a_comparison_is_one_group_and_each_run_has_its_name(tmp_path: Path) -> None:
    out = tmp_path / "out"
    runs = tmp_path / "runs"
    shared = [f"output-dir={runs}", "rounds=1", "track=tensorboard", *SMALL.split()]
    words = ["mine=fedavg:lr=0.1", "--seeds=1", f"--output={out}", *shared]
    comparison = Comparison(parse(options_of(words)), lambda sentence: None)
    (task,) = (task.within("", out.name) for task in comparison.planned[0].runs)
    assert (task.config.track.group, task.config.track.name) == ("out", "mine, seed 0")
    record = run(task.config.to_run_config())
    comparison.carry_out()
    link = out / EVENTS / "mine, seed 0"
    assert link.resolve() == record.directory / EVENTS
    read = EventAccumulator(str(link))
    read.Reload()
    assert [each.step for each in read.Scalars("test/accuracy")] == [0, 1]
