"""Where the site's program is found: the `flwr-clientapp` that its SuperNode meets first, and the socket behind it."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nectar.engines.site import stub

#: The folder of the `flwr-clientapp` that a SuperNode finds first: part of the package, since a temporary folder may
#: be one from which nothing can be started, as in the containers.
STUBS = Path(__file__).parent / "bin"

_PREFIX, _SOCKET = "nectar-site-", "socket"
_BACKLOG = 16
#: the longest path of a socket that every system takes
_LONGEST = 103


@dataclass(frozen=True)
class Place:
    """A private folder with the socket at which stubs are heard.

    Attributes
    ----------
    folder : Path
        Readable for its owner alone.
    """

    folder: Path
    listener: socket.socket

    def environment(self, program: str, path: Sequence[Path | str]) -> dict[str, str]:
        """Return the variables by which a SuperNode finds the stub, and the stub this place.

        Parameters
        ----------
        program : str
            What the stub starts where this process is gone; empty for nothing.
        path : sequence of Path or str
            The SuperNode's PATH behind the stub's folder.
        """
        return {
            "PATH": os.pathsep.join(map(str, [STUBS, *path])),
            **_variables(self.folder / _SOCKET, program),
        }

    def alone(self, *programs: Path) -> dict[str, str]:
        """Return the variables of a SuperNode that can start the stub and these programs, and nothing else."""
        own = self.folder / "bin"
        own.mkdir()
        for program in (STUBS / "flwr-clientapp", *programs):
            (own / program.name).symlink_to(program)
        return {"PATH": str(own), **_variables(self.folder / _SOCKET, "")}


def _variables(address: Path, program: str) -> dict[str, str]:
    return {
        "NECTAR_SITE_PYTHON": sys.executable,
        "NECTAR_SITE_STUB": stub.__file__,
        "NECTAR_SITE_SOCKET": str(address),
        "NECTAR_SITE_PROGRAM": program,
    }


@contextlib.contextmanager
def place() -> Iterator[Place]:
    """Make the folder; in the process that made it, and no fork of it, it goes with the exit."""
    _clear_leftovers()
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    owner = os.getpid()
    try:
        address = folder / _SOCKET
        if len(os.fsencode(address)) > _LONGEST:
            raise OSError(f"TMPDIR is too long a path for a socket in it: {folder.parent}")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            before = os.umask(0o177)
            try:
                listener.bind(str(address))
            finally:
                os.umask(before)
            listener.listen(_BACKLOG)
            yield Place(folder, listener)
    finally:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)


def _clear_leftovers() -> None:
    """Remove the folders of this user's programs that were killed: nobody listens there any more."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                try:
                    probe.connect(str(folder / _SOCKET))
                except ConnectionRefusedError:
                    shutil.rmtree(folder, ignore_errors=True)
