"""Whole rounds at a site whose owner deletes: what is left is used, is what was shown, and does not come back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federation import run
from flwr.app import Message
from named_site import served
from PIL import Image
from small import Small
from tampering import with_arrays

from client_app.owner.review import SEND
from common.config.loading import load
from common.division import Division
from common.storage import tensor_file
from common.wire.coders import images_of, levels_of
from nectar.engines.local_grid import LocalGrid
from server_app.record import Record

pytestmark = pytest.mark.promise(
    "Records",
    "What a site's owner left of its images is used, and is what the owner was shown",
)

ONE = "federation.sites=1 data.images=200"
NOISE = "feddm.start=noise feddm.warm=on feddm.iterations=2"
DIFFUSION = (
    "fedssyn.width=2 fedssyn.multipliers=1 fedssyn.blocks=1 fedssyn.attention= fedssyn.epochs=2 fedssyn.batch=32 "
    "fedssyn.diffusion_steps=8 fedssyn.sampling_steps=2 fedssyn.sampler=second-order fedssyn.size=12"
)

#: every method whose sites send images
SENDERS = {
    "feddm": ("feddm", NOISE),
    "feddm of half the size": ("feddm", f"{NOISE} feddm.side=half"),
    "feddm with noise": (
        "feddm",
        f"{NOISE} feddm.mechanism=feature privacy.noise_multiplier=1 privacy.counts=public",
    ),
    "real": ("real", "real.ipc=2"),
    "fedaf": ("fedaf", "fedaf.iterations=2 fedaf.ipc=2 fedaf.start=noise fedaf.local_epochs=1"),
    "fedmix": ("fedmix", "fedmix.mean_of=10 fedmix.epochs=1"),
    "fedssyn, drawn": ("fedssyn", DIFFUSION),
    "fedssyn, distilled": ("fedssyn", f"fedssyn.source=distilled {NOISE}"),
    "fedssyn, condensed": (
        "fedssyn",
        "fedssyn.source=distilled fedssyn.distilled_by=fedaf fedaf.iterations=1 fedaf.ipc=2 fedaf.start=noise",
    ),
}


class Owner:
    """Deletes pictures by a program, and keeps copies of what it was shown and of what it left."""

    def __init__(self, directory: Path, delete: str = "000000.png") -> None:
        self._directory, self.state = directory, directory / "state"
        (directory / "look").mkdir(parents=True)
        program = directory / "look.sh"
        shown, left = directory / "shown", directory / "left"
        program.write_text(
            f'n=$(ls {shown} 2>/dev/null | wc -l)\nmkdir -p {shown} {left}\ncp -r "$1" {shown}/$n\n'
            f'cd "$1" && rm -f {delete}\ncp -r "$1" {left}/$n\n'
        )
        self.node: dict[str, Any] = {
            "state-dir": str(self.state),
            "review-dir": str(directory / "look"),
            "review-command": f"sh {program}",
        }

    def pictures(self, what: str, look: int = 0) -> list[np.ndarray[Any, Any]]:
        folder = self._directory / what / str(look)
        return [np.asarray(Image.open(path)) for path in sorted(folder.glob("*.png"))]

    def readme(self) -> str:
        return (self._directory / "shown" / "0" / "README.txt").read_text()


def config(small: Small, method: str, text: str, rounds: int = 1) -> dict[str, Any]:
    return small(method=method, rounds=rounds, set=f"{ONE} {text}")


def in_its_classes(pictures: list[np.ndarray[Any, Any]]) -> list[bytes]:
    return sorted(picture.tobytes() for picture in pictures)


def sent(message: Message) -> torch.Tensor:
    """Return the images in a reply: the largest of its arrays of four dimensions."""
    arrays = [a.numpy() for a in message.content.array_records["arrays"].values()]
    return torch.from_numpy(
        max((a for a in arrays if a.ndim == 4 and a.shape[1] == 1), key=len).copy()
    )


def levels(small: Small, images: torch.Tensor) -> list[np.ndarray[Any, Any]]:
    if images.dtype == torch.uint8:
        return [image[0].numpy() for image in images]
    info = Division(load(small())).run.info
    constants = tuple(info.mean), tuple(info.std)
    assert torch.equal(images_of(levels_of(images, *constants), *constants), images), "no bit more"
    return [image[0].numpy() for image in levels_of(images, *constants)]


@pytest.mark.sweep
@pytest.mark.parametrize("name", SENDERS)
def test_what_is_left_is_accepted_and_is_what_the_pictures_show(
    small: Small, tmp_path: Path, name: str
) -> None:
    owner = Owner(tmp_path / "site")
    record, replies = served(config(small, *SENDERS[name]), 1, owner.node)
    assert record.metrics()[1]["rejected"] == {}
    shown, left = owner.pictures("shown"), owner.pictures("left")
    assert len(left) == len(shown) - 1 > 0
    leaving = levels(small, sent(replies[0]))
    assert in_its_classes(leaving) == in_its_classes(left)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "name", ["feddm", "feddm with noise", "fedaf", "fedssyn, distilled", "fedssyn, drawn"]
)
def test_a_class_of_which_all_are_deleted_is_missing_and_no_more(
    small: Small, tmp_path: Path, name: str
) -> None:
    """The first two images are a class's, where images are distilled."""
    owner = Owner(tmp_path / "site", "000000.png 000001.png")
    record, _ = served(config(small, *SENDERS[name], rounds=2), 1, owner.node)
    lines = record.metrics()
    assert [line["rejected"] for line in lines[1:]] == [{}, {}]
    assert len(owner.pictures("left")) == len(owner.pictures("shown")) - 2


# ---- what cannot be sent in part ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "text", "delete", "said"),
    [
        ("fedsynth", "fedsynth.iterations=1 fedsynth.rate=2", "000000.png", "whole or not at all"),
        ("feddm", NOISE, "*.png", "withheld all images"),
        ("real", "", "*.png", "withheld all images"),
        (
            "fedaf",
            "fedaf.iterations=1 fedaf.ipc=2 fedaf.start=noise",
            "*.png",
            "withheld all images",
        ),
    ],
)
def test_what_is_nothing_in_part_does_not_leave(
    small: Small, tmp_path: Path, method: str, text: str, delete: str, said: str
) -> None:
    owner = Owner(tmp_path / "site", delete)
    words = f"{text} federation.min_replies=1"
    with pytest.raises(Exception, match=said):
        served(config(small, method, words), 1, owner.node)
    log = map(json.loads, (owner.state / "released.jsonl").read_text().splitlines())
    assert [line["kind"] for line in log] == ["", "error"], "the roll call, and the refusal"


@pytest.mark.sweep
@pytest.mark.parametrize(
    "name", ["fedmix", "fedssyn, drawn", "fedssyn, distilled", "fedssyn, condensed"]
)
def test_a_method_that_can_do_without_goes_on_without(
    small: Small, tmp_path: Path, name: str
) -> None:
    owner = Owner(tmp_path / "site", "*.png")
    record, _ = served(config(small, *SENDERS[name], rounds=3), 1, owner.node)
    assert [line["rejected"] for line in record.metrics()[1:]] == [{}, {}, {}]
    assert owner.pictures("shown")
    assert not owner.pictures("left")


# ---- what the server believes ---------------------------------------------------------------------------


def fewer(instruction: Message, reply: Message) -> Message:
    changed: Message = with_arrays(lambda arrays: [arrays[0], *(a[1:] for a in arrays[1:])])(
        instruction, reply
    )
    return changed


def more(instruction: Message, reply: Message) -> Message:
    def again(arrays: list[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        return [arrays[0], *(np.concatenate([a[:1], a]) for a in arrays[1:])]

    changed: Message = with_arrays(again)(instruction, reply)
    return changed


class Tampered(LocalGrid):
    """A federation of two nodes, real or not; the second one's replies are changed."""

    tamper: Any = None
    node: Any = None

    def node_config(self, node_id: int) -> dict[str, Any]:
        own = super().node_config(node_id)
        return {**own, **(self.node if node_id == self.get_node_ids()[1] else {})}

    def _call(self, message: Message) -> Message:
        reply = super()._call(message)
        if (
            message.metadata.message_type != "train"
            or message.metadata.dst_node_id == self.get_node_ids()[0]
        ):
            return reply
        changed: Message = type(self).tamper(message, reply)
        return changed


@pytest.mark.parametrize(
    ("tamper", "node", "said"),
    [
        (fewer, {}, "1 images of one class were sent where at least 2 are expected"),
        (
            fewer,
            {"simulated": False},
            "1 images of one class were sent where at least 2 are expected",
        ),
        (fewer, {"simulated": False, "review-dir": "/somewhere", "review-command": "true"}, None),
        (fewer, {"review-dir": "/somewhere", "review-command": "true"}, "at least 2 are expected"),
        (
            more,
            {"simulated": False, "review-dir": "/somewhere", "review-command": "true"},
            "3 images of one class",
        ),
    ],
)
def test_only_a_site_that_has_a_review_may_lack_images_and_none_may_send_more(
    small: Small, tmp_path: Path, tamper: Any, node: dict[str, Any], said: str | None
) -> None:
    if "review-dir" in node:
        node = {**node, "review-dir": str(tmp_path / "look")}
    grid = type("Grid", (Tampered,), {"tamper": staticmethod(tamper), "node": node})
    text = f"{NOISE} federation.sites=2 federation.min_replies=1 data.images=200"
    record: Record = run(small(rounds=1, set=text), grid)
    (rejected,) = [line["rejected"] for line in record.metrics()[1:]]
    assert ([said in why for why in rejected.values()] if said else rejected) == (
        [True] if said else {}
    )


# ---- what the site remembers ----------------------------------------------------------------------------


@pytest.mark.sweep
@pytest.mark.parametrize(
    "name", ["feddm", "feddm of half the size", "feddm with noise", "fedssyn, distilled"]
)
def test_what_was_deleted_is_deleted_in_memory_and_the_rest_is_as_it_left(
    small: Small, tmp_path: Path, name: str
) -> None:
    owner = Owner(tmp_path / "site")
    served(config(small, *SENDERS[name]), 1, owner.node)
    (path,) = owner.state.rglob("000001.safetensors")
    kept = tensor_file.load(path)[0]
    (images,) = (t for name, t in kept.items() if name.endswith("images"))
    (labels,) = (t for name, t in kept.items() if name.endswith("labels"))
    assert len(images) == len(labels)
    assert in_its_classes(levels(small, images)) == in_its_classes(owner.pictures("left"))


@pytest.mark.parametrize("name", ["feddm", "feddm with noise"])
def test_it_does_not_come_back(small: Small, tmp_path: Path, name: str) -> None:
    """In a second round that moves nothing: all others do, and under noise another of the class takes its place."""
    method, text = SENDERS[name]
    owner = Owner(tmp_path / "site")
    served(config(small, method, f"{text} feddm.iterations=0", rounds=2), 1, owner.node)
    first, second = (owner.pictures("shown", look) for look in (0, 1))
    again = {picture.tobytes() for picture in second}
    assert [p.tobytes() in again for p in first] == [False] + [True] * (len(first) - 1)
    assert len(second) == len(first) - (name == "feddm")


@pytest.mark.extended
def test_a_generators_images_are_deleted_where_other_runs_find_them(
    small: Small, tmp_path: Path
) -> None:
    owner = Owner(tmp_path / "site")
    for number in (1, 2):
        served(config(small, *SENDERS["fedssyn, drawn"]), number, owner.node)
    first, second = (owner.pictures("shown", look) for look in (0, 1))
    assert in_its_classes(second) == in_its_classes(first[1:])


def test_the_folder_says_that_deleting_is_outside_of_epsilon(small: Small, tmp_path: Path) -> None:
    for name, message in (("feddm", False), ("feddm with noise", True)):
        owner = Owner(tmp_path / str(message))
        served(config(small, *SENDERS[name]), 1, owner.node)
        assert ("outside of that epsilon" in owner.readme()) == message
        assert SEND in owner.readme()
