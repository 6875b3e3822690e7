"""Flower strategies by import path: the class, its constructor's arguments, FedAvg's devices."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.serverapp.strategy import FedAdam, FedAvg

from common.config import layers as layers_module
from common.config.loading import load
from common.errors import ConfigError
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


class NeedsObject(FedAvg):
    """A user's strategy that no configuration can construct."""

    def __init__(self, schedule: Callable[[int], float]) -> None:
        super().__init__()


class Untyped(FedAvg):
    """A user's strategy without annotations."""

    def __init__(self, gain, positional_only=1, /, *args):  # type: ignore[no-untyped-def]
        super().__init__()


class OddlyNamed(FedAvg):
    """A user's strategy whose arguments are called as a model's own attributes."""

    def __init__(self, copy: int, model_config: float = 0.5, *, _hidden: int) -> None:
        super().__init__()


def sentence(method: str, text: str = "") -> str:
    with pytest.raises(ConfigError) as caught:
        load({"method": method, "set": text})
    return str(caught.value)


def test_arguments_are_typed_and_construct_the_strategy() -> None:
    config = load({"method": ADAM, "set": "strategy.eta=1 strategy.beta_1=0.5 fedavg.lr=0.3"})
    assert config.strategy == {"eta": 1.0, "beta_1": 0.5}
    assert isinstance(config.strategy["eta"], float)
    assert FedAdam(**config.strategy).eta == 1.0  # type: ignore[arg-type]
    assert config.section == "fedavg"
    assert isinstance(config.settings, FedAvgSettings)
    assert config.settings.lr == 0.3
    assert load(config.to_run_config()) == config


def test_a_wrong_argument_is_answered_with_the_nearest() -> None:
    message = sentence(ADAM, "strategy.bta_1=0.5")
    assert message == (
        f"strategy.bta_1 on the command line is not an argument of {ADAM}: "
        "did you mean strategy.beta_1?"
    )


def test_an_argument_of_the_wrong_type_is_refused() -> None:
    assert sentence(ADAM, "strategy.eta=fast") == (
        "strategy.eta='fast' on the command line must be a number."
    )
    assert "a whole number" in sentence(ADAM, "strategy.min_train_nodes=1.5")
    assert "a number" in sentence(ADAM, "strategy.eta=true")


def test_an_argument_that_takes_a_function_is_refused() -> None:
    message = sentence(ADAM, "strategy.train_metrics_aggr_fn=print")
    assert "cannot be set" in message
    assert "takes an object" in message


def test_a_required_argument_must_be_given() -> None:
    path = "flwr.serverapp.strategy:QFedAvg"
    assert sentence(path) == f"{path} needs a value for strategy.client_learning_rate."
    assert load({"method": path, "set": "strategy.client_learning_rate=0.1"}).strategy


def test_what_a_constructor_passes_on_is_accepted_and_private_names_are_not() -> None:
    path = f"{HERE}:Passing"
    config = load({"method": path, "set": "strategy.gain=2 strategy.min_train_nodes=3"})
    assert config.strategy == {"gain": 2.0, "min_train_nodes": 3}
    assert (
        load({"method": path, "set": "strategy.gain=2 strategy.label=null"}).strategy["label"]
        is None
    )
    assert "not an argument" in sentence(path, "strategy.gain=2 strategy._secret=3")
    assert "not an argument" in sentence(path, "strategy.gain=2 strategy.kwargs=3")


def test_a_strategy_no_setting_can_construct_is_refused() -> None:
    assert "needs an object for 'schedule'" in sentence(f"{HERE}:NeedsObject")


def test_an_argument_may_have_any_name_and_all_that_is_wrong_is_said() -> None:
    path = f"{HERE}:OddlyNamed"
    message = sentence(
        path, "strategy.model_config=often strategy._hidden=3 strategy.modelconfig=1"
    )
    assert message.splitlines() == [
        "strategy.model_config='often' on the command line must be a number.",
        f"strategy._hidden on the command line is not an argument of {path}: it takes copy, model_config.",
        f"strategy.modelconfig on the command line is not an argument of {path}: did you mean "
        "strategy.model_config?",
        "Not shown: 1 more of this kind.",
    ]
    assert "needs an object for '_hidden'" in sentence(path, "strategy.copy=3")


def test_positional_only_arguments_cannot_be_given() -> None:
    assert "not an argument" in sentence(f"{HERE}:Untyped", "strategy.gain=2")


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("flwr.serverapp.strategy:FedAdm", "the nearest is FedAdam"),
        ("flwr.serverapp.strategy:Strategy", "neither a Flower strategy"),
        ("json:JSONEncoder", "neither a Flower strategy"),
        ("json:dumps", "neither a Flower strategy"),
        ("json:nothing", "json has no 'nothing'"),
        ("no_such_module:Strategy", "No module named 'no_such_module'"),
        (":", "cannot be imported"),
        ("a:", "cannot be imported"),
    ],
)
def test_what_is_no_strategy_is_refused(path: str, part: str) -> None:
    message = sentence(path)
    assert part in message
    assert "on the command line" in message


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
