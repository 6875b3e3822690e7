"""What a SuperLink says of keys, without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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

    def ask(self, words: list[str], seconds: float) -> dict[str, Any]:
        if words[1] == "list":
            self.listed += 1
            return {
                "nodes": [
                    {"node-id": node, "status": status} for node, status in self.nodes.items()
                ]
            }
        if words[1] == "unregister":
            self.unregistered.append(words[2])
            return {}
        site = Path(words[2]).stem
        self.asked.append(site)
        if site in self.known:
            raise CommandRefused(self.known[site])
        self.registered += 1
        return {"node-id": 98 + self.registered}


def note(public: Path, node: str) -> None:
    """Note that a key was registered, as `register` does."""
    note_of(public).write_text(f"{node} {fingerprint(read_public(public))}\n")
