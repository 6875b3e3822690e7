"""A run's directory for whoever reads it: where its files lie, and what its provenance states.

Nothing here writes, and nothing needs torch: a list of runs is there at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.config.sources import SCHEMA
from common.storage.files import parse_json, read_file


class RunDirectory:
    """The directory of one run.

    Parameters
    ----------
    directory : Path
        Where it is, or may be.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @property
    def id(self) -> str:
        """The directory's name, which also names the run to its devices."""
        return self.directory.name

    @property
    def last(self) -> Path:
        """The checkpoint of the newest round."""
        return self.directory / "checkpoint" / "last.safetensors"

    @property
    def best(self) -> Path:
        """The checkpoint of the round with the best accuracy on the validation share."""
        return self.directory / "checkpoint" / "best.safetensors"

    @property
    def finite(self) -> Path:
        """The last checkpoint before one whose test loss was not finite; there only where a run came to that."""
        return self.directory / "checkpoint" / "finite.safetensors"

    @property
    def last_sets(self) -> Path:
        """The synthetic sets that the sites sent in the newest round, for methods that send images."""
        return self.directory / "synthetic" / "last.safetensors"

    @property
    def best_sets(self) -> Path:
        """Those of the round with the best accuracy on the validation share."""
        return self.directory / "synthetic" / "best.safetensors"

    def is_there(self) -> bool:
        """Return whether a record lies here, and no link to one."""
        return (self.directory / PROVENANCE).is_file() and not self.directory.is_symlink()

    def stated(self) -> dict[str, Any] | None:
        """Return what its provenance states now; None if that cannot be read, or is not a run's of this schema."""
        found = self.json(PROVENANCE)
        if found is None or found.get("schema") != SCHEMA:
            return None
        return found if isinstance(found.get("run-config"), dict) else None

    def other_schema(self) -> int | None:
        """Return the schema of a record of another release; None if it is this one's, or there is no record."""
        schema = (self.json(PROVENANCE) or {}).get("schema")
        return schema if type(schema) is int and schema != SCHEMA else None

    def why_not(self) -> str:
        """Return why what lies here is not a record that can be read, and what to do; half a sentence."""
        if (schema := self.other_schema()) is not None:
            return (
                f"was written by another release of Nectar (its schema is {schema}, this one reads {SCHEMA}): read it "
                "with the release that wrote it"
            )
        return (
            f"is not a run's record (it has no readable {PROVENANCE}): give the directory that the run printed, its "
            "id, or latest"
        )

    def json(self, name: str) -> dict[str, Any] | None:
        """Return the table in the file ``name``; None if it has none that can be read."""
        try:
            content = parse_json(read_file(self.directory / name))
        except (OSError, ValueError, RecursionError):
            return None
        return content if isinstance(content, dict) else None


def codes_of(provenance: Mapping[str, Any]) -> list[str]:
    """Return the fingerprints of the code that a run was computed by, in their order."""
    later = [time["code"] for time in provenance.get("continued", []) if "code" in time]
    return [str(provenance.get("code", "")), *later]


PROVENANCE = "provenance.json"


AUDIT = "audit-images.json"
"""What `nectar audit images` found; there only where it was asked."""


ALONE = "alone"
"""In a record's provenance: whether no other run went on beside it, so that its seconds are its own."""


COMPLETED = "completed"
"""The outcome of a run that went to its last round."""
