"""The site's program's own folder: the `flwr-clientapp` that its SuperNode finds first, and the socket behind it."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nectar.site import stub

_PREFIX = "nectar-site-"
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
    programs : Path
        The folder in it that stands first on the SuperNode's PATH.
    listener : socket.socket
        Where stubs connect.
    """

    folder: Path
    programs: Path
    listener: socket.socket


@contextlib.contextmanager
def place(program: str) -> Iterator[Place]:
    """Make the folder; in the process that made it, and no fork of it, it goes with the exit.

    Parameters
    ----------
    program : str
        What the stub starts where this process is gone; empty for nothing.
    """
    _clear_leftovers()
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    owner = os.getpid()
    try:
        programs = folder / "bin"
        programs.mkdir()
        address = folder / "socket"
        if len(os.fsencode(address)) > _LONGEST:
            raise OSError(f"TMPDIR is too long a path for a socket in it: {folder.parent}")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            before = os.umask(0o177)
            try:
                listener.bind(str(address))
            finally:
                os.umask(before)
            listener.listen(_BACKLOG)
            write_stub(programs / "flwr-clientapp", address, program)
            yield Place(folder, programs, listener)
    finally:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)


def write_stub(path: Path, address: Path, program: str) -> None:
    """Write the program that SuperNodes start; its words, a token among them, leave its command line at once."""
    command = [sys.executable, "-I", "-S", stub.__file__, str(address), program]
    text = f"#!/bin/sh\nIFS='\n'\n{stub.WORDS.decode()}=\"$*\" exec {shlex.join(command)}\n"
    path.write_text(text, encoding="utf-8")
    path.chmod(0o700)


def _clear_leftovers() -> None:
    """Remove the folders of this user's programs that were killed: nobody listens there any more."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                try:
                    probe.connect(str(folder / "socket"))
                except ConnectionRefusedError:
                    shutil.rmtree(folder, ignore_errors=True)
