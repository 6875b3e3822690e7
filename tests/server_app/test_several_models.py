"""Several architectures in one run: each is built and judged as what it is, and what stands beside counts nowhere."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from flwr.app import ArrayRecord

from common.config.loading import load
from common.division import Division
from common.learning.run import Run
from common.settings.fedavg import FedAvgSettings
from common.settings.sections import ModelSettings
from server_app.loop import server_evaluator
from strategies.base import GLOBAL

WIDE = {"method": "fedavg", "set": "model.depth=2 model.width=8"}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run whose method learns an MLP and a deeper network beside the run's own."""

    def models(self: FedAvgSettings, model: ModelSettings) -> Mapping[str, ModelSettings]:
        return {
            "mlp": model.model_copy(update={"name": "mlp"}),
            "shallow": model.model_copy(update={"depth": 1}),
        }

    monkeypatch.setattr(FedAvgSettings, "models", models)
    return Division(load(WIDE)).run


def arrays(run: Run) -> ArrayRecord:
    return ArrayRecord(dict(run.build_model().state_dict()))


def test_an_architecture_is_the_runs_own_but_for_the_network(run: Run) -> None:
    mlp, shallow = run.with_model("mlp"), run.with_model("shallow")
    assert (type(mlp.build_model()).__name__, type(run.build_model()).__name__) == (
        "MLP",
        "ConvNet",
    )
    # a block of 8 channels of 1x3x3 with a bias and an instance norm, and 8 x 4 x 4 values into ten classes
    assert shallow.parameters == 8 * 9 + 8 + 16 + 8 * 16 * 10 + 10
    assert mlp.spec != run.spec
    assert mlp is run.with_model("mlp"), "made once"
    assert (mlp.config.seed, mlp.config.partition) == (run.config.seed, run.config.partition)


def test_a_name_that_is_no_architecture_is_of_the_runs_own(run: Run) -> None:
    assert run.with_model(GLOBAL) is run
    assert run.with_model("partition-3") is run


def test_each_is_judged_by_its_own_network_and_the_mean_is_over_what_was_learned(run: Run) -> None:
    judge = server_evaluator(Division(run.config))
    own, mlp, shallow = (arrays(run.with_model(name)) for name in (GLOBAL, "mlp", "shallow"))
    alone = {
        name: judge({name: held}, {}).test for name, held in (("mlp", mlp), ("shallow", shallow))
    }
    both = judge({"mlp": mlp, "shallow": shallow}, {GLOBAL: own})
    assert both.test is not None
    assert alone["mlp"] is not None
    assert alone["shallow"] is not None
    assert both.test.loss == pytest.approx((alone["mlp"].loss + alone["shallow"].loss) / 2)
    assert set(both.models) == {"mlp", "shallow", GLOBAL}
    assert both.models[GLOBAL] == judge({GLOBAL: own}, {}).test
    assert judge({GLOBAL: own}, {}).models == {}, "a single one has no line of its own"
