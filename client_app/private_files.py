"""What a site keeps is for its owner alone: nobody else on the machine reads what is written there."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from client_app.draws import KEY
from client_app.state import LOG, SHELF
from common.data.store import STORE_FOLDER
from common.errors import FederationError
from common.privacy.ledger import HEAD_FILE, LEDGER

OPEN = stat.S_IRWXG | stat.S_IRWXO
"""The rights of everybody but the owner."""

#: what the site keeps beside its runs' states
_OWN = (LOG, STORE_FOLDER, SHELF, LEDGER, HEAD_FILE, KEY)

#: a run's record, or what earlier releases put the roll call's log into
_STATES = re.compile(r"\d{8}-\d{6}-.*|roll-call")


def is_reserved(record_id: str) -> bool:
    """Whether a record of this name would lie where the site keeps something else."""
    return record_id.lower() in _OWN


@contextmanager
def for_the_owner_alone(directory: Path | None) -> Iterator[None]:
    """While this lasts, what is written has mode 600 and 700; ``directory`` and what the site has in it gets them, too.

    Parameters
    ----------
    directory : Path, optional
        The site's state directory, made where it is not there.

    Raises
    ------
    FederationError
        If others may read what lies there, and this user cannot change that.
    """
    before = os.umask(OPEN)
    try:
        if directory is not None:
            _close(directory)
        yield
    finally:
        os.umask(before)


def _close(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if not directory.stat().st_mode & OPEN:
            return
        entries = list(directory.iterdir())
        ours = [e for e in entries if e.name in _OWN or _STATES.fullmatch(e.name)]
        for entry in ours:
            _close_all(entry)
        if len(ours) == len(
            entries
        ):  # a folder with other things in it, such as /tmp, is others' too
            directory.chmod(stat.S_IRWXU)
    except OSError as error:
        raise FederationError(
            f"others may read the state directory {directory}, and its rights cannot be changed ({error.strerror}): "
            f"let the SuperNode's user own it, chmod -R go= {directory}",
            told="others on this site's machine may read its state directory: its owner closes that first",
        ) from None


def _close_all(entry: Path) -> None:
    for place, _, files in os.walk(entry):
        for path in (Path(place), *(Path(place, name) for name in files)):
            _close_one(path)
    if entry.is_file():
        _close_one(entry)


def _close_one(path: Path) -> None:
    mode = path.lstat().st_mode
    if not stat.S_ISLNK(mode) and mode & OPEN:
        path.chmod(mode & stat.S_IRWXU)
