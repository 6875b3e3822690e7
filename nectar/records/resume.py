"""What `resume=RECORD` stands for: the run config of the record, with what was typed over it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.config.keys import CONFIG
from common.errors import ConfigError
from nectar.records.record import record_at
from server_app.record import RunDirectory

Scalar = str | int | float | bool


def with_recorded(run_config: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return ``run_config``, filled up from the record that it resumes, if any; ConfigError if that is not a record."""
    directory = str(run_config.get("resume", ""))
    if not directory:
        return dict(run_config)
    if Path(directory).parent == Path.cwd():  # where a bare word ends up
        found = record_at(Path(directory).name, str(run_config.get("output-dir", "")))
        run_config, directory = {**run_config, "resume": str(found)}, str(found)
    record = RunDirectory(Path(directory))
    stated = record.stated()
    if stated is None:
        raise ConfigError(f"resume={directory} {record.why_not()}")
    return over_recorded(recorded_config(stated), run_config)


def recorded_config(provenance: Mapping[str, Any]) -> dict[str, Scalar]:
    """Return the run config that a record's provenance states, with the rounds that it was last to go to.

    Raises
    ------
    KeyError, TypeError, ValueError
        If it is no provenance.
    """
    recorded: dict[str, Scalar] = dict(provenance["run-config"])
    rounds = [time["rounds"] for time in provenance.get("continued", []) if "rounds" in time]
    return {**recorded, **({"rounds": rounds[-1]} if rounds else {})}


def over_recorded(recorded: Mapping[str, Scalar], typed: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return a record's run config, what was typed over it; ConfigError if a file was named: a run keeps its own."""
    given = {key: value for key, value in typed.items() if value != ""}
    if CONFIG in given:
        raise ConfigError("resume continues a run with its own settings: leave --config out.")
    settings = " ".join(str(s["set"]) for s in (recorded, given) if s.get("set"))
    return {**recorded, **given, "set": settings}
