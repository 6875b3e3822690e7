"""The owner's look at images before they leave: a folder of pictures, and a word or a command of the owner's.

What the owner deletes there does not leave, and what leaves is what was shown. Without a word in time nothing does; a
later one counts when the server asks again.
"""

from __future__ import annotations

import hashlib
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from PIL import Image
from torch import Tensor

from client_app.owner.node_config import NodeConfig
from common.data.user.rows import csv_of_rows, rounded_as_csv
from common.errors import FederationError
from common.samples.dataset import DatasetInfo
from common.wire.bundle import Bundle
from common.wire.coders import images_of, levels_of
from common.wire.form import CarriesExamples, Payload
from common.wire.images import Pixels, SyntheticImages

SEND, REFUSE = "send", "refuse"
"""The names of the files by which an owner says that what is left may leave, or that nothing may."""

#: seconds that an owner has, where the node config does not say
_PATIENCE = 600

#: seconds between two looks at the folder, and those left of the round's time when it is given up
_LOOK, _MARGIN = 0.5, 5.0

_WORDS = f"""These images are about to leave this site. Delete those that must not.
Then make an empty file called {SEND} here, and what is left is sent; one called {REFUSE}, and nothing is.
What is sent is what these files show, and no more. What you delete is deleted in this site's memory of the run, too.
"""

_OUTSIDE = """This run states an epsilon for what leaves. No noise covers your choice of what to delete: that an image
is missing may tell of your data, and is outside of that epsilon.
"""


@dataclass(frozen=True)
class Look:
    """What is known of a payload that an owner is to look at: ``name`` is of the record and the site.

    ``left`` returns the seconds that are left of the round, ``optional`` are the parts that may be missing, ``private``
    says whether the run states an epsilon, and ``sent`` is given each set of images as they were made and as they were
    shown, and the positions of those that leave.
    """

    name: str
    info: DatasetInfo
    left: Callable[[], float]
    optional: frozenset[str] = frozenset()
    private: bool = False
    sent: Callable[[Tensor, Tensor, Tensor], object] = lambda made, shown, kept: None


@dataclass(frozen=True)
class Review:
    """What a site's owner wants to see before it leaves.

    Parameters
    ----------
    directory : Path
        Where the folders of pictures are put, one for each set that is to leave.
    command : tuple of str
        What decides in the owner's place, called with the folder as its last word; empty if the owner does.
    seconds : int
        How long a word of the owner's is waited for, or the command.
    """

    directory: Path
    command: tuple[str, ...] = ()
    seconds: int = _PATIENCE

    @classmethod
    def of(cls, node: NodeConfig) -> Self | None:
        """Read a node config; None if its owner does not ask for a look.

        Raises
        ------
        FederationError
            If a command or a time is named without a folder, or the command's quotes are not closed.
        """
        if node.review_dir is None:
            for key in ("review_command", "review_seconds"):
                if key in node.model_fields_set:
                    raise FederationError(
                        f"the node config names {key.replace('_', '-')} and no review-dir: name the folder, too"
                    )
            return None
        try:
            command = shlex.split(node.review_command or "")
        except ValueError as error:
            raise FederationError(
                f"the node config's review-command cannot be split into words: {error}"
            ) from None
        return cls(node.review_dir, tuple(command), node.review_seconds or _PATIENCE)

    def kept(self, payload: Payload, look: Look) -> Payload:
        """Return of ``payload`` what its owner lets leave, as it was shown.

        Raises
        ------
        FederationError
            If the owner refuses, says nothing in time, or takes something out of what is sent whole or not at all.
        """
        found = self._part(payload, look)
        if found is None:
            raise FederationError("this site's owner has withheld all images")
        return found

    def _part(self, part: Payload, look: Look, *, inner: bool = False) -> Payload | None:
        """Return the part that may leave; None if all of its images were taken out, and it may not lack them."""
        if isinstance(part, Bundle):
            parts = {n: self._part(p, look, inner=True) for n, p in part.parts.items()}
            gone = {name for name, left in parts.items() if left is None}
            if gone and (inner or not gone <= look.optional):
                return None
            return Bundle({n: inside for n, inside in parts.items() if inside is not None})
        info = look.info
        if not (isinstance(part, CarriesExamples) and info.has_values):
            return part
        made = part.examples.cpu()
        if not len(made):
            return None
        shown, examples = _shown_of(part, made, info)
        folder = self._shown(examples, look)
        self._decided(folder, look.left)
        positions = [i for i in range(len(examples)) if _shown_as(folder, i, info).is_file()]
        shutil.rmtree(folder)
        kept = torch.tensor(positions, dtype=torch.int64)
        look.sent(made, examples, kept)
        return shown if len(kept) == len(examples) else _only(shown, kept)

    def _shown(self, examples: Tensor, look: Look) -> Path:
        """Write the pictures, unless they have been shown before, and return their folder."""
        name, info = look.name, look.info
        digest = hashlib.sha256(examples.contiguous().numpy().tobytes()).hexdigest()[:12]
        folder = self.directory / f"{name}-{digest}"
        if folder.is_dir():
            return folder
        begun = self.directory / f".{folder.name}"
        shutil.rmtree(begun, ignore_errors=True)
        begun.mkdir(parents=True)
        if info.has_images:
            for index, image in enumerate(levels_of(examples, tuple(info.mean), tuple(info.std))):
                _drawn(image).save(_shown_as(begun, index, info))
        else:
            for index in range(len(examples)):
                text = csv_of_rows(examples[index : index + 1], [""], info)
                _shown_as(begun, index, info).write_text(text, encoding="utf-8")
        (begun / "README.txt").write_text(_WORDS + _OUTSIDE * look.private, encoding="utf-8")
        begun.rename(folder)
        return folder

    def _decided(self, folder: Path, left: Callable[[], float]) -> None:
        """Return when what is left in ``folder`` may leave."""
        if self.command:
            self._asked_command(folder, min(self.seconds, left() - _MARGIN))
            return
        end = time.monotonic() + self.seconds
        while not (folder / SEND).exists():
            if (folder / REFUSE).exists():
                shutil.rmtree(folder)
                raise FederationError("this site's owner has looked at the images and refused them")
            if time.monotonic() > end or left() < _MARGIN:
                raise FederationError(
                    "this site's owner has not looked at the images yet: they leave once that is done and they are "
                    "asked for again"
                )
            time.sleep(_LOOK)

    def _asked_command(self, folder: Path, seconds: float) -> None:
        try:
            done = subprocess.run(
                [*self.command, str(folder)],
                timeout=max(1.0, seconds),
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except (OSError, subprocess.TimeoutExpired):
            raise FederationError(
                "this site's review-command cannot be run, or takes too long, and nothing leaves without it"
            ) from None
        if done.returncode:
            shutil.rmtree(folder)
            raise FederationError("this site's review-command has refused the images")


def _shown_of(part: Payload, made: Tensor, info: DatasetInfo) -> tuple[Payload, Tensor]:
    """Return a payload of what a picture's bytes, or a table's digits, show of ``made``, and these examples."""
    if isinstance(part, Pixels):  # bytes, as they are shown
        return part, made
    by = tuple(info.mean), tuple(info.std)
    shown = images_of(levels_of(made, *by), *by) if info.has_images else rounded_as_csv(made, info)
    showing = getattr(part, "showing", None)
    if showing is not None:
        return showing(shown), shown
    raise FederationError(
        "this site's owner looks at what leaves, and this method's examples cannot be sent as they were shown: choose "
        "another method, or run without this site"
    )


def _shown_as(folder: Path, index: int, info: DatasetInfo) -> Path:
    """Return the file of an example: a picture, or of a row or a series a table of its raw values."""
    return folder / f"{index:06d}.{'png' if info.has_images else 'csv'}"


def _drawn(image: Tensor) -> Image.Image:
    array = image[0] if len(image) == 1 else image.permute(1, 2, 0)
    return Image.fromarray(array.contiguous().numpy())


def _only(part: Payload, positions: Tensor) -> Payload | None:
    """Return the images of ``part`` at ``positions``; None if there are none."""
    if not len(positions):
        return None
    if isinstance(part, Pixels | SyntheticImages):
        return part.at(positions)
    raise FederationError(
        "this site's owner has taken images out of a set that is sent whole or not at all: nothing leaves"
    )
