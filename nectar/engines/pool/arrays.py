"""Messages to a worker and back: pickled, with the bytes of their arrays after them, which are copied nowhere.

A round sends the same weights to many sites. So what the message before had as well is not sent again: a worker reads
a round's weights once, and every site in it finds the same object, which it decodes once.
Only a process and its own child speak here: nothing that came from outside is ever unpickled.
"""

from __future__ import annotations

import io
import itertools
import pickle
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from typing import Any

_LEAST = 512
"""Bytes from which on they are sent beside the message."""


class Sender:
    """One end of a pipe.

    Parameters
    ----------
    keep : bool
        Whether both ends keep a message's bytes until the next one; the receiver says the same.
    """

    def __init__(self, connection: Connection, *, keep: bool) -> None:
        self._connection, self._keep = connection, keep
        self._last: dict[int, tuple[int, bytes]] = {}
        self._numbers = itertools.count()

    def send(self, item: object) -> None:
        """Send ``item``; OSError if the other end is gone."""
        file = io.BytesIO()
        pickler = _Pickler(file, self._last, self._numbers)
        pickler.dump(item)
        self._last = pickler.used if self._keep else {}
        self._connection.send_bytes(file.getbuffer())
        for blob in pickler.new:
            self._connection.send_bytes(blob)


class Receiver:
    """The other end.

    Parameters
    ----------
    keep : bool
        As the sender's.
    """

    def __init__(self, connection: Connection, *, keep: bool) -> None:
        self._connection, self._keep = connection, keep
        self._last: dict[int, bytes] = {}

    def receive(self) -> Any:
        """Wait for what comes next, and return it; EOFError if the other end is closed."""
        file = io.BytesIO(self._connection.recv_bytes())
        unpickler = _Unpickler(file, self._last, self._connection)
        item = unpickler.load()
        self._last = unpickler.used if self._keep else {}
        return item


class _Pickler(pickle.Pickler):
    """Replaces large bytes by a number; they are known by their identity as long as they are kept."""

    def __init__(
        self, file: io.BytesIO, last: Mapping[int, tuple[int, bytes]], numbers: Iterator[int]
    ) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._last, self._numbers = last, numbers
        self.used: dict[int, tuple[int, bytes]] = {}
        self.new: list[bytes] = []

    def persistent_id(self, value: object) -> int | None:
        if type(value) is not bytes or len(value) < _LEAST:
            return None
        known = self.used.get(id(value)) or self._last.get(id(value))
        if known is None:
            known = next(self._numbers), value
            self.new.append(value)
        self.used[id(value)] = known
        return known[0]


class _Unpickler(pickle.Unpickler):
    """Puts the bytes back; new ones follow the message in the order of their numbers."""

    def __init__(self, file: io.BytesIO, last: Mapping[int, bytes], connection: Connection) -> None:
        super().__init__(file)
        self._last, self._connection = last, connection
        self.used: dict[int, bytes] = {}

    def persistent_load(self, number: int) -> bytes:
        if number not in self.used:
            known = self._last.get(number)
            self.used[number] = self._connection.recv_bytes() if known is None else known
        return self.used[number]
