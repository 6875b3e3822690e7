"""metrics.jsonl: a line a round without a gap; what a crash cut short is told from what was damaged."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import FederationError
from common.storage.files import parse_json, read_file, write_atomically

Line = dict[str, Any]

Checksum = tuple[int, str]
"""A number of lines, and the SHA-256 of their figures."""

_MEND = "put back a whole copy of the record, or begin a new run; nothing of it was changed"


@dataclass(frozen=True)
class _Content:
    """What the file holds.

    Attributes
    ----------
    lines : list of dict
        The rounds' lines up to the first that is none.
    number : int
        How many lines there are, whole or not; one that lacks its end counts if it can be read.
    damaged : bool
        Whether one is none.
    """

    lines: list[Line]
    number: int
    damaged: bool


class _Sum:
    """The checksum of lines, to which more are added."""

    def __init__(self) -> None:
        self._digest, self._lines = hashlib.sha256(), 0

    def over(self, lines: Iterable[Line]) -> _Sum:
        """Add ``lines`` and return itself."""
        for line in lines:
            told = {key: value for key, value in line.items() if key != "seconds"}
            self._digest.update(json.dumps(told, sort_keys=True).encode())
            self._lines += 1
        return self

    @property
    def value(self) -> Checksum:
        return self._lines, self._digest.hexdigest()


class MetricsFile:
    """The figures of a run's rounds.

    Parameters
    ----------
    path : Path
        The file; it need not be there yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._sum: _Sum | None = None

    def append(self, line: Mapping[str, Any]) -> None:
        """Add a line, on disk whole or not at all, NaN and infinity as null; OSError if there is no room."""
        text = json.dumps(without_nan(line), allow_nan=False)
        with self.path.open("ab", buffering=0) as file:
            before = file.tell()
            try:
                content = f"{text}\n".encode()
                while content:
                    content = content[file.write(content) :]
                os.fsync(file.fileno())
            except OSError:
                with suppress(OSError):
                    file.truncate(before)
                raise
        if self._sum is not None:
            self._sum.over([json.loads(text)])

    def checksum(self) -> Checksum:
        """Return how many lines there are, and the SHA-256 of what they say but what a clock decided."""
        if self._sum is None:
            self._sum = _Sum().over(self._read().lines)
        return self._sum.value

    def require_unchanged(self, checksum: Checksum) -> None:
        """Refuse a file whose first lines do not have this checksum; FederationError."""
        if _Sum().over(self._read().lines[: checksum[0]]).value != checksum:
            raise FederationError(
                f"the figures in {self.path} are not those with which the checkpoint was written: {_MEND}"
            )

    def lines(self) -> list[Line]:
        """Return the rounds' lines, not one cut short at the end; FederationError if one is damaged or unreadable."""
        content = self._read()
        if content.damaged:
            raise FederationError(
                f"{self.path} is damaged at line {len(content.lines) + 1}: put back a whole copy of it"
            )
        return content.lines

    def require(self, last_round: int, *, goes_back: bool = False) -> None:
        """Refuse the file unless a run stands after ``last_round`` by it: a line for each round up to that one.

        One line behind them, whole or not, is what a crash leaves: a round's line is written before its checkpoint.
        -1 is a run without a checkpoint, which may have begun its first round. Of a run that ``goes_back`` there are
        as many more as there are.

        Raises
        ------
        FederationError
            It names the line that is missing, damaged, out of place or too many.
        """
        content, here = self._read(), f"line %d of {self.path}"
        rounds = [line["round"] for line in content.lines]
        for wanted in range(last_round + 1):
            if wanted < len(rounds) and rounds[wanted] != wanted:
                raise FederationError(
                    f"{here % (wanted + 1)} is round {rounds[wanted]}'s where round {wanted}'s belongs: {_MEND}"
                )
            if wanted >= len(rounds) and content.damaged:
                raise FederationError(f"{here % (wanted + 1)} is damaged: {_MEND}")
            if wanted >= len(rounds):
                raise FederationError(
                    f"{self.path} has no line of round {wanted}, and the checkpoint is of round {last_round}: {_MEND}"
                )
        started = 2 if last_round < 0 else last_round + 2
        if content.number > started and not goes_back:
            checkpoint = (
                f"is of round {last_round}, and {self.path.name} goes up to round {content.number - 1}"
                if last_round >= 0
                else f"is missing, though round {content.number - 1} was recorded"
            )
            raise FederationError(
                f"{self.path.parent / 'checkpoint' / 'last.safetensors'} {checkpoint}: put back the newest one, or "
                "begin a new run; nothing of the record was changed"
            )

    def line(self, server_round: int) -> Line:
        """Return the whole line of ``server_round``; an empty one if there is none."""
        return next((ln for ln in self._read().lines if ln["round"] == server_round), {})

    def has(self, server_round: int) -> bool:
        """Return whether there is a whole line of ``server_round``."""
        return bool(self.line(server_round))

    def set_aside(self, last_round: int, to: Path) -> bool:
        """Copy every line after that of ``last_round`` to another file, as it is; whether there are any."""
        behind = b"\n".join(self.path.read_bytes().split(b"\n")[last_round + 1 :])
        if behind:
            write_atomically(to, lambda file: file.write_bytes(behind))
        return bool(behind)

    def keep(self, last_round: int) -> None:
        """Let go of every line after that of ``last_round``, and of what is left of one."""
        if not self.path.exists():
            return
        self._sum = None
        kept = self.path.read_bytes().split(b"\n")[: last_round + 1]
        write_atomically(self.path, lambda to: to.write_bytes(b"".join(k + b"\n" for k in kept)))

    def _read(self) -> _Content:
        try:
            *ended, last = read_file(self.path).split(b"\n")
        except FileNotFoundError:
            return _Content([], 0, False)
        except OSError as error:
            raise FederationError(f"{self.path} cannot be read ({error.strerror})") from None
        lines: list[Line] = []
        for text in ended:
            line = parse_line(text)
            if line is None:
                return _Content(lines, len(ended), True)
            lines.append(line)
        unended = parse_line(last)
        lines += [] if unended is None else [unended]
        return _Content(lines, len(lines), False)


def parse_line(text: bytes) -> Line | None:
    """Return a round's line; None if the text is none."""
    try:
        found = parse_json(text)
    except (ValueError, RecursionError):
        return None
    known = isinstance(found, dict) and type(found.get("round")) is int and found["round"] >= 0
    return found if known else None


def without_nan(value: Any) -> Any:
    """Return plain values with null for each number that JSON lacks."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {k: without_nan(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(v) for v in value]
    return value
