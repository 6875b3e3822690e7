"""The runs of a comparison, resolved and checked before any of them starts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from common.config.keys import TYPED
from common.config.loading import load
from common.config.resolved import Config
from common.errors import ConfigError
from common.settings.sections import LONGEST, TrackSettings
from nectar.comparison.request import Request
from nectar.comparison.variants import Variant, file_name
from nectar.engines.preflight import check
from nectar.records.identity import Identity
from nectar.words import parse_words, with_class_list


@dataclass(frozen=True)
class Task:
    """One run: a row, a seed, and what they resolve to.

    Parameters
    ----------
    identity : Identity
        What its record is found by.
    cell : str
        What a grid calls the comparison that it is of.
    """

    variant: Variant
    seed: int
    config: Config
    identity: Identity
    cell: str = ""

    @property
    def name(self) -> str:
        """The run as messages call it."""
        place = f"{self.cell}: " if self.cell else ""
        return f"{place}{self.variant.label}, seed {self.seed}"

    @property
    def file_name(self) -> str:
        """The run as files are called."""
        own = f"{file_name(self.variant.label)}-seed{self.seed}"
        return f"{file_name(self.cell)}-{own}-{self.identity.key[:6]}" if self.cell else own

    @property
    def words(self) -> list[str]:
        """What ``nectar run`` is called with: the resolved configuration, whatever becomes of the files meanwhile."""
        run_config = self.config.to_run_config()
        return [f"{key}={value}" for key, value in run_config.items() if value != ""]

    def within(self, cell: str, group: str) -> Task:
        """Return the run as one of a cell's, with its names at a tracker, if it has one: its identity is the same."""
        own = replace(self, cell=cell)
        track = self.config.track
        if track.by == "none":
            return own
        names = {"group": track.group or group, "name": track.name or own.name}
        fitting = {key: text[:LONGEST] for key, text in names.items()}
        named = TrackSettings.model_validate(track.model_dump() | fitting)
        return replace(own, config=replace(self.config, track=named))

    @property
    def threads(self) -> int:
        """Threads that a process of its computes on: server and devices take turns."""
        return max(self.config.compute.server_cores, self.config.compute.client_cores)

    @property
    def cores(self) -> int:
        """Cores it computes on: ``compute.workers`` devices work side by side."""
        compute = self.config.compute
        return max(compute.server_cores, compute.client_cores * max(1, compute.workers))


def tasks_of(request: Request, variants: Sequence[Variant], seeds: Iterable[int]) -> list[Task]:
    """Resolve every run of ``variants`` and ``seeds``, row by row, and check that it can start.

    Raises
    ------
    NectarError
        If a configuration cannot be resolved, or is known to fail, or has nothing that could be compared.
    """
    seeds = list(seeds)
    return [_task(request, variant, seed) for variant in variants for seed in seeds]


def _task(request: Request, variant: Variant, seed: int) -> Task:
    words = parse_words(request.words(variant, seed))
    config = load(with_class_list({TYPED: request.typed} | words))
    if config.evaluation.on == "none":
        raise ConfigError(
            "evaluation.on=none leaves nothing to compare: choose server, sites or both."
        )
    check(config)
    return Task(variant, seed, config, Identity.of(config))


def refuse_duplicates(tasks: Iterable[Task]) -> None:
    """Refuse two rows that are one and the same run; ConfigError naming both."""
    seen: dict[str, Task] = {}
    for task in tasks:
        first = seen.setdefault(task.identity.key, task)
        if first.variant.label != task.variant.label:
            raise ConfigError(
                f"{first.variant.label!r} and {task.variant.label!r} resolve to the same configuration: leave one "
                "out, or set what tells them apart."
            )
