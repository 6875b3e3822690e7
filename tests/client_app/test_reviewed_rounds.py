"""Whole rounds at a site whose owner looks: what leaves, whatever the method, is what the pictures show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message
from named_site import served
from PIL import Image
from small import Small

from common.config.loading import load
from common.division import Division
from common.wire.coders import images_of, levels_of

pytestmark = pytest.mark.promise("Records", "Reviewed pictures: all leave or none, as shown")

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
    "fedsynth": ("fedsynth", "model.norm=none fedsynth.iterations=1 fedsynth.rate=2"),
    "fedssyn, drawn": ("fedssyn", DIFFUSION),
    "fedssyn, distilled": ("fedssyn", f"fedssyn.source=distilled {NOISE}"),
    "fedssyn, condensed": (
        "fedssyn",
        "fedssyn.source=distilled fedssyn.distilled_by=fedaf fedaf.iterations=1 fedaf.ipc=2 fedaf.start=noise",
    ),
}


class Owner:
    """Decides by a program that keeps copies of what it was shown."""

    def __init__(self, directory: Path, refuse: bool = False) -> None:
        self._shown, self.state = directory / "shown", directory / "state"
        self._shown.mkdir(parents=True)
        program = directory / "look.sh"
        copy = f'cp -r "$1" {self._shown}/$(ls {self._shown} | wc -l)'
        program.write_text(f"{copy}\nexit {int(refuse)}\n")
        self.node: dict[str, Any] = {
            "state-dir": str(self.state),
            "review-dir": str(directory / "look"),
            "review-command": f"sh {program}",
        }

    def pictures(self) -> list[np.ndarray[Any, Any]]:
        return [np.asarray(Image.open(path)) for path in sorted((self._shown / "0").glob("*.png"))]


def config(small: Small, method: str, text: str, rounds: int = 1) -> dict[str, Any]:
    return small(method=method, rounds=rounds, set=f"{ONE} {text}")


def sent(message: Message) -> torch.Tensor:
    """Return the images in a reply: the largest of its arrays that are images."""
    arrays = [a.numpy() for a in message.content.array_records["arrays"].values()]
    images = [a.reshape(-1, *a.shape[-3:]) for a in arrays if a.ndim > 3 and a.shape[-3] == 1]
    return torch.from_numpy(max(images, key=len).copy())


def levels(small: Small, images: torch.Tensor) -> list[np.ndarray[Any, Any]]:
    if images.dtype == torch.uint8:
        return [image[0].numpy() for image in images]
    info = Division(load(small())).run.info
    constants = tuple(info.mean), tuple(info.std)
    assert torch.equal(images_of(levels_of(images, *constants), *constants), images), "no bit more"
    return [image[0].numpy() for image in levels_of(images, *constants)]


@pytest.mark.sweep
@pytest.mark.parametrize("name", SENDERS)
def test_what_leaves_is_accepted_and_is_what_the_pictures_show(
    small: Small, tmp_path: Path, name: str
) -> None:
    owner = Owner(tmp_path / "site")
    record, replies = served(config(small, *SENDERS[name]), 1, owner.node)
    assert record.metrics()[1]["rejected"] == {}
    shown = owner.pictures()
    assert shown
    leaving = levels(small, sent(replies[0]))
    assert sorted(p.tobytes() for p in leaving) == sorted(p.tobytes() for p in shown)


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["real", "feddm", "fedmix", "fedssyn, drawn"])
def test_what_is_refused_does_not_leave(small: Small, tmp_path: Path, name: str) -> None:
    method, text = SENDERS[name]
    owner = Owner(tmp_path / "site", refuse=True)
    with pytest.raises(Exception, match="has looked at the images and refused"):
        served(config(small, method, f"{text} federation.min_replies=1"), 1, owner.node)
    log = map(json.loads, (owner.state / "released.jsonl").read_text().splitlines())
    assert [line["kind"] for line in log] == ["", "error"], "the roll call, and the refusal"
