"""``conf/experiment/feddgm-*``: the rows of the paper's table 1 and of its sweeps resolve and can be built."""

from __future__ import annotations

import pytest

from common.config import load
from common.config.layers import names
from common.run import Run
from server_app.app import make_strategy

ALPHAS = {"": 0.5, "-alpha0.9": 0.9, "-alpha0.1": 0.1, "-alpha0.01": 0.01}
IPC = {f"-ipc{n}": n for n in (1, 5, 20)}
EPOCHS = {f"-epochs{n}": n for n in (5, 10, 30)}
DEPTHS = {f"-depth{n}": n for n in (2, 3, 4)}
ROWS = [*ALPHAS, *IPC, *EPOCHS, *DEPTHS]


def test_there_is_a_file_and_a_twin_for_each_row_and_no_other() -> None:
    there = {name for name in names("experiment") if name.startswith("feddgm-")}
    assert there == {f"feddgm-cifar10{row}{end}" for row in ROWS for end in ("", "-small")}


@pytest.mark.parametrize("end", ["", "-small"])
@pytest.mark.parametrize("row", ROWS)
def test_a_row_has_the_papers_settings_and_can_be_built(row: str, end: str) -> None:
    config = load({"experiment": f"feddgm-cifar10{row}{end}"})
    assert (config.method, config.dataset, config.federation.clients) == ("feddgm", "cifar10", 10)
    assert (config.partition.kind, config.partition.alpha) == ("dirichlet", ALPHAS.get(row, 0.5))
    make_strategy(Run(config))
    own = config.settings.model_dump()
    assert own["ipc"] == IPC.get(row, 10)
    assert (own["gradient"], own["classes"], own["warm"]) == ("exact", "all", False)
    if row in EPOCHS:
        assert own["epochs"] == EPOCHS[row]
    if row in DEPTHS:
        assert config.model.depth == DEPTHS[row]
    if end:
        return
    assert own["global_models"] == "convnet,resnet18,vgg11,vit"
    assert config.model.depth == DEPTHS.get(row, 5)
    assert own["epochs"] == EPOCHS.get(row, 20)
    published = {"batch": 256, "iterations": 100, "inner_epochs": 20, "global_epochs": 1000}
    assert {key: own[key] for key in published} == published
    for rival in ("fedavg", "fedprox", "fednova"):
        other = load({"experiment": f"feddgm-cifar10{row}", "method": rival})
        assert (other.settings.epochs, other.settings.batch) == (20, 256)  # type: ignore[attr-defined]
