"""`images.sites`: simulated sites, each with a folder of its own, in this process and on Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federation import numbers, run
from flwr.app import Context, RecordDict
from image_folders import CLASSES, COLOURS, paint
from small import Small

from client_app.site import site_of, site_samples
from common.config.loading import load
from common.config.text import parse_set
from common.division import Division
from common.errors import DataError, FederationError
from common.sites import folder_sites, site_slug
from nectar import cli
from nectar.engines.local_grid import LocalGrid
from nectar.engines.preflight import check
from nectar.records.record import RunRecord
from server_app.record import Record

pytestmark = pytest.mark.usefixtures("fresh_data")


HELD = {"north": {"red": 12, "green": 8}, "south": {"blue": 15}, "east": {"green": 9, "blue": 6}}
TEXT = f"images.classes={CLASSES} images.size=8 model.depth=2 federation.sites=3"
ON_SITES = "evaluation.on=sites data.site_holdout=0.2"


@pytest.fixture
def sites(tmp_path: Path) -> str:
    for seed, (site, classes) in enumerate(HELD.items()):
        for name, count in classes.items():
            paint(tmp_path / site, name, count, seed=seed)
    return ",".join(str(tmp_path / site) for site in HELD)


@pytest.mark.parametrize("method", ["feddm", "fedavg"])
def test_they_give_the_numbers_of_real_sites_with_these_folders(
    small: Small, sites: str, method: str
) -> None:
    keys = {"method": method, "dataset": "images", "rounds": 1}
    own = run(small(**keys, set=f"{TEXT} {ON_SITES} images.sites={sites}"))
    nodes = [{"site": Path(path).name, "data": path} for path in sites.split(",")]
    run_config = small(**keys, set=f"{TEXT} {ON_SITES}")

    class OfRealSites(LocalGrid):
        def __init__(self, app: Any, clients: int, *args: Any, **options: Any) -> None:
            super().__init__(app, nodes, *args, **options)

    assert numbers(own) == numbers(run(run_config, OfRealSites))
    past = RunRecord.open(own.directory)
    counts = {name: row["classes"] for name, row in past.partition["sites"].items()}
    assert counts == {site: [held.get(name, 0) for name in COLOURS] for site, held in HELD.items()}
    assert past.partition["simulated"] is True


def test_the_server_judges_on_the_test_part_of_a_folder(
    small: Small, sites: str, tmp_path: Path
) -> None:
    for name in COLOURS:
        paint(tmp_path / "central/test", name, 4, seed=9)
    text = (
        f"{TEXT} images.sites={sites} images.folder={tmp_path / 'central'} data.send_originals=on"
    )
    record = run(small(method="real", dataset="images", rounds=1, set=text))
    assert record.metrics()[-1]["test"] is not None
    assert record.metrics()[-1]["accepted"] == sorted(HELD)


def test_names_of_any_script_name_files_by_their_slugs(small: Small, tmp_path: Path) -> None:
    """Both are "Koln" in ASCII, and each has pictures and a state of its own."""
    names = ["Klinikum Köln", "Klinikum Kóln"]
    for seed, name in enumerate(names):
        paint(tmp_path / name, "red", 6, seed=seed)
    text = f"images.classes={CLASSES} images.size=8 model.depth=2 federation.sites=2"
    folders = ",".join(str(tmp_path / name) for name in names)
    text += f" evaluation.on=none data.send_originals=on images.sites='{folders}'"
    record = run(small(method="real", dataset="images", rounds=1, set=text))
    assert record.metrics()[-1]["accepted"] == sorted(names)
    written = sorted(p.name for p in (record.directory / "samples").glob("round-001/*"))
    assert written == sorted(f"{site_slug(name)}.png" for name in names)
    slugs = sorted(RunRecord.open(record.directory).synthetic()[1])
    assert slugs == sorted(names), "the sets know the names themselves"


@pytest.mark.extended
def test_the_words_make_paths_absolute_count_the_sites_and_list_the_classes(
    sites: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["dataset=images", "images.sites=north,south,east", "images.size=8", "rounds=1"]
    small_words = ["method=fedavg", "model.depth=2", "model.width=8", "fedavg.epochs=1"]
    runs = f"output-dir={tmp_path / 'runs'}"
    assert cli.main(["run", *words, *small_words, *ON_SITES.split(), runs]) == 0
    (directory,) = (tmp_path / "runs").iterdir()
    config = load(RunRecord.open(directory).provenance["run-config"])
    assert config.images.sites == sites
    assert (config.images.classes, config.federation.sites) == ("blue,green,red", 3)
    capsys.readouterr()
    assert cli.main(["data", *words, "--draw", "counts.svg", "--samples", "samples.png"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["north", "20", "0", "8", "12"] in rows
    assert ["all", "50", "21", "17", "12"] in rows
    assert "north" in (tmp_path / "counts.svg").read_text()
    assert (tmp_path / "samples.png").is_file()


def test_sites_are_called_as_their_folders_where_that_tells_them_apart() -> None:
    assert folder_sites("/x/a,/y/b") == ("a", "b")
    assert folder_sites("/x/a,/y/a") == ("partition-0", "partition-1")
    assert folder_sites("/x/a,/x/b c,/y/(d) e/") == ("a", "b c", "d-e"), "one keeps no other's name"
    assert folder_sites("/x/a,/x/b:c,/x/b-c") == ("a", "partition-1", "partition-2")
    assert folder_sites("/x/partition-1,/x/()") == ("partition-0", "partition-1")
    assert folder_sites("/x/partition-1,/x/a") == ("partition-1", "a")
    assert folder_sites("") == ()


def test_what_is_missing_is_said_before_any_work(sites: str, tmp_path: Path) -> None:
    keys = {"dataset": "images", "set": f"{TEXT} images.sites={sites} {ON_SITES}"}
    check(load(keys))
    with pytest.raises(DataError, match=r"names no folder: set images\.folder"):
        check(load(keys | {"set": f"{TEXT} images.sites={sites}"}))
    missing = sites.replace("south", "west")
    with pytest.raises(DataError, match=r"there is no folder .*west"):
        check(load(keys | {"set": f"{TEXT} images.sites={missing} {ON_SITES}"}))
    with pytest.raises(DataError, match=r"needs images\.classes"):  # which images.sites implies
        check(load({"set": f"images.sites={sites}"}))


def test_a_real_site_reads_no_folder_that_the_run_names(sites: str) -> None:
    config = load({"dataset": "images", "set": f"{TEXT} images.sites={sites}"})

    def context(**node: Any) -> Context:
        return Context(1, 1, {"partition-id": 1, **node}, RecordDict(), {})

    simulated = context(**{"num-partitions": 3, "simulated": True})
    assert site_of(Division(config).run, simulated) == "south"
    train, _ = site_samples(Division(config), "south", simulated)
    np.testing.assert_array_equal(train.labels.numpy(), np.full(15, 2))
    with pytest.raises(FederationError, match="this is not a simulation: name the folder"):
        site_of(Division(config).run, context(**{"num-partitions": 3}))
    with pytest.raises(FederationError, match="names 3 folders, and there are 2 nodes"):
        site_of(Division(config).run, context(**{"num-partitions": 2, "simulated": True}))


@pytest.mark.extended
@pytest.mark.long
def test_on_ray_too(small: Small, sites: str, tmp_path: Path) -> None:
    keys = {"method": "fedavg", "dataset": "images", "rounds": 1}
    run_config = small(**keys, set=f"{TEXT} {ON_SITES} images.sites={sites}")
    there = tmp_path / "ray"
    given = {**run_config, **parse_set(run_config["set"]), "output-dir": there}
    words = [f"{key}={value}" for key, value in given.items() if key != "set"]
    assert cli.main(["simulate", *words]) == 0
    (directory,) = there.iterdir()
    assert numbers(Record(directory)) == numbers(run(run_config))
