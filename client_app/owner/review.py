"""The owner's look at images before they leave: pictures of all of them, and one yes or no.

The question is a file beside those on runs, in the form in which `nectar.engines.site.approval` keeps them, and is
answered by the same command, ``nectar site approve``. What leaves is what was shown. Without a word in time nothing
does; a later one counts when the server asks for the same images again.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from logging import getLogger
from pathlib import Path
from typing import Self

from PIL import Image
from torch import Tensor

from client_app.owner.node_config import NodeConfig
from common.data.user.rows import csv_of_rows, rounded_as_csv
from common.errors import FederationError
from common.samples.dataset import DatasetInfo
from common.storage.files import read_regular
from common.wire.bundle import Bundle
from common.wire.coders import images_of, levels_of
from common.wire.form import CarriesExamples, Payload
from common.wire.images import Pixels

logger = getLogger("flwr")

QUESTIONS, APPROVE, DIGITS = "approvals", "approve", 16
"""The folder, the word, and the digits of a hash that an owner types: those of `nectar.engines.site.approval`."""

#: seconds that an owner has, where the node config does not say
_PATIENCE = 600

#: seconds between two looks for a word, and those left of the round's time when it is given up
_LOOK, _MARGIN = 0.5, 5.0


@dataclass(frozen=True)
class Review:
    """What a site's owner wants to see before it leaves.

    Parameters
    ----------
    directory : Path
        Where the folders of pictures are put, one for each payload that is to leave.
    state : Path
        The site's state directory, which holds the question to its owner.
    run : int
        Flower's number of the run.
    command : tuple of str
        What decides in the owner's place, called with the folder as its last word; empty if the owner does.
    seconds : int
        How long a word of the owner's is waited for, or the command.
    """

    directory: Path
    state: Path
    run: int = 0
    command: tuple[str, ...] = ()
    seconds: int = _PATIENCE

    @classmethod
    def of(cls, node: NodeConfig, run: int = 0) -> Self | None:
        """Read a node config; None if its owner does not ask for a look.

        Raises
        ------
        FederationError
            If a command or a time is named without a folder, or a folder without a state-dir, or the command's quotes
            are not closed.
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
        if node.state_dir is None:
            raise FederationError(
                "the node config names review-dir and no state-dir, which holds the question to its owner: name one"
            )
        seconds = node.review_seconds or _PATIENCE
        return cls(node.review_dir, node.state_dir, run, tuple(command), seconds)

    def let_through(
        self, payload: Payload, name: str, info: DatasetInfo, left: Callable[[], float]
    ) -> Payload:
        """Return ``payload`` as it was shown, once its owner lets all of it leave; unchanged without examples.

        Parameters
        ----------
        name : str
            Of the record and the site: what was said of other ones' images does not count.
        left : callable
            Returns the seconds that are left of the round.

        Raises
        ------
        FederationError
            If the owner refuses, deletes a picture, or says nothing in time.
        """
        shown, sets = _as_shown(payload, info)
        if not sets:
            return payload
        digest = hashlib.sha256(name.encode())
        for examples in sets:
            digest.update(f"\n{list(examples.shape)}\n".encode())
            digest.update(examples.contiguous().numpy().tobytes())
        folder = self.directory / f"{name}-{digest.hexdigest()[:DIGITS]}"
        ending = "png" if info.has_images else "csv"
        files = [folder / f"{index:06d}.{ending}" for index in range(sum(map(len, sets)))]
        complete = True
        if not (word := self._word(digest.hexdigest())):
            if not folder.is_dir():
                _write_pictures(files, sets, info)
            if self.command:
                word = self._word_of_command(folder, min(self.seconds, left() - _MARGIN))
            else:
                word = self._word_of_owner(folder, len(files), digest.hexdigest(), left)
            complete = all(file.is_file() for file in files)
        shutil.rmtree(folder, ignore_errors=True)
        if word != APPROVE:
            raise FederationError("this site's owner has looked at the images and refused them")
        if not complete:
            raise FederationError(
                "this site's owner has deleted pictures of what was to leave: all of them leave, or none"
            )
        return shown

    def _word(self, digest: str) -> str | None:
        """Return the owner's decision on these very images, empty while it is pending; None without a question."""
        for path in (self.state / QUESTIONS).glob(f"*-{digest[:DIGITS]}.json"):
            with suppress(OSError, ValueError, KeyError, TypeError):
                question = json.loads(read_regular(path))
                if question["digest"] == digest:  # the name has a part of it
                    return str(question["word"])
        return None

    def _word_of_owner(
        self, folder: Path, count: int, digest: str, left: Callable[[], float]
    ) -> str:
        if self._word(digest) is None:
            self._ask(f"{count} pictures in {folder}", digest)
        end = time.monotonic() + self.seconds
        while not (word := self._word(digest)):
            if time.monotonic() > end or left() < _MARGIN:
                raise FederationError(
                    "this site's owner has not looked at the images yet: they leave once that is done and they are "
                    "requested again"
                )
            time.sleep(_LOOK)
        return word

    def _ask(self, what: str, digest: str) -> None:
        """Write the question atomically, for its owner and this user alone, and log how to answer it."""
        answer = f"nectar site approve {self.run} {digest[:DIGITS]} --state {self.state}"
        question = {
            "run": self.run,
            "digest": digest,
            "until": time.time() + self.seconds,
            "own": False,
            "methods": [],
            "lines": [f"sends     what {what} show: all of it, or none", f"hash      {digest}"],
            "word": "",
        }
        place = self.state / QUESTIONS
        place.mkdir(0o700, parents=True, exist_ok=True)
        part = place / f".{self.run}.{secrets.token_hex(4)}.tmp"
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(question, file, indent=2)
        try:
            with suppress(FileExistsError):  # another process of this site was first
                os.link(part, place / f"{self.run}-{digest[:DIGITS]}.json")
        finally:
            part.unlink()
        logger.warning("%s wait for this site's owner: `%s`", what, answer)

    def _word_of_command(self, folder: Path, seconds: float) -> str:
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
        return "refuse" if done.returncode else APPROVE


def _as_shown(part: Payload, info: DatasetInfo) -> tuple[Payload, list[Tensor]]:
    """Return a payload of what pictures' bytes, or a table's digits, show of ``part``, and its sets of examples."""
    if isinstance(part, Bundle):
        inside = {name: _as_shown(own, info) for name, own in part.parts.items()}
        sets = [examples for _, found in inside.values() for examples in found]
        return Bundle({name: shown for name, (shown, _) in inside.items()}), sets
    if not (isinstance(part, CarriesExamples) and info.has_values and len(part.examples)):
        return part, []
    made = part.examples.cpu()
    if isinstance(part, Pixels):  # bytes, as they are shown
        return part, [made]
    showing = getattr(part, "showing", None)
    if showing is None:
        raise FederationError(
            "this site's owner looks at what leaves, and this method's examples cannot be sent as they were shown: "
            "choose another method, or run without this site"
        )
    by = tuple(info.mean), tuple(info.std)
    shown = images_of(levels_of(made, *by), *by) if info.has_images else rounded_as_csv(made, info)
    return showing(shown), [shown]


def _write_pictures(files: Sequence[Path], sets: Sequence[Tensor], info: DatasetInfo) -> None:
    """Write a picture an example, or of a row or a series a table of its raw values; the folder appears atomically."""
    folder = files[0].parent
    temporary = folder.with_name(f".{folder.name}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.parent.mkdir(parents=True, exist_ok=True)
    temporary.mkdir(0o700)
    for file, example in zip(files, chain.from_iterable(sets), strict=True):
        if info.has_images:
            (image,) = levels_of(example[None], tuple(info.mean), tuple(info.std))
            array = image[0] if len(image) == 1 else image.permute(1, 2, 0)
            Image.fromarray(array.contiguous().numpy()).save(temporary / file.name)
        else:
            (temporary / file.name).write_text(csv_of_rows(example[None], [""], info), "utf-8")
    temporary.rename(folder)
