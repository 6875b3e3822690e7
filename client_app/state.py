"""What a device remembers between rounds: in versions, so that a server that goes back a round gets the same numbers.

A device in round r starts from the version of the round whose work the server last took, which the server
says, and writes version r. A run that resumes from round r's checkpoint therefore meets the devices as they were,
even those that were a round ahead, and a device whose reply was not taken continues as if it had not worked.

What was learned without noise must not reach a run with noise, and the server names the record that both are of. So
each kind of run (`state_kind_of`) has its own folder, and each run of Flower's a folder in that.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase as fnmatch
from functools import cached_property
from logging import getLogger
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from safetensors import SafetensorError

from common.config.resolved import Config
from common.errors import FederationError
from common.settings.section import without_later
from common.sites import KEPT_MODEL, site_slug
from common.specs.updates import VERSIONS_KEPT
from common.storage import tensor_file
from common.storage.files import collect_leftovers, write_text
from common.storage.tensor_file import TensorFileError

logger = getLogger("flwr")

Tensors = Mapping[str, torch.Tensor]

Slots = Mapping[str, Tensors]
"""What a device remembers, by the name of what remembers it."""

_SLOT, _VERSION = "/", ".safetensors"

#: the file that names the run whose versions were taken over, and the digits of a kind
_AFTER, _DIGITS = "after", 16

#: the file with the checksum of the site's own data at the start of a run
_DATA = "data-began"

COLUMNS = "columns-began"
"""The file with the digest of a site's own table at the start of a run: its columns, kinds and classes."""

ARTIFACTS = "nectar-made"
"""The folder of what sites made once and runs may share, such as the images of a generator."""


def state_kind_of(config: Config) -> str:
    """Return a name, hexadecimal digits, for all runs that may share what a site remembers.

    It covers the method and those inside it, whether they are private, and all their settings and those of
    ``privacy``, and so all that sets a mechanism. A run with noise on complete updates has separate kinds: its steps at
    a site are not private, and neither is what the site remembers of them. A resumed run, for more rounds too, keeps
    its kind.
    """
    methods = {name: without_later(settings) for name, settings in config.methods.items()}
    privacy = without_later(config.privacy)
    del privacy["delta"]  # which only states an epsilon
    of_updates = ["noise on whole updates"] if config.clips_updates else []
    about = [config.method, config.private, privacy, methods, *of_updates]
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:_DIGITS]


class DirectoryState:
    """Versions as safetensors files in a directory of (record id, site's slug, kind, run); the log is at ``root``.

    A run writes and deletes only in its own folder, for any record that the server names. A run that continues from
    another run's round gets copies of all versions of that run, and the run before that is then superfluous.

    Parameters
    ----------
    kind : str
        What `state_kind_of` gives.
    run : int
        Flower's number of the run.
    earlier : bool
        Whether versions of a release that knew no kinds count, which are in the site's folder itself.
    simulated : bool
        Whether the site is simulated: a version may then be refused by its checksum after a power cut, and nothing
        that leaves is logged, since the run's record has what arrived.
    """

    def __init__(
        self,
        root: Path,
        record_id: str,
        site: str,
        run: int = 0,
        *,
        kind: str = "",
        earlier: bool = False,
        artifact_cache: Path | None = None,
        simulated: bool = False,
    ) -> None:
        self._flushed = self.logs_releases = not simulated
        self._parts = root, record_id, site_slug(site), kind, str(run)
        self._earlier = earlier
        self.artifact_cache = artifact_cache or root / ARTIFACTS  # next to the runs' folders
        self._log = ReleaseLog(root, {"run": run, "record": record_id, "site": site})

    @cached_property
    def _directory(self) -> Path:
        return Path(*self._parts)

    def rounds(self, taken: int = 0) -> list[int]:
        """Return the rounds of which there is a version, in order; FederationError if none can be written.

        Where this run has none, it continues from round ``taken`` of another run: the newest that has it.
        """
        # Asked before each reply, and most sites remember nothing.
        if not os.path.isdir(os.path.join(*self._parts[:3])):  # noqa: PTH112, PTH118
            return []
        own = _rounds_in(self._directory)
        if own or not taken:
            return own
        kind = self._directory.parent
        others = {folder: _rounds_in(folder) for folder in kind.glob("[0-9]*")}
        if self._earlier:
            others[kind.parent] = _rounds_in(kind.parent)
        found = [folder for folder, rounds in others.items() if taken in rounds]
        if not found:
            return sorted({each for rounds in others.values() for each in rounds})
        # A copy is as old as what it is of, in a folder that is newer.
        before = max(
            found, key=lambda at: ((at / _file(taken)).stat().st_mtime_ns, at.stat().st_mtime_ns)
        )
        self._take_over(before)
        return others[before]

    def _take_over(self, before: Path) -> None:
        """Copy all versions of another run, and delete what that one had taken over itself."""
        temporary = self._directory.with_name(f".{self._directory.name}.{os.getpid()}.tmp")
        kinds = "?" * _DIGITS  # in the folder of an earlier release
        with self._writing():
            shutil.copytree(before, temporary, ignore=shutil.ignore_patterns(kinds))
            after, same_kind = before / _AFTER, before.parent == self._directory.parent
            write_text(temporary / _AFTER, before.name if same_kind else "")
            temporary.rename(self._directory)
            if same_kind and (older := after.read_text() if after.is_file() else "").isdigit():
                shutil.rmtree(before.with_name(older), ignore_errors=True)

    def load(self, server_round: int) -> Tensors:
        """Return version ``server_round``; FederationError if it cannot be read."""
        return self._read(server_round)[0]

    def base_of(self, server_round: int) -> int:
        """Return the round last taken when it was written, 0 of an earlier release's; FederationError if unreadable."""
        return int(self._read(server_round)[1].get("taken", 0))

    def _read(self, server_round: int) -> tuple[Tensors, Mapping[str, Any]]:
        path = self._path(server_round)
        try:
            return tensor_file.load(path)
        except (TensorFileError, TypeError, ValueError) as error:
            logger.error("the state %s cannot be read: %s", path, error)
            raise FederationError(
                f"what this site remembers of round {server_round} cannot be read: restore it at the site, or delete "
                "this run's state there to let it begin afresh"
            ) from None

    def save(
        self,
        server_round: int,
        tensors: Tensors,
        taken: int = 0,
        there: Sequence[int] | None = None,
    ) -> None:
        """Write version ``server_round`` by rename and let go of later ones, and of the oldest but ``taken``.

        A tensor of a megabyte or more is written once, however many versions hold it. ``there`` are the rounds of which
        there is a version, where they are known.

        Raises
        ------
        FederationError
            If it cannot be written.
        """
        large, about = tensor_file.names_of_large(tensors), {"round": server_round, "taken": taken}
        with self._writing():
            self._directory.mkdir(parents=True, exist_ok=True)
            collect_leftovers(self._directory)
            path = self._path(server_round)
            tensor_file.save(path, tensors, about, separate=large, flushed=self._flushed)
        there = self.rounds() if there is None else there
        for old in _surplus(there, server_round, taken):
            self._path(old).unlink(missing_ok=True)
        tensor_file.collect(self._directory)

    def began_with(self, checksum: str, of: str = _DATA) -> str:
        """Return what is in the site's folder of the record, which the first reading writes."""
        path = Path(*self._parts[:3], of)
        with self._writing():
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                write_text(path, checksum)
            return path.read_text(encoding="ascii", errors="replace")[: len(checksum)]

    def keep_model(self, tensors: Tensors, about: Mapping[str, Any]) -> None:
        """Write ``KEPT_MODEL`` into the site's folder of the record; FederationError if it cannot be written."""
        path = Path(*self._parts[:3], KEPT_MODEL)
        with self._writing():
            path.parent.mkdir(parents=True, exist_ok=True)
            tensor_file.save(path, tensors, about)

    def log_release(self, *lines: Mapping[str, str | int | float]) -> None:
        """Append to the log at the root; FederationError if it cannot be written, and then nothing may leave."""
        with self._writing():
            self._log.append(*lines)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Give the server the reason why the state cannot be written, and no path of the site: FederationError."""
        try:
            yield
        except (OSError, SafetensorError) as error:
            logger.error("%s cannot be written: %s", self._directory, error)
            raise FederationError(
                f"this site's state cannot be written ({tensor_file.unreadable_reason(error)}): free some space there"
            ) from None

    def _path(self, server_round: int) -> Path:
        return self._directory / _file(server_round)


class ContextState:
    """Versions in Flower's ``context.state``, one run's: lost with the SuperNode, and empty in a resumed run."""

    artifact_cache: Path | None = None  # what is made is made again after a restart
    logs_releases = False

    def __init__(self, state: RecordDict) -> None:
        self._state = state

    def rounds(self, taken: int = 0) -> list[int]:
        """Return the rounds of which there is a version, in order."""
        keys = (k for k in self._state.array_records if k.startswith("version-"))
        return sorted(int(k.removeprefix("version-")) for k in keys)

    def load(self, server_round: int) -> Tensors:
        """Return version ``server_round``."""
        record = self._state.array_records[_key(server_round)]
        return {k: torch.from_numpy(a.numpy().copy()) for k, a in record.items()}

    def base_of(self, server_round: int) -> int:
        """Return the round that had last been taken when version ``server_round`` was written."""
        found = self._state.config_records[_base_key(server_round)]["taken"]
        assert isinstance(found, int)
        return found

    def save(
        self,
        server_round: int,
        tensors: Tensors,
        taken: int = 0,
        there: Sequence[int] | None = None,
    ) -> None:
        """Write version ``server_round`` and let go of later ones, and of the oldest but ``taken``."""
        self._state[_key(server_round)] = ArrayRecord(dict(tensors))
        self._state[_base_key(server_round)] = ConfigRecord({"taken": taken})
        for old in _surplus(self.rounds(), server_round, taken):
            del self._state[_key(old)]
            del self._state[_base_key(old)]

    def began_with(self, checksum: str, of: str = _DATA) -> str:
        """Return the first reading's of this run of Flower's."""
        self._state.setdefault(of, ConfigRecord({of: checksum}))
        return str(self._state.config_records[of][of])

    def keep_model(self, tensors: Tensors, about: Mapping[str, Any]) -> None:
        """Keep nothing: a site that wants its model names a state directory in its node config."""

    def log_release(self, *lines: Mapping[str, str | int | float]) -> None:
        """Keep nothing: a site that wants a log names a state directory in its node config."""


DeviceState = DirectoryState | ContextState
"""The store of the versions."""


def names_of(slots: Slots) -> Tensors:
    """Return the tensors of all slots by the names under which a version holds them."""
    return {f"{slot}{_SLOT}{name}": t for slot, each in slots.items() for name, t in each.items()}


def slots_of(version: Tensors) -> Slots:
    """Return what a version holds by slot; what has no slot was remembered by a release that knew none."""
    slots: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in version.items():
        slot, parted, rest = name.partition(_SLOT)
        slots.setdefault(slot if parted else "", {})[rest if parted else name] = tensor
    return slots


def _rounds_in(folder: str | Path) -> list[int]:
    """Return the rounds of which a folder has a version, in order."""
    try:  # three times as fast as a Path's
        names = os.listdir(folder)  # noqa: PTH208
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(int(n.removesuffix(_VERSION)) for n in names if fnmatch(n, f"[0-9]*{_VERSION}"))


def _file(server_round: int) -> str:
    return f"{server_round:06d}{_VERSION}"


def _key(server_round: int) -> str:
    return f"version-{server_round}"


def _base_key(server_round: int) -> str:
    return f"base-of-{server_round}"


def _surplus(rounds: Sequence[int], newest: int, taken: int) -> list[int]:
    """Return the versions that no run continues from: the server's own stays, as do the newest."""
    older, later = [r for r in rounds if r < newest], [r for r in rounds if r > newest]
    return [*(r for r in older[: 1 - VERSIONS_KEPT] if r != taken), *later]


# ---- releases ------------------------------------------------------------------------------------
# The site's own append-only log of what left it, at a place that no server has a word in.

LOG = "released.jsonl"
"""The log's name in the state directory."""

Line = Mapping[str, str | int | float]


class ReleaseLog:
    """Lines about releases, each written atomically before the release.

    Parameters
    ----------
    directory : Path
        The site's state directory.
    about : mapping
        What every line says: the run's number at the SuperLink, the record, the site. A server has a word in the first
        two, so that they are fields of a line and no part of a path.
    """

    def __init__(self, directory: Path, about: Line) -> None:
        self._directory = directory
        self._path = os.path.join(directory, LOG)  # noqa: PTH118 - made for each reply
        self._about = about

    def append(self, *lines: Line) -> None:
        """Add lines with the time; OSError if they cannot be written, and then nothing may leave."""
        now = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        content = "".join(json.dumps({**now, **self._about, **line}) + "\n" for line in lines)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        try:
            file = os.open(self._path, flags, 0o600)
        except (FileNotFoundError, NotADirectoryError):  # mkdir reports the latter
            self._directory.mkdir(parents=True, exist_ok=True)
            file = os.open(self._path, flags, 0o600)
        try:
            os.write(
                file, content.encode()
            )  # at once, since other processes of the site append as well
        finally:
            os.close(file)


def payload_line(
    server_round: int,
    phase: str,
    kind: str,
    arrays: Sequence[np.ndarray[Any, Any]],
    figures: Sequence[str],
) -> Line:
    """Log the payload that left: in which round and phase, its kind and bytes, and its figures' names."""
    return {
        "round": server_round,
        "phase": phase,
        "kind": kind,
        "array-bytes": sum(array.nbytes for array in arrays),
        "figures": " ".join(sorted(figures)),
    }


def refusal_line(server_round: int, phase: str, reason: str) -> Line:
    """Log the sentence that left where nothing else did."""
    return {"round": server_round, "phase": phase, "kind": "error", "reason": reason}
