"""The file in which a site keeps what was released of its data: it only grows, and each line vouches for those before.

``privacy.jsonl`` holds a line a charge, each with the SHA-256 of the line before and its own fields; the last one's is
the ledger's head. ``privacy.head.json`` says how long the file was at least: a shorter one has lost lines, and is
refused as one is that was edited. A line counts once it is on disk and the head says so; what a site that was killed
has half-written after that vouches for nothing that was drawn, and is cut off before the next line. A whole line that
the head does not know yet counts, and the head learns of it first.

Both files of an earlier day are as good as they were then: that, only those notice who were told a later head.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from common.errors import FederationError
from common.privacy.events import UNIT, Event
from common.privacy.head import Head
from common.storage.files import open_regular, read_regular, write_json

LEDGER, HEAD = "privacy.jsonl", "privacy.head.json"
"""The files' names in the site's state directory."""

PATIENCE = 60.0
"""Seconds that a charge waits for another one's end; each takes milliseconds."""

_PAUSE = 0.02

_CHAIN, _BEFORE = "sha256", "before"


class LedgerError(FederationError):
    """A ledger that cannot be relied on; the server is told no more than that."""

    def __init__(self, sentence: str) -> None:
        super().__init__(
            sentence, told="this site's privacy ledger cannot be used, and its log says why"
        )


@dataclass(frozen=True)
class Charge:
    """What a phase is about to release.

    Parameters
    ----------
    time : str
        UTC, as ISO 8601 has it.
    round : int
        In which round; one that is repeated is charged again.
    events : tuple of Event
        What.
    unit : str
        Whose privacy: one example's.
    """

    time: str
    site: str
    record: str
    round: int
    phase: str
    method: str
    data: str
    events: tuple[Event, ...]
    unit: str = UNIT

    @classmethod
    def read(cls, recorded: Mapping[str, Any]) -> Charge:
        """Return what ``asdict`` gave; ValueError or TypeError if it is none."""
        names = {field.name for field in fields(cls)}
        if set(recorded) != names or type(recorded["round"]) is not int:
            raise ValueError("a field is missing, of another kind, or one too many")
        if not all(isinstance(recorded[name], str) for name in names - {"round", "events"}):
            raise ValueError("a field is of another kind")
        return cls(**{**recorded, "events": tuple(map(Event.read, recorded["events"]))})


@dataclass(frozen=True)
class Lines:
    """A ledger as it was read: its charges, and the checksum of each line."""

    charges: tuple[Charge, ...] = ()
    chain: tuple[str, ...] = ()

    @property
    def head(self) -> Head:
        """How many there are, and the last one's checksum."""
        return Head(len(self.chain), self.chain[-1]) if self.chain else Head()

    @property
    def events(self) -> list[Event]:
        """All that was released."""
        return [event for charge in self.charges for event in charge.events]

    def has(self, head: Head) -> bool:
        """Whether the ledger was at ``head`` once, or is."""
        return head == Head() or (
            0 < head.length <= len(self.chain) and self.chain[head.length - 1] == head.sha256
        )


class Ledger:
    """A site's ledger."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / LEDGER
        self._head = directory / HEAD

    def read(self) -> Lines:
        """Return what was charged, if anything; LedgerError if it cannot be read, was edited, or has lost lines."""
        try:
            file = open_regular(self.path, os.O_RDONLY)
        except FileNotFoundError:
            return self._verified(b"")[0]
        except OSError as error:
            raise self._unusable(f"cannot be read ({error.strerror})") from None
        try:
            self._lock(file, fcntl.LOCK_SH)  # between a line and its head there is another process
            return self._verified(_content(file))[0]
        except OSError as error:
            raise self._unusable(f"cannot be read ({error.strerror})") from None
        finally:
            os.close(file)

    def append(self, charge: Charge, allow: Callable[[Sequence[Charge]], object]) -> Lines:
        """Add a line, and return the ledger with it once it is on disk.

        Parameters
        ----------
        allow : callable
            Gets the charges so far, which no other process adds to meanwhile; raises if this one must not be added.

        Raises
        ------
        LedgerError
            If it cannot be relied on, or not be written: nothing may be released then.
        """
        try:
            with self._held() as file:
                content = _content(file)
                lines, whole = self._verified(content)
                allow(lines.charges)
                if whole < len(content):
                    os.ftruncate(file, whole)
                if (
                    lines.head != self._least()
                ):  # a kill between line and head: one more would leave two unvouched for
                    self._vouch(lines.head)
                line, checksum = _line(charge, lines.head.sha256)
                _write(file, line)
                os.fsync(file)
                added = Lines((*lines.charges, charge), (*lines.chain, checksum))
                self._vouch(added.head)
                return added
        except OSError as error:
            raise self._unusable(f"cannot be written ({error.strerror})") from None

    def _vouch(self, head: Head) -> None:
        """Have the head on disk before anything rests on it."""
        write_json(self._head, asdict(head))
        _sync(self.path.parent)

    @contextmanager
    def _held(self) -> Iterator[int]:
        """Open the file for this process alone."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = open_regular(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        try:
            self._lock(file, fcntl.LOCK_EX)
            yield file
        finally:
            os.close(file)

    def _lock(self, file: int, kind: int) -> None:
        """Wait for the other processes that use the ledger, but not for ever."""
        until = time.monotonic() + PATIENCE
        while True:
            try:
                fcntl.flock(file, kind | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > until:
                    raise LedgerError(
                        f"the privacy ledger {self.path} has been in another process's hands for {PATIENCE:g} seconds: "
                        "end what this site still runs, and try again"
                    ) from None
                time.sleep(_PAUSE)

    def _verified(self, content: bytes) -> tuple[Lines, int]:
        """Return the lines of a file and how many of its bytes they are; half a line behind the head is none."""
        least = self._least()
        charges, chain, whole = [], [Head().sha256], 0
        for number, line in enumerate(content.split(b"\n")[:-1], 1):
            try:
                charge, checksum = _read_line(line, chain[-1])
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                raise self._unusable(f"is damaged at line {number} ({error})") from None
            charges.append(charge)
            chain.append(checksum)
            whole += len(line) + 1
        found = Lines(tuple(charges), tuple(chain[1:]))
        if not found.has(least):
            raise self._unusable(
                f"has {found.head.length} lines, and not those that were there when it had {least.length}"
            )
        if found.head.length > least.length + 1:
            raise self._unusable(f"has {found.head.length} lines, and {HEAD} knows {least.length}")
        return found, whole

    def _least(self) -> Head:
        """Return the head that the file has at least."""
        try:
            return Head.read(json.loads(read_regular(self._head)))
        except FileNotFoundError:
            return Head()
        except (OSError, ValueError, RecursionError):
            raise self._unusable(f"has beside it a {HEAD} that cannot be read") from None

    def _unusable(self, why: str) -> LedgerError:
        return LedgerError(
            f"the privacy ledger {self.path} {why}: put back the newest copy of both of its files, or give the site "
            "other data and another state-dir"
        )


def _line(charge: Charge, before: str) -> tuple[bytes, str]:
    """Return a charge as its line, and the line's checksum."""
    body = json.dumps({_BEFORE: before, **asdict(charge)}, sort_keys=True)
    checksum = hashlib.sha256(body.encode()).hexdigest()
    return f'{body[:-1]}, "{_CHAIN}": "{checksum}"}}\n'.encode(), checksum


def _read_line(line: bytes, before: str) -> tuple[Charge, str]:
    """Return a line's charge and checksum; an error of many kinds if it is none, or follows another one."""
    content = dict(json.loads(line))
    charge = Charge.read({k: v for k, v in content.items() if k not in (_CHAIN, _BEFORE)})
    whole, checksum = _line(charge, before)
    if whole != line + b"\n":
        raise ValueError("its checksum is not that of what it says")
    return charge, checksum


def _content(file: int) -> bytes:
    parts = []
    os.lseek(file, 0, os.SEEK_SET)
    while part := os.read(file, 1 << 20):
        parts.append(part)
    return b"".join(parts)


def _write(file: int, line: bytes) -> None:
    while line:
        line = line[os.write(file, line) :]


def _sync(directory: Path) -> None:
    """See names on disk."""
    file = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
