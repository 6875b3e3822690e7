"""What a site imports at a server's word: nothing that its own node config does not name."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict
from real_site import Site as RealSite
from small import Small

from client_app.app import app as client_app
from client_app.owner.vetoes import import_policy_of
from client_app.site import division_of
from common.config.user_parts import PART
from common.errors import FederationError
from nectar.engines.local_grid import LocalGrid
from strategies.exchange.membership import Question, RollCall

pytestmark = pytest.mark.promise(
    "A site is the master of its own machine",
    "Nothing is imported that the site did not allow",
)

PARTS = """
from torch import nn
from common.methods import Method
METHOD = Method("borrowed", "strategies.fedavg:FedAvg", "client_app.fedavg:FedAvgClient",
                "common.settings.fedavg:FedAvgSettings")
ELSEWHERE = Method("elsewhere", "strategies.fedavg:FedAvg", "nowhere.at_all:Client",
                   "common.settings.fedavg:FedAvgSettings")
def net(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))
"""


@pytest.fixture(autouse=True)
def _parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "strangers").mkdir()
    (tmp_path / "strangers" / "__init__.py").write_text("")
    (tmp_path / "strangers" / "parts.py").write_text(PARTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("strangers", "strangers.parts"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def at_site(run_config: Mapping[str, Any], **node_config: Any) -> Context:
    node = {"partition-id": 0, "num-partitions": 3, **node_config}
    return Context(1, 1, node, RecordDict(), dict(run_config))


NAMED: list[tuple[str, dict[str, str]]] = [
    ("method", {"method": "strangers.parts:METHOD"}),
    ("method", {"method": "strangers.parts:Strategy"}),
    ("model.name", {"set": "model.name=strangers.parts:net"}),
    ("dataset", {"dataset": "strangers.parts:data"}),
]


@pytest.mark.parametrize("dataset", ["torchvision:MNIST", "hf:mnist"])
def test_a_set_that_a_library_of_ours_reads_needs_no_word_of_the_site(
    small: Small, dataset: str
) -> None:
    assert division_of(at_site(small(dataset=dataset))).config.dataset == dataset


@pytest.mark.parametrize(("key", "keys"), NAMED)
def test_what_the_site_does_not_name_is_refused_and_never_imported(
    small: Small, key: str, keys: dict[str, str]
) -> None:
    sentence = rf"does not import the module 'strangers.parts', which the run names as {key}:.*"
    with pytest.raises(FederationError, match=sentence + r"allow-imports='strangers\.parts'"):
        division_of(at_site(small(**keys), **{"allow-imports": "strangers.par, strangersx"}))
    assert not {"strangers", "strangers.parts"} & set(sys.modules)


@pytest.mark.parametrize(
    "keys",
    [
        {"method": "antigravity:x"},
        {"dataset": "antigravity:fly"},
        {"set": "model.name=antigravity:x"},
        {"method": "strangers.parts:BORROWED"},
        {"method": "flwr.serverapp:ServerApp", "set": "strategy.x=antigravity:x"},
        {"dataset": "nectar.cli:main"},
        {"dataset": "common.learning.compute:use_threads"},
        {"method": "server_app.app:app"},
        {"dataset": "images", "set": "images.classes=a,b images.folder=. model.name=antigravity:x"},
        {"set": "model.name=convnet method=antigravity:x dataset=antigravity:x"},
    ],
)
def test_a_hostile_server_has_nothing_imported(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: dict[str, str]
) -> None:
    """Over the ClientApp, at the roll call; what an allowed method names beside itself is asked after, too."""
    parts = tmp_path / "strangers" / "parts.py"
    parts.write_text(
        PARTS.replace("nowhere.at_all", "antigravity").replace("ELSEWHERE", "BORROWED")
    )
    for module in ("antigravity", "nectar.cli"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    message = RealSite(small(**keys), **{"allow-imports": "strangers"}).refusal()
    assert "this site does not import the module" in message
    assert not {"antigravity", "nectar.cli"} & set(sys.modules)


def test_the_roll_call_says_so(small: Small) -> None:
    run_config = small(set="model.name=strangers.parts:net")
    grid = LocalGrid(client_app, 1, run_config, {"simulated": False})
    question = Question(classes=0, held_out=False, max_examples=10_000)
    call = RollCall(grid, question)
    call.ask(grid.get_node_ids(), time.monotonic() + 5)
    (why,) = call.refused.values()
    assert "failed the roll call: this site does not import" in why
    assert "strangers.parts" not in sys.modules
    allowing = {"simulated": False, "allow-imports": "strangers"}
    grid = LocalGrid(client_app, 1, run_config, allowing)
    call = RollCall(grid, question)
    call.ask(grid.get_node_ids(), time.monotonic() + 5)
    assert len(call.known) == 1


@pytest.mark.parametrize("allowed", ["strangers.parts", "torch.nn strangers", "x,strangers.parts"])
def test_what_it_names_is_imported_and_a_package_stands_for_what_is_in_it(
    small: Small, allowed: str
) -> None:
    keys = small(method="strangers.parts:METHOD", set="model.name=strangers.parts:net")
    run = division_of(at_site(keys, **{"allow-imports": allowed}))
    assert run.config.section == "borrowed"
    assert [tuple(p.shape) for p in run.run.build_model().parameters()] == [(10, 64), (10,)]


def test_a_method_s_own_parts_are_asked_after_too(small: Small) -> None:
    keys = small(method="strangers.parts:ELSEWHERE")
    with pytest.raises(FederationError, match=r"the module 'nowhere\.at_all'"):
        division_of(at_site(keys, **{"allow-imports": "strangers"}))


def test_a_strategy_of_flower_s_is_the_server_s_matter(small: Small) -> None:
    """Its arguments are the server's to judge: none of them is known where the class is not imported."""
    keys = small(method="flwr.serverapp.strategy:NotEvenThere", set="strategy.eta=0.5")
    config = division_of(at_site(keys)).config
    assert (config.section, dict(config.strategy)) == ("fedavg", {"eta": 0.5})


def test_a_simulation_is_its_user_s_own_machine(small: Small) -> None:
    division_of(at_site(small(method="strangers.parts:METHOD"), simulated=True))
    assert "strangers.parts" in sys.modules


def test_nectar_s_own_networks_and_parts_need_no_leave_and_nothing_else_of_it() -> None:
    """A data set's function is called with the data directory: any of Nectar's own with one argument could be named."""
    import_policy_of(())("model.name", "common.models.mlp:MLP")
    import_policy_of(())(PART, "client_app.fedavg:FedAvgClient")
    for key in ("dataset", "method", "model.name"):
        with pytest.raises(FederationError, match=f"names as {key}"):
            import_policy_of(())(key, "common.storage.files:write_text")
    with pytest.raises(FederationError):
        import_policy_of(())("model.name", "commons:MLP")
    with pytest.raises(FederationError):  # as a method it is never imported, as a model it would be
        import_policy_of(())("model.name", "flwr.serverapp.strategy:FedAdam")
