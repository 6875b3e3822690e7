"""``conf/table``: every cell has its paper's settings and can be built; what the papers print hangs together."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from comparing import options_of
from federation import run
from image_folders import CLASSES, paint_split
from real_data import data_directory
from stylegan_repository import Standin, standin

from client_app.synthesis import Diffusion
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
from common.specs.fedvae import start_decoder
from nectar.arguments import parse_arguments
from nectar.comparison.paper_table import FIGURES, Number, printed_blocks, read_paper_table
from nectar.comparison.request import parse
from nectar.comparison.tuning import searches_of
from server_app.app import make_strategy
from strategies.stylegan_file import image_generator
from synth.generators.latents import FeatureSpace, PixelGenerator
from synth.generators.stylegan_xl import StyleganXL

CELLS = experiments()
FEDDM, FEDDGM, FEDDPMS, FEDSSYN, FEDSYNTH = (
    [cell for cell in CELLS if cell.startswith(f"{paper}-")]
    for paper in ("feddm", "feddgm", "feddpms", "fedssyn", "fedsynth")
)
FEDDM_PRIVATE = [cell for cell in FEDDM if "sigma" in cell or "epsilon" in cell]
FEDDM = [cell for cell in FEDDM if cell not in FEDDM_PRIVATE]
FEDSSYN_FIGURES = [
    cell
    for cell in FEDSSYN
    if any(word in cell for word in ("trained", "made", "epochs", "private"))
    and "mnist" not in cell
]
FEDSSYN = [cell for cell in FEDSSYN if cell not in FEDSSYN_FIGURES and "mnist" not in cell]
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


@pytest.mark.parametrize("name", every_name())
def test_every_cell_resolves_and_says_the_same_resolved(name: str) -> None:
    config = resolved(name)
    assert load(config.to_run_config()) == config


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


# --- FedDM: the paper's section 4.1, appendix C


@pytest.mark.parametrize("cell", FEDDM)
def test_feddm_has_the_papers_settings(cell: str) -> None:
    config = resolved(cell)
    assert config.method == ("real" if cell.endswith("real") else "feddm")
    assert config.dataset == cell.split("-")[1]
    assert (config.rounds, config.data.images, config.federation.participation) == (20, 0, 1.0)
    assert (config.partition.kind, config.partition.alpha) == (
        "dirichlet",
        swept(cell, "alpha", 0.5),
    )
    assert config.federation.sites == swept(cell, "clients", 10)
    model = config.model
    assert model.name == ("resnet18" if cell.endswith("resnet18") else "convnet")
    assert (model.depth, model.width, model.norm) == (3, 128, "instance")
    usual = 5 if "cifar100" in cell else 3 if "clients50" in cell else 10
    server = {"ipc": swept(cell, "ipc", usual), "image_weighting": "uniform", "keep": 1}
    training = {"lr": 0.01, "batch": 256, "epochs": 500, "ball": swept(cell, "rho", 5)}
    assert config.image_training.model_dump() | training == config.image_training.model_dump()
    device = {
        "rho": swept(cell, "rho", 5),
        "iterations": 1000,
        "image_lr": 1.0,
        "real_batch": 256,
        "start": "real",
    }
    holds(resolved(cell, "feddm"), **server, **device, warm=False, dsa="")
    holds(resolved(cell, "real"), **server)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("cell", FEDDM)
def test_feddms_baselines_train_as_niid_benchs_code_where_it_is_known(cell: str, end: str) -> None:
    """On CIFAR-10: pad by 4 (reflect), crop, flip, weight decay 1e-5. FedDM and REAL see what they saw."""
    decay, augment = (1e-5, "flip_crop") if "cifar10" in cell.split("-") else (0.0, "none")
    for method in RIVALS:
        holds(resolved(cell + end, method), weight_decay=decay, augment=augment)
        if not end:
            holds(resolved(cell, method), batch=256)
    for method in ("feddm", "real"):
        assert "weight_decay" not in own(resolved(cell + end, method))


@pytest.mark.parametrize(
    ("dataset", "expected"), [("mnist", 317_706), ("cifar10", 320_010), ("cifar100", 504_420)]
)
def test_feddms_model_has_the_papers_number_of_parameters(dataset: str, expected: int) -> None:
    assert parameters(Division(resolved(f"feddm-{dataset}")).run.build_model()) == expected


@pytest.mark.parametrize("end", ENDS)
def test_resnet_18_has_the_appendixs_number_of_parameters(end: str) -> None:
    """1.1e8 floats of ten sites; each method of the row can be built with it."""
    config = resolved(f"feddm-cifar10-resnet18{end}")
    count = parameters(Division(config).run.build_model())
    assert count == 11_173_962
    assert float(f"{config.federation.sites * count:.1e}") == 1.1e8
    for method in ("feddm", *RIVALS):
        its = Division(resolved(f"feddm-cifar10-resnet18{end}", method)).run
        assert type(make_strategy(its)).__name__.lower() == method
        assert its.config.model == config.model


def test_fifty_sites_send_what_appendix_c_says() -> None:
    """3.1 and 16 million floats; only ipc 3 leaves a plausible number of pairs among 50 x 10."""
    config = resolved("feddm-cifar10-clients50")
    assert 300 < 3.1e6 / (own(config)["ipc"] * 3072) < 400
    count = parameters(Division(config).run.build_model())
    assert round(config.federation.sites * count / 1e6) == 16


def test_rows_of_one_setting_are_one_run() -> None:
    digests = {cell: resolved(cell).digest() for cell in FEDDM}
    same = {"feddm-cifar10", "feddm-cifar10-ipc10", "feddm-cifar10-rho5"}
    assert {n for n in digests if digests[n] == digests["feddm-cifar10"]} == same
    assert len(set(digests.values())) == len(digests) - 2


@pytest.mark.parametrize("cell", [cell for cell in FEDDM if "cifar100" not in cell])
def test_every_small_variant_has_a_division_of_its_real_data(cell: str) -> None:
    """The draw of images is large enough to be divided so, for each of the three seeds."""
    directory = data_directory(resolved(cell).dataset)
    for seed in range(3):
        division = Division(resolved(f"{cell}-small", seed=seed, **{"data-dir": str(directory)}))
        config = division.run.config
        parts = division.partition(config.federation.sites)
        assert min(map(len, parts)) >= config.partition.min_size
        assert sum(map(len, parts)) + len(division.validation) == config.data.images


@pytest.mark.parametrize("cell", FEDDM_PRIVATE)
def test_feddms_private_cells_have_the_papers_noise_or_an_equal_epsilon(cell: str) -> None:
    """Each row can be built and plans a noise of its own; of FedDM every step is one of all examples."""
    sigma, epsilon = swept(cell, "sigma", 0), swept(cell, "epsilon", 0)
    for method in ("feddm", *RIVALS):
        for end in ENDS:
            config = resolved(cell + end, method)
            privacy = config.privacy
            assert (privacy.clip, privacy.counts, privacy.epsilon) == (5, "public", epsilon)
            assert privacy.noise_multiplier == sigma or epsilon
            assert privacy.noise_multiplier > 0
            make_strategy(Division(config).run)
    holds(
        resolved(cell, "feddm"),
        mechanism="gradient",
        start="noise",
        iterations=1000 if sigma else 30,
    )
    if epsilon:
        config = resolved(cell, "feddm")
        noise = config.privacy.noise_multiplier
        events = [Event("all", noise, 1.0, 30 * config.rounds)]
        assert epsilon_of(events, 1e-5).value == pytest.approx(epsilon, rel=0.01)
        assert noise > resolved(cell, "fedavg").privacy.noise_multiplier


def test_the_epsilon_beside_feddms_figure_3_is_the_papers_formulas() -> None:
    for label, numbers in printed("feddm-figure-3", 1).items():
        if label.startswith("sigma"):
            formula = 2 * math.log(1e5) / float(label.removeprefix("sigma")) ** 2
            assert all(n.value == pytest.approx(formula, rel=0.005) for n in numbers.values())


# --- FedSynth


@pytest.mark.parametrize("cell", FEDSYNTH)
def test_fedsynth_and_its_rivals_can_be_built_and_train_alike(cell: str) -> None:
    """A strategy refuses, when it is made, a rate that leaves nothing of the model."""
    config = resolved(cell)
    kind, sites, rates = {
        "mnist": ("dirichlet", 10, (7.8, 15.6)),
        "femnist": ("natural", 300, (5.8, 11.6)),
        "reddit": ("natural", 694, (1.3, 2.6)),
    }[cell.split("-")[1]]
    assert (config.method, config.partition.kind, config.federation.sites) == (
        "fedsynth",
        kind,
        sites,
    )
    assert round(config.federation.participation * sites) in (5, 10)
    assert parameters(Division(config).run.build_model()) >= 100_000
    trained = {}
    for method in ("fedsynth", "fedavg", "masking", "topk"):
        its = resolved(cell, method)
        assert type(make_strategy(Division(its).run)).__name__.lower() == method
        assert its.model == config.model
        trained[method] = own(its)
        if method != "fedavg":
            assert trained[method]["rate"] == rates["x" in cell.split("-")[-1]]
    for key in ("epochs", "lr", "batch", "clip_norm"):
        assert len({values[key] for values in trained.values()}) == 1, key
    leaf = (5.65, 5.0) if "reddit" in cell else (trained["fedavg"]["lr"], 0.0)
    holds(config, lr=leaf[0], clip_norm=leaf[1])  # as LEAF clips beside that lr


@pytest.mark.extended
@pytest.mark.parametrize("cell", [cell for cell in FEDSYNTH if "x" not in cell.split("-")[-1]])
def test_every_site_of_fedsynths_tables_holds_real_data(cell: str) -> None:
    config = resolved(cell)
    division = Division(resolved(cell, **{"data-dir": str(data_directory(config.dataset))}))
    parts = division.partition(config.federation.sites)
    assert min(map(len, parts)) > 0
    if config.partition.kind == "natural":
        owners = division.dataset.train.owners
        assert owners is not None
        assert len({int(owners[part[0]]) for part in parts}) == len(parts)
        assert all(len(set(owners[part].tolist())) == 1 for part in parts)


# --- FedDGM

LAYERS = {0: 0, 3: 1, 4: 2, 5: 3, 6: 4, 9: 6}
"""Figure 9's spaces, and the space of the digits' six layers that stands for each."""

# Table 4's categories in its order: ImageNet's number, and its folder.
SUBSETS = {
    "imagemeow": "281 n02123045, 282 n02123159, 283 n02123394, 284 n02123597, 285 n02124075, 291 n02129165, "
    "292 n02129604, 290 n02128925, 289 n02128757, 287 n02127052",
    "imagewoof": "193 n02096294, 182 n02093754, 258 n02111889, 162 n02088364, 155 n02086240, 167 n02089973, "
    "159 n02087394, 273 n02115641, 207 n02099601, 229 n02105641",
    "imagefruit": "953 n07753275, 954 n07753592, 949 n07745940, 950 n07747607, 951 n07749582, 957 n07768694, "
    "952 n07753113, 945 n07720875, 943 n07718472, 948 n07742313",
    "imagefood": "933 n07697313, 934 n07697537, 932 n07695742, 963 n07873807, 930 n07684084, 928 n07614500, "
    "924 n07583066, 959 n07831146, 931 n07693725, 927 n07613480",
    "imagemisc": "971 n09229709, 719 n03935335, 920 n06874185, 506 n03065424, 614 n03617480, 486 n02992211, "
    "507 n03075370, 873 n04486054, 562 n03388043, 940 n07716906",
}
ON_IMAGES = [cell for cell in FEDDGM if "image" in cell]
ON_CIFAR = [cell for cell in FEDDGM if "cifar10" in cell and "layer" not in cell]


def categories(subset: str) -> list[tuple[int, str]]:
    """Return the number and the folder of each class."""
    pairs = [entry.split() for entry in SUBSETS[subset].split(",")]
    return [(int(number), folder) for number, folder in pairs]


@pytest.fixture(scope="module")
def cifar10(tmp_path_factory: pytest.TempPathFactory) -> Standin:
    """A file like that of CIFAR-10, as deep."""
    return standin(tmp_path_factory.mktemp("cifar10"), (3, 32, 32), 10, layers=16)


@pytest.fixture(scope="module")
def imagenet(tmp_path_factory: pytest.TempPathFactory) -> Standin:
    """A file like that of ImageNet at 128 pixels, as deep."""
    return standin(tmp_path_factory.mktemp("imagenet128"), (3, 128, 128), 1000, layers=26)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("cell", ON_CIFAR)
def test_feddgm_has_the_papers_settings_and_can_be_built(cell: str, end: str) -> None:
    config = resolved(cell + end)
    assert (config.method, config.dataset, config.federation.sites) == ("feddgm", "cifar10", 10)
    assert (config.partition.kind, config.partition.alpha) == (
        "dirichlet",
        swept(cell, "alpha", 0.5),
    )
    make_strategy(Division(config).run)
    usual = (3, 10) if end else (5, 20)
    assert config.model.depth == swept(cell, "depth", usual[0])
    holds(config, ipc=swept(cell, "ipc", 10), epochs=swept(cell, "epochs", usual[1]))
    holds(config, gradient="exact", classes="all", warm=False)
    if not end:
        holds(config, batch=256, iterations=100, inner_epochs=20, global_epochs=1000)
        holds(config, global_models="convnet,resnet18,vgg11,vit")
        for rival in ("fedavg", "fedprox", "fednova"):
            holds(resolved(cell, rival), epochs=20, batch=256)


@pytest.mark.parametrize("n", LAYERS)
def test_a_space_of_figure_9_is_the_papers_and_its_small_variants_is_the_digits(
    n: int, cifar10: Standin
) -> None:
    config = resolved(f"feddgm-cifar10-layer{n}", set=cifar10.settings())
    base = resolved("feddgm-cifar10")
    space = image_generator(Division(config).run)
    assert isinstance(space, StyleganXL)
    assert (space.n, space.classes, space.chunk) == (n, tuple(range(10)), 10)
    assert (space.rate_w, space.rate_f) == (1.0, 1000.0)
    differ = {
        "generator",
        "space",
        "chunk",
        "unpickle",
        "generator_sha256",
        "stylegan",
        "stylegan_code",
    }
    assert {key for key, value in own(config).items() if value != own(base)[key]} <= differ
    assert (config.partition, config.model) == (base.partition, base.model)
    small = resolved(f"feddgm-cifar10-layer{n}-small")
    assert (small.dataset, small.federation.sites, small.partition.alpha) == ("digits", 10, 0.5)
    features = image_generator(Division(small).run)
    assert isinstance(features, FeatureSpace)
    assert (features.n, features.network.form.layers) == (LAYERS[n], 6)
    make_strategy(Division(small).run)


@pytest.mark.parametrize("cell", [*(f"feddgm-cifar10-layer{n}" for n in LAYERS), *ON_IMAGES])
def test_without_the_users_file_a_cell_says_what_it_needs(cell: str) -> None:
    with pytest.raises(ConfigError, match=r"set feddgm\.unpickle=on if you trust the file"):
        make_strategy(Division(resolved(cell)).run)


def test_each_subset_has_ten_classes_of_its_own_numbered_as_imagenets_folders_are_sorted() -> None:
    every = sorted(pair for name in SUBSETS for pair in categories(name))
    assert len(set(every)) == 10 * len(SUBSETS)
    assert [folder for _, folder in every] == sorted(folder for _, folder in every)


@pytest.mark.parametrize("cell", ON_IMAGES)
def test_a_subset_of_imagenet_has_the_papers_settings(cell: str, imagenet: Standin) -> None:
    subset = cell.split("-")[1]
    config = resolved(cell, set=imagenet.settings())
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
    space = image_generator(Division(config).run)
    assert isinstance(space, StyleganXL)
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


# --- FedDPMS: tables 3 to 5 of the paper, appendix A


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("cell", FEDDPMS)
def test_feddpms_has_the_papers_settings_and_can_be_built(cell: str, end: str) -> None:
    config = resolved(cell + end)
    dataset = cell.split("-")[1]
    n, copies, sigma = {"fmnist": (3, 50, 3), "cifar10": (3, 200, 4), "cifar100": (10, 50, 4)}[
        dataset
    ]
    holds(config, mechanism="paper", latents="trained", weighting="augmented", vae_weight=0.05)
    holds(config, copies=swept(cell, "copies", copies), sigma=swept(cell, "sigma", sigma))
    holds(config, classes=n, clip=0.0, max_draws=50)
    training = {"local_optimizer": "adam", "lr": 0.001, "lr_decay": 0.5, "lr_decay_every": 10}
    training |= {
        "batch": 16 if "fmnist" in cell and end else 64,
        "epochs": 2 if end else 5,
    }
    for method in ("feddpms", "fedavg", "fedvae", "fedprox", "fedmix", "moon"):
        holds(resolved(cell + end, method), **training)
    holds(resolved(cell, "fedprox"), mu=0.001)
    alpha, preliminary = swept(cell, "alpha", 0.5), swept(cell, "preliminary", 20)
    assert (config.partition.kind, config.partition.alpha) == ("dirichlet", alpha)
    sites = swept(cell, "clients", 10)
    assert (config.federation.sites, config.rounds) == (sites, 20 if end else 50)
    share = (100 if end else 500) * sites if "clients" in cell else 5000 if end else 0
    assert config.data.images == share
    strategy = make_strategy(Division(config).run)
    assert strategy.last_preliminary == preliminary * (0.4 if end else 1)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("cell", "shared", "decoder"),
    [
        ("feddpms-fmnist", 105_546, 56_513),
        ("feddpms-cifar10", 1_115_690, 621_571),
        ("feddpms-cifar100", 1_127_300, 621_571),
    ],
)
def test_feddpms_networks_have_the_papers_sizes(cell: str, shared: int, decoder: int) -> None:
    """Encoder and classifier with the variance; the decoder."""
    its = Division(resolved(cell)).run
    assert parameters(its.build_model()) == shared
    assert parameters(start_decoder(its)) == decoder


# --- Fedssyn: section 4, appendix A


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("cell", [cell for cell in FEDSSYN if "dsprites" not in cell])
def test_fedssyn_has_the_papers_settings_and_can_be_built(cell: str, end: str) -> None:
    config = resolved(cell + end)
    assert (config.method, config.dataset) == ("fedssyn", cell.split("-")[1])
    division, alpha = config.partition, swept(cell, "alpha", 0)
    assert (division.kind, division.alpha) == ("dirichlet_groups", alpha)
    sites, asked = swept(cell, "clients", 10), round(10 * swept(cell, "of", 10)) // 10
    asked = {10: asked, 40: 8, 100: 10}[int(sites)]
    assert config.federation.sites == sites
    assert config.federation.participation * sites == pytest.approx(asked)
    make_strategy(Division(config).run)
    groups = {("cifar10", 40, 0.1): 20, ("cifar10", 40, 0.01): 10, ("cifar100", 40, 0.1): 20}
    groups |= {("cifar100", 40, 0.01): 10, ("cifar100", 100, 0.01): 20}
    groups |= dict.fromkeys([("cifar10", 100, 0.1), ("cifar10", 100, 0.01)], 10)
    assert division.group == groups.get((config.dataset, sites, alpha), 0)
    size = (5000 if end else 50_000) // sites
    holds(config, source="diffusion", shared=True, size=size, rho=0.75, scaled=True)
    inner = config.of("fedavg").settings.model_dump()
    shared = ("lr", "batch", "epochs", "weighting", "augment")
    assert (inner["weighting"], inner["augment"], inner["local_optimizer"]) == (
        "uniform",
        "flip_crop",
        "sgd",
    )
    for method in ("scaffold", "fedprox", "feddyn", "fedpvr"):
        holds(resolved(cell + end, method), **{key: inner[key] for key in shared})
    if end:
        assert (config.rounds, config.data.images, inner["epochs"]) == (21, 5000, 2)
        return
    assert (config.model.name, config.rounds) == ("vgg11", 101)
    assert (inner["epochs"], inner["batch"]) == (10, 256)
    holds(config, epochs=500, batch=256, lr=1e-4, diffusion_steps=1000)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("cell", read_table("fedssyn-2").others)
def test_fedgen_and_dense_have_their_released_codes_values(cell: str, end: str) -> None:
    fedgen, dense = resolved(cell + end, "fedgen"), resolved(cell + end, "dense", rounds=10)
    for config in (fedgen, dense):
        make_strategy(Division(config).run)
    holds(fedgen, hidden=512, noise=64, strength=10, diversity=1)
    holds(fedgen, weighting="uniform", augment="flip_crop")
    holds(dense, distil="last", student_start="average")
    if not end:
        holds(dense, server_iterations=200, generator_steps=30, temperature=20, epochs=10)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("cell", FEDSSYN_FIGURES)
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
    site = 55296 if "dsprites" in cell else 5000
    holds(config, size=swept(cell, "made", own(whole)["size"]))
    holds(config, epochs=swept(cell, "epochs", swept(cell, "private", own(whole)["epochs"])))
    images = swept(cell, "trained", own(whole)["rho"] * site)
    assert own(config)["rho"] * site == pytest.approx(images, rel=0.001)
    holds(config, noise_multiplier=1.906 if "private" in cell else 0.0, clip=1.0)


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


def test_fedssyns_network_has_14_million_parameters() -> None:
    """Counted in tests/synth/test_unet.py; here that the table's settings are those."""
    settings: Any = resolved("fedssyn-cifar10-alpha0.01").settings
    images, labels = torch.zeros(1, 3, 32, 32), torch.zeros(1, dtype=torch.int64)
    generator = torch.Generator()
    made = Diffusion(
        settings, 10, images, labels, generator, lambda _: torch.Generator(), "float32"
    )
    weights = {n: t for n, t in made.state().items() if n.startswith("model.")}
    assert sum(t.numel() for t in weights.values()) == 14_419_651


@pytest.mark.parametrize("end", ENDS)
def test_dsprites_has_the_papers_twelve_sites_and_generator(end: str) -> None:
    config = resolved(f"fedssyn-dsprites{end}")
    assert (config.method, config.dataset, config.partition.kind) == (
        "fedssyn",
        "dsprites",
        "natural",
    )
    assert config.federation.sites == 12
    make_strategy(Division(config).run)
    holds(config, source="vae", latent=10, rho=1.0)
    if not end:
        holds(config, epochs=360, batch=256)


# --- rows, what is tuned in them, and what the papers print

TABLES = {name: read_paper_table(name) for name in names(TABLE)}
PAPERS = {name: table for name, table in TABLES.items() if table.printed}
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


@pytest.mark.parametrize("name", TABLES)
def test_every_column_of_a_table_is_a_comparison_that_can_be_asked_for(name: str) -> None:
    """Its rows resolve in each column, also with the first values of what is tuned."""
    table = TABLES[name]
    for words in ([], ["--search"], *[["--small"]] * table.small):
        found = parse(options_of([f"table={name}", *words]))
        assert [cell.label for cell in found.cells] == list(table.columns)
        for cell in found.cells:
            label = cell.label
            few = words == ["--small"]
            standing = [
                row.label
                for row in table.rows
                if label not in row.left_out and (row.small or not few)
            ]
            assert [variant.label for variant in cell.variants] == standing
            searches = {search.name: search for search in searches_of(cell)}
            tuned = {row.label for row in table.rows if row.tune and label not in row.left_out}
            assert set(searches) <= tuned
            assert set(searches) == tuned or words != ["--search"]
            for variant in cell.variants:
                first = searches[variant.label].grid()[0] if variant.label in searches else ()
                load(parse_arguments(cell.words(variant.with_settings(first), 0)))


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
