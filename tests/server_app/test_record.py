"""What a run leaves behind, and how it counts."""

from __future__ import annotations

import json
import math
from importlib import metadata
from pathlib import Path

import pytest
import torch
import yaml
from federation import run
from flwr.app import ArrayRecord, RecordDict
from PIL import Image
from small import Small

from client_app.fedavg import FedAvgClient
from client_app.state import ContextState
from common.config.loading import load
from common.data.division.partitions import class_counts
from common.division import Division
from common.errors import FederationError
from common.learning.task import Evaluation
from common.samples.inputs import Samples
from common.wire.weights import Weights
from nectar.cli import main as nectar
from nectar.records.record import RunRecord
from server_app import recorder
from server_app.app import make_strategy
from server_app.checkpoint import Checkpoint
from server_app.loop import server_evaluator
from server_app.record import Record
from server_app.resume import ResumePoint
from strategies import foreign
from strategies.base import GLOBAL
from strategies.exchange.exchange import content_bytes
from strategies.round import RoundResult


def test_a_record_holds_what_the_run_did(small: Small) -> None:
    record = run(small())
    config = yaml.safe_load((record.directory / "config.yaml").read_text())
    assert config["feddm"]["ipc"] == 2
    provenance = json.loads((record.directory / "provenance.json").read_text())
    assert provenance["outcome"] == "completed"
    assert provenance["versions"]["flwr"] == metadata.version("flwr")
    assert len(provenance["data"]["sha256"]) == 64
    assert [line["round"] for line in record.metrics()] == [0, 1, 2]
    partition = json.loads((record.directory / "partition.json").read_text())
    made = Division(load(small())).run
    parts = Division(made.config).partition(3)
    expected = class_counts(Division(made.config).dataset.train.labels, parts, 10).tolist()
    found = [partition["sites"][f"partition-{i}"] for i in range(3)]
    assert [row["classes"] for row in found] == expected
    assert [row["examples"] for row in found] == [sum(row) for row in expected]


def test_floats_are_counted_as_the_paper_counts_them(small: Small) -> None:
    """Table 3: the sum over sites of classes held x ipc x image size; for averaging, sites x parameters."""
    record = run(small(rounds=1))
    partition = json.loads((record.directory / "partition.json").read_text())
    pairs = sum(sum(n > 0 for n in site["classes"]) for site in partition["sites"].values())
    assert record.metrics()[1]["floats_up"] == pairs * 2 * 64
    averaging = run(small(method="fedavg", rounds=1))
    parameters = sum(p.numel() for p in Division(load(small())).run.build_model().parameters())
    assert averaging.metrics()[1]["floats_up"] == 3 * parameters


def test_content_bytes_counts_keys_and_records() -> None:
    from flwr.app import ConfigRecord, RecordDict

    content = RecordDict({"config": ConfigRecord({"ab": "cde"})})
    assert content_bytes(content) == len("config") + len("ab") + len("cde")


def test_pictures_show_a_row_a_class(small: Small) -> None:
    record = run(small(rounds=1))
    partition = json.loads((record.directory / "partition.json").read_text())
    for site, row in partition["sites"].items():
        rows = sum(n > 0 for n in row["classes"])
        with Image.open(record.directory / "samples" / "round-001" / f"{site}.png") as picture:
            assert picture.height == (rows * 9 - 1) * 4
            assert picture.width == (2 * 9 - 1) * 4
            assert len(set(picture.convert("L").tobytes())) > 10


def test_real_images_on_the_picture_are_the_sites_own(small: Small) -> None:
    """REAL's grid, read back, holds pixels of the data set: mean and scale were undone."""
    record = run(small(method="real", rounds=1))
    with Image.open(record.directory / "samples" / "round-001" / "partition-0.png") as picture:
        first = picture.convert("L").resize((picture.width // 4, picture.height // 4), 0)
    tile = torch.tensor(list(first.crop((0, 0, 8, 8)).tobytes())).reshape(8, 8)
    made = Division(load(small())).run
    known = torch.from_numpy(Division(made.config).dataset.train.images[:].astype("float32"))[:, 0]
    shown = (known * 255 / 16).round().to(torch.int64)
    assert int((shown - tile).abs().amax(dim=(1, 2)).min()) <= 1


def test_a_simulated_site_that_remembers_nothing_leaves_no_file(small: Small) -> None:
    assert not (run(small(method="fedavg")).directory / "state").exists()


def test_the_checkpoints_weights_give_the_rounds_figures(small: Small) -> None:
    record = run(small(rounds=1))
    weights = Checkpoint.load(record.last).weights
    test = server_evaluator(Division(load(small())))({GLOBAL: ArrayRecord(dict(weights))}).test
    assert test is not None
    assert test.accuracy == record.metrics()[1]["test"]["accuracy"]
    assert test.loss == record.metrics()[1]["test"]["loss"]


def test_a_reader_finds_what_the_sites_sent(small: Small) -> None:
    """The sets of the newest round are kept whole; weights leave none."""
    record = run(small(rounds=2))
    past = RunRecord.open(record.directory)
    assert past.completed
    server_round, sets = past.synthetic()
    assert server_round == 2
    held = {name: row["classes"] for name, row in past.partition["sites"].items()}
    for site, images in sets.items():
        assert images.images.shape[1:] == (1, 8, 8)
        expected = [c for c, n in enumerate(held[site]) for _ in range(2) if n]
        assert sorted(images.labels.tolist()) == expected
    assert past.config.digest() == load(small(rounds=2)).digest()
    assert past.checkpoint().server_round == 2
    assert RunRecord.open(run(small(method="fedavg", rounds=1)).directory).synthetic() == (0, {})


def test_a_strategy_by_path_is_told_from_a_method_of_the_same_name(small: Small) -> None:
    ours = run(small(method="fedavg", rounds=1))
    theirs = run(small(method="flwr.serverapp.strategy:FedAvg", rounds=1))
    assert "-fedavg-digits-" in ours.id
    assert "-flwr-fedavg-digits-" in theirs.id


@pytest.mark.parametrize(("loss", "told"), [(math.nan, True), (math.inf, True), (1e30, False)])
def test_a_model_that_diverged_is_said_to_have(
    small: Small, monkeypatch: pytest.MonkeyPatch, loss: float, told: bool
) -> None:
    message: list[str] = []
    monkeypatch.setattr(recorder.logger, "warning", lambda text, *args: message.append(text % args))
    made = Division(load(small())).run
    point = ResumePoint(Record.create(made.config))
    keep = recorder.Recorder(point, make_strategy(made))
    weights = ArrayRecord(dict(made.build_model().state_dict()))
    keep(RoundResult(3, weights, Evaluation(loss, 0.1, (0.1,) * 10, 360), None))
    assert any("round 3: the test loss is not finite" in text for text in message) == told


@pytest.mark.parametrize(("norm", "told"), [("batch", True), ("instance", False)])
def test_a_flower_strategy_s_way_with_running_statistics_is_told(
    small: Small, monkeypatch: pytest.MonkeyPatch, norm: str, told: bool
) -> None:
    """Server momentum over a running variance made it negative: FedAvgM with batch norm lost the model."""
    message: list[str] = []
    monkeypatch.setattr(foreign.logger, "warning", lambda text, *args: message.append(text % args))
    make_strategy(
        Division(
            load(small(method="flwr.serverapp.strategy:FedAvgM", set=f"model.norm={norm}"))
        ).run
    )
    assert any("running means and variances" in text for text in message) == told


def test_a_client_says_which_settings_it_needs(small: Small) -> None:
    made = Division(load(small(method="real"))).run
    empty = Samples.of(torch.zeros(0, 1, 8, 8), torch.zeros(0, dtype=torch.int64))
    client = FedAvgClient(made, "a", empty, empty, ContextState(RecordDict()))
    with pytest.raises(
        FederationError,
        match="method=real has RealSettings where a part of it needs FedAvgSettings",
    ):
        client.train(Weights.of(made.build_model()))


# ---- the command -------------------------------------------------------------------------------------


def test_the_record_states_what_was_typed(small: Small, tmp_path: Path) -> None:
    settings = [f"output-dir={tmp_path / 'runs'}", "method=fedavg", "rounds=1"]
    words = [*settings, *small()["set"].split(), "--note-record", str(tmp_path / "note")]
    assert nectar(["run", *words]) == 0
    directory = Path((tmp_path / "note").read_text().rstrip("\n"))
    provenance = json.loads((directory / "provenance.json").read_text())
    assert provenance["command"] == ["nectar", "run", *words]
    assert "typed" not in provenance["run-config"]
    from_python = run(small(method="fedavg", rounds=1))
    stated = json.loads((from_python.directory / "provenance.json").read_text())
    assert stated["command"] == ["python"]
    assert stated["configuration"] == provenance["configuration"]
