"""A hostile server's settings at a real site: each refused at the roll call, in words that name no place there."""

from __future__ import annotations

import itertools
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from data_files import forget_loaded, small_mnist, write_source
from flwr.app import Context, RecordDict
from image_folders import CLASSES, paint, paint_split
from real_site import Site
from small import Small

from client_app.app import reason_for_server
from client_app.site import division_of
from common.config.loading import load
from common.errors import DataError
from common.methods import METHODS, settings_class
from common.settings.base import setting
from common.settings.section import amounts

pytestmark = [
    pytest.mark.promise(
        "A site is the master of its own machine",
        "No folder outside `data-root` is read, by links either; a site with `data` opens nothing "
        "that a run names; nothing is written where a run says, or downloaded unless allowed",
    ),
    pytest.mark.promise(
        "A site is the master of its own machine",
        "What the node config refuses is refused at the roll call and at every instruction; a typo "
        "in it refuses every run; the server learns no path",
    ),
]

IMAGES = f"images.classes={CLASSES} images.size=8 model.depth=2"


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The site's machine: its data directory, a home, and somebody's pictures elsewhere."""
    forget_loaded(monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("NECTAR_DATA", str(tmp_path / "data"))
    paint_split(tmp_path / "elsewhere/pictures")
    paint_split(tmp_path / "data/shared")
    return tmp_path


def folder_run(small: Small, text: str = "", **keys: Any) -> dict[str, Any]:
    settings = f"{IMAGES} data.send_originals=on {text}"
    return small(**{"method": "real", "dataset": "images", "rounds": 1, **keys}, set=settings)


def test_a_folder_below_its_data_directory_is_read(small: Small) -> None:
    site = Site(folder_run(small, "images.folder=shared"))
    assert not site.roll_call().has_error()
    assert not site.train("draw").has_error()


def test_no_folder_outside_is_read_and_nothing_is_written_where_the_server_says(
    small: Small, machine: Path
) -> None:
    run = folder_run(small, f"images.folder={machine}/elsewhere/pictures")
    site = Site(run | {"data-dir": str(machine / "dropped")})
    for reply in (site.roll_call(), site.train("draw")):
        assert reply.has_error()
        assert "outside of this site's data-root" in reply.error.reason
        assert str(machine) not in reply.error.reason
    assert not (machine / "dropped").exists()


def places(machine: Path) -> dict[str, tuple[dict[str, Any], str]]:
    """Return settings that name a place outside of the data directory, and the key that is told."""
    outside = machine / "elsewhere"
    (machine / "data/way-out").symlink_to(outside / "pictures")
    (machine / "data/linked").mkdir()
    (machine / "data/linked/train").symlink_to(outside / "pictures/train")
    np.savez(outside / "set.npz", train_images=np.zeros((4, 8, 8)), train_labels=np.arange(4) % 2)
    (machine / "data/set.npz").symlink_to(outside / "set.npz")
    (machine / "data/MNIST").symlink_to(outside)

    def folder(path: object) -> dict[str, Any]:
        return {"dataset": "images", "set": f"{IMAGES} images.folder={path}"}

    return {
        "absolute": (folder(outside / "pictures"), "images.folder"),
        "climbing": (folder("../elsewhere/pictures"), "images.folder"),
        "home": (folder("~/pictures"), "images.folder"),
        "link": (folder("way-out"), "images.folder"),
        "link below": (folder("linked"), "a link below images.folder"),
        "file": ({"set": f"data.file={outside / 'set.npz'}"}, "data.file"),
        "not there": ({"set": f"data.file={outside / 'none.npz'}"}, "data.file"),
        "linked file": ({"set": f"data.file={machine / 'data/set.npz'}"}, "data.file"),
        "data-dir": ({"dataset": "mnist", "data-dir": str(outside)}, "data-dir"),
        "linked set": ({"dataset": "mnist"}, "a file of mnist"),
        "all of it": ({"dataset": "torchvision:ImageFolder"}, "a link below data-dir"),
        "digits": ({"data-dir": str(outside)}, "data-dir"),
    }


PLACES = (
    *("absolute", "climbing", "home", "link", "link below", "file", "not there", "linked file"),
    *("data-dir", "linked set", "all of it", "digits"),
)


@pytest.mark.parametrize("case", PLACES)
def test_what_lies_outside_is_never_opened(small: Small, machine: Path, case: str) -> None:
    keys, key = places(machine)[case]
    before = sorted((machine / "elsewhere").rglob("*"))
    asked = {**keys, "set": f"{keys.get('set', '')} data.send_originals=on"}
    message = Site(small(method="real", **asked)).refusal()
    assert message.startswith(f"{key} names a place outside of this site's data-root")
    assert str(machine) not in message
    assert sorted((machine / "elsewhere").rglob("*")) == before


def test_the_owner_may_name_another_root_and_a_run_need_not(small: Small, machine: Path) -> None:
    run = folder_run(small, "images.folder=pictures")
    root = str(machine / "elsewhere")
    assert not Site(run, **{"data-root": root}).roll_call().has_error()
    there = {"data-dir": str(machine / "data")}
    assert "data-dir names a place" in Site(run | there, **{"data-root": root}).refusal()
    assert (machine / "elsewhere/nectar-store").is_dir()


def test_a_site_with_images_of_its_own_opens_nothing_that_a_run_names(
    small: Small, machine: Path
) -> None:
    """The server's own folder and data directory are named in the same settings, and are no matter of the site's."""
    paint(machine / "own", "red", 5)
    text = f"images.folder={machine}/elsewhere/pictures images.sites=/a,/b federation.sites=2"
    run = folder_run(small, text) | {"data-dir": str(machine / "dropped")}
    reply = Site(run, site="north", data=str(machine / "own")).roll_call()
    assert reply.content.metric_records["sizes"]["num-examples"] == 5
    assert not (machine / "dropped").exists()
    assert not (machine / "cache/nectar").exists()


@pytest.mark.parametrize("dataset", ["mnist", "hf:mnist", "torchvision:MNIST"])
def test_nothing_is_downloaded(small: Small, dataset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def network(*args: object, **options: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr("socket.socket.connect", network)
    monkeypatch.setattr("socket.getaddrinfo", network)
    assert "this site downloads nothing" in Site(small(dataset=dataset)).refusal()


def test_what_is_missing_is_fetched_where_the_owner_says_so(
    small: Small, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = small_mnist()
    source = write_source(monkeypatch, machine / "published", "mnist", contents)

    def fetch(name: str, wanted: object, data_dir: Path) -> None:
        for file, content in zip(source.files, contents, strict=True):
            (data_dir / file.path).parent.mkdir(parents=True, exist_ok=True)
            (data_dir / file.path).write_bytes(content)

    monkeypatch.setattr("common.data.published.sources._download", fetch)
    run = small(dataset="mnist", set="data.test_share=0 partition.min_size=0")
    assert "this site downloads nothing" in Site(run).refusal()
    assert not Site(run, **{"allow-download": True}).roll_call().has_error()


NOISE = "feddm.start=noise"


def test_a_veto_holds_without_a_roll_call(small: Small) -> None:
    reply = Site(small(method="real"), **{"allow-methods": "fedavg"}).train("draw")
    assert "allow-methods='fedavg'" in str(reply.error.reason)


def test_what_keeps_to_the_vetoes_takes_part(small: Small) -> None:
    node = {
        "allow-methods": "feddm fedavg",
        "allow-start": "noise",
        "max-iterations": 3,
        "max-ipc": 2,
        "max-cores": 1,
        "max-parameters": 5000,
        "min-class": 50,
    }
    site = Site(small(set=f"{NOISE} model.depth=2"), **node)
    assert not site.roll_call().has_error()
    assert not site.train("synthesize").has_error()
    averaging = small(method="fedavg", set="data.images=40 data.validation=0 partition.min_size=0")
    assert not Site(averaging, **node).roll_call().has_error(), "no example of a class is sent"


#: amounts of the server's work under FedDGM, whose devices only train
OF_THE_SERVER = {
    f"FedDGMSettings.{name}" for name in ("iterations", "inner_epochs", "surrogate_epochs", "ipc")
}


def test_every_amount_of_the_methods_is_declared() -> None:
    """A setting of a device's work that says not what it is an amount of would be bounded by no site."""
    named = ("iterations", "epochs", "ipc")
    classes = [settings_class(name) for name in METHODS]
    undeclared = {
        f"{cls.__name__}.{name}"
        for cls in classes
        for name in cls.model_fields
        if name.endswith(named)
        and not name.startswith(("server_", "global_"))
        and name not in amounts(cls)
    }
    assert undeclared == OF_THE_SERVER
    with pytest.raises(ValueError, match="is not one of iterations"):
        setting(1, "", amount="iteration")


def test_a_sentence_that_names_a_place_stays_in_the_sites_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    error = DataError("/srv/somebody/red cannot be read: see https://example.org/a/b")
    assert reason_for_server(error, owner=False) == str(error)
    told = reason_for_server(error, owner=True)
    assert "somebody" not in told
    assert "DataError, log" in told
    assert "/srv/somebody/red" in caplog.text
    for kept in ("see https://example.org/a/b", "w/o it", "data='/abs/folder'", "<class>/*"):
        assert reason_for_server(DataError(kept), owner=True) == kept
    for held in ("in '/srv'", "a=/srv", "(~/x)", "../x", "no ./x", "[Errno 2]: '/x y/z'"):
        assert "DataError, log" in reason_for_server(DataError(held), owner=True)


# ---- where the owner names no bound ---------------------------------------------------------------------

MANY = ",".join(f"c{i}" for i in range(1001))
UNNAMED: dict[str, tuple[dict[str, Any], str]] = {
    "cores": ({"set": "compute.client_cores=1000000"}, "compute.client_cores=1000000"),
    "classes": ({"dataset": "images", "set": f"images.classes={MANY}"}, "1001 classes"),
    "settings": ({"set": "images.classes=" + "x," * 2**15}, "65[0-9]{3} characters"),
}


@pytest.mark.parametrize("case", UNNAMED)
def test_what_no_owner_bounds_has_a_bound_all_the_same(
    small: Small, machine: Path, case: str
) -> None:
    keys, message = UNNAMED[case]
    keys = {**keys, "set": f"{keys['set']} data.send_originals=on"}
    site = Site(
        small(**keys),
        data=str(machine / "elsewhere/pictures"),
        **{"state-dir": str(machine / "state")},
    )
    assert re.search(message, site.refusal())
    assert not list((machine / "state").rglob("*nectar-store*"))


def test_an_owner_raises_the_bounds_and_a_simulation_has_none(small: Small, machine: Path) -> None:
    text = f"images.classes={CLASSES},{MANY} images.size=300 compute.client_cores=3"
    run = small(dataset="images", method="fedavg", set=text)
    node = {"max-size": 300, "max-classes": 2000, "max-cores": 3}
    paint(machine / "own", "red", 5)
    assert not Site(run, data=str(machine / "own"), **node).roll_call().has_error()
    asked = Context(0, 0, {"simulated": True}, RecordDict(), run)
    assert division_of(asked).config.images.size == 300


def test_class_names_cost_no_more_than_their_number() -> None:
    """Each was once compared with all others: 16 s of the CPU for 20,002."""
    names = ",".join(f"class{i}" for i in range(20_002))
    begun = time.thread_time()
    assert len(load({"dataset": "images", "set": f"images.classes={names}"}).images.names) == 20_002
    assert time.thread_time() - begun < 4


ODD = {
    "negative round": {"server-round": -1},
    "round without end": {"server-round": 2**62},
    "half a round": {"server-round": 1.5},
    "no time": {"seconds-left": float("nan")},
    "endless": {"seconds-left": float("inf")},
    "before": {"seconds-left": -1.0},
    "word": {"seconds-left": "600"},
}


@pytest.mark.sweep
@pytest.mark.parametrize("case", ODD)
def test_a_round_and_a_time_are_numbers_of_a_round_and_a_time(small: Small, case: str) -> None:
    site = Site(small(method="fedavg"))
    assert not site.train("train").has_error()
    (key,) = ODD[case]
    reply = site.train("train", **ODD[case])
    assert f"the instruction says {key}=" in str(reply.error.reason)


def test_reading_images_at_the_roll_call_has_an_end(
    small: Small, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    minutes = itertools.count()
    clock = SimpleNamespace(monotonic=lambda: 60.0 * next(minutes))
    monkeypatch.setattr("client_app.draws.time", clock)
    paint(machine / "own", "red", 90)
    run = folder_run(small)
    assert "out of the roll call's time (3600 s)" in Site(run, data=str(machine / "own")).refusal()
    assert next(minutes) < 70
    assert not list(machine.rglob("nectar-store/*/*.npy"))
    patient = Site(run, data=str(machine / "own"), **{"roll-call-seconds": 10**6})
    assert not patient.roll_call().has_error()
