"""The file in which a site keeps what was released of its data: it only grows, and each line vouches for those before.

``privacy.jsonl`` holds a line a charge, each with the SHA-256 of the line before and its own fields; the last one's is
the ledger's head. ``privacy.head.json`` says how long the file was at least: a shorter one has lost lines, and is
refused, as is an edited one. A line counts once it is on disk and in the head. Half a line after that, of a site that
was killed, covers nothing that was drawn, and is cut off before the next line. A complete line that the head does not
have yet counts, and is added to the head first.

If both files are restored to an earlier day's, only a server that has seen a later head notices.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from common.errors import FederationError
from common.privacy.events import UNIT, Event
from common.storage.files import open_regular, read_regular, write_json

LEDGER, HEAD_FILE = "privacy.jsonl", "privacy.head.json"
"""The files' names in the site's state directory."""

PATIENCE = 60.0
"""Seconds that a charge waits for another one's end; each takes milliseconds."""

_PAUSE = 0.02

_CHAIN, _BEFORE = "sha256", "before"


class LedgerError(FederationError):
    """A ledger that cannot be relied on; the server learns no more than that."""

    def __init__(self, sentence: str) -> None:
        super().__init__(
            sentence, reported="this site's privacy ledger cannot be used, and its log says why"
        )


@dataclass(frozen=True)
class Charge:
    """The privacy charge of a phase, written before it releases anything."""

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
        """Return what ``asdict`` gave; ValueError or TypeError if it is not one."""
        names = {field.name for field in fields(cls)}
        if set(recorded) != names or type(recorded["round"]) is not int:
            raise ValueError("a field is missing, of another kind, or one too many")
        if not all(isinstance(recorded[name], str) for name in names - {"round", "events"}):
            raise ValueError("a field is of another kind")
        return cls(**{**recorded, "events": tuple(map(Event.read, recorded["events"]))})


@dataclass(frozen=True)
class Lines:
    """The content of a ledger: its charges, and the checksum of each line."""

    charges: tuple[Charge, ...] = ()
    chain: tuple[str, ...] = ()

    @property
    def head(self) -> LedgerTip:
        """How many there are, and the last one's checksum."""
        return LedgerTip(len(self.chain), self.chain[-1]) if self.chain else LedgerTip()

    @property
    def events(self) -> list[Event]:
        """All that was released."""
        return [event for charge in self.charges for event in charge.events]

    def has(self, head: LedgerTip) -> bool:
        """Return whether the ledger was at ``head`` once, or is."""
        return head == LedgerTip() or (
            0 < head.length <= len(self.chain) and self.chain[head.length - 1] == head.sha256
        )


class Ledger:
    """A site's ledger."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / LEDGER
        self._head = directory / HEAD_FILE

    def read(self) -> Lines:
        """Return all charges; LedgerError if it cannot be read, was edited, or has lost lines."""
        try:  # between a line and its head there is another process
            with self._locked(os.O_RDONLY, fcntl.LOCK_SH) as file:
                return self._verified(_content(file))[0]
        except FileNotFoundError:
            return self._verified(b"")[0]
        except OSError as error:
            raise self._unusable(f"cannot be read ({error.strerror})") from None

    def append(self, charge: Charge, allow: Callable[[Sequence[Charge]], object]) -> Lines:
        """Add a line, and return the ledger with it once it is on disk, or raise LedgerError."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._locked(os.O_RDWR | os.O_APPEND | os.O_CREAT, fcntl.LOCK_EX) as file:
                content = _content(file)
                lines, intact = self._verified(content)
                allow(lines.charges)
                if intact < len(content):
                    os.ftruncate(file, intact)
                if lines.head != self._recorded_tip():  # a kill between line and head
                    self._write_tip(lines.head)  # one more line would leave two unvouched for
                line, checksum = _line(charge, lines.head.sha256)
                _write(file, line)
                os.fsync(file)
                added = Lines((*lines.charges, charge), (*lines.chain, checksum))
                self._write_tip(added.head)
                return added
        except OSError as error:
            raise self._unusable(f"cannot be written ({error.strerror})") from None

    def _write_tip(self, head: LedgerTip) -> None:
        """Flush the head to disk before anything depends on it."""
        write_json(self._head, asdict(head))
        _sync(self.path.parent)

    @contextmanager
    def _locked(self, flags: int, kind: int) -> Iterator[int]:
        """Open the file, and wait for the other processes that use it, but not for ever."""
        file = open_regular(self.path, flags)
        until = time.monotonic() + PATIENCE
        try:
            while True:
                try:
                    fcntl.flock(file, kind | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > until:
                        raise LedgerError(
                            f"the privacy ledger {self.path} has been in another process's hands for {PATIENCE:g} "
                            "seconds: end what this site still runs, and try again"
                        ) from None
                    time.sleep(_PAUSE)
            yield file
        finally:
            os.close(file)

    def _verified(self, content: bytes) -> tuple[Lines, int]:
        """Return the lines of a file and how many of its bytes they are; half a line after the head does not count."""
        least = self._recorded_tip()
        charges, chain, intact = [], [LedgerTip().sha256], 0
        for number, line in enumerate(content.split(b"\n")[:-1], 1):
            try:
                charge, checksum = _read_line(line, chain[-1])
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                raise self._unusable(f"is damaged at line {number} ({error})") from None
            charges.append(charge)
            chain.append(checksum)
            intact += len(line) + 1
        found = Lines(tuple(charges), tuple(chain[1:]))
        if not found.has(least):
            raise self._unusable(
                f"has {found.head.length} lines, and not those that were there when it had {least.length}"
            )
        if found.head.length > least.length + 1:
            raise self._unusable(
                f"has {found.head.length} lines, and {HEAD_FILE} knows {least.length}"
            )
        return found, intact

    def _recorded_tip(self) -> LedgerTip:
        """Return the head that the file has at least."""
        try:
            return LedgerTip.read(json.loads(read_regular(self._head)))
        except FileNotFoundError:
            return LedgerTip()
        except (OSError, ValueError, RecursionError):
            raise self._unusable(f"comes with a {HEAD_FILE} that cannot be read") from None

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
    """Return a line's charge and checksum; an error of many kinds if it is not one, or follows another one."""
    content = dict(json.loads(line))
    charge = Charge.read({k: v for k, v in content.items() if k not in (_CHAIN, _BEFORE)})
    text, checksum = _line(charge, before)
    if text != line + b"\n":
        raise ValueError("its checksum is not that of what it says")
    return charge, checksum


def _content(file: int) -> bytes:
    with open(file, "rb", closefd=False) as opened:
        return opened.read()


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


# ---- head ----------------------------------------------------------------------------------------
# The head of a site's ledger: how long it is, and the checksum of its last line.

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class LedgerTip:
    """How many lines a ledger has, and the last one's checksum; that of none is all zeros."""

    length: int = 0
    sha256: str = "0" * 64

    def __post_init__(self) -> None:
        if type(self.length) is not int or self.length < 0 or not _SHA256.fullmatch(self.sha256):
            raise ValueError(f"{self.length}, {str(self.sha256)[:80]!r} is not a head of a ledger")

    @classmethod
    def read(cls, recorded: object) -> LedgerTip:
        """Return what ``asdict`` gave; ValueError if it is not one."""
        if not isinstance(recorded, Mapping) or set(recorded) != {"length", "sha256"}:
            raise ValueError(f"{str(recorded)[:80]} is not a head of a ledger")
        return cls(recorded["length"], str(recorded["sha256"]))


# ---- reports -------------------------------------------------------------------------------------
# What a site reports of its charges with a reply: events, where they are public, and its ledger's head.
#
# The server sends the last head that it saw back: with the roll call all of them, each under a digest of the site's
# name, since it does not know the receiver yet; with an instruction the site's own.

RECORD = "privacy"
"""The name of the record in a reply."""

LEDGER_TIPS, LEDGER_TIP = "ledger-heads", "ledger-head"
"""In the roll call's question, and in an instruction."""

MOST_EVENTS = 64
"""Different events that one run of a site can have: their epsilon is computed every round."""

_STEPS = 10**9
"""Steps of each in one reply."""


@dataclass(frozen=True)
class PrivacyReport:
    """A site's report of its charges: the events, or none if they would reveal its number of examples.

    ``complete``: all that the site was charged in this run, by its ledger, else only this reply's. Where the
    noise was ``seeded``, the run's, they guarantee nothing. A simulation keeps no ledger, and has no ``head``.
    """

    events: tuple[Event, ...] = ()
    complete: bool = False
    seeded: bool = False
    head: LedgerTip | None = None

    def to_config(self) -> dict[str, str | bool]:
        """Return the fields of a Flower ConfigRecord."""
        head = {} if self.head is None else {LEDGER_TIP: tip_to_text(self.head)}
        events = json.dumps([event.to_dict() for event in merge_events(self.events)])
        return {"events": events, "whole": self.complete, "seeded": self.seeded, **head}

    @classmethod
    def read(cls, fields: Mapping[str, object]) -> PrivacyReport:
        """Return what ``to_config`` gave; ValueError if it is not one."""
        if not set(fields) - {LEDGER_TIP} == {"events", "whole", "seeded"}:
            raise ValueError("what it says of its privacy lacks a field, or has another")
        if not isinstance(fields["whole"], bool) or not isinstance(fields["seeded"], bool):
            raise ValueError("what it says of its privacy is not true or false")
        events = json.loads(str(fields["events"]))
        if not isinstance(events, list) or len(events) > MOST_EVENTS:
            raise ValueError(f"it has more than {MOST_EVENTS} events")
        head = tip_from_text(str(fields[LEDGER_TIP])) if LEDGER_TIP in fields else None
        read = tuple(map(Event.read, events))
        if any(event.steps > _STEPS for event in read):
            raise ValueError(f"an event of it has more than {_STEPS} steps")
        if not all(math.isfinite(event.noise_multiplier) for event in read):
            raise ValueError("an event of it has noise without end")
        return cls(read, fields["whole"], fields["seeded"], head)


def merge_events(events: tuple[Event, ...]) -> tuple[Event, ...]:
    """Return the same events, each kind once with the steps of all."""
    steps = Counter[Event]()
    for event in events:
        steps[replace(event, steps=0)] += event.steps
    return tuple(replace(kind, steps=count) for kind, count in steps.items())


def tip_to_text(head: LedgerTip) -> str:
    """Return a head as text."""
    return json.dumps(asdict(head))


def tip_from_text(text: str) -> LedgerTip:
    """Return what ``tip_to_text`` gave; ValueError if it is not one."""
    return LedgerTip.read(json.loads(text))


def tips_to_text(heads: Mapping[str, LedgerTip]) -> str:
    """Return the sites' heads as text that names no site."""
    return json.dumps({_digest(site): asdict(head) for site, head in heads.items()})


def tip_of_site(text: str, site: str) -> LedgerTip | None:
    """Return the site's tip in what ``tips_to_text`` gave; ValueError if it is malformed."""
    found = json.loads(text)
    if not isinstance(found, Mapping):
        raise ValueError("these are not heads of ledgers")
    return LedgerTip.read(found[_digest(site)]) if _digest(site) in found else None


def _digest(site: str) -> str:
    return hashlib.sha256(site.encode()).hexdigest()
