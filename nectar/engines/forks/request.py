"""What is asked of a fork server: a process with these words, folder, environment and open files."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass

#: seconds within which who asks must have said everything
_PATIENCE = 30.0
_FILES = 3
_LENGTH = 8


@dataclass(frozen=True)
class Request:
    """A process that somebody asked for.

    Attributes
    ----------
    files : list of int
        Descriptors of its standard input, output and errors, open in this process.
    """

    words: list[str]
    folder: bytes
    environment: dict[bytes, bytes]
    files: list[int]

    def close(self) -> None:
        """Close the files here."""
        for number in self.files:
            os.close(number)

    def put_on(self, *program: str) -> None:
        """Make this process the one that was asked for: its words after ``program``, folder, environment and files."""
        for i, number in enumerate(self.files):
            os.dup2(number, i)
        self.close()
        os.chdir(self.folder)
        os.environb.clear()
        os.environb.update(self.environment)
        sys.argv = [*program, *self.words]


def received(asker: socket.socket) -> Request:
    """Read a request, as :func:`nectar.engines.forks.stub.hand_over` writes it.

    Raises
    ------
    OSError, EOFError, ValueError
        If who asks goes away, is too slow, or sends something else.
    """
    asker.settimeout(_PATIENCE)
    content, files, _, _ = socket.recv_fds(asker, 1 << 16, _FILES)
    try:
        while (missing := _missing(content)) > 0:
            more = asker.recv(missing)
            if not more:
                raise EOFError("who asked went away")
            content += more
        count, *items = content[_LENGTH:].split(b"\0")
        words, (folder, *variables) = items[: int(count)], items[int(count) :]
        if len(files) != _FILES:
            raise ValueError(f"{len(files)} files came where {_FILES} were due")
    except (EOFError, OSError, ValueError):
        for number in files:
            os.close(number)
        raise
    pairs = (variable.partition(b"=") for variable in variables)
    environment = {name: value for name, _, value in pairs}
    return Request([os.fsdecode(word) for word in words], folder, environment, files)


def _missing(content: bytes) -> int:
    """Return how many bytes are still to come."""
    if len(content) < _LENGTH:
        return _LENGTH - len(content)
    return _LENGTH + int.from_bytes(content[:_LENGTH], "big") - len(content)
