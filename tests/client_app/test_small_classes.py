"""Classes with few images: how many of them leave, and what the server takes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from data_files import forget_loaded
from federation import TamperedGrid, run
from flwr.app import ArrayRecord, Message
from image_folders import paint
from small import Small

from common.errors import FederationError, PayloadError
from common.wire.images import SyntheticImages, SyntheticImagesSpec
from nectar.records.record import RunRecord
from server_app.record import Record

pytestmark = pytest.mark.promise(
    "What leaves a site is not a private image",
    "A site refuses to start a small class from its own images; no image is sent twice; from "
    "noise, the number sent tells nothing",
)

#: four sites of which most have a few images of some class
FEW = "partition.alpha=0.05 partition.min_size=1 federation.sites=4 data.images=120 feddm.ipc=9 real.ipc=9"


def sent_and_held(record: Record) -> list[tuple[int, int]]:
    """Return (images sent, images held) for every class of every site that holds any."""
    past = RunRecord.open(record.directory)
    _, sets = past.synthetic()
    sent = {site: Counter(images.labels.tolist()) for site, images in sets.items()}
    held = {site: row["classes"] for site, row in past.partition["sites"].items()}
    return [(sent[site][c], n) for site in held for c, n in enumerate(held[site]) if n]


@pytest.mark.parametrize(
    ("method", "words"), [("feddm", "feddm.start=real feddm.warm=on"), ("real", "")]
)
def test_of_a_small_class_each_image_is_sent_once_from_a_real_start(
    small: Small, method: str, words: str
) -> None:
    record = run(small(method=method, set=f"{FEW} {words}"))
    pairs = sent_and_held(record)
    assert min(held for _, held in pairs) < 9 < max(held for _, held in pairs)
    assert all(sent == min(9, held) for sent, held in pairs)
    line = record.metrics()[-1]
    assert line["rejected"] == {}
    assert line["floats_up"] == sum(min(9, held) for _, held in pairs) * 64


def test_from_noise_the_number_sent_says_nothing_of_the_number_held(small: Small) -> None:
    pairs = sent_and_held(run(small(set=f"{FEW} feddm.start=noise")))
    assert min(held for _, held in pairs) < 9
    assert {sent for sent, _ in pairs} == {9}


@pytest.mark.parametrize(
    ("small_class", "least"), [("noise", 1), ("leave_out", 11)], ids=["noise", "left out"]
)
def test_of_mixtures_as_many_leave_of_a_small_class_or_none(
    small: Small, small_class: str, least: int
) -> None:
    record = run(
        small(set=f"{FEW} feddm.start=mix:11 feddm.warm=off feddm.small_class={small_class}")
    )
    pairs = sent_and_held(record)
    assert min(held for _, held in pairs) < 11 <= max(held for _, held in pairs)
    assert all(sent == (9 if held >= least else 0) for sent, held in pairs)
    assert {line["round"]: line["rejected"] for line in record.metrics()[1:]} == {1: {}, 2: {}}
    _, sets = RunRecord.open(record.directory).synthetic()
    sent = {c for images in sets.values() for c in images.labels.tolist()}
    unsent = [str(c) for c in range(10) if c not in sent]
    assert record.metrics()[-1].get("notes", {}).get("not_sent", []) == unsent
    assert bool(unsent) == (small_class == "leave_out")


def test_a_site_without_a_class_to_mix_says_so(small: Small) -> None:
    text = f"{FEW} feddm.start=mix:64 feddm.small_class=leave_out feddm.warm=off"
    with pytest.raises(FederationError, match=r"no class of 64 images .*feddm\.small_class=noise"):
        run(small(rounds=1, set=text))


def test_a_site_that_sends_fewer_from_noise_is_rejected(small: Small) -> None:
    def fewer(instruction: Message, reply: Message) -> Message:
        spec = SyntheticImagesSpec((1, 8, 8), 10, 9)
        arrays = reply.content.array_records["arrays"].to_numpy_ndarrays()
        whole = spec.decode(arrays)
        less = SyntheticImages(whole.images[1:], whole.labels[1:])
        reply.content["arrays"] = ArrayRecord(less.encode())
        return reply

    keys = {"rounds": 1, "set": f"{FEW} feddm.start=noise"}
    line = run(small(**keys), TamperedGrid, tampers={1: fewer}).metrics()[-1]
    (why,) = line["rejected"].values()
    assert why == "8 images of one class were sent where at least 9 are expected"
    keys["set"] = f"{FEW} feddm.start=real feddm.warm=off"
    assert run(small(**keys), TamperedGrid, tampers={1: fewer}).metrics()[-1]["rejected"] == {}


def test_the_least_number_holds_for_the_classes_that_are_sent() -> None:
    sent = SyntheticImages(torch.zeros(4, 1, 2, 2), torch.tensor([0, 0, 2, 2]))
    spec = SyntheticImagesSpec((1, 2, 2), 3, 2, fewest=2)
    assert spec.decode(sent.encode()).labels.tolist() == [0, 0, 2, 2]
    one = SyntheticImages(sent.images[1:], sent.labels[1:])
    with pytest.raises(PayloadError, match="1 images of one class were sent where at least 2"):
        spec.decode(one.encode())


# --- pictures that may be somebody's own


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Two sites: one has 25 images of each colour, the other 25 and 7."""
    forget_loaded(monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("red", "green"):
        paint(tmp_path / "many", name, 25)
        paint(tmp_path / "few", name, 25 if name == "red" else 7, seed=1)
    return (
        f"images.sites={tmp_path / 'many'},{tmp_path / 'few'} images.classes=red,green images.size=8 "
        f"model.depth=2 federation.sites=2 evaluation.on=none feddm.ipc=2"
    )


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("method", "section"),
    [
        ("feddm", "feddm.start=real"),
        ("feddm", "feddm.start=mix:2"),
        ("fedsynth", "fedsynth.start=statistics"),
    ],
)
def test_a_site_with_a_small_class_begins_with_real_images_only_where_that_is_asked_for(
    small: Small, folders: str, method: str, section: str
) -> None:
    def rejected(words: str) -> dict[str, str]:
        keys = {"method": method, "dataset": "images", "rounds": 1}
        return run(
            small(**keys, set=f"{folders} fedsynth.rate=3 fedsynth.iterations=1 {words}")
        ).metrics()[-1]["rejected"]

    refused = rejected(section)
    assert list(refused) == ["few"]
    assert refused["few"] == (
        "this site has a class of fewer than 20 images, which would leave nearly as they are where they are the "
        f"start ({method}.start): choose start=noise, or lower data.smallest_class if they may"
    )
    assert rejected(f"{section} data.smallest_class=7") == {}
    assert rejected("") == {}, "from noise nobody is refused"


@pytest.mark.parametrize("words", ["feddm.start=real feddm.ipc=13", "feddm.start=mix:13"])
def test_twice_as_many_as_are_sent_are_asked_for(small: Small, folders: str, words: str) -> None:
    keys = {"dataset": "images", "set": f"{folders} {words}"}
    with pytest.raises(FederationError, match="fewer than 26 images"):
        run(small(**keys, rounds=1))
