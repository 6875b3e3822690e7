"""A run's record for the one process that writes it: configuration, provenance, a line a round, partition.

Metrics of a round are written before its checkpoint. A run that continues takes up the checkpoint and lets go of
the one line that can follow it, so no line is lost or repeated.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import platform
import shlex
import shutil
import socket
import sys
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import yaml
from filelock import FileLock, Timeout
from safetensors import SafetensorError

from common.code.fingerprint import source_fingerprint
from common.code.release import VERSION, commit
from common.config.code_fingerprint import code_fingerprint
from common.config.keys import ACCEPT, RESUME_CODE, TYPED
from common.config.resolved import Config
from common.config.schema import GONE
from common.config.sources import SCHEMA
from common.config.text import dotted
from common.errors import FederationError
from common.learning.compute import torch_device
from common.settings.section import operational
from common.settings.sections import SECTIONS, as_file_name
from common.storage.files import read_file, write_atomically, write_json, write_text
from common.storage.tensor_file import unreadable_reason
from server_app.checkpoint import Checkpoint, Checksum
from server_app.run_directory import (
    BEGUN,
    LOCK,
    PROVENANCE,
    WRITER,
    Line,
    RunDirectory,
    codes_of,
    sweep,
)

#: settings that a continued run may have otherwise than the run it continues
_MAY_DIFFER = ("rounds", "resume", "output-dir", "data-dir", "experiment")

#: the beginning of the names of Flower's programs in which a ServerApp runs
_FLOWER = ("flwr", "flower")

#: seconds to wait for the lock: a process that checks whether a record is being written holds it for a moment
_PATIENCE = 0.5

_PACKAGES = ("flwr", "torch", "torchvision", "numpy", "pillow", "ray")


class Record(RunDirectory):
    """The directory of one run, and the means of its one writer."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._lock: FileLock | None = None
        self._sum: LinesChecksum | None = None

    @classmethod
    def create(cls, config: Config) -> Record:
        """Make a new record below the output directory, named by time, method and data set."""
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        method = config.method.replace(":", ".").lower()
        if (
            "." in method
        ):  # the package distinguishes a strategy given by path from our method of the same name
            method = f"{method.partition('.')[0]}-{method.rpartition('.')[2]}"
        name = f"{stamp}-{method}-{as_file_name(config.dataset)}-seed{config.seed}-{uuid.uuid4().hex[:6]}"
        # The name appears only once the record is complete and locked by its writer.
        record = cls(config.output_dir / f"{BEGUN}{name}")
        try:
            sweep(config.output_dir)
            record.directory.mkdir(parents=True)
            record.begin_writing()
            settings = f"schema: {SCHEMA}\n{config.dump_yaml()}"
            write_text(record.directory / "config.yaml", settings)
            write_json(record.directory / PROVENANCE, _provenance(config))
            record.directory = record.directory.rename(config.output_dir / name)
            return record
        except BaseException as error:
            record.close()
            shutil.rmtree(record.directory, ignore_errors=True)
            if not isinstance(error, OSError):
                raise
            raise FederationError(
                f"no record can be made in {config.output_dir} ({error.strerror}): free some space, or choose another "
                "output-dir"
            ) from None

    @classmethod
    def open(cls, config: Config, but: Collection[str] = ()) -> Record:
        """Open the record that ``config.resume`` names, to continue it, ``but`` for settings that may differ.

        Nothing of it is changed yet.

        Raises
        ------
        FederationError
            If it is no record, or is another configuration's, naming the settings that differ; or another process
            writes it.
        """
        record = cls(Path(config.resume))
        recorded = record._config()
        recorded.pop("schema", None)
        free = {*_MAY_DIFFER, *_operational(config), *but}
        usual = GONE | {  # for a setting that the record's release did not have
            f"{name}.{key}": field.default
            for name, section in config.sections().items()
            for key, field in type(section).model_fields.items()
        }
        before, asked = usual | dotted(recorded), GONE | dotted(config.to_dict())
        differing = sorted(
            key
            for key in {**before, **asked}
            if key not in free and before.get(key) != asked.get(key)
        )
        if differing:
            raise FederationError(
                f"{record.directory} was run with other settings ({', '.join(differing[:5])}): continue it with "
                "its own; only rounds, deadlines and resources may differ"
            )
        stated, code = record._provenance(), code_fingerprint(config)
        recorded_by = codes_of(stated)[-1]
        if recorded_by != code and config.resume_code != ACCEPT:
            version = (stated.get("versions") or {}).get("nectar")
            release = f"Nectar {version}" if version else "a release before 0.2.0"
            raise FederationError(
                f"{record.directory} was run by code {recorded_by} ({release}), this is {code}: continue "
                f"it with the release that started it, or with {RESUME_CODE}={ACCEPT}, which the record then says"
            )
        with record.writing():
            record.begin_writing()
        return record

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """While entered, a disk that is full or can only be read is a FederationError: what is safe, what to do."""
        try:
            yield
        except (OSError, SafetensorError) as error:
            raise FederationError(
                f"the record {self.directory} cannot be written ({unreadable_reason(error)}): "
                f"{self._last_safe_round()}; free some space or make it writable, then continue with "
                f"resume={self.directory}"
            ) from None

    def resume_hint(self) -> str:
        """Return the round from which a run that ended can continue, and the command that continues it."""
        line = shlex.join([*self._resume_command(), f"resume={self.directory}"])
        return f"{self._last_safe_round()}, and `{line}` continues from there"

    def _resume_command(self) -> list[str]:
        """Return the command, with the connection of one that has it, that a run like this is continued by."""
        words: list[str] = []
        with contextlib.suppress(FederationError):
            words = list(map(str, self._provenance().get("command", [])))
        known = words[1:2] in (["run"], ["simulate"], ["submit"]) and words[0] == "nectar"
        return words[: 3 if words[1] == "submit" else 2] if known else ["nectar", "run"]

    def _last_safe_round(self) -> str:
        """Return a phrase about the last round from which the run can continue."""
        with contextlib.suppress(FederationError):
            done = Checkpoint.load(self.last).server_round
            return f"all up to round {done} is safe in it"
        return "no round was done yet"

    def note_continued(self, config: Config) -> None:
        """Record that the run continues: when, by which command, where, and up to which round."""
        now = _provenance(config)
        again = {key: now[key] for key in ("started", "command", "hardware", "threads")}
        behind = {}
        stated = self._provenance()
        if now["code"] != codes_of(stated)[-1]:
            other = {key: now[key] for key in ("code", "source", "versions")}
            behind = {**other, RESUME_CODE: config.resume_code}
        before = stated.get("continued", [])
        self.note(
            continued=[*before, {**again, "rounds": config.rounds, **behind}], outcome="running"
        )

    def begin_writing(self) -> None:
        """Be the record's one writer until ``close``, or until this process ends.

        Raises
        ------
        FederationError
            If another process is: its number and its machine.
        OSError
            If nothing can be written there.
        """
        self._lock = FileLock(self.directory / LOCK, timeout=_PATIENCE)
        try:
            self._lock.acquire()
        except Timeout:
            raise FederationError(
                f"{self.directory} is being written by {self.writer()}, a run in progress: wait for its end, "
                "or end it"
            ) from None
        write_json(self.directory / WRITER, {"pid": os.getpid(), "host": socket.gethostname()})

    def close(self) -> None:
        """Let others write the record."""
        if self._lock is not None:
            self._lock.release()

    def _config(self) -> dict[str, Any]:
        try:
            content = yaml.safe_load(read_file(self.directory / "config.yaml").decode())
        except (OSError, ValueError, RecursionError, yaml.YAMLError):
            content = None
        if not isinstance(content, dict):
            raise FederationError(
                f"{self.directory} is not a run's record (it has no readable config.yaml): give the directory that "
                "the run printed"
            )
        return content

    def _provenance(self) -> dict[str, Any]:
        """Return what is stated, to be continued."""
        if (stated := self.stated()) is not None:
            return stated
        if self.other_schema() is not None:
            raise FederationError(f"{self.directory} {self.why_not()}")
        raise FederationError(
            f"{self.directory / PROVENANCE} is damaged: restore a complete copy of the record, or begin a new run"
        )

    def note(self, **fields: Any) -> None:
        """Add to the provenance, such as the outcome or the checksum of the data."""
        write_json(self.directory / PROVENANCE, self._provenance() | fields)

    def partition(self, content: Mapping[str, Any]) -> None:
        """Write partition.json."""
        write_json(self.directory / "partition.json", {"schema": SCHEMA, **content})

    def append(self, line: Mapping[str, Any]) -> None:
        """Append a round to metrics.jsonl atomically, NaN and infinity as null; OSError on a full disk."""
        text = json.dumps(without_nan({"schema": SCHEMA, **line}), allow_nan=False)
        with self.metrics_path.open("ab", buffering=0) as file:
            before = file.tell()
            try:
                content = f"{text}\n".encode()
                while content:
                    content = content[file.write(content) :]
                os.fsync(file.fileno())
            except OSError:
                with contextlib.suppress(OSError):
                    file.truncate(before)
                raise
        if self._sum is not None:
            self._sum.add(json.loads(text))

    def keep_lines(self, number: int) -> None:
        """Let go of every line of metrics.jsonl after the first ``number``, and of what is left of one."""
        if self.metrics_path.exists():
            kept = self.metrics_path.read_bytes().split(b"\n")[:number]
            content = b"".join(line + b"\n" for line in kept)
            write_atomically(self.metrics_path, lambda to: to.write_bytes(content))
        self._sum = None

    def checksum(self) -> Checksum:
        """Return how many lines there are, and the SHA-256 of what they say but what a clock decided."""
        if self._sum is None:
            self._sum = LinesChecksum(self.metrics())
        return self._sum.value


class LinesChecksum:
    """The checksum of lines of metrics.jsonl, to which more can be added."""

    def __init__(self, lines: Iterable[Line] = ()) -> None:
        self._digest, self._lines = hashlib.sha256(), 0
        for line in lines:
            self.add(line)

    def add(self, line: Line) -> None:
        """Take in one more line."""
        timeless = {key: value for key, value in line.items() if key != "seconds"}
        self._digest.update(json.dumps(timeless, sort_keys=True).encode())
        self._lines += 1

    @property
    def value(self) -> Checksum:
        """The number of lines, and their SHA-256."""
        return self._lines, self._digest.hexdigest()


def without_nan(value: Any) -> Any:
    """Return plain values with null for each number that JSON lacks."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {k: without_nan(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(v) for v in value]
    return value


def _provenance(config: Config) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": _command(config),
        "run-config": {k: v for k, v in config.to_run_config().items() if k != TYPED},
        "configuration": config.digest(),
        "source": source_fingerprint(),
        "code": code_fingerprint(config),
        "versions": {
            "nectar": VERSION,
            **({"commit": commit()} if commit() else {}),
            "python": platform.python_version(),
            **_versions(),
        },
        "hardware": {
            "device": str(torch_device(config.compute.device)),
            "machine": platform.machine(),
            "system": platform.system(),
            "cores": os.cpu_count(),
            "cuda": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        },
        "threads": {
            "server": config.compute.server_cores,
            "client": config.compute.client_cores,
        },
        "privacy": _disclosed(config),
        "outcome": "running",
    }


def _disclosed(config: Config) -> dict[str, Any] | None:
    """Return what leaves the devices, by the run's settings; None for a method that does not say."""
    disclosed = config.settings.disclosure()
    if disclosed is None:
        return None
    return asdict(replace(disclosed, differentially_private=config.private))


def _command(config: Config) -> list[str]:
    """Return the words that were typed, else the program: never a process's own words, which may hold a token."""
    if config.typed:
        return shlex.split(config.typed)
    return ["flwr", "run"] if Path(sys.argv[0]).name.startswith(_FLOWER) else ["python"]


def _versions() -> dict[str, str]:
    """Return the packages' versions; those of a real federation's machines have no Ray."""
    versions = {}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def _operational(config: Config) -> set[str]:
    """Return the settings, by dotted key, that change where and how a run proceeds but none of its numbers."""
    used = {name: type(section) for name, section in config.sections().items()}
    return {f"{name}.{key}" for name, cls in (SECTIONS | used).items() for key in operational(cls)}
