"""An archive as lines of a log, and back: numbered, in base 85, with a SHA-256 over all."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field

from common.errors import NectarError
from server_app.sending.packing import LIMIT, Pack

#: bytes of the archive in a line: the SuperLink stores each line apart
LINE_BYTES = 48_000

_MARK, _HEAD = "nectar-fetch", "head"


class FetchError(NectarError):
    """A record that did not come home."""


def lines_of(pack: Pack) -> Iterator[str]:
    """Yield the lines that carry ``pack``, without line ends: a head, then the numbered parts."""
    head = Head.of(pack)
    yield f"{_MARK} {_HEAD} {head.text()}"
    for number in range(head.lines):
        part = pack.content[number * LINE_BYTES : (number + 1) * LINE_BYTES]
        yield f"{_MARK} {number} {base64.b85encode(part).decode('ascii')}"


@dataclass(frozen=True)
class Head:
    """The first line: what the others carry.

    Attributes
    ----------
    record, directory : str
        The record's id, and where it lies on the server.
    bytes, lines : int
        The archive's size, and the number of lines that carry it.
    sha256 : str
        The archive's SHA-256 in hexadecimal.
    left_out : tuple of str
        Files that are there and could not be sent.
    """

    record: str
    directory: str
    bytes: int
    lines: int
    sha256: str
    left_out: tuple[str, ...]

    @classmethod
    def of(cls, pack: Pack) -> Head:
        """Return the head of a packed record."""
        size = len(pack.content)
        lines = -(-size // LINE_BYTES)
        return cls(pack.record, str(pack.directory), size, lines, pack.sha256, tuple(pack.left_out))

    @classmethod
    def parse(cls, text: str) -> Head:
        """Read what :meth:`text` wrote.

        Raises
        ------
        ValueError, TypeError, KeyError, OverflowError, RecursionError
            If it is something else.
        """
        found = json.loads(text)
        size = int(found["bytes"])
        if not 0 <= size <= LIMIT:
            raise ValueError("no size of an archive")
        return cls(
            str(found["record"]),
            str(found["directory"]),
            size,
            -(-size // LINE_BYTES),
            str(found["sha256"]),
            tuple(map(str, found["left_out"])),
        )

    def text(self) -> str:
        """Write it as JSON."""
        return json.dumps(asdict(self))


@dataclass
class Arrival:
    """What has come of a record so far.

    Attributes
    ----------
    head : Head or None
        What the first line says; None before it came.
    parts : dict of int to bytes
        The parts by number.
    """

    head: Head | None = None
    parts: dict[int, bytes] = field(default_factory=dict)

    def take(self, line: str) -> bool:
        """Take a line of the log; tell whether it was one of these. A damaged one counts as missing."""
        mark, _, rest = line.strip().partition(" ")
        number, _, content = rest.partition(" ")
        if mark != _MARK:
            return False
        with suppress(ValueError, TypeError, KeyError, OverflowError, RecursionError):
            if number == _HEAD:
                self.head = Head.parse(content)
            else:
                self.parts[int(number)] = base64.b85decode(content)
        return True

    def problem(self) -> str:
        """Say what keeps it from being the archive that was sent; nothing if it is."""
        if self.head is None:
            return "the log holds no record"
        missing = [number for number in range(self.head.lines) if number not in self.parts]
        if missing:
            return f"{len(missing)} of {self.head.lines} lines of the record are missing"
        if hashlib.sha256(self._joined(self.head)).hexdigest() != self.head.sha256:
            return "the record that came is not the one that was sent (its SHA-256 differs)"
        return ""

    def whole(self) -> tuple[Head, bytes]:
        """Return what came, and the archive; FetchError if a line is missing, or it is not as packed."""
        if problem := self.problem():
            raise FetchError(problem)
        assert self.head is not None
        return self.head, self._joined(self.head)

    def _joined(self, head: Head) -> bytes:
        return b"".join(self.parts[number] for number in range(head.lines))
