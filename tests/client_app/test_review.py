"""An owner's look at images before they leave: all leave or none, silence sends nothing, a later word counts."""

from __future__ import annotations

import json
import math
import stat
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from real_site import Site
from small import Small

import client_app.owner.review
from client_app.owner.review import QUESTIONS, Review
from common.errors import FederationError
from common.samples.dataset import DatasetInfo
from common.wire.bundle import Bundle
from common.wire.coders import images_of, levels_of
from common.wire.form import Payload
from common.wire.images import Pixels, SyntheticImages
from common.wire.tensors import Tensors
from nectar.cli import main
from nectar.engines.site.approval import Question

pytestmark = pytest.mark.promise("Records", "Reviewed pictures: all leave or none, as shown")

MEAN, STD = (0.5,), (0.25,)
INFO = DatasetInfo("tiny", (1, 2, 2), ("a", "b"), MEAN, STD, 255.0)
TABLE = DatasetInfo(
    *("tiny", (2, 1, 1), ("a", "b"), (5.0, 0.0), (5.0, 2.0), 1.0),
    arrays="table",
    columns=("=x", "y"),
)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_app.owner.review, "_LOOK", 0.01)


@pytest.fixture
def review(tmp_path: Path) -> Review:
    return Review(tmp_path / "look", tmp_path / "state", run=7, seconds=60)


def pixels(n: int = 3) -> Pixels:
    values = torch.arange(4 * n, dtype=torch.uint8).reshape(n, 1, 2, 2) * 20
    return Pixels(values, torch.arange(n) % 2, MEAN, STD)


def asked(review: Review) -> list[Question]:
    """Return what the owner is asked, as the command reads it."""
    found = map(Question.read, (review.state / QUESTIONS).glob("[0-9]*.json"))
    return [question for question in found if question is not None]


def say(review: Review, *more: str) -> None:
    """Answer what is open as its owner does."""
    (question,) = (question for question in asked(review) if not question.word)
    words = [str(question.run), question.digest[:16], "--state", str(review.state)]
    assert main(["site", "approve", *words, *more]) == 0


def owner(review: Review, act: Callable[[Path], object] = lambda folder: None, *more: str) -> None:
    """Let somebody look into the folder once they are asked, ``act`` on it and say yes; ``--refuse``: no."""

    def look() -> None:
        while not any(not question.word for question in asked(review)):
            time.sleep(0.01)
        act(next(path for path in review.directory.iterdir() if path.name[0] != "."))
        say(review, *more)

    threading.Thread(target=look, daemon=True).start()


def sent(
    review: Review, payload: Payload, left: float = math.inf, info: DatasetInfo = INFO
) -> Payload:
    return review.let_through(payload, "run-north", info, lambda: left)


def test_the_pictures_are_what_would_leave(review: Review) -> None:
    found: list[np.ndarray[Any, Any]] = []

    def look(folder: Path) -> None:
        found.extend(np.asarray(Image.open(p)) for p in sorted(folder.glob("*.png")))

    owner(review, look)
    images = pixels()
    assert sent(review, images) is images
    assert np.array_equal(np.stack(found), images.values[:, 0].numpy())
    assert not [*review.directory.iterdir()], "nothing is left lying about"
    assert sent(review, images, 1.0) is images, "the same again needs no other word"


def test_what_leaves_is_what_was_shown_and_no_bit_more(review: Review) -> None:
    """Of all sets in a bundle, those of a bundle inside it too; what is no example is as it was."""
    images = SyntheticImages(torch.randn(4, 1, 2, 2), torch.tensor([0, 1, 0, 1]), "float16")
    size = Tensors({"n": torch.tensor(1)})
    owner(review, lambda folder: shown.extend(folder.iterdir()))
    shown: list[Path] = []
    got = sent(review, Bundle({"made": Bundle({"size": size, "images": images}), "own": pixels()}))
    assert isinstance(got, Bundle)
    inside = got.part("made", Bundle)
    assert inside.parts["size"] is size
    left = inside.part("images", SyntheticImages)
    assert torch.equal(left.images, images_of(levels_of(images.images, MEAN, STD), MEAN, STD))
    assert (left.labels.tolist(), left.codec) == ([0, 1, 0, 1], "float16")
    assert len(shown) == 7


def test_rows_are_shown_as_tables_in_raw_values(review: Review) -> None:
    rows = torch.tensor([[1.0, 0.5], [0.0, -1.0]])[:, :, None, None]
    found: list[str] = []
    owner(review, lambda folder: found.extend(p.read_text() for p in sorted(folder.iterdir())))
    got = sent(review, SyntheticImages(rows, torch.tensor([0, 1])), info=TABLE)
    assert found == ["class,'=x,y\n,10,1\n", "class,'=x,y\n,5,-2\n"]
    assert isinstance(got, SyntheticImages)
    assert torch.equal(got.images, rows)


def test_the_question_is_its_owners_alone_and_is_listed_with_those_on_runs(
    review: Review, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(FederationError, match="not looked"):
        sent(review, pixels(), 1.0)
    (path,) = (review.state / QUESTIONS).iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    (folder,) = review.directory.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert main(["site", "approve", "--state", str(review.state)]) == 0
    listed = capsys.readouterr().out
    assert f"run 7, until {asked(review)[0].end}:" in listed
    assert f"3 pictures in {folder} show: all of it, or none" in listed


def test_the_owner_refuses(review: Review) -> None:
    owner(review, lambda folder: None, "--refuse")
    for _ in range(2):  # the second time without being asked
        with pytest.raises(FederationError, match="has looked at the images and refused"):
            sent(review, pixels())
    assert not [*review.directory.iterdir()]


def test_pictures_that_were_deleted_let_nothing_leave(review: Review) -> None:
    """As the owner of an earlier release did who held one back: a yes to the rest is none to all."""
    owner(review, lambda folder: (folder / "000001.png").unlink())
    with pytest.raises(FederationError, match="all of them leave, or none"):
        sent(review, pixels())


@pytest.mark.parametrize(("seconds", "left"), [(1, math.inf), (600, 1.0)])
def test_silence_sends_nothing_and_a_later_word_counts(
    tmp_path: Path, seconds: int, left: float
) -> None:
    """Silence of as long as the owner may take, or as the round lasts; also where another run goes on by then."""
    review = Review(tmp_path / "look", tmp_path / "state", run=7, seconds=seconds)
    with pytest.raises(FederationError, match="has not looked at the images yet"):
        sent(review, pixels(), left)
    say(review)
    resumed, images = Review(review.directory, review.state, run=8), pixels()
    assert sent(resumed, images, 1.0) is images
    with pytest.raises(FederationError, match="not looked"):
        sent(review, pixels(2), 1.0)


def test_no_word_is_taken_for_other_images(review: Review) -> None:
    with pytest.raises(FederationError, match="not looked"):
        sent(review, pixels(), 1.0)
    say(review)
    other = pixels()
    other.values[2, 0, 1, 1] += 1
    for payload, name in ((other, "run-north"), (pixels(2), "run-north"), (pixels(), "run-south")):
        with pytest.raises(FederationError, match="not looked"):
            review.let_through(payload, name, INFO, lambda: 1.0)
    assert len(asked(review)) == 4


def test_an_answer_whose_name_fits_and_whose_hash_does_not_is_none(review: Review) -> None:
    with pytest.raises(FederationError, match="not looked"):
        sent(review, pixels(), 1.0)
    (path,) = (review.state / QUESTIONS).iterdir()
    question = json.loads(path.read_text())
    path.write_text(json.dumps({**question, "digest": "0" * 64, "word": "approve"}))
    with pytest.raises(FederationError, match="not looked"):
        sent(review, pixels(), 1.0)


@pytest.mark.parametrize(
    ("program", "outcome"),
    [
        ("pass", ""),
        ("raise SystemExit(3)", "has looked at the images and refused"),
        ("import time; time.sleep(60)", "takes too long"),
        (
            "import sys; from pathlib import Path; next(Path(sys.argv[1]).glob('*.png')).unlink()",
            "all of them leave, or none",
        ),
    ],
)
def test_a_command_decides_in_the_owners_place(tmp_path: Path, program: str, outcome: str) -> None:
    command = (sys.executable, "-c", program)
    seconds = 1 if "sleep" in program else 60
    review = Review(tmp_path / "look", tmp_path / "state", 7, command, seconds)
    images = pixels()
    if not outcome:
        assert sent(review, images) is images
        return
    with pytest.raises(FederationError, match=outcome):
        sent(review, images)


def test_a_command_that_is_not_there_lets_nothing_through(tmp_path: Path) -> None:
    review = Review(tmp_path / "look", tmp_path / "state", 7, ("/nowhere/at/all",))
    with pytest.raises(FederationError, match="cannot be run"):
        sent(review, pixels())


def test_weights_are_sent_without_a_look(small: Small, tmp_path: Path) -> None:
    node = {"review-dir": str(tmp_path / "look"), "state-dir": str(tmp_path / "state")}
    assert not Site(small(method="fedavg"), **node).train("train").has_error()
    assert not (tmp_path / "look").exists()
