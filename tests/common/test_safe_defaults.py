"""Where nobody asks for anything: nothing leaves that was somebody's own picture, and small sets get sizes for them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from common.config.loading import load
from common.config.tables import experiment_names
from common.data.published.catalogue import NAMES
from common.errors import ConfigError
from common.settings.feddm import FedDMSettings
from common.settings.sections import PUBLIC

pytestmark = pytest.mark.promise(
    "What leaves a site is not a private image",
    "On somebody's own pictures FedDM starts from noise; originals leave only with "
    "`data.send_originals=on`",
)

OWN = (
    {"dataset": "images", "set": "images.classes=a,b images.folder=/x"},
    {"dataset": "images", "set": "images.classes=a,b images.sites=/x,/y federation.sites=2"},
    {"dataset": "flowers160"},
    {"set": "data.file=/x/mine.npz"},
    {"dataset": "hf:someone/pictures"},
    {"dataset": "mydata:load"},
    {"dataset": "torchvision:SVHN"},
)
PAPERS_ROWS = [
    name
    for name in experiment_names()
    if name.startswith(("feddm-", "feddgm-image")) and not re.search("sigma|epsilon", name)
]
"""All but the private ones, whose noise would hide nothing of a real image that they begin with."""


def start(**run_config: Any) -> tuple[Any, Any]:
    settings = load({"method": "feddm", **run_config}).settings.model_dump()
    return settings["start"], settings["warm"]


def test_the_public_sets_are_those_known_by_name() -> None:
    assert set(PUBLIC) == set(NAMES)


@pytest.mark.extended
@pytest.mark.parametrize("own", OWN)
def test_on_ones_own_pictures_feddm_begins_with_noise_even_in_a_papers_row(
    own: dict[str, str],
) -> None:
    assert start(**own) == ("noise", True)
    for experiment in experiment_names():
        assert start(**own, experiment=experiment) == ("noise", True)
    words = {**own, "set": f"{own.get('set', '')} feddm.start=real feddm.warm=off"}
    assert start(**words) == ("real", False), "whoever asks for it gets it"


@pytest.mark.parametrize("dataset", ["mnist", "fashionmnist", "cifar10", "cifar100", "femnist"])
def test_on_public_pictures_feddm_begins_as_the_paper_has_it(dataset: str) -> None:
    assert start(dataset=dataset) == ("real", False)


@pytest.mark.parametrize("experiment", PAPERS_ROWS)
def test_a_papers_row_begins_as_the_paper_has_it(experiment: str) -> None:
    assert start(experiment=experiment) == ("real", False)


@pytest.mark.parametrize("own", OWN)
@pytest.mark.parametrize(
    ("method", "words"), [("real", ""), ("feddm", "feddm.start=real feddm.iterations=0")]
)
def test_ones_own_pictures_are_sent_as_they_are_only_where_that_is_asked_for(
    own: dict[str, str], method: str, words: str
) -> None:
    asked = {**own, "method": method, "set": f"{own.get('set', '')} {words}"}
    with pytest.raises(ConfigError, match=r"add data\.send_originals=on if they may leave"):
        load(asked)
    asked["set"] += " data.send_originals=on"
    config = load(asked)
    assert load(config.to_run_config()) == config, "and a site is told so"


def test_public_pictures_are_nobodys() -> None:
    for dataset in PUBLIC:
        assert load({"dataset": dataset, "method": "real"}).method == "real"


@pytest.mark.parametrize("form", ["images", "file", "torchvision:SVHN", "hf:cats", "json:loads"])
def test_whatever_is_ones_own_begins_with_sizes_for_small_sets(form: str) -> None:
    """As typed the papers' take 12.6 hours of CPU on 360 photographs: 1,000 steps of 20 rounds at width 128."""
    more = "data.file=/abs/x.npz" if form == "file" else ""
    config = load({"dataset": form, "set": more})
    assert isinstance(config.settings, FedDMSettings)
    feddm = config.settings
    assert (config.rounds, config.model.width) == (10, 32)
    assert (feddm.iterations, feddm.ipc, config.image_training.steps, feddm.start) == (
        50,
        5,
        60,
        "noise",
    )
    assert config.image_training.lr == 0.003
    rival = load({"dataset": form, "method": "scaffold", "set": more}).settings.model_dump()
    assert (rival["lr"], rival["batch"]) == (0.1, 32)
    typed = load({"dataset": form, "rounds": 3, "set": f"{more} feddm.iterations=7"})
    assert isinstance(typed.settings, FedDMSettings)
    assert (typed.rounds, typed.settings.iterations) == (3, 7)
    public = load({"dataset": "mnist"})
    assert isinstance(public.settings, FedDMSettings)
    assert (public.rounds, public.model.width, public.settings.iterations) == (20, 128, 1000)
