"""A run's record: configuration, provenance, metrics a round, partition, checkpoints, pictures; all in one directory.

Metrics of a round are written before its checkpoint. A run that continues takes up the checkpoint and lets go of
the one line that can stand behind it, so nothing is lost and nothing stands twice.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shlex
import shutil
import sys
import time
import uuid
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors import SafetensorError

from common.code.fingerprint import source_fingerprint
from common.code.release import VERSION, commit
from common.config.code_fingerprint import code_fingerprint
from common.config.keys import ACCEPT, RESUME_CODE, ROUND, TYPED
from common.config.resolved import Config
from common.config.schema import GONE
from common.config.sources import SCHEMA
from common.config.text import dotted
from common.errors import FederationError
from common.learning.compute import torch_device
from common.settings.section import operational
from common.settings.sections import SECTIONS, as_file_name
from common.storage.files import read_file, write_json, write_text
from common.storage.tensor_file import unreadable_reason
from server_app.checkpoint import Checkpoint
from server_app.metrics_file import MetricsFile
from server_app.run_directory import PROVENANCE, RunDirectory, codes_of
from server_app.writer import BEGUN, Writer, sweep

#: settings that a continued run may have otherwise than the run it continues
_MAY_DIFFER = ("rounds", "resume", "output-dir", "data-dir", "experiment")

#: the beginning of the names of Flower's programs in which a ServerApp runs
_FLOWER = ("flwr", "flower")

_PACKAGES = ("flwr", "torch", "torchvision", "numpy", "pillow", "ray")


class Record(RunDirectory):
    """The directory of one run, and the means of its one writer."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.metrics_file = MetricsFile(directory / "metrics.jsonl")
        self._writer = Writer(directory)

    @classmethod
    def create(cls, config: Config) -> Record:
        """Make a new record below the output directory, named by time, method and data set."""
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        method = config.method.replace(":", ".").lower()
        if (
            "." in method
        ):  # a strategy by path: its package tells it from a method of ours with the same name
            method = f"{method.partition('.')[0]}-{method.rpartition('.')[2]}"
        name = f"{stamp}-{method}-{as_file_name(config.dataset)}-seed{config.seed}-{uuid.uuid4().hex[:6]}"
        # Nothing of that name is there before it is whole, and its writer's.
        record = cls(config.output_dir / f"{BEGUN}{name}")
        try:
            sweep(config.output_dir)
            record.directory.mkdir(parents=True)
            record._writer.begin()
            settings = f"schema: {SCHEMA}\n{config.dump_yaml()}"
            write_text(record.directory / "config.yaml", settings)
            write_json(record.directory / PROVENANCE, _provenance(config))
            return record._renamed(config.output_dir / name)
        except BaseException as error:
            record.close()
            shutil.rmtree(record.directory, ignore_errors=True)
            if not isinstance(error, OSError):
                raise
            raise FederationError(
                f"no record can be made in {config.output_dir} ({error.strerror}): make room there, or choose another "
                "output-dir"
            ) from None

    def _renamed(self, directory: Path) -> Record:
        self.directory.rename(directory)
        record = Record(directory)
        record._writer = self._writer
        record._writer.follow(directory)
        return record

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
            raise FederationError(
                f"{record.directory} was run by code {recorded_by} ({_release_of(stated)}), this is {code}: continue "
                f"it with the release that began it, or with {RESUME_CODE}={ACCEPT}, which the record then says"
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
                f"{self._last_safe_round()}; make room there, or make it writable, then resume={self.directory} goes on"
            ) from None

    def resume_hint(self) -> str:
        """Say of a run that ended which round it can go on from, and the line that goes on."""
        line = shlex.join([*self._resume_command(), f"resume={self.directory}"])
        return f"{self._last_safe_round()}, and `{line}` goes on from there"

    def _resume_command(self) -> list[str]:
        """Return the command, with the connection of one that has it, that a run like this is continued by."""
        words: list[str] = []
        with contextlib.suppress(FederationError):
            words = list(map(str, self._provenance().get("command", [])))
        known = words[1:2] in (["run"], ["simulate"], ["submit"]) and words[0] == "nectar"
        return words[: 3 if words[1] == "submit" else 2] if known else ["nectar", "run"]

    def _last_safe_round(self) -> str:
        """Describe what of the record a run can go on from."""
        with contextlib.suppress(FederationError):
            done = Checkpoint.load(self.last).server_round
            return f"all up to round {done} is safe in it"
        return "no round was done yet"

    def note_continued(self, config: Config) -> None:
        """Note that the run goes on: when, by which words, where, and to which round."""
        now = _provenance(config)
        again = {key: now[key] for key in ("started", "command", "hardware", "threads")}
        behind = {ROUND: config.round} if config.round else {}
        stated = self._provenance()
        if now["code"] != codes_of(stated)[-1]:
            other = {key: now[key] for key in ("code", "source", "versions")}
            behind |= {**other, RESUME_CODE: config.resume_code}
        before = stated.get("continued", [])
        self.note(
            continued=[*before, {**again, "rounds": config.rounds, **behind}], outcome="running"
        )

    def begin_writing(self) -> None:
        """Be the record's one writer until ``close``; FederationError with another one's number and machine."""
        self._writer.begin()

    def close(self) -> None:
        """Let others write the record."""
        self._writer.end()

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
            f"{self.directory / PROVENANCE} is damaged: put back a whole copy of the record, or begin a new run"
        )

    def note(self, **fields: Any) -> None:
        """Add to the provenance, such as the outcome or the checksum of the data."""
        write_json(self.directory / PROVENANCE, self._provenance() | fields)

    def partition(self, content: Mapping[str, Any]) -> None:
        """Write partition.json."""
        write_json(self.directory / "partition.json", {"schema": SCHEMA, **content})

    def append(self, line: Mapping[str, Any]) -> None:
        """Add a round to metrics.jsonl and see it on disk."""
        self.metrics_file.append({"schema": SCHEMA, **line})

    def metrics(self) -> list[dict[str, Any]]:
        """Return the rounds' lines, not one that a crash cut short; FederationError if one is damaged."""
        return self.metrics_file.lines()


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


def _release_of(provenance: Mapping[str, Any]) -> str:
    version = (provenance.get("versions") or {}).get("nectar")
    return f"Nectar {version}" if version else "a release before 0.2.0"


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
