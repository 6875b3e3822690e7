"""What a round sends to more than one device: written once, for all workers, and kept while a round needs it."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from flwr.app import RecordDict

from nectar.engines.pool import sheets
from nectar.engines.pool.letters import Place, blobs_of


@dataclass(frozen=True)
class _Pinned:
    """Bytes with their place; they are kept, since they are known by being the same object."""

    blob: bytes
    place: Place


class Board:
    """Sheets by number, from 1 on; number 0 is a message's own sheet.

    Attributes
    ----------
    lock : RLock
        Held while places are looked up and sheets handed on.
    sheets : dict of int to int
        The file descriptors of the sheets that are needed now.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._pinned: dict[int, _Pinned] = {}
        self._last = 0
        self.sheets: dict[int, int] = {}

    def pin(self, contents: Sequence[RecordDict]) -> None:
        """Write what several of ``contents`` share and is not there yet; let go of sheets that none of them needs."""
        with self.lock:
            self._pin(contents)

    def _pin(self, contents: Sequence[RecordDict]) -> None:
        counts: Counter[int] = Counter()
        shared: dict[int, bytes] = {}
        for content in contents:
            for blob in blobs_of(content):
                counts[id(blob)] += 1
                if counts[id(blob)] > 1 or id(blob) in self._pinned:
                    shared[id(blob)] = blob
        needed = {self._pinned[i].place[0] for i in shared if i in self._pinned}
        self._let_go(needed)
        new = [blob for i, blob in shared.items() if i not in self._pinned]
        if new:
            descriptor, offsets = sheets.write(new)
            self._last += 1
            self.sheets[self._last] = descriptor
            for blob, offset in zip(new, offsets, strict=True):
                self._pinned[id(blob)] = _Pinned(blob, (self._last, offset, len(blob)))

    def place_of(self, blob: bytes) -> Place | None:
        """Return where ``blob`` is pinned; None if it is not."""
        pinned = self._pinned.get(id(blob))
        return None if pinned is None else pinned.place

    def clear(self) -> None:
        """Let go of all."""
        with self.lock:
            self._let_go(set())

    def _let_go(self, needed: set[int]) -> None:
        self._pinned = {i: p for i, p in self._pinned.items() if p.place[0] in needed}
        for number in [number for number in self.sheets if number not in needed]:
            os.close(self.sheets.pop(number))
