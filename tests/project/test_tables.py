"""``conf/table``: every cell has its paper's settings and can be built; what the papers print hangs together."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from comparing import options_of
from federation import run
from image_folders import CLASSES, paint_split
from places import ROOT
from real_data import data_directory
from stylegan_repository import Standin, standin

from common.config.layers import names
from common.config.loading import load
from common.config.resolved import Config
from common.config.tables import SMALL, TABLE, experiments, read_table
from common.data.published.catalogue import describe
from common.division import Division
from common.errors import ConfigError
from common.methods import METHODS
from common.privacy.accounting import epsilon as epsilon_of
from common.privacy.events import Event
from nectar.arguments import parse_arguments
from nectar.comparison.paper_table import FIGURES, Number, printed_blocks, read_paper_table
from nectar.comparison.request import parse
from server_app.app import make_strategy
from strategies.feddgm import image_generator
from synth.generators.latents import FeatureSpace, PixelGenerator

CELLS = experiments()
FEDDM = [c for c in CELLS if c.startswith("feddm-") and "sigma" not in c and "epsilon" not in c]
ENDS = ("", "-small")
RIVALS = ("fedavg", "fedprox", "fednova", "scaffold")


def resolved(cell: str, method: str = "", **given: Any) -> Config:
    return load({"experiment": cell, **({"method": method} if method else {}), **given})


def own(config: Config) -> dict[str, Any]:
    return config.settings.model_dump()


def swept(cell: str, word: str, otherwise: float) -> float:
    """Return the number that a cell's name gives after a word, as in ``feddm-cifar10-alpha0.1``."""
    parts = [part.removeprefix(word) for part in cell.split("-") if part.startswith(word)]
    return float(parts[0]) if parts else otherwise


def holds(config: Config, **expected: Any) -> None:
    values = own(config)
    assert {key: values[key] for key in expected} == expected


def parameters(module: torch.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


# --- all tables


def every_name() -> Iterator[str]:
    for cell, small in CELLS.items():
        yield from (cell, f"{cell}-small") if small else (cell,)


def test_the_names_are_unique_lead_to_their_file_and_are_no_other_things() -> None:
    told = [column.cell for table in names(TABLE) for column in read_table(table).columns]
    assert len(told) == len(set(told)) == len(CELLS)
    for table in names(TABLE):
        for column in read_table(table).columns:
            assert column.cell.partition("-")[0] == table.partition("-")[0]
    assert len(list(every_name())) == len({*every_name()})
    assert not {*every_name()} & {*METHODS, *names("dataset"), *names(TABLE)}


@pytest.mark.extended
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.extended] * bool(number % 10))
        for number, name in enumerate(every_name())
    ],
)
def test_every_cell_resolves_and_says_the_same_resolved(name: str) -> None:
    config = resolved(name)
    assert load(config.to_run_config()) == config


@pytest.mark.extended
@pytest.mark.parametrize("cell", [cell for cell, small in CELLS.items() if small])
def test_a_small_variant_departs_by_what_small_states_alone(cell: str) -> None:
    """Whatever else the cell states, its small variant has; what small states is smaller where it is an amount."""
    large, small = resolved(cell), resolved(f"{cell}-small")
    stated = {key for key, where in small.origin.items() if f"{SMALL})" in where}
    if cell.startswith("feddgm-cifar10-layer"):  # on digits, and another generator: tested below
        return
    for name, section in large.sections().items():
        for key, value in section.model_dump().items():
            little = small.sections()[name].model_dump()[key]
            planned = key == "noise_multiplier" and large.privacy.epsilon  # follows the steps
            known = planned or stated & {f"{name}.{key}", f"fedavg.{key}"}
            assert little == value or known, f"{name}.{key}"
    assert (small.dataset, small.method, small.seed) == (large.dataset, large.method, large.seed)
    assert small.rounds < large.rounds
    assert small.data.images > 0
    assert small.model.width <= large.model.width


# --- FedDM: the settings that the papers state are in tests/papers


def test_rows_of_one_setting_are_one_run() -> None:
    digests = {cell: resolved(cell).digest() for cell in FEDDM}
    same = {"feddm-cifar10", "feddm-cifar10-ipc10", "feddm-cifar10-rho5"}
    assert {n for n in digests if digests[n] == digests["feddm-cifar10"]} == same
    assert len(set(digests.values())) == len(digests) - 2


@pytest.mark.extended
@pytest.mark.parametrize("epsilon", [25])
def test_feddms_private_cells_of_one_epsilon_have_noise_of_their_own(epsilon: int) -> None:
    """Each row plans its own: of FedDM every step is one of all examples."""
    config = resolved(f"feddm-cifar10-epsilon{epsilon}", "feddm")
    noise = config.privacy.noise_multiplier
    events = [Event("all", noise, 1.0, 30 * config.rounds)]
    assert epsilon_of(events, 1e-5).value == pytest.approx(epsilon, rel=0.01)
    assert noise > resolved(f"feddm-cifar10-epsilon{epsilon}", "fedavg").privacy.noise_multiplier


def test_the_epsilon_beside_feddms_figure_3_is_the_papers_formulas() -> None:
    for label, numbers in printed("feddm-figure-3", 1).items():
        if label.startswith("sigma"):
            formula = 2 * math.log(1e5) / float(label.removeprefix("sigma")) ** 2
            assert all(n.value == pytest.approx(formula, rel=0.005) for n in numbers.values())


# --- FedSynth


# --- FedDGM

LAYERS = {0: 0, 3: 1, 4: 2, 5: 3, 6: 4, 9: 6}
"""Figure 9's spaces, and the space of the digits' six layers that stands for each."""

#: FedDGM's Table 4, its categories in its order: ImageNet's number, and its folder
SUBSETS: dict[str, list[str]] = yaml.safe_load(
    (ROOT / "tests" / "papers" / "data" / "imagenet.yaml").read_text(encoding="utf-8")
)
ON_IMAGES = [cell for cell in CELLS if cell.startswith("feddgm-image")]


def categories(subset: str) -> list[tuple[int, str]]:
    """Return the number and the folder of each class."""
    pairs = [entry.split() for entry in SUBSETS[subset]]
    return [(int(number), folder) for number, folder in pairs]


@pytest.fixture(scope="module")
def cifar10(tmp_path_factory: pytest.TempPathFactory) -> Standin:
    """A file like that of CIFAR-10, as deep."""
    return standin(tmp_path_factory.mktemp("cifar10"), (3, 32, 32), 10, layers=16)


@pytest.fixture(scope="module")
def imagenet(tmp_path_factory: pytest.TempPathFactory) -> Standin:
    """A file like that of ImageNet at 128 pixels, as deep."""
    return standin(tmp_path_factory.mktemp("imagenet128"), (3, 128, 128), 1000, layers=26)


@pytest.mark.parametrize("n", LAYERS)
def test_a_space_of_figure_9_is_the_papers_and_its_small_variants_is_the_digits(
    n: int, cifar10: Standin, monkeypatch: pytest.MonkeyPatch
) -> None:
    cifar10.named(monkeypatch)
    config = resolved(f"feddgm-cifar10-layer{n}")
    base = resolved("feddgm-cifar10")
    space: Any = image_generator(Division(config).run)
    assert (space.n, space.classes, space.chunk) == (n, tuple(range(10)), 10)
    assert (space.rate_w, space.rate_f) == (1.0, 1000.0)
    changed = {key for key, value in own(config).items() if value != own(base)[key]}
    assert changed <= {"generator", "space", "chunk"}
    assert (config.partition, config.model) == (base.partition, base.model)
    small = resolved(f"feddgm-cifar10-layer{n}-small")
    assert (small.dataset, small.federation.sites, small.partition.alpha) == ("digits", 10, 0.5)
    features = image_generator(Division(small).run)
    assert isinstance(features, FeatureSpace)
    assert (features.n, features.network.form.layers) == (LAYERS[n], 6)
    make_strategy(Division(small).run)


@pytest.mark.parametrize("cell", [*(f"feddgm-cifar10-layer{n}" for n in LAYERS), *ON_IMAGES])
def test_without_the_users_file_a_cell_says_what_it_needs(cell: str) -> None:
    with pytest.raises(ConfigError, match="needs the environment variable STYLEGAN_XL_FILE"):
        make_strategy(Division(resolved(cell)).run)


def test_each_subset_has_ten_classes_of_its_own_numbered_as_imagenets_folders_are_sorted() -> None:
    every = sorted(pair for name in SUBSETS for pair in categories(name))
    assert len(set(every)) == 10 * len(SUBSETS)
    assert [folder for _, folder in every] == sorted(folder for _, folder in every)


@pytest.mark.sweep
@pytest.mark.parametrize("cell", ON_IMAGES)
def test_a_subset_of_imagenet_has_the_papers_settings(
    cell: str, imagenet: Standin, monkeypatch: pytest.MonkeyPatch
) -> None:
    imagenet.named(monkeypatch)
    subset = cell.split("-")[1]
    config = resolved(cell)
    assert (config.method, config.dataset, config.federation.sites) == ("feddgm", subset, 10)
    assert (config.partition.kind, config.partition.alpha) == (
        "dirichlet",
        swept(cell, "alpha", 0.5),
    )
    numbers, folders = zip(*categories(subset), strict=True)
    assert (config.images.folder, config.images.size, config.images.names) == (subset, 128, folders)
    assert (config.model.name, config.model.depth) == ("convnet", 5)
    server = {"ipc": 10, "global_models": "convnet,resnet18,resnet34", "global_epochs": 1000}
    server |= {"global_batch": 32}
    holds(config, **server, epochs=20, batch=32, iterations=100, inner_epochs=20)
    holds(config, classes="all", gradient="exact", warm=False)
    holds(resolved(cell, "feddm"), **server)
    space: Any = image_generator(Division(config).run)
    assert (space.n, space.classes, space.chunk) == (12, numbers, 10)
    make_strategy(Division(config).run)
    for rival in ("fedavg", "fedprox", "fednova"):
        holds(resolved(cell, rival), epochs=20, batch=32)
    small = resolved(f"{cell}-small")
    assert (small.images.names, small.images.folder, small.images.size) == (folders, subset, 32)
    assert isinstance(image_generator(Division(small).run), PixelGenerator)
    make_strategy(Division(small).run)


BRIEF = (
    "federation.sites=3 model.width=4 feddgm.epochs=1 feddgm.ipc=1 feddgm.iterations=1 feddgm.inner_epochs=1 "
    "feddgm.global_epochs=1 feddgm.surrogate_epochs=1 feddgm.global_models=mlp"
)


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["feddgm-imagefruit-small", "feddgm-cifar10-layer9-small"])
def test_a_small_variant_runs_with_what_comes_along(name: str, tmp_path: Path) -> None:
    """ImageFruit's on three colours, where the folders of ImageNet would lie."""
    paint_split(tmp_path / "imagefruit")
    shrunk = BRIEF
    if "image" in name:
        shrunk += f" images.classes={CLASSES} data.images=40 partition.min_size=1"
    given = {"experiment": name, "rounds": 1, "set": shrunk, "data-dir": str(tmp_path)}
    record = run(given | {"output-dir": str(tmp_path / "runs")})
    assert len(record.metrics()[1]["accepted"]) == 3


def test_feddms_row_begins_with_real_images_though_classes_are_small(tmp_path: Path) -> None:
    """The subsets are public: a site with a class of a few images is no reason to leave it out."""
    paint_split(tmp_path / "imagefruit")
    shrunk = "federation.sites=3 model.width=4 feddm.ipc=1 feddm.iterations=1 feddm.global_epochs=1"
    shrunk += " feddm.global_models=mlp image_training.epochs=1"
    shrunk += f" images.classes={CLASSES} data.images=40 partition.min_size=1"
    given = {"experiment": "feddgm-imagefruit-small", "method": "feddm", "rounds": 1}
    places = {"data-dir": str(tmp_path), "output-dir": str(tmp_path / "runs")}
    record = run(given | {"set": shrunk} | places)
    assert len(record.metrics()[1]["accepted"]) == 3


# --- Fedssyn: section 4, appendix A


@pytest.mark.extended
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(
    "cell",
    [
        cell
        for cell in CELLS
        if cell.startswith("fedssyn-") and "mnist" not in cell
        if any(word in cell for word in ("trained", "made", "epochs", "private"))
    ],
)
def test_fedssyns_figures_differ_by_what_they_study_alone(cell: str, end: str) -> None:
    config = resolved(cell + end)
    make_strategy(Division(config).run)
    base = "fedssyn-dsprites" if "dsprites" in cell else "fedssyn-cifar10-alpha0.01"
    if "private" in cell or ("trained" in cell and "dsprites" not in cell):
        base = "fedssyn-cifar10-alpha0.1"
    whole = resolved(f"{base}{'-clients40' * ('clients40' in cell)}{end}")
    assert (config.partition, config.federation) == (whole.partition, whole.federation)
    assert (config.model, config.rounds, config.data) == (whole.model, whole.rounds, whole.data)
    studied = {key for key, value in own(config).items() if value != own(whole)[key]}
    assert studied <= {"rho", "size", "epochs", "noise_multiplier"}
    if end:
        return
    images = swept(cell, "trained", 0)
    site = 55296 if "dsprites" in cell else 5000
    assert not images or own(config)["rho"] * site == pytest.approx(images, rel=0.001)


def test_fedssyns_figure_a3_has_a_softmax_regression_and_a_class_a_site() -> None:
    """7,850 numbers, 1,024 images a site; each row is built, two have the noise of Eq. A.6."""
    (split,) = parse(options_of(["table=fedssyn-figure-a3", "split-epochs5"])).cells
    noises = []
    for variant in split.variants:
        config = load(parse_arguments(split.words(variant, 0)))
        make_strategy(Division(config).run)
        assert (config.federation.sites, config.data.images) == (10, 10240)
        assert parameters(Division(config).run.build_model()) == 7850
        trained = config if config.method == "fedavg" else config.of("fedavg")
        noises.append(trained.settings.model_dump()["gradient_noise"])
    assert noises == [0, 0, 0, 0.1, 0.1, 0.1]
    directory = str(data_directory("mnist"))
    division = Division(resolved("fedssyn-mnist-split-epochs5", **{"data-dir": directory}))
    labels = division.dataset.train.labels
    held = [set(labels[part].tolist()) for part in division.partition(10)]
    assert sorted(c for own in held for c in own) == list(range(10))


# --- rows, what is tuned in them, and what the papers print

TABLES = {name: read_paper_table(name) for name in names(TABLE)}
OURS = {
    "controls",
    "digits",
    "distilled",
    "few-labels",
    "flowers160",
    "leaderboard",
    "relatives",
    "worth",
}


def test_what_was_chosen_is_among_what_was_tried() -> None:
    for table in TABLES.values():
        for row in table.rows:
            for chosen in row.chosen:
                key, _, value = chosen.partition("=")
                assert value in row.tune[key], (table.name, row.label)
            assert set(row.left_out) <= set(table.columns)


def test_feddms_baselines_are_searched_over_the_papers_grid() -> None:
    grid = {"lr": ("0.001", "0.01", "0.1"), "epochs": ("10", "15", "20")}
    for name in ("feddm-2", "feddm-figures"):
        rows = {row.label: dict(row.tune) for row in TABLES[name].rows}
        assert rows == {
            "feddm": {},
            **dict.fromkeys(RIVALS, grid),
            "fedprox": grid | {"mu": ("0.01", "0.1", "1")},
        }


@pytest.mark.parametrize("name", TABLES)
def test_what_is_printed_is_complete_for_each_column_and_row(name: str) -> None:
    """A block tells of every column, with the same rows in each; all blocks together of every row."""
    table, raw = TABLES[name], printed_blocks(name)
    assert bool(raw) == (name not in OURS)
    told = set()
    for block, content in zip(table.printed, raw, strict=True):
        assert block.figure in FIGURES
        assert set(content["columns"]) == set(table.columns)
        whole = set().union(*block.numbers.values())
        told |= whole or {row.label for row in table.rows}
        for label, numbers in block.numbers.items():
            left_out = {row.label for row in table.rows if label in row.left_out}
            assert set(numbers) == whole - left_out, label
            assert all(
                n.value is not None or n.text in {"drawn", "-"} or n.text[0] == ">"
                for n in numbers.values()
            )
        assert (set(block.targets) == set(table.columns)) == (block.figure == "rounds")
    assert told == {row.label for row in table.rows} or not raw


def printed(name: str, block: int = 0) -> dict[str, dict[str, Number]]:
    return {label: dict(numbers) for label, numbers in TABLES[name].printed[block].numbers.items()}


@pytest.mark.parametrize("name", ["feddgm-1", "feddgm-2", "feddgm-3"])
def test_feddgms_numbers_have_the_papers_averages_over_networks(name: str) -> None:
    """Those that the last block has are the paper's column "Average"; each network's number has a run of its own."""
    *blocks, averages = TABLES[name].printed
    known = {row.label for row in TABLES[name].rows}
    assert averages.network == ", ".join(block.network for block in blocks)
    for label, expected in averages.numbers.items():
        for row, average in expected.items():
            own = [f"{row} {block.network}" for block in blocks]
            rows = [each if each in known else row for each in own]
            assert len(set(rows)) == (len(blocks) if row in ("fedavg", "fedprox", "fednova") else 1)
            values = [
                block.numbers[label][each].value or 0
                for block, each in zip(blocks, rows, strict=True)
            ]
            assert sum(values) / len(values) == pytest.approx(average.value, abs=0.11), (label, row)


@pytest.mark.parametrize("name", ["feddgm-1", "feddgm-2", "feddgm-3", "feddgm-figure-11"])
def test_every_network_of_feddgms_tables_is_learned_or_is_the_sites(name: str) -> None:
    table = TABLES[name]
    networks = "convnet,resnet18,resnet34" if name in ("feddgm-2", "feddgm-3") else ""
    for cell in table.columns.values():
        for method in ("feddgm", "feddm"):
            expected = networks or "convnet,resnet18,vgg11,vit"
            holds(resolved(cell, method), global_models=expected, global_epochs=1000)
    for variant in parse(options_of([f"table={name}"])).cells[0].variants:
        network = variant.label.partition(" ")[2] or "convnet"
        config = resolved(
            next(iter(table.columns.values())), variant.method, set=" ".join(variant.own)
        )
        assert config.model.name == network


def test_table_3_of_feddm_follows_from_the_settings() -> None:
    """Pairs of site and class in the paper's divisions, times ipc and the size of an image; ten models."""
    pairs = {
        **{"mnist": 81, "cifar10": 87, "cifar100": 654},
        **{"mnist-alpha0.1": 47, "cifar10-alpha0.1": 44, "cifar100-alpha0.1": 310},
        **{"mnist-alpha0.01": 14, "cifar10-alpha0.01": 15, "cifar100-alpha0.01": 139},
    }
    for label, numbers in printed("feddm-2", 1).items():
        config = resolved(f"feddm-{label}")
        channels, height, width = describe(config.dataset).shape
        floats = pairs[label] * own(config)["ipc"] * channels * height * width
        assert numbers["feddm"].value == floats
        assert numbers["fedavg"].value == 10 * parameters(Division(config).run.build_model())


def test_what_a_paper_prints_twice_is_equal_here() -> None:
    """The same run in two places: and where the paper differs from itself, a comment or a note says so."""
    feddm, radius, images = printed("feddm-2"), printed("feddm-4"), printed("feddm-figure-11")
    assert feddm["cifar10"]["feddm"] == radius["rho5"]["feddm"]
    assert images["ipc10"]["feddm"] == printed("feddm-figure-13")["real"]["feddm"]
    for block in range(3):
        twice = printed("feddgm-2", block)["feddgm-imagefruit"]
        assert twice == printed("feddgm-3", block)["imagefruit"]
    assert printed("feddpms-1")["cifar10"]["feddpms"] == printed("feddpms-5")["sigma4"]["feddpms"]
    assert "67.97" in printed("feddpms-5")["copies200"]["feddpms"].note
    assert "14.3" in feddm["cifar10-alpha0.01"]["fedavg"].note
    rounds = printed("fedssyn-a1")  # Table 2 has those of FedAvg inside in parentheses
    told = [
        rounds[f"cifar{n}-alpha{a}"]["fedavg inside"].value for n in (10, 100) for a in (0.01, 0.1)
    ]
    assert told == [4, 8, 15, 19]


def test_the_papers_method_leads_in_every_column_but_one() -> None:
    """Another order of columns or rows would show: only FedMix leads instead, on Fashion-MNIST."""
    for name in ("feddm-2", "feddpms-1", "feddpms-2", "fedssyn-2"):
        for label, numbers in printed(name).items():
            leader = max(numbers, key=lambda row: numbers[row].value or 0)
            assert leader == ("fedmix" if label == "fmnist" else name.partition("-")[0]), label
