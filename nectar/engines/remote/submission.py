"""A submission: a run configuration without any path of the submitting machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from common.config.keys import (
    FILE_KEY,
    PATH_KEYS,
    RESUME_CODE,
    SETTINGS_OF,
    SITES_KEY,
    START_KEY,
    TABLES_KEY,
)
from common.config.loading import load
from common.config.resolved import Config
from common.errors import ConfigError
from nectar.arguments import (
    RunConfig,
    parse_arguments,
    refuse_nothing,
    refuse_repeats,
    submitter,
)
from nectar.engines.flower.connection import Connection
from nectar.engines.flower.errors import LaunchError
from nectar.engines.flower.log import marked_content
from nectar.engines.remote.watching import follow
from nectar.records.outputs import over_recorded, recorded_config

RESUME, OUTPUT, DATA = "resume", "output-dir", "data-dir"


@dataclass(frozen=True)
class Submission:
    """A run configuration for a server elsewhere.

    Attributes
    ----------
    typed : dict
        What was typed; its paths are the server's, word for word.
    config : Config
        The configuration resolved on this machine, except for the paths that were not typed.
    """

    typed: RunConfig
    config: Config

    @property
    def run_config(self) -> RunConfig:
        """The run config to submit: all that the configuration states, and only the paths that were typed."""
        stated = self.config.to_run_config()
        paths = {key: self.typed.get(key, "") for key in PATH_KEYS}
        return {key: value for key, value in {**stated, **paths}.items() if value != ""}

    @property
    def resumes(self) -> str:
        """The record that is continued: its id, or its directory on the server; empty if none."""
        return str(self.typed.get(RESUME, ""))

    def __str__(self) -> str:
        """Return the main settings, and which machine's default paths are used."""
        config = self.config
        unstated = {OUTPUT: "the server's own", DATA: "each machine's own"}
        paths = "".join(f"; {key}: {own}" for key, own in unstated.items() if key not in self.typed)
        experiment = f"experiment={config.experiment} " if config.experiment else ""
        chosen = f"method={config.method} dataset={config.dataset} rounds={config.rounds}"
        return f"{experiment}{chosen} seed={config.seed}{paths}"

    def continuing(self, directory: str, recorded: RunConfig) -> Submission:
        """Return the submission that continues a record.

        Parameters
        ----------
        directory : str
            Where the record is on the server.
        recorded : dict
            The run config in its provenance, which what was typed overrides. Its data-dir is the server's and no
            site's, so it is left out.
        """
        recorded = {key: value for key, value in recorded.items() if key != DATA}
        output_dir = self.typed.get(OUTPUT) or str(PurePosixPath(directory).parent)
        run_config = over_recorded(recorded, self.typed) | {RESUME: directory, OUTPUT: output_dir}
        return Submission(run_config, load(run_config))


def parse_submission(
    words: Sequence[str], file: str | None = None, typed: RunConfig | None = None
) -> Submission:
    """Read ``[EXPERIMENT] [key=value ...]`` for a server elsewhere, and check it.

    Parameters
    ----------
    file : str, optional
        A file of settings, of this machine.
    typed : dict, optional
        What a run config holds of the words as they were typed.

    Raises
    ------
    ConfigError
        If a setting is not valid, or a path is relative.
    """
    refuse_repeats(words)
    paths: RunConfig = {}
    rest: list[str] = []
    for word in words:
        key, equals, value = word.partition("=")
        name = key.replace("_", "-")
        if equals and name in PATH_KEYS:
            refuse_nothing(name, value)
            paths[name] = _server_path(name, value)
            continue
        if equals and key in (FILE_KEY, START_KEY) and not value.startswith("torchvision:"):
            _server_path(key, value)
        if equals and key in (SITES_KEY, TABLES_KEY) and value:
            raise ConfigError(
                f"{key} is for simulations: with a SuperLink each site names its data in its node "
                "config, data='/abs/folder' or data='/abs/site.csv'"
            )
        rest.append(word)
    run_config = (typed or {}) | parse_arguments(rest, file=file)
    run_config |= {key: value for key, value in paths.items() if value}
    # A record is named by its id too: which settings it was run with, only the server knows.
    unknown = (RESUME, RESUME_CODE) if RESUME in run_config else ()
    checked = {key: value for key, value in run_config.items() if key not in unknown}
    return Submission(run_config, load(checked))


def resume_submission(connection: Connection, submission: Submission) -> Submission:
    """Get the settings of the record to continue from the server, by a run that trains nothing.

    Raises
    ------
    LaunchError
        With the server's reason if it has no such record.
    """
    from nectar.engines.flower.superlink import own_bundle

    folder, _, record = submission.resumes.rstrip("/").rpartition("/")
    settings: dict[str, Any] = {}
    reasons: list[str] = []

    def see(line: str) -> None:
        settings.update(marked_content(line, "settings"))
        if reason := marked_content(line, "stopped").get("reason"):
            reasons.append(str(reason))

    output_dir = folder or submission.typed.get(OUTPUT, "")
    question: RunConfig = {SETTINGS_OF: record, OUTPUT: output_dir, **submitter()}
    with connection.superlink() as superlink:
        run = superlink.start(own_bundle(), question)
    ended = follow(connection, run, see)
    if not ended.completed or not settings:
        raise LaunchError(
            reasons[0]
            if reasons
            else f"The server did not report {record}'s settings: {ended.reason}"
        )
    return submission.continuing(str(settings["directory"]), recorded_config(settings))


def _server_path(key: str, value: str) -> str:
    if not value or value.startswith(("/", "~/")):
        return value
    if key == RESUME and "/" not in value:
        return value
    shared = key in (DATA, FILE_KEY)
    where = "every machine that reads a shared data set" if shared else "the server"
    raise ConfigError(
        f"{key}={value} is a path on {where} and must be absolute: {key}=/srv/..., or ~/... for the home of "
        "the user there"
        + (", or the id of a record" if key == RESUME else "")
        + f"; on this machine it would be {Path.cwd() / value}"
    )
