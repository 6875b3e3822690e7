"""Who writes a record: one process at a time, by a lock that ends with it whatever becomes of it."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import time
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from common.errors import FederationError, one_line
from common.storage.files import parse_json, read_file, write_json

#: held by the process that writes the record; beside it stands who that is. Names with a dot never leave the machine
LOCK, _NOTE = ".writer.lock", ".writer.json"

BEGUN = ".begun-"
"""What a record's name begins with until its first files are whole."""

#: seconds for which one without a writer's note is not taken for left behind
_YOUNG = 60.0

#: whoever looks whether a record is being written holds its lock for a moment
_PATIENCE = 0.5

#: of what stands in a note that others may have written, as much as a name can need
_LONGEST = 80


class Writer:
    """The one that may write a record.

    Parameters
    ----------
    directory : Path
        The record, which has to be there.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = FileLock(directory / LOCK, timeout=_PATIENCE)

    def begin(self) -> None:
        """Be the writer until ``end``, or until this process ends.

        Raises
        ------
        FederationError
            If another process is: its number and its machine.
        OSError
            If nothing can be written there.
        """
        if not self._lock.is_locked:  # the record may have been renamed since
            self._lock = FileLock(self._directory / LOCK, timeout=_PATIENCE)
        try:
            self._lock.acquire()
        except Timeout:
            raise FederationError(
                f"{self._directory} is being written by {self.who()}, a run that still goes on: wait for its end, "
                "or end it"
            ) from None
        write_json(self._directory / _NOTE, {"pid": os.getpid(), "host": socket.gethostname()})

    def follow(self, directory: Path) -> None:
        """Stay the writer of a record that was renamed."""
        self._directory = directory

    def end(self) -> None:
        """Let others write the record."""
        self._lock.release()

    def is_at_work(self) -> bool:
        """Return whether a process writes the record; yes where that cannot be known. Nothing is written for it."""
        try:
            lock = os.open(self._directory / LOCK, os.O_RDONLY | os.O_NONBLOCK)
        except OSError as error:
            return not isinstance(error, FileNotFoundError)
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(lock)
        return False

    def who(self) -> str:
        """Return the process and the machine that wrote the record last, as far as that is known."""
        with suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
            note = parse_json(read_file(self._directory / _NOTE))
            pid, host = (one_line(str(note[key]))[:_LONGEST] for key in ("pid", "host"))
            return f"process {pid} on {host}"
        return "another process"


def sweep(output_dir: Path) -> None:
    """Delete what runs left that ended while they made their records."""
    for left in output_dir.glob(f"{BEGUN}*"):
        with suppress(OSError):
            young = time.time() - left.stat().st_mtime < _YOUNG and not (left / _NOTE).exists()
            if not (young or left.is_symlink() or Writer(left).is_at_work()):
                shutil.rmtree(left)
