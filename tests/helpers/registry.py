"""What a SuperLink says of keys, without one."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from nectar.engines.flower.errors import CommandRefused
from nectar.engines.flower.federation import Node
from nectar.operate.keys.authority import fingerprint, read_public


class Registry:
    """A SuperLink that refuses some sites, and knows some keys as nodes already, some of them unregistered.

    ``nodes`` has number and status by a site's public half.
    """

    address = "127.0.0.1:9"

    def __init__(
        self, refused: dict[str, str], nodes: Mapping[Path, tuple[str, str]] | None = None
    ) -> None:
        self.refused = refused
        self.known = [
            Node(path.stem, number, status, fingerprint=fingerprint(read_public(path)))
            for path, (number, status) in (nodes or {}).items()
        ]
        self.asked: list[str] = []
        self.unregistered: list[str] = []
        self.listed = self.registered = 0

    def wait(self, seconds: float) -> None:
        pass

    def superlink(self) -> AbstractContextManager[Registry]:
        return nullcontext(self)

    def nodes(self) -> list[Node]:
        self.listed += 1
        return self.known

    def register(self, key: ec.EllipticCurvePublicKey, site: str) -> str:
        self.asked.append(site)
        if site in self.refused:
            raise CommandRefused(self.refused[site])
        self.registered += 1
        number = str(98 + self.registered)
        self.known.append(Node(site, number, "registered", fingerprint=fingerprint(key)))
        return number

    def unregister(self, node: str) -> None:
        self.unregistered.append(node)
