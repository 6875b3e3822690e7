"""``conf/experiment/fedssyn-*``: the rows of table A.1, and dSprites, resolve to their settings and can be built."""

from __future__ import annotations

import shlex

import pytest

from client_app.generators import Diffusion
from common.config.layers import CONF, names
from common.config.loading import load
from common.division import Division
from nectar.comparison.request import parse
from nectar.comparison.tuning import searches_of
from server_app.app import make_strategy

#: sites and the share of them that a round asks
SIZES = {
    "": (10, 1.0),
    "-of4": (10, 0.4),
    "-clients40": (40, 0.2),
    "-clients100": (100, 0.1),
}
ROWS = {
    f"fedssyn-{dataset}-alpha{alpha}{end}": (dataset, alpha, *sizes)
    for dataset in ("cifar10", "cifar100")
    for alpha in (0.01, 0.1)
    for end, sizes in SIZES.items()
}


def test_there_is_a_file_and_a_twin_for_each_row_and_no_other() -> None:
    there = {name for name in names("experiment") if name.startswith("fedssyn-")}
    assert there == {name + end for name in (*ROWS, "fedssyn-dsprites") for end in ("", "-small")}


@pytest.mark.parametrize("end", ["", "-small"])
@pytest.mark.parametrize("name", ROWS)
def test_a_row_has_the_papers_settings_and_can_be_built(name: str, end: str) -> None:
    dataset, alpha, clients, participation = ROWS[name]
    config = load({"experiment": name + end})
    assert (config.method, config.dataset) == ("fedssyn", dataset)
    assert (config.partition.kind, config.partition.alpha) == ("dirichlet", alpha)
    assert config.federation.sites == clients
    assert config.federation.participation == participation
    make_strategy(Division(config).run)
    own = config.settings.model_dump()
    assert (own["images"], own["size"], own["rho"], own["scaled"]) == ("shuffled", 0, 0.75, True)
    inner = config.of("fedavg").settings.model_dump()
    expected = {"weighting": "uniform", "augment": "flip_crop", "local_optimizer": "sgd"}
    assert {key: inner[key] for key in expected} == expected
    for method in ("scaffold", "fedprox", "feddyn", "fedpvr"):
        rival = load({"experiment": name + end, "method": method}).settings.model_dump()
        shared = ("lr", "batch", "epochs", "weighting", "augment")
        assert {key: rival[key] for key in shared} == {key: inner[key] for key in shared}
    if end:
        assert (config.rounds, config.data.images, inner["epochs"]) == (21, 5000, 2)
        return
    assert config.model.name == "vgg11"
    assert (config.rounds, inner["epochs"], inner["batch"]) == (101, 10, 256)
    assert {key: own[key] for key in ("epochs", "batch", "lr", "diffusion_steps")} == {
        "epochs": 500,
        "batch": 256,
        "lr": 1e-4,
        "diffusion_steps": 1000,
    }


@pytest.mark.parametrize("end", ["", "-small"])
@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row[2:] == SIZES[""]])
def test_table_2s_rivals_have_their_released_codes_values_and_can_be_built(
    name: str, end: str
) -> None:
    fedgen = load({"experiment": name + end, "method": "fedgen"})
    make_strategy(Division(fedgen).run)
    own = fedgen.settings.model_dump()
    assert (own["hidden"], own["noise"], own["strength"], own["diversity"]) == (512, 64, 10, 1)
    assert (own["weighting"], own["augment"]) == ("uniform", "flip_crop")
    dense = load({"experiment": name + end, "method": "dense", "rounds": 10})
    make_strategy(Division(dense).run)
    own = dense.settings.model_dump()
    assert (own["distil"], own["student_start"]) == ("last", "average")
    if not end:
        assert (own["server_iterations"], own["generator_steps"], own["temperature"]) == (
            200,
            30,
            20,
        )
        assert own["epochs"] == 10


def test_the_papers_network_has_14_million_parameters() -> None:
    """Counted in tests/synth/test_unet.py; here that the file's settings are those."""
    import torch

    settings = load({"experiment": "fedssyn-cifar10-alpha0.01"}).settings
    made = Diffusion(
        settings,  # type: ignore[arg-type]
        10,
        torch.zeros(1, 3, 32, 32),
        torch.zeros(1, dtype=torch.int64),
        torch.Generator(),
        lambda _: torch.Generator(),
        "float32",
    )
    weights = {n: t for n, t in made.state().items() if n.startswith("model.")}
    assert sum(t.numel() for t in weights.values()) == 14_419_651


@pytest.mark.parametrize("end", ["", "-small"])
def test_dsprites_has_the_papers_twelve_clients_and_generator(end: str) -> None:
    config = load({"experiment": f"fedssyn-dsprites{end}"})
    assert (config.method, config.dataset, config.partition.kind) == (
        "fedssyn",
        "dsprites",
        "natural",
    )
    assert config.federation.sites == 12
    make_strategy(Division(config).run)
    own = config.settings.model_dump()
    assert (own["generator"], own["latent"], own["rho"]) == ("beta-vae", 10, 1.0)
    if not end:
        assert (own["epochs"], own["batch"]) == (360, 256)


@pytest.mark.parametrize(
    ("name", "rows", "searches"),
    [("fedssyn-cifar10-alpha0.01", 10, 5), ("fedssyn-dsprites", 10, 0)],
)
def test_the_comparison_that_the_file_writes_down_can_be_typed(
    name: str, rows: int, searches: int
) -> None:
    text = (CONF / "experiment" / f"{name}.yaml").read_text(encoding="utf-8")
    lines = [line.removeprefix("#").strip() for line in text.splitlines() if line.startswith("#")]
    start = next(i for i, line in enumerate(lines) if line.startswith("nectar compare"))
    words = shlex.split(" ".join(line.rstrip("\\") for line in lines[start:]))
    request = parse(words[2:])
    assert len(request.variants) == rows
    assert len(searches_of(request)) == searches
    for variant in request.variants:
        load({"experiment": name, "method": variant.method})
