"""Federations whose sites have image folders of their own, with other classes each, and a server that may have none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_folders import CLASSES, paint, paint_split
from small import Small

from client_app.app import app as client_app
from common.config.loading import load
from common.errors import FederationError
from nectar.engines.local_grid import LocalGrid
from nectar.records.record import RunRecord
from server_app.app import serve
from server_app.record import Record

pytestmark = pytest.mark.usefixtures("fresh_cache")


HELD = {"north": {"red": 12, "green": 8}, "south": {"blue": 15}, "east": {"green": 9, "blue": 6}}
IMAGES = f"images.classes={CLASSES} images.size=8 model.depth=2"


@pytest.fixture
def nodes(tmp_path: Path) -> list[dict[str, str]]:
    for seed, (site, classes) in enumerate(HELD.items()):
        for name, count in classes.items():
            paint(tmp_path / "sites" / site, name, count, seed=seed)
    return [{"site": site, "data": str(tmp_path / "sites" / site)} for site in HELD]


def federate(run_config: Mapping[str, Any], nodes: list[dict[str, str]]) -> Record:
    return serve(LocalGrid(client_app, nodes, run_config), load(run_config))


@pytest.mark.parametrize("method", ["feddm", "fedavg"])
def test_sites_learn_from_folders_of_their_own_and_the_server_has_no_data(
    small: Small, nodes: list[dict[str, str]], method: str
) -> None:
    where = "evaluation.on=sites data.site_holdout=0.2"
    run_config = small(method=method, dataset="images", set=f"{IMAGES} {where}")
    record = federate(run_config, nodes)
    past = RunRecord.open(record.directory)
    assert past.completed
    assert past.provenance["data"] == {"name": "images", "sha256": ""}
    kept = {site: sum(HELD[site].values()) * 4 // 5 for site in sorted(HELD)}
    assert {name: row["examples"] for name, row in past.partition["sites"].items()} == kept
    for line in past.rounds[1:]:
        assert (line["test"], line["accepted"], line["rejected"]) == (None, sorted(HELD), {})
        assert line["sites"] is not None
    if method == "feddm":
        labels = {site: set(s.labels.tolist()) for site, s in past.synthetic()[1].items()}
        assert labels == {"north": {0, 1}, "south": {2}, "east": {1, 2}}


def test_a_server_with_a_test_folder_alone_judges_what_the_sites_taught(
    small: Small, nodes: list[dict[str, str]], tmp_path: Path
) -> None:
    """Three colours are told apart at once; the central folder has no train/."""
    for name in ("red", "green", "blue"):
        paint(tmp_path / "central/test", name, 6, seed=9)
    text = f"{IMAGES} images.folder={tmp_path / 'central'} image_training.epochs=30 real.ipc=5 "
    text += "data.send_originals=on"
    record = federate(small(method="real", dataset="images", rounds=2, set=text), nodes)
    assert record.metrics()[-1]["test"]["accuracy"] > 0.8
    assert record.metrics()[-1]["validation"] is None
    assert len(RunRecord.open(record.directory).provenance["data"]["sha256"]) == 64


def test_a_folder_trains_to_the_weights_of_the_same_images_in_a_partition(
    small: Small, tmp_path: Path
) -> None:
    """One site with all images, by name the same, is the one partition of a central folder."""
    folder = paint_split(tmp_path / "central", train=6, test=2)
    text = f"{IMAGES} images.folder={folder} federation.sites=1 data.validation=0"
    run_config = small(method="fedavg", dataset="images", rounds=1, set=text)
    own = [{"site": "partition-0", "data": str(folder)}]
    both = [
        RunRecord.open(record.directory).checkpoint().weights
        for record in (
            federate(run_config, own),
            serve(LocalGrid(client_app, 1, run_config), load(run_config)),
        )
    ]
    assert both[0].keys() == both[1].keys()
    for name, tensor in both[0].items():
        np.testing.assert_array_equal(tensor.numpy(), both[1][name].numpy())


def test_a_site_without_a_name_is_called_as_its_folder(
    small: Small, nodes: list[dict[str, str]]
) -> None:
    unnamed = [{"data": node["data"]} for node in nodes]
    run_config = small(
        method="fedavg", dataset="images", rounds=1, set=f"{IMAGES} evaluation.on=none"
    )
    record = federate(run_config, unnamed)
    assert record.metrics()[-1]["accepted"] == sorted(HELD)


def test_a_sites_store_lies_with_what_the_site_keeps(
    small: Small, nodes: list[dict[str, str]], tmp_path: Path
) -> None:
    kept = [{**node, "state-dir": str(tmp_path / "kept" / node["site"])} for node in nodes]
    text = f"{IMAGES} evaluation.on=none"
    federate(small(method="fedavg", dataset="images", rounds=1, set=text), kept)
    for site in HELD:
        assert list((tmp_path / "kept" / site / "nectar-store").glob(f"{site}-3x8x8-*/store.json"))
    assert not (tmp_path / "cache/nectar").exists()


@pytest.mark.parametrize(
    ("change", "dataset", "said"),
    [
        ({"data": "sites/north"}, "images", "data 'sites/north' is relative"),
        ({"partition-id": 0}, "images", "leave one out"),
        ({"data": "/nowhere"}, "images", "there is no folder /nowhere"),
        ({}, "digits", "needs a data set that is a folder of images, which digits is not"),
    ],
)
def test_a_site_that_cannot_take_part_says_why_in_the_roll_call(
    small: Small, nodes: list[dict[str, str]], change: dict[str, Any], dataset: str, said: str
) -> None:
    nodes[0] |= change
    text = f"{IMAGES if dataset == 'images' else ''} evaluation.on=none federation.join_deadline=1"
    everybody = f"federation.min_replies={len(nodes)} federation.sites={len(nodes)}"
    run_config = small(method="fedavg", dataset=dataset, set=f"{text} {everybody}")
    with pytest.raises(FederationError, match=f"failed the roll call: .*{said}"):
        federate(run_config, nodes)


def test_an_unknown_class_and_bad_files_are_refused_without_a_files_name(
    small: Small, nodes: list[dict[str, str]]
) -> None:
    everybody = f"federation.min_replies={len(nodes)}"
    text = f"{IMAGES} evaluation.on=none {everybody}"
    run_config = small(method="fedavg", dataset="images", set=text)
    north = Path(nodes[0]["data"])
    for i in range(5):
        (north / f"red/somebodys-name{i}.png").touch()
    with pytest.raises(FederationError, match=r"5 of 25 files .*\(empty: 5\)") as caught:
        federate(run_config, nodes)
    assert "somebodys-name" not in str(caught.value)
    paint(north.parent, "red", 1)
    (north / "purple").mkdir()
    with pytest.raises(FederationError, match=r"purple is a folder of no known class.*red, green"):
        federate(run_config, nodes)
