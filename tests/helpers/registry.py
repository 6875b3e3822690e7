"""What a SuperLink says of keys, without one."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec

from nectar.engines.flower.client import CommandRefused
from nectar.operate.keys.authority import fingerprint, note_of, read_public

KNOWN = "[code: 23] Public key already in use."


class Registry:
    """A SuperLink that knows some keys already, some of them unregistered."""

    name = "lab"

    def __init__(self, known: dict[str, str], nodes: dict[str, str]) -> None:
        self.known, self.nodes = known, nodes
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

    def statuses(self) -> dict[str, str]:
        self.listed += 1
        return self.nodes

    def register(self, key: ec.EllipticCurvePublicKey, site: str) -> str:
        self.asked.append(site)
        if site in self.known:
            raise CommandRefused(self.known[site])
        self.registered += 1
        return str(98 + self.registered)


def note(public: Path, node: str) -> None:
    """Note that a key was registered, as `register` does."""
    note_of(public).write_text(f"{node} {fingerprint(read_public(public))}\n")
