"""What a SuperLink says of keys, without one."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from nectar.engines.flower.client import CommandRefused
from nectar.operate.keys.authority import fingerprint, note_of, read_public


class Registry:
    """A SuperLink that refuses some sites, and knows some keys as nodes already, some of them unregistered.

    ``nodes`` has number and status by a site's public half.
    """

    name = "lab"

    def __init__(
        self, refused: dict[str, str], nodes: Mapping[Path, tuple[str, str]] | None = None
    ) -> None:
        self.refused, self.known = refused, dict(nodes or {})
        self.asked: list[str] = []
        self.unregistered: list[str] = []
        self.listed = self.registered = 0

    def wait(self, seconds: float) -> None:
        pass

    def client(self) -> Registry:
        return self

    def control(self) -> AbstractContextManager[Registry]:
        return nullcontext(self)

    def ask(self, words: list[str], seconds: float) -> dict[str, Any]:
        assert words[1] == "unregister"
        self.unregistered.append(words[2])
        return {}

    def nodes(self) -> dict[bytes, tuple[str, str]]:
        self.listed += 1
        return {public_key_to_bytes(read_public(path)): node for path, node in self.known.items()}

    def register(self, key: ec.EllipticCurvePublicKey, site: str) -> str:
        self.asked.append(site)
        if site in self.refused:
            raise CommandRefused(self.refused[site])
        self.registered += 1
        return str(98 + self.registered)


def note(public: Path, node: str) -> None:
    """Note that a key was registered, as `register` does."""
    note_of(public).write_text(f"{node} {fingerprint(read_public(public))}\n")
