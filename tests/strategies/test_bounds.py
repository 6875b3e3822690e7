"""The bounds: training in one place, and every site by itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch
from federation import numbers, run
from safetensors.torch import load_file
from small import Small
from tiny import Tiny

from common.config.loading import load
from common.division import Division
from common.errors import ConfigError, FederationError
from common.learning.training import evaluate
from common.samples.inputs import samples
from common.wire.weights import Weights
from nectar.export.bundle import export
from nectar.recorded_run import RecordedRun
from nectar.records.record import RunRecord
from server_app.checkpoint import Checkpoint


def test_local_sites_go_on_from_their_own_models_by_hand(tmp_path: Path) -> None:
    """a - a/4 after two halvings of the distance, a - a/16 after two more; the weights stay 0."""
    tiny = Tiny(tmp_path, "local")
    tiny.round(1)
    assert tiny.round(2, lost=[1]) == 0.0
    tiny.restart()
    tiny.round(3)
    own = tiny.strategy.state_dict()["learned"]
    found = {site: float(model["head.weight"]) for site, model in own.items()}
    assert found == {"site-0": 1 - 1 / 64, "site-1": 3 - 3 / 16}


def test_a_local_rounds_figures_are_the_mean_over_the_sites_models(small: Small) -> None:
    config = small(method="local", rounds=2)
    record = run(config)
    line, made = record.metrics()[-1], Division(load(config)).run
    assert list(line["models"]) == ["partition-0", "partition-1", "partition-2"]
    for key in ("accuracy", "loss"):
        each = [figures[key] for figures in line["models"].values()]
        assert line["test"][key] == pytest.approx(fmean(each))
    assert len({figures["loss"] for figures in line["models"].values()}) == 3
    test = samples(Division(made.config).dataset.test, made.info)
    for site, tensors in Checkpoint.load(record.last).strategy["learned"].items():
        model = made.build_model()
        Weights(tensors).load_into(model)
        assert evaluate(model, test, made.task, 256).loss == pytest.approx(
            line["models"][site]["loss"]
        )


def test_central_takes_as_many_steps_as_the_sites_together_on_all_their_images(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    from strategies import central

    seen: dict[str, Any] = {}
    plain = central.train

    def spy(model: Any, given: Any, *args: Any, **kwargs: Any) -> Any:
        seen.update(examples=len(given), labels=given.labels.bincount(), steps=kwargs["steps"])
        return plain(model, given, *args, **kwargs)

    monkeypatch.setattr(central, "train", spy)
    config = small(method="central", rounds=1, set="central.epochs=2 central.batch=100")
    record, made = run(config), Division(load(config)).run
    parts = Division(made.config).partition(3)
    sizes = [len(part) for part in parts]
    assert seen["examples"] == sum(sizes)
    assert seen["steps"] == sum(2 * -(-n // 100) for n in sizes)
    labels = Division(made.config).dataset.train.labels[np.concatenate(parts)]
    assert seen["labels"].tolist() == np.bincount(labels).tolist()
    line = record.metrics()[1]
    assert (line["accepted"], line["floats_up"], line["bytes"]) == ([], 0, {"down": {}, "up": {}})


@pytest.mark.extended
def test_central_learns_more_than_fedavg_and_that_more_than_local(small: Small) -> None:
    given = ["epochs=2", "batch=32", "lr=0.1"]
    reached = {}
    for method in ("central", "fedavg", "local"):
        settings = " ".join(f"{method}.{one}" for one in given)
        config = small(method=method, rounds=4, set=f"partition.alpha=0.1 {settings}")
        reached[method] = numbers(run(config))[-1]["test"]["accuracy"]
    assert reached["central"] > reached["fedavg"] > reached["local"]


def test_central_refuses_sites_with_data_of_their_own(tmp_path: Path) -> None:
    tiny = Tiny(tmp_path, "central")
    sites = [replace(tiny.sites[0], partitions=2, partition=0), tiny.sites[1]]
    with pytest.raises(FederationError, match="site-1 has data of their own"):
        tiny.strategy.instructions(1, tiny.weights, sites)


@pytest.mark.extended
def test_the_models_of_a_run_are_read_by_name(small: Small) -> None:
    past = RunRecord.open(run(small(method="local", rounds=1)).directory)
    recorded = RecordedRun(past.directory)
    assert list(recorded.models) == ["partition-0", "partition-1", "partition-2"]
    with pytest.raises(ConfigError, match=r"learned 3 models, .* name one of partition-0"):
        _ = recorded.model
    with pytest.raises(ConfigError, match="none is called 'x': name one of"):
        export(past, model="x")
    done = export(past, model="partition-1")
    assert done.folder.name == "round-001-partition-1"
    written = load_file(done.folder / "model.safetensors")
    for name, tensor in recorded.models["partition-1"].state_dict().items():
        assert torch.equal(written[name], tensor)
