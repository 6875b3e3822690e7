"""Flower strategies by import path: the class, its constructor's arguments, FedAvg's devices."""

from pathlib import Path
from typing import Any

import pytest
from flwr.serverapp.strategy import FedAdam, FedAvg

from common.config import layers as layers_module
from common.config.loading import load
from common.settings.fedavg import FedAvgSettings
from nectar.commands.config import describe_arguments

ADAM = "flwr.serverapp.strategy:FedAdam"
HERE = __name__


class Passing(FedAvg):
    """A user's strategy that hands its other arguments on."""

    def __init__(
        self, gain: float, *, _secret: int = 1, label: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)


def test_arguments_are_typed_and_construct_the_strategy() -> None:
    config = load({"method": ADAM, "set": "strategy.eta=1 strategy.beta_1=0.5 fedavg.lr=0.3"})
    assert config.strategy == {"eta": 1.0, "beta_1": 0.5}
    assert isinstance(config.strategy["eta"], float)
    assert FedAdam(**config.strategy).eta == 1.0  # type: ignore[arg-type]
    assert config.section == "fedavg"
    assert isinstance(config.settings, FedAvgSettings)
    assert config.settings.lr == 0.3
    assert load(config.to_run_config()) == config


def test_a_required_argument_must_be_given() -> None:
    path = "flwr.serverapp.strategy:QFedAvg"
    assert load({"method": path, "set": "strategy.client_learning_rate=0.1"}).strategy


def test_what_a_constructor_passes_on_is_accepted_and_private_names_are_not() -> None:
    path = f"{HERE}:Passing"
    config = load({"method": path, "set": "strategy.gain=2 strategy.min_train_nodes=3"})
    assert config.strategy == {"gain": 2.0, "min_train_nodes": 3}
    assert (
        load({"method": path, "set": "strategy.gain=2 strategy.label=null"}).strategy["label"]
        is None
    )


def test_arguments_in_a_file_go_with_the_files_method(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in ("dataset", "table"):
        (tmp_path / kind).mkdir()
    (tmp_path / "dataset" / "digits.yaml").touch()
    base = f'{{method: "{ADAM}", strategy: {{eta: 0.5}}, fedavg: {{lr: 0.2}}}}'
    (tmp_path / "table" / "e.yaml").write_text(f"name: e\nbase: {base}")
    monkeypatch.setattr(layers_module, "CONF", tmp_path)
    assert load({"experiment": "e"}).strategy == {"eta": 0.5}
    assert load({"experiment": "e", "method": ADAM}).strategy == {"eta": 0.5}
    other = load({"experiment": "e", "method": "flwr.serverapp.strategy:FedAvg"})
    assert other.strategy == {}
    assert load({"experiment": "e", "method": "feddm"}).strategy == {}


def test_the_description_lists_what_can_be_set() -> None:
    described = {row.name: row for row in describe_arguments(FedAdam)}
    assert described["beta_2"].default == 0.99
    assert "train_metrics_aggr_fn" not in described
