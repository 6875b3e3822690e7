"""What a device remembers between rounds: in versions, so that a server that goes back a round gets the same numbers.

A device asked for round r starts from the newest version older than r, and writes version r. A run that resumes
from round r's checkpoint therefore meets the devices as they were, even those that had gone a round further.
"""

from __future__ import annotations

from collections.abc import Mapping
from logging import getLogger
from pathlib import Path
from typing import Protocol

import torch
from flwr.app import ArrayRecord, RecordDict
from safetensors import SafetensorError

from client_app.releases import ReleaseLog
from common import tensor_file
from common.errors import FederationError
from common.files import collect_leftovers
from common.tensor_file import TensorFileError

logger = getLogger("flwr")

Tensors = Mapping[str, torch.Tensor]

#: versions kept: the one a resumed round needs and two behind it
KEPT = 3


class DeviceState(Protocol):
    """Where versions lie."""

    def load(self, before_round: int) -> Tensors | None:
        """Return the newest version older than ``before_round``, or None."""
        ...

    def save(self, server_round: int, tensors: Tensors) -> None:
        """Write version ``server_round``, whole or not at all."""
        ...

    def log_release(self, line: Mapping[str, str | int | float]) -> None:
        """Append a line to the site's own log of what left it."""
        ...


class DirectoryState:
    """Versions as safetensors files in a directory of (record id, site); the log lies at ``root``."""

    def __init__(self, root: Path, record_id: str, site: str, run: int = 0) -> None:
        self._directory = root / record_id / site
        self._log = ReleaseLog(root, {"run": run, "record": record_id, "site": site})

    def load(self, before_round: int) -> Tensors | None:
        """Return the newest version older than ``before_round``, or None.

        Raises
        ------
        FederationError
            If that version cannot be read.
        """
        older = [r for r in self._rounds() if r < before_round]
        if not older:
            return None
        path = self._path(older[-1])
        try:
            return tensor_file.load(path)[0]
        except TensorFileError as error:
            logger.error("the state %s cannot be read: %s", path, error)
            raise FederationError(
                f"what this site remembers of round {older[-1]} cannot be read: restore it at the site, or delete the "
                "run's state there to let the site start afresh"
            ) from None

    def save(self, server_round: int, tensors: Tensors) -> None:
        """Write version ``server_round`` by rename and let go of the oldest ones.

        Raises
        ------
        FederationError
            If it cannot be written.
        """
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            collect_leftovers(self._directory)
            tensor_file.save(self._path(server_round), tensors, {"round": server_round})
        except (OSError, SafetensorError) as error:
            raise self._unwritable(error) from None
        for old in [r for r in self._rounds() if r < server_round][: 1 - KEPT]:
            self._path(old).unlink(missing_ok=True)

    def log_release(self, line: Mapping[str, str | int | float]) -> None:
        """Append to the log at the root, whatever the record is called.

        Raises
        ------
        FederationError
            If it cannot be written; nothing may leave then.
        """
        try:
            self._log.append(line)
        except OSError as error:
            raise self._unwritable(error) from None

    def _unwritable(self, error: Exception) -> FederationError:
        """Return what to tell the server, which learns no path of the site."""
        logger.error("%s cannot be written: %s", self._directory, error)
        return FederationError(
            f"this site's state cannot be written ({tensor_file.reason_of(error)}): make room for it there"
        )

    def _path(self, server_round: int) -> Path:
        return self._directory / f"{server_round:06d}.safetensors"

    def _rounds(self) -> list[int]:
        if not self._directory.is_dir():
            return []
        return sorted(int(p.stem) for p in self._directory.glob("[0-9]*.safetensors"))


class ContextState:
    """Versions in Flower's ``context.state``: lost with the SuperNode, and empty in a resumed run."""

    def __init__(self, state: RecordDict) -> None:
        self._state = state

    def load(self, before_round: int) -> Tensors | None:
        """Return the newest version older than ``before_round``, or None."""
        older = [r for r in self._rounds() if r < before_round]
        if not older:
            return None
        record = self._state.array_records[_key(older[-1])]
        return {k: torch.from_numpy(a.numpy().copy()) for k, a in record.items()}

    def save(self, server_round: int, tensors: Tensors) -> None:
        """Write version ``server_round`` and let go of the oldest ones."""
        self._state[_key(server_round)] = ArrayRecord(dict(tensors))
        for old in [r for r in self._rounds() if r < server_round][: 1 - KEPT]:
            del self._state[_key(old)]

    def log_release(self, line: Mapping[str, str | int | float]) -> None:
        """Keep nothing: a site that wants a log names a state directory in its node config."""

    def _rounds(self) -> list[int]:
        keys = (k for k in self._state.array_records if k.startswith("version-"))
        return sorted(int(k.removeprefix("version-")) for k in keys)


def _key(server_round: int) -> str:
    return f"version-{server_round}"
