"""An owner's look at images before they leave: what is deleted stays, silence sends nothing, a later word counts."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from real_site import Site
from small import Small

import client_app.owner.review
from client_app.owner.review import REFUSE, SEND, Look, Review
from common.config.loading import load
from common.division import Division
from common.errors import FederationError
from common.samples.dataset import DatasetInfo
from common.specs.fedsynth import SyntheticBatches
from common.wire.bundle import Bundle
from common.wire.coders import images_of, levels_of
from common.wire.form import Payload
from common.wire.images import Pixels, SyntheticImages
from common.wire.tensors import Tensors

MEAN, STD = (0.5,), (0.25,)
INFO = DatasetInfo("tiny", (1, 2, 2), ("a", "b"), MEAN, STD, 255.0)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_app.owner.review, "_LOOK", 0.01)


def pixels(n: int = 3) -> Pixels:
    values = torch.arange(4 * n, dtype=torch.uint8).reshape(n, 1, 2, 2) * 20
    return Pixels(values, torch.arange(n) % 2, MEAN, STD)


def shown(root: Path) -> Iterator[Path]:
    return (path for path in root.iterdir() if not path.name.startswith("."))


def owner(root: Path, act: Callable[[Path], object]) -> threading.Thread:
    """Let somebody look into the folder as soon as it is there."""

    def look() -> None:
        while not (root.is_dir() and any(shown(root))):
            time.sleep(0.01)
        act(next(shown(root)))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    return thread


def deletes(*indices: int) -> Callable[[Path], None]:
    def act(folder: Path) -> None:
        for index in indices:
            (folder / f"{index:06d}.png").unlink()
        (folder / SEND).touch()

    return act


def kept(
    review: Review, payload: Payload, left: float = math.inf, optional: frozenset[str] = frozenset()
) -> Payload:
    return review.kept(payload, Look("run-north", INFO, lambda: left, optional))


def test_the_pictures_are_what_would_leave(tmp_path: Path) -> None:
    found: list[np.ndarray[Any, Any]] = []

    def looks(folder: Path) -> None:
        found.extend(np.asarray(Image.open(p)) for p in sorted(folder.glob("*.png")))
        (folder / SEND).touch()

    owner(tmp_path, looks)
    sent = pixels()
    assert kept(Review(tmp_path), sent) is sent
    assert np.array_equal(np.stack(found), sent.values[:, 0].numpy())
    assert not any(shown(tmp_path)), "nothing is left lying about"


def test_rows_are_shown_as_tables_in_raw_values_and_cut_likewise(tmp_path: Path) -> None:
    info = DatasetInfo(
        *("tiny", (2, 1, 1), ("a", "b"), (5.0, 0.0), (5.0, 2.0), 1.0),
        arrays="table",
        columns=("=x", "y"),
    )
    rows = torch.tensor([[1.0, 0.5], [0.0, -1.0]])[:, :, None, None]
    found: list[str] = []

    def looks(folder: Path) -> None:
        found.extend(path.read_text() for path in sorted(folder.glob("*.csv")))
        (folder / "000000.csv").unlink()
        (folder / SEND).touch()

    owner(tmp_path, looks)
    sent = SyntheticImages(rows, torch.tensor([0, 1]))
    got = Review(tmp_path).kept(sent, Look("run-north", info, lambda: math.inf))
    assert found == ["class,'=x,y\n,10,1\n", "class,'=x,y\n,5,-2\n"]
    assert isinstance(got, SyntheticImages)
    assert torch.equal(got.images, rows[1:])


def test_what_the_owner_deletes_does_not_leave(tmp_path: Path) -> None:
    owner(tmp_path, deletes(1))
    got = kept(Review(tmp_path), pixels())
    assert isinstance(got, Pixels)
    assert torch.equal(got.values, pixels().values[[0, 2]])
    assert got.labels.tolist() == [0, 0]


def test_images_of_the_models_space_are_cut_as_well(tmp_path: Path) -> None:
    images = SyntheticImages(torch.randn(4, 1, 2, 2), torch.tensor([0, 1, 0, 1]), "float16")
    owner(tmp_path, deletes(0, 3))
    got = kept(Review(tmp_path), images)
    assert isinstance(got, SyntheticImages)
    shown = images_of(levels_of(images.images[1:3], MEAN, STD), MEAN, STD)
    assert torch.equal(got.images, shown)
    assert (got.labels.tolist(), got.codec) == ([1, 0], "float16")


def test_of_a_bundle_the_images_alone_are_shown_and_may_be_withheld_altogether(
    tmp_path: Path,
) -> None:
    owner(tmp_path, deletes(0, 1, 2))
    payload = Bundle({"size": Tensors({"n": torch.tensor(1)}), "images": pixels()})
    got = kept(Review(tmp_path), payload, optional=frozenset({"images"}))
    assert isinstance(got, Bundle)
    assert list(got.parts) == ["size"]


def test_where_the_rest_is_nothing_without_them_nothing_leaves(tmp_path: Path) -> None:
    """The optional part of the same name is the payload's own, and not one inside another."""
    owner(tmp_path, deletes(0, 1, 2))
    inside = Bundle({"size": Tensors({"n": torch.tensor(1)}), "images": pixels()})
    with pytest.raises(FederationError, match="withheld all images"):
        kept(Review(tmp_path), Bundle({"made": inside}), optional=frozenset({"images"}))


def test_so_are_those_of_a_bundle_inside_another(tmp_path: Path) -> None:
    owner(tmp_path, deletes(0, 2))
    inside = Bundle({"size": Tensors({"n": torch.tensor(1)}), "images": pixels()})
    got = kept(Review(tmp_path), Bundle({"made": inside}))
    assert isinstance(got, Bundle)
    left = got.part("made", Bundle)
    assert list(left.parts) == ["size", "images"]
    assert len(left.part("images", Pixels).labels) == 1


def test_a_set_of_images_alone_that_is_withheld_altogether_is_a_refusal(tmp_path: Path) -> None:
    owner(tmp_path, deletes(0, 1, 2))
    with pytest.raises(FederationError, match="withheld all images"):
        kept(Review(tmp_path), pixels())


def test_what_is_sent_whole_or_not_at_all_does_not_leave_in_part(tmp_path: Path) -> None:
    batches = SyntheticBatches(
        torch.randn(2, 2, 1, 2, 2), torch.zeros(2, 2, dtype=torch.int64), None
    )
    owner(tmp_path, deletes(3))
    with pytest.raises(FederationError, match="whole or not at all"):
        kept(Review(tmp_path), batches)


def test_the_owner_refuses(tmp_path: Path) -> None:
    owner(tmp_path, lambda folder: (folder / REFUSE).touch())
    with pytest.raises(FederationError, match="has looked at the images and refused"):
        kept(Review(tmp_path), pixels())
    assert not any(shown(tmp_path))


@pytest.mark.parametrize(("seconds", "left"), [(1, math.inf), (600, 1.0)])
def test_silence_sends_nothing_and_a_later_word_counts(
    tmp_path: Path, seconds: int, left: float
) -> None:
    """Silence of as long as the owner may take, or as the round lasts."""
    review = Review(tmp_path, seconds=seconds)
    with pytest.raises(FederationError, match="has not looked at the images yet"):
        kept(review, pixels(), left)
    (folder,) = shown(tmp_path)
    deletes(2)(folder)
    got = kept(review, pixels())
    assert isinstance(got, Pixels)
    assert len(got.labels) == 2
    with pytest.raises(FederationError, match="not looked"):
        kept(review, pixels(2), 1.0)


def test_other_images_are_another_look(tmp_path: Path) -> None:
    for n in (1, 2):
        with pytest.raises(FederationError, match="not looked"):
            kept(Review(tmp_path), pixels(n), 1.0)
    assert len(list(shown(tmp_path))) == 2


DELETES_DARK = """
import sys
from pathlib import Path
from PIL import Image
for path in Path(sys.argv[1]).glob("*.png"):
    if Image.open(path).getextrema()[1] < 100:
        path.unlink()
"""


@pytest.mark.parametrize(
    ("program", "outcome"),
    [
        (DELETES_DARK, [1, 0]),
        ("raise SystemExit(3)", "has refused the images"),
        ("import time; time.sleep(60)", "takes too long"),
    ],
)
def test_a_command_decides_in_the_owners_place(
    tmp_path: Path, program: str, outcome: list[int] | str
) -> None:
    file = tmp_path / "look.py"
    file.write_text(program)
    seconds = 1 if "sleep" in program else 60
    review = Review(tmp_path / "seen", (sys.executable, str(file)), seconds)
    if isinstance(outcome, list):
        got = kept(review, pixels())
        assert isinstance(got, Pixels)
        assert got.labels.tolist() == outcome
    else:
        with pytest.raises(FederationError, match=outcome):
            kept(review, pixels())


def test_a_command_that_is_not_there_lets_nothing_through(tmp_path: Path) -> None:
    with pytest.raises(FederationError, match="cannot be run"):
        kept(Review(tmp_path, ("/nowhere/at/all",)), pixels())


def vars_of(config: dict[str, Any]) -> tuple[Any, Any]:
    info = Division(load(config)).run.info
    return info.mean, info.std


def test_a_real_site_sends_what_its_owner_left(small: Small, tmp_path: Path) -> None:
    look = tmp_path / "look"
    owner(look, deletes(0))
    config = small(method="real", set="real.ipc=2")
    whole = Site(config).train("draw").content.array_records["arrays"]
    cut = Site(config, **{"review-dir": str(look)}).train("draw").content.array_records["arrays"]
    images, fewer = (list(record.values())[1].numpy() for record in (whole, cut))
    mean, std = map(tuple, vars_of(config))
    whole_bytes, cut_bytes = (
        levels_of(torch.from_numpy(i.copy()), mean, std) for i in (images, fewer)
    )
    assert torch.equal(cut_bytes, whole_bytes[1:])


def test_weights_are_sent_without_a_look(small: Small, tmp_path: Path) -> None:
    site = Site(small(method="fedavg"), **{"review-dir": str(tmp_path / "look")})
    assert not site.train("train").has_error()
    assert not (tmp_path / "look").exists()
