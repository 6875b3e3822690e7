"""``conf/experiment/feddm-*``, FedDM's tables and figures with their twins of two-core size, and ``fedsynth-*``."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

import pytest
from real_data import data_directory

from common.config.layers import CONF, names
from common.config.loading import load
from common.config.resolved import Config
from common.data.published.catalogue import describe
from common.division import Division
from nectar import cli
from nectar.comparison.request import parse
from nectar.comparison.tuning import searches_of
from server_app.app import make_strategy

TITLES = {
    **{"mnist": "MNIST", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100"},
    **{"convnet": "", "resnet18": ", ResNet-18"},
}


@dataclass(frozen=True)
class Row:
    """What the paper prints of a row: its place, its setting, and accuracies in percent, its rivals' apart."""

    place: str
    dataset: str
    alpha: float = 0.5
    clients: int = 10
    ipc: int = 10
    rho: float = 5.0
    method: str = "feddm"
    printed: tuple[str, ...] = ()
    rivals: tuple[str, ...] = ()
    model: str = "convnet"


# Copied from the paper's own tables and sentences.
ROWS = {
    "feddm-mnist": Row("Figure 2", "mnist"),
    "feddm-cifar10": Row("Figure 2", "cifar10", printed=("FedDM 69.66",), rivals=("SCAFFOLD: 66.12",)),
    "feddm-cifar100": Row("Figure 2", "cifar100", ipc=5),
    "feddm-mnist-alpha0.1": Row(
        "Table 2", "mnist", 0.1, printed=("FedDM 98.67", "FedAvg 96.92"),
        rivals=("FedProx 96.72", "FedNova 98.04", "SCAFFOLD 98.32"),
    ),
    "feddm-cifar10-alpha0.1": Row(
        "Table 2", "cifar10", 0.1, printed=("FedDM 67.38", "FedAvg 57.32"),
        rivals=("FedProx 56.92", "FedNova 60.76", "SCAFFOLD 60.96"),
    ),
    "feddm-cifar100-alpha0.1": Row(
        "Table 2", "cifar100", 0.1, ipc=5, printed=("FedDM 37.58", "FedAvg 32.00"),
        rivals=("FedProx 30.77", "FedNova 31.92", "SCAFFOLD 34.39"),
    ),
    "feddm-mnist-alpha0.01": Row(
        "Table 2", "mnist", 0.01, printed=("FedDM 98.21", "FedAvg 91.04"),
        rivals=("FedProx 91.18", "FedNova 90.27", "SCAFFOLD 88.37"),
    ),
    "feddm-cifar10-alpha0.01": Row(
        "Table 2", "cifar10", 0.01, printed=("FedDM 63.82",),
        rivals=("FedProx 40.30", "FedNova 36.46", "SCAFFOLD 32.42"),
    ),
    "feddm-cifar100-alpha0.01": Row(
        "Table 2", "cifar100", 0.01, ipc=5, printed=("FedDM 34.98", "FedAvg 27.05"),
        rivals=("FedProx 25.88", "FedNova 27.52", "SCAFFOLD 31.14"),
    ),
    "feddm-cifar10-alpha50": Row("Figure 8", "cifar10", 50.0),
    "feddm-cifar10-clients50": Row("Figure 9", "cifar10", clients=50, ipc=3),
    "feddm-cifar10-resnet18": Row("Figure 4", "cifar10", model="resnet18"),
    "feddm-cifar10-ipc3": Row("Figure 11", "cifar10", ipc=3, printed=("ipc 3", "FedDM 53.64")),
    "feddm-cifar10-ipc5": Row("Figure 11", "cifar10", ipc=5, printed=("ipc 5", "FedDM 62.24")),
    "feddm-cifar10-ipc10": Row("Figure 11", "cifar10", printed=("ipc 10", "FedDM 69.62")),
    "feddm-cifar10-rho3": Row("Table 4", "cifar10", rho=3.0, printed=("rho 3", "FedDM 69.15")),
    "feddm-cifar10-rho5": Row("Table 4", "cifar10", printed=("rho 5", "FedDM 69.66")),
    "feddm-cifar10-rho10": Row("Table 4", "cifar10", rho=10.0, printed=("rho 10", "FedDM 69.32")),
    "feddm-cifar10-real": Row(
        "Figure 13", "cifar10", method="real", printed=("REAL 68.66", "FedDM 69.62")
    ),
}  # fmt: skip

RIVALS = ("fedavg", "fedprox", "fednova", "scaffold")

COMPARED_IN = ("Figure 2", "Table 2", "Figure 8", "Figure 9", "Figure 4")
"""Where the paper sets them beside FedDM."""

TABLE_3 = {
    "feddm-mnist": (81, 635_040), "feddm-cifar10": (87, 2_672_640),
    "feddm-cifar100": (654, 10_045_440), "feddm-mnist-alpha0.1": (47, 368_480),
    "feddm-cifar10-alpha0.1": (44, 1_351_680), "feddm-cifar100-alpha0.1": (310, 4_761_600),
    "feddm-mnist-alpha0.01": (14, 109_760), "feddm-cifar10-alpha0.01": (15, 460_800),
    "feddm-cifar100-alpha0.01": (139, 2_135_040),
}  # fmt: skip
"""Pairs of client and class that the paper's partitions had, and its floats a round."""

GRID = {"lr": (0.001, 0.01, 0.1), "epochs": (10, 15, 20)}
"""What the paper tunes its rivals over, FedProx's mu besides."""

BASELINE_FLOATS = {"mnist": 3_177_060, "cifar10": 3_200_100, "cifar100": 5_044_200}

SHRUNK = {"iterations", "real_batch", "server_epochs"}
"""What of FedDM and REAL a twin has less of; so few epochs may have a larger learning rate."""


def text(name: str) -> str:
    return (CONF / "experiment" / f"{name}.yaml").read_text(encoding="utf-8")


def comments(name: str) -> list[str]:
    """Return a file's comment lines, those broken by a backslash joined."""
    joined = re.sub(r" \\\n#\s*", " ", text(name))
    return [line[1:].strip() for line in joined.splitlines() if line.startswith("#")]


def parameters(config: Config) -> int:
    return sum(p.numel() for p in Division(config).run.build_model().parameters())


@pytest.mark.parametrize("name", names("experiment"))
def test_every_recipe_resolves_and_says_the_same_resolved(name: str) -> None:
    config = load({"experiment": name})
    assert load(config.to_run_config()) == config


def test_there_is_a_file_and_a_twin_for_each_row_and_no_other() -> None:
    there = {name for name in names("experiment") if name.startswith("feddm-")}
    assert there == {name + end for name in ROWS for end in ("", "-small")}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_has_the_papers_settings(name: str) -> None:
    row, config = ROWS[name], load({"experiment": name})
    assert (config.dataset, config.method, config.rounds) == (row.dataset, row.method, 20)
    assert (config.partition.kind, config.partition.alpha) == ("dirichlet", row.alpha)
    assert (config.federation.sites, config.federation.participation) == (row.clients, 1.0)
    assert config.data.images == 0
    model = config.model
    assert (model.name, model.depth, model.width, model.norm) == (row.model, 3, 128, "instance")
    server = {"ipc": row.ipc, "rho": row.rho, "server_lr": 0.01, "server_batch": 256,
              "server_epochs": 500, "weighting": "uniform", "keep": 1}  # fmt: skip
    device = {"iterations": 1000, "image_lr": 1.0, "real_batch": 256, "start": "real",
              "warm": False, "augment": ""}  # fmt: skip
    for method, expected in (("feddm", server | device), ("real", server)):
        values = load({"experiment": name, "method": method}).settings.model_dump()
        assert {key: values[key] for key in expected} == expected
    for method in RIVALS:
        rival = load({"experiment": name, "method": method}).settings.model_dump()
        assert rival["batch"] == 256
        assert rival["lr"] in GRID["lr"]
        assert rival["epochs"] in GRID["epochs"]


@pytest.mark.parametrize("name", [name + end for name in ROWS for end in ("", "-small")])
def test_rivals_train_as_niid_benchs_code_where_it_is_known(name: str) -> None:
    """On CIFAR-10: pad by 4 (reflect), crop, flip, weight decay 1e-5. FedDM and REAL see what they saw."""
    augmented = ROWS[name.removesuffix("-small")].dataset == "cifar10"
    expected = (1e-5, "flip_crop") if augmented else (0.0, "none")
    for method in RIVALS:
        rival = load({"experiment": name, "method": method}).settings.model_dump()
        assert (rival["weight_decay"], rival["augment"]) == expected, method
    for method in ("feddm", "real"):
        settings = load({"experiment": name, "method": method}).settings
        assert "weight_decay" not in type(settings).model_fields


@pytest.mark.parametrize("name", ROWS)
def test_a_twin_is_the_row_made_smaller(name: str) -> None:
    row, twin = load({"experiment": name}), load({"experiment": f"{name}-small"})
    for part in ("dataset", "method", "seed", "partition", "federation", "evaluation", "wire"):
        assert getattr(twin, part) == getattr(row, part), part
    assert twin.data == row.data.model_copy(update={"images": twin.data.images})
    assert twin.model == row.model.model_copy(update={"width": twin.model.width})
    assert 0 < twin.data.images < 50_000
    assert twin.model.width < row.model.width
    assert twin.rounds < row.rounds
    for method in ("feddm", "real"):
        large, little = (
            load({"experiment": e, "method": method}).settings.model_dump()
            for e in (name, f"{name}-small")
        )
        differ = {key for key in large if large[key] != little[key]} - {"server_lr"}
        assert differ == SHRUNK & set(large)
        assert large["server_lr"] <= little["server_lr"]
        assert all(0 < little[key] < large[key] for key in differ)


@pytest.mark.parametrize("name", [name for name in ROWS if ROWS[name].model == "convnet"])
def test_all_twins_of_a_data_set_share_one_recipe(name: str) -> None:
    recipe = f"conf/experiment/feddm-{ROWS[name].dataset}-small.yaml"
    for method, keys in (
        ("feddm", [f"feddm.{key}" for key in SHRUNK]),
        ("real", ["real.server_epochs"]),
        ("fedavg", [f"fedavg.{key}" for key in ("epochs", "lr", "batch")]),
    ):
        origin = load({"experiment": f"{name}-small", "method": method}).origin
        for key in ("rounds", "data.images", "model.width", *keys):
            assert origin[key] == recipe


def test_rows_of_one_setting_are_one_run() -> None:
    digests = {name: load({"experiment": name}).digest() for name in ROWS}
    same = {"feddm-cifar10", "feddm-cifar10-ipc10", "feddm-cifar10-rho5"}
    assert {n for n in digests if digests[n] == digests["feddm-cifar10"]} == same
    assert len(set(digests.values())) == len(digests) - 2


# --- what the files say


@pytest.mark.parametrize("name", [name + end for name in ROWS for end in ("", "-small")])
def test_the_first_line_names_the_row(name: str) -> None:
    row, first = ROWS[name.removesuffix("-small")], text(name).partition("\n")[0]
    small = " at two-core size" if name.endswith("-small") else ""
    assert first.startswith(
        f"# FedDM {row.place}{small}: {TITLES[row.dataset]}, {row.clients} clients, "
        f"Dirichlet {row.alpha:g}{TITLES[row.model]}"
    )
    assert len(first) <= 100


@pytest.mark.parametrize("name", ROWS)
def test_a_row_states_the_published_figures(name: str) -> None:
    row, said = ROWS[name], comments(name)
    for figure in row.printed:
        assert figure in said[0]
    assert ("curves only" in said[0]) == (not row.printed)
    for figure in row.rivals:
        assert figure in said[1]


@pytest.mark.parametrize("name", [name for name in ROWS if ROWS[name].place in COMPARED_IN])
def test_a_row_with_rivals_says_how_each_is_tuned(name: str) -> None:
    """The line is one that `nectar compare` understands, over the grid of the paper."""
    (line,) = (line for line in comments(name) if line.startswith("nectar compare "))
    request = parse(shlex.split(line)[2:])
    assert [variant.method for variant in request.variants] == ["feddm", *RIVALS]
    for variant in request.variants[1:]:
        assert request.words(variant, seed=0) == [name, f"method={variant.method}", "seed=0"]
    searches = {search.name: search for search in searches_of(request)}
    assert tuple(searches) == RIVALS
    for method, search in searches.items():
        grid = {axis.key: tuple(map(float, axis.values)) for axis in search.axes}
        pull = {"fedprox.mu": (0.01, 0.1, 1)} if method == "fedprox" else {}
        assert grid == {f"{method}.{key}": values for key, values in GRID.items()} | pull


# --- the figures that follow from them


@pytest.mark.parametrize(
    ("dataset", "expected"), [("mnist", 317_706), ("cifar10", 320_010), ("cifar100", 504_420)]
)
def test_the_model_has_the_papers_number_of_parameters(dataset: str, expected: int) -> None:
    for name, row in ROWS.items():
        if (row.dataset, row.model) == (dataset, "convnet"):
            assert parameters(load({"experiment": name})) == expected
    assert BASELINE_FLOATS[dataset] == 10 * expected


@pytest.mark.parametrize("end", ["", "-small"])
def test_resnet_18_has_the_appendixs_number_of_parameters(end: str) -> None:
    """1.1e8 floats of ten sites; each method of the row can be built with it."""
    name = f"feddm-cifar10-resnet18{end}"
    config = load({"experiment": name})
    assert parameters(config) == 11_173_962
    assert float(f"{config.federation.sites * parameters(config):.1e}") == 1.1e8
    for method in ("feddm", *RIVALS):
        run = Division(load({"experiment": name, "method": method})).run
        assert type(make_strategy(run)).__name__.lower() == method
        assert run.config.model == config.model


@pytest.mark.parametrize("name", TABLE_3)
def test_table_3_follows_from_the_file(name: str) -> None:
    pairs, floats = TABLE_3[name]
    config = load({"experiment": name})
    channels, height, width = describe(config.dataset).shape
    assert pairs * config.settings.model_dump()["ipc"] * channels * height * width == floats
    said = f"FedDM {floats:,}, FedAvg {BASELINE_FLOATS[config.dataset]:,}."
    assert f"Table 3, floats up a round: {said}" in comments(name)


def test_fifty_clients_send_what_appendix_c_says() -> None:
    """3.1 and 16 million floats; only ipc 3 leaves a plausible number of pairs among 50 x 10."""
    config = load({"experiment": "feddm-cifar10-clients50"})
    ipc = config.settings.model_dump()["ipc"]
    assert 300 < 3.1e6 / (ipc * 3072) < 400
    assert round(config.federation.sites * parameters(config) / 1e6) == 16


@pytest.mark.parametrize("name", [n for n in ROWS if ROWS[n].dataset != "cifar100"])
def test_every_twin_has_a_partition_of_its_real_data(name: str) -> None:
    """The draw of images is large enough to be divided so, for each of the three seeds."""
    row = ROWS[name]
    directory = data_directory(row.dataset)
    for seed in range(3):
        config = load({"experiment": f"{name}-small", "seed": seed, "data-dir": str(directory)})
        run = Division(config).run
        parts = Division(run.config).partition(row.clients)
        assert len(parts) == row.clients
        assert min(map(len, parts)) >= config.partition.min_size
        assert sum(map(len, parts)) + len(Division(run.config).validation) == config.data.images


# --- FedSynth


FEDSYNTH = {
    "fedsynth-mnist": ("mnist", "dirichlet", 10),
    "fedsynth-femnist": ("femnist", "natural", 300),
    "fedsynth-reddit": ("reddit", "natural", 694),
}
"""Data set, rule of the partition and clients."""

COMPARED = ("fedsynth", "fedavg", "masking", "topk")


def test_fedsynth_has_a_file_for_each_of_its_data_sets() -> None:
    assert {name for name in names("experiment") if name.startswith("fedsynth-")} == set(FEDSYNTH)


@pytest.mark.parametrize("name", FEDSYNTH)
def test_fedsynth_and_its_rivals_can_be_built_from_one_file(name: str) -> None:
    """A strategy refuses, when it is made, a rate that leaves nothing of the model."""
    dataset, kind, clients = FEDSYNTH[name]
    config = load({"experiment": name})
    assert config.method == "fedsynth"
    assert config.dataset.startswith(dataset)
    assert (config.partition.kind, config.federation.sites) == (kind, clients)
    assert parameters(config) >= 100_000
    for method in COMPARED:
        run = Division(load({"experiment": name, "method": method})).run
        assert type(make_strategy(run)).__name__.lower() == method
        assert run.config.model == config.model


@pytest.mark.parametrize("name", FEDSYNTH)
def test_ten_sites_are_asked_a_round_and_train_alike_under_each_method(name: str) -> None:
    """FedAvg's recipe is taken over by its rivals, and by the training that FedSynth's fidelity is held against."""
    trained = {
        method: load({"experiment": name, "method": method}).settings.model_dump()
        for method in COMPARED
    }
    federation = load({"experiment": name}).federation
    assert round(federation.participation * federation.sites) in (5, 10)
    for key in ("epochs", "lr", "batch", "clip_norm"):
        assert len({values[key] for values in trained.values()}) == 1, key


def test_reddits_gradients_are_clipped_as_leafs() -> None:
    """At a norm of 5, beside its lr of 5.65; the other two data sets' are not."""
    settings = {name: load({"experiment": name}).settings.model_dump() for name in FEDSYNTH}
    assert settings["fedsynth-reddit"]["lr"] == 5.65
    norms = {name: given["clip_norm"] for name, given in settings.items()}
    assert norms == {**dict.fromkeys(FEDSYNTH, 0.0), "fedsynth-reddit": 5.0}


@pytest.mark.extended
@pytest.mark.parametrize("name", FEDSYNTH)
def test_every_site_of_fedsynths_files_holds_real_data(name: str) -> None:
    directory = data_directory(load({"experiment": name}).dataset)
    run = Division(load({"experiment": name, "data-dir": str(directory)})).run
    parts = Division(run.config).partition(run.config.federation.sites)
    assert len(parts) == FEDSYNTH[name][2]
    assert min(map(len, parts)) > 0
    if run.config.partition.kind == "natural":
        owners = Division(run.config).dataset.train.owners
        assert owners is not None
        assert len({int(owners[part[0]]) for part in parts}) == len(parts)
        assert all(len(set(owners[part].tolist())) == 1 for part in parts)


# --- the list


def test_the_list_of_experiments_folds_twins_into_their_rows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["config", "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line for line in lines if line.startswith("  feddm-")]
    assert [line.split()[0] for line in rows] == sorted(ROWS)
    assert all(line.endswith(" [-small]") and len(line) <= 130 for line in rows)
    alone = next(line for line in lines if line.startswith("  digits-alpha001 "))
    assert not alone.endswith("[-small]")
    assert any("[-small]" in line for line in lines if line.startswith("Experiments"))
