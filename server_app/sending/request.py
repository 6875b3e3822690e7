"""What is asked of the ServerApp that sends a record home: one text, the value of the run config's key ``fetch``."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from common.errors import ConfigError

LATEST = "latest"
"""The record that was begun last."""

_RECORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
_PART = re.compile(rf"{_NAME}(?:/{_NAME}){{0,3}}")


@dataclass(frozen=True)
class Request:
    """A record, and which of its files.

    Attributes
    ----------
    record : str
        Its id, or ``latest``.
    without : tuple of str
        Files and folders of the record that are left out, such as ``samples``, ``checkpoint/best.safetensors``.
    only : tuple of str
        If any, the only ones that are sent.
    """

    record: str
    without: tuple[str, ...] = ()
    only: tuple[str, ...] = ()

    def wants(self, file: str) -> bool:
        """Whether a file of the record, named as in the record, is asked for."""
        return not within(file, self.without) and (not self.only or within(file, self.only))

    def text(self) -> str:
        """Write it as the run config's value."""
        words = [self.record]
        words += [f"without={','.join(self.without)}"] if self.without else []
        words += [f"only={','.join(self.only)}"] if self.only else []
        return " ".join(words)

    @classmethod
    def parse(cls, text: str) -> Request:
        """Read the run config's value; ConfigError if it is none."""
        record, *words = text.split() or [""]
        parts: dict[str, tuple[str, ...]] = {}
        for word in words:
            name, equals, value = word.partition("=")
            if name not in ("without", "only") or not equals:
                raise ConfigError(f"fetch takes without=... and only=..., not {word[:60]!r}")
            parts[name] = parts_of(value)
        return cls(checked_record(record), **parts)


def within(file: str, parts: Collection[str]) -> bool:
    """Whether a file of a record is one of ``parts`` or lies in one of them."""
    return any(file == part or file.startswith(f"{part}/") for part in parts)


def checked_record(name: str) -> str:
    """Return a record's id; ConfigError if it is a path or otherwise none."""
    if not _RECORD.fullmatch(name):
        raise ConfigError(
            f"{name[:80]!r} is not a record's id: give the name of its directory alone, or {LATEST}"
        )
    return name


def parts_of(text: str) -> tuple[str, ...]:
    """Read names of a record's files with commas between, of nothing none; ConfigError if one cannot be there."""
    names = text.split(",") if text else []
    for name in names:
        if not _PART.fullmatch(name):
            raise ConfigError(
                f"{name[:60]!r} is nothing of a record: such are checkpoint, checkpoint/best.safetensors, samples, "
                "synthetic, metrics.jsonl"
            )
    return tuple(dict.fromkeys(names))
