"""``conf/experiment/feddgm-*``: the rows of the paper's tables 1 to 3 and of its sweeps resolve and can be built."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from federation import run
from image_folders import CLASSES, paint_split
from stylegan_repository import Standin, standin

from common.config.layers import CONF, names
from common.config.loading import load
from common.config.resolved import Config
from common.division import Division
from common.errors import ConfigError
from nectar.comparison.request import parse
from server_app.app import make_strategy
from strategies.image_generators import image_generator
from synth.generators.feature_space import FeatureSpace
from synth.generators.pixels import Pixels
from synth.generators.stylegan_xl import StyleganXL

ALPHAS = {"": 0.5, "-alpha0.9": 0.9, "-alpha0.1": 0.1, "-alpha0.01": 0.01}
IPC = {f"-ipc{n}": n for n in (1, 5, 20)}
EPOCHS = {f"-epochs{n}": n for n in (5, 10, 30)}
DEPTHS = {f"-depth{n}": n for n in (2, 3, 4)}
ROWS = [*ALPHAS, *IPC, *EPOCHS, *DEPTHS]
#: the sweep of figure 9, and the space of the digits' six layers that stands for each
LAYERS = {0: 0, 3: 1, 4: 2, 5: 3, 6: 4, 9: 6}

# Table 4's categories in its order: ImageNet's number, its folder, and a word of its name there.
SUBSETS = {
    "imagemeow": """281 n02123045 tabby, 282 n02123159 tiger cat, 283 n02123394 Persian cat, 284 n02123597 Siamese cat,
        285 n02124075 Egyptian cat, 291 n02129165 lion, 292 n02129604 tiger, 290 n02128925 jaguar,
        289 n02128757 snow leopard, 287 n02127052 lynx""",
    "imagewoof": """193 n02096294 Australian terrier, 182 n02093754 Border terrier, 258 n02111889 Samoyed,
        162 n02088364 beagle, 155 n02086240 Shih-Tzu, 167 n02089973 English foxhound,
        159 n02087394 Rhodesian ridgeback, 273 n02115641 dingo, 207 n02099601 golden retriever,
        229 n02105641 Old English sheepdog""",
    "imagefruit": """953 n07753275 pineapple, 954 n07753592 banana, 949 n07745940 strawberry, 950 n07747607 orange,
        951 n07749582 lemon, 957 n07768694 pomegranate, 952 n07753113 fig, 945 n07720875 bell pepper,
        943 n07718472 cucumber, 948 n07742313 Granny Smith""",
    "imagefood": """933 n07697313 cheeseburger, 934 n07697537 hotdog, 932 n07695742 pretzel, 963 n07873807 pizza,
        930 n07684084 French loaf, 928 n07614500 ice cream, 924 n07583066 guacamole, 959 n07831146 carbonara,
        931 n07693725 bagel, 927 n07613480 trifle""",
    "imagemisc": """971 n09229709 bubble, 719 n03935335 piggy bank, 920 n06874185 traffic light, 506 n03065424 coil,
        614 n03617480 kimono, 486 n02992211 cello, 507 n03075370 combination lock, 873 n04486054 triumphal arch,
        562 n03388043 fountain, 940 n07716906 spaghetti squash""",
}
#: table 3 and, of ImageFruit, table 2: alpha, and FedDGM's accuracies with ConvNet, ResNet-18 and ResNet-34
IMAGES = {
    "imagemeow": ("imagemeow", 0.5, (57.8, 56.2, 65.1)),
    "imagewoof": ("imagewoof", 0.5, (57.4, 62.3, 72.7)),
    "imagefruit": ("imagefruit", 0.5, (54.5, 55.1, 58.9)),
    "imagefood": ("imagefood", 0.5, (54.5, 52.9, 60.0)),
    "imagemisc": ("imagemisc", 0.5, (65.6, 66.6, 72.5)),
    "imagefruit-alpha0.9": ("imagefruit", 0.9, (54.6, 55.7, 59.1)),
    "imagefruit-alpha0.1": ("imagefruit", 0.1, (51.3, 51.6, 59.1)),
    "imagefruit-alpha0.01": ("imagefruit", 0.01, (44.9, 48.5, 55.1)),
}


@pytest.fixture(scope="module")
def cifar10(tmp_path_factory: pytest.TempPathFactory) -> Standin:
    """A file like that of CIFAR-10, as deep."""
    return standin(tmp_path_factory.mktemp("cifar10"), (3, 32, 32), 10, layers=16)


@pytest.fixture(scope="module")
def imagenet(tmp_path_factory: pytest.TempPathFactory) -> Standin:
    """A file like that of ImageNet at 128 pixels, as deep."""
    return standin(tmp_path_factory.mktemp("imagenet128"), (3, 128, 128), 1000, layers=26)


def text(name: str) -> str:
    return (CONF / "experiment" / f"{name}.yaml").read_text(encoding="utf-8")


def own(config: Config) -> dict[str, Any]:
    return config.settings.model_dump()


def test_there_is_a_file_and_a_twin_for_each_row_and_no_other() -> None:
    there = {name for name in names("experiment") if name.startswith("feddgm-")}
    rows = [f"cifar10{row}" for row in ROWS] + [f"cifar10-layer{n}" for n in LAYERS] + [*IMAGES]
    assert there == {f"feddgm-{row}{end}" for row in rows for end in ("", "-small")}


@pytest.mark.parametrize("end", ["", "-small"])
@pytest.mark.parametrize("row", ROWS)
def test_a_row_has_the_papers_settings_and_can_be_built(row: str, end: str) -> None:
    config = load({"experiment": f"feddgm-cifar10{row}{end}"})
    assert (config.method, config.dataset, config.federation.sites) == ("feddgm", "cifar10", 10)
    assert (config.partition.kind, config.partition.alpha) == ("dirichlet", ALPHAS.get(row, 0.5))
    make_strategy(Division(config).run)
    settings = own(config)
    assert settings["ipc"] == IPC.get(row, 10)
    assert (settings["gradient"], settings["classes"], settings["warm"]) == ("exact", "all", False)
    if row in EPOCHS:
        assert settings["epochs"] == EPOCHS[row]
    if row in DEPTHS:
        assert config.model.depth == DEPTHS[row]
    if end:
        return
    assert settings["global_models"] == "convnet,resnet18,vgg11,vit"
    assert config.model.depth == DEPTHS.get(row, 5)
    assert settings["epochs"] == EPOCHS.get(row, 20)
    published = {"batch": 256, "iterations": 100, "inner_epochs": 20, "global_epochs": 1000}
    assert {key: settings[key] for key in published} == published
    for rival in ("fedavg", "fedprox", "fednova"):
        other = load({"experiment": f"feddgm-cifar10{row}", "method": rival})
        assert (other.settings.epochs, other.settings.batch) == (20, 256)  # type: ignore[attr-defined]


# --- the spaces of StyleGAN-XL ---


@pytest.mark.parametrize("n", LAYERS)
def test_a_space_is_the_papers_and_can_be_built_on_the_users_file(n: int, cifar10: Standin) -> None:
    given = {"experiment": f"feddgm-cifar10-layer{n}", "set": cifar10.settings()}
    config, base = load(given), load({"experiment": "feddgm-cifar10"})
    space = image_generator(Division(config).run)
    assert isinstance(space, StyleganXL)
    assert (space.n, space.classes, space.chunk) == (n, tuple(range(10)), 10)
    assert (space.rate_w, space.rate_f) == (1.0, 1000.0)
    assert f"in the space F{n} of StyleGAN-XL" in text(f"feddgm-cifar10-layer{n}")
    differ = {"generator", "space", "chunk", "unpickle", "generator_sha256"}
    differ |= {"stylegan", "stylegan_code"}
    assert {k for k, v in own(config).items() if v != own(base)[k]} <= differ
    assert (config.partition, config.model) == (base.partition, base.model)


@pytest.mark.parametrize("n", LAYERS)
def test_its_twin_runs_on_the_digits(n: int) -> None:
    config = load({"experiment": f"feddgm-cifar10-layer{n}-small"})
    assert (config.dataset, config.federation.sites) == ("digits", 10)
    assert (config.partition.kind, config.partition.alpha) == ("dirichlet", 0.5)
    space = image_generator(Division(config).run)
    assert isinstance(space, FeatureSpace)
    assert (space.n, space.network.form.layers) == (LAYERS[n], 6)
    assert f"in the space F{LAYERS[n]} of" in text(f"feddgm-cifar10-layer{n}-small")
    make_strategy(Division(config).run)


@pytest.mark.parametrize("row", [*(f"cifar10-layer{n}" for n in LAYERS), *IMAGES])
def test_without_the_users_file_a_row_says_what_it_needs(row: str) -> None:
    with pytest.raises(ConfigError, match=r"set feddgm\.unpickle=on if you trust the file"):
        make_strategy(Division(load({"experiment": f"feddgm-{row}"})).run)


# --- the subsets of ImageNet ---


def categories(name: str) -> list[tuple[int, str]]:
    """Return the number and the folder of each class."""
    found = [entry.split(maxsplit=2) for entry in SUBSETS[name].split(",")]
    return [(int(number), folder) for number, folder, _ in found]


def test_each_subset_has_ten_classes_of_its_own_numbered_as_imagenets_folders_are_sorted() -> None:
    for name in SUBSETS:
        assert len(set(categories(name))) == 10
    every = sorted(pair for name in SUBSETS for pair in categories(name))
    assert len(set(every)) == 50
    assert [folder for _, folder in every] == sorted(folder for _, folder in every)


@pytest.mark.parametrize("row", IMAGES)
def test_a_subset_has_the_papers_settings_and_can_be_built(row: str, imagenet: Standin) -> None:
    subset, alpha, published = IMAGES[row]
    config = load({"experiment": f"feddgm-{row}", "set": imagenet.settings()})
    assert (config.method, config.dataset, config.federation.sites) == ("feddgm", subset, 10)
    assert (config.partition.kind, config.partition.alpha) == ("dirichlet", alpha)
    numbers, folders = zip(*categories(subset), strict=True)
    assert (config.images.folder, config.images.size, config.images.names) == (subset, 128, folders)
    assert (config.model.name, config.model.depth) == ("convnet", 5)
    settings = own(config)
    paper = {
        **{"epochs": 20, "batch": 32, "ipc": 10, "iterations": 100, "inner_epochs": 20},
        **{"global_epochs": 1000, "global_batch": 32, "classes": "all", "gradient": "exact"},
        **{"global_models": "convnet,resnet18,resnet34", "warm": False},
    }
    assert {key: settings[key] for key in paper} == paper
    space = image_generator(Division(config).run)
    assert isinstance(space, StyleganXL)
    assert (space.n, space.classes, space.chunk) == (12, numbers, 10)
    make_strategy(Division(config).run)
    assert "ConvNet {}, ResNet-18 {}, ResNet-34 {}".format(*published) in text(f"feddgm-{row}")
    for rival in ("fedavg", "fedprox", "fednova"):
        other = load({"experiment": f"feddgm-{row}", "method": rival})
        assert (other.settings.epochs, other.settings.batch) == (20, 32)  # type: ignore[attr-defined]
    feddm = own(load({"experiment": f"feddgm-{row}", "method": "feddm"}))
    same = ("ipc", "global_models", "global_epochs", "global_batch")
    assert {key: feddm[key] for key in same} == {key: paper[key] for key in same}


@pytest.mark.parametrize("row", IMAGES)
def test_the_twin_of_a_subset_is_its_classes_at_32_pixels_without_a_generator(row: str) -> None:
    subset, alpha, _ = IMAGES[row]
    config = load({"experiment": f"feddgm-{row}-small"})
    assert config.images.names == tuple(folder for _, folder in categories(subset))
    assert (config.images.folder, config.images.size) == (subset, 32)
    assert config.partition.alpha == alpha
    assert isinstance(image_generator(Division(config).run), Pixels)
    make_strategy(Division(config).run)


@pytest.mark.parametrize("row", ["cifar10", *SUBSETS])
def test_the_command_in_a_file_can_be_typed(row: str) -> None:
    (words,) = re.findall(r"^# nectar compare (.*)$", text(f"feddgm-{row}"), re.M)
    request = parse(shlex.split(words))
    methods = [variant.method for variant in request.variants]
    assert methods == ["feddgm", "feddm", "fedavg", "fedprox", "fednova"]
    assert request.shared == (f"feddgm-{row}",)
    assert list(request.seeds) == [0, 1, 2]


BRIEF = (
    "federation.sites=3 model.width=4 feddgm.epochs=1 feddgm.ipc=1 feddgm.iterations=1 feddgm.inner_epochs=1 "
    "feddgm.global_epochs=1 feddgm.surrogate_epochs=1 feddgm.global_models=mlp"
)


@pytest.mark.parametrize("experiment", ["feddgm-imagefruit-small", "feddgm-cifar10-layer9-small"])
def test_a_twin_runs_with_what_comes_along(experiment: str, tmp_path: Path) -> None:
    """ImageFruit's on three colours, where the folders of ImageNet would lie."""
    paint_split(tmp_path / "imagefruit")
    shrunk = BRIEF
    if "image" in experiment:
        shrunk += f" images.classes={CLASSES} data.images=40 partition.min_size=1"
    given = {"experiment": experiment, "rounds": 1, "set": shrunk, "data-dir": str(tmp_path)}
    record = run(given | {"output-dir": str(tmp_path / "runs")})
    assert len(record.metrics()[1]["accepted"]) == 3
