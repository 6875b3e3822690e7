"""``conf/experiment/feddpms-*``: every row of the paper's tables resolves to its settings and can be built."""

from __future__ import annotations

import shlex

import pytest

from common.config.layers import CONF, names
from common.config.loading import load
from common.division import Division
from common.specs.fedvae import start_decoder
from nectar.comparison.request import parse
from nectar.comparison.tuning import searches_of
from server_app.app import make_strategy

#: data set, parameters of encoder and classifier with the variance, of the decoder; n, alpha, sigma
TABLE_1 = {
    "feddpms-fmnist": ("fashionmnist", 105_546, 56_513, (3, 50, 3.0)),
    "feddpms-cifar10": ("cifar10", 1_115_690, 621_571, (3, 200, 4.0)),
    "feddpms-cifar100": ("cifar100", 1_127_300, 621_571, (10, 50, 4.0)),
}
TABLE_2 = {f"feddpms-cifar100-clients{k}": k for k in (10, 20, 30, 40, 50)}
SIGMAS = {f"feddpms-cifar10-sigma{s}": s for s in (3, 4, 5, 6)}
#: images a step, where they are not the paper's 64
BATCHES = {"feddpms-fmnist-small": 16}
COPIES = {f"feddpms-cifar10-copies{a}": a for a in (50, 100, 150, 200, 250, 300)}
ROWS = [*TABLE_1, *TABLE_2, *SIGMAS, *COPIES]


def size(module: object) -> int:
    return sum(p.numel() for p in module.parameters())  # type: ignore[attr-defined]


def test_there_is_a_file_and_a_twin_for_each_row_and_no_other() -> None:
    there = {name for name in names("experiment") if name.startswith("feddpms-")}
    assert there == {name + end for name in ROWS for end in ("", "-small")}


@pytest.mark.parametrize("end", ["", "-small"])
@pytest.mark.parametrize("name", ROWS)
def test_a_row_has_the_papers_settings_and_can_be_built(name: str, end: str) -> None:
    config = load({"experiment": name + end})
    _, _, _, (n, copies, sigma) = TABLE_1["-".join(name.split("-")[:2])]
    copies, sigma = COPIES.get(name, copies), SIGMAS.get(name, sigma)
    settings = config.settings.model_dump()
    expected = {
        **{
            "mechanism": "paper",
            "latents": "trained",
            "weighting": "augmented",
            "vae_weight": 0.05,
        },
        **{"classes": n, "copies": copies, "sigma": sigma, "clip": 0.0, "max_draws": 50},
        **{
            "local_optimizer": "adam",
            "lr": 0.001,
            "lr_decay": 0.5,
            "lr_decay_every": 10,
            "batch": BATCHES.get(name + end, 64),
        },
        **{"epochs": 2 if end else 5},
    }
    assert {key: settings[key] for key in expected} == expected
    assert config.method == "feddpms"
    assert (config.partition.kind, config.partition.alpha) == ("dirichlet", 0.5)
    assert config.federation.sites == TABLE_2.get(name, 10)
    assert config.rounds == (20 if end else 50)
    if name in TABLE_2:
        assert config.data.images == (100 if end else 500) * TABLE_2[name]
    else:
        assert config.data.images == (5000 if end else 0)
    strategy = make_strategy(Division(config).run)
    assert strategy.last_preliminary == (8 if end else 20)  # type: ignore[attr-defined]
    for method in ("fedavg", "fedvae", "fedprox", "fedmix", "moon"):
        rival = load({"experiment": name + end, "method": method}).settings.model_dump()
        shared = ("local_optimizer", "lr", "lr_decay", "lr_decay_every", "batch", "epochs")
        assert {key: rival[key] for key in shared} == {key: settings[key] for key in shared}
    assert load({"experiment": name, "method": "fedprox"}).settings.model_dump()["mu"] == 0.001


@pytest.mark.parametrize("name", TABLE_1)
def test_table_1s_networks_and_its_line(name: str) -> None:
    dataset, shared, decoder, _ = TABLE_1[name]
    run = Division(load({"experiment": name})).run
    assert run.config.dataset == dataset
    assert size(run.build_model()) == shared
    assert size(start_decoder(run)) == decoder
    text = (CONF / "experiment" / f"{name}.yaml").read_text(encoding="utf-8")
    line = next(p for p in text.replace(" \\\n#  ", "").splitlines() if p.startswith("# nectar"))
    request = parse(shlex.split(line.removeprefix("# nectar compare")))
    assert [v.method for v in request.variants] == [
        *("feddpms", "fedvae", "fedavg", "fedprox", "fedmix", "moon")
    ]
    assert [axis.values for search in searches_of(request) for axis in search.axes] == [
        ("1", "5", "10")
    ]
