"""A comparison from its words to its tables."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from common.config.resolved import Config
from common.errors import ConfigError
from nectar.comparison.files import write_all
from nectar.comparison.plan import Task, refuse_duplicates, tasks_of
from nectar.comparison.request import Request
from nectar.comparison.rows import Row, default_target
from nectar.comparison.run_scheduler import RunScheduler
from nectar.comparison.tables import Results
from nectar.comparison.tuning import Choice, Search, Trial, choose, searches_of
from nectar.comparison.variants import Variant
from nectar.records.archive import Archive
from nectar.records.figures import read_run
from strategies.exchange.roll_call import some_of

Say = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """What the searches chose, and the runs that are reported by it."""

    choices: tuple[Choice, ...]
    tasks: tuple[Task, ...]


class Comparison:
    """A comparison that has been resolved and checked, and can be carried out.

    Parameters
    ----------
    say : callable
        Told each step, in a sentence.
    cell : str
        What a grid calls it.

    Raises
    ------
    NectarError
        Before anything has started: a configuration that cannot be, two rows that are one, a search without a
        validation set.
    """

    def __init__(self, request: Request, say: Say, cell: str = "") -> None:
        self._request = request
        self._say = say
        self._cell = cell
        self._searches = searches_of(request)
        searched = {label for search in self._searches for label in search.labels}
        self._tasks = tasks_of(request, [self._first(v) for v in request.variants], request.seeds)
        for tuned in (False, True):
            refuse_duplicates(t for t in self._tasks if (t.variant.label in searched) == tuned)
        self._trials = {
            search.name: tasks_of(request, search.candidates(), request.tune_seeds)
            for search in self._searches
        }
        for tasks in self._trials.values():
            _require_validation(tasks[0])
        places = {task.config.output_dir for task in self._tasks}
        self.records = places.pop()
        self.output = request.output or self.records / f"compare-{self._digest()}"

    @property
    def networks(self) -> dict[str, str]:
        """The run's own network, by row."""
        return {task.variant.label: task.config.model.name for task in self._tasks}

    @property
    def comparisons(self) -> list[Comparison]:
        """Itself, as a table has its columns'."""
        return [self]

    @property
    def jobs(self) -> int:
        """How many runs go on at a time, as asked; 0: as many as the cores allow."""
        return self._request.jobs

    @property
    def on_cluster(self) -> bool:
        """Whether the runs go to a Ray cluster."""
        return bool(self._request.ray)

    @property
    def tasks(self) -> list[Task]:
        """The runs that are reported; those of rows that are searched with the first combination."""
        return [task.within(self._cell, self.output.name) for task in self._tasks]

    @property
    def trials(self) -> list[Task]:
        """The runs of the searches."""
        return [task for name in self._trials for task in self._trials_of(name)]

    def carry_out(self) -> Results:
        """Run what is not there yet, write the files, and return the results."""
        scheduler = self.scheduler(self.output / "logs")
        plan = self.planned(scheduler)
        scheduler.carry_out(plan.tasks)
        return self.concluded(plan, scheduler)

    def scheduler(self, logs: Path) -> RunScheduler:
        """Return what carries out the runs, one after the other or side by side."""
        request = self._request
        archive = Archive(self.records)
        return RunScheduler(
            archive, self.records, logs, request.jobs, request.alone, self._say, request.ray
        )

    def planned(self, scheduler: RunScheduler) -> Plan:
        """Carry out the searches, and return what is to be run by what they chose."""
        request = self._request
        choices = [self._search(search, scheduler) for search in self._searches]
        tasks = self._tasks
        if choices:
            tasks = tasks_of(request, [_tuned(v, choices) for v in request.variants], request.seeds)
        return Plan(
            tuple(choices), tuple(task.within(self._cell, self.output.name) for task in tasks)
        )

    def concluded(self, plan: Plan, scheduler: RunScheduler) -> Results:
        """Write the files of a plan that was carried out, and return the results."""
        request, tasks, choices = self._request, plan.tasks, plan.choices
        results = self._results(plan, scheduler)
        configs = {t.variant.label: t.config for t in reversed(tasks)}
        facts = {
            "command": results.command,
            "code": {t.variant.label: t.identity.code for t in tasks},
            "seeds": list(request.seeds),
            "search seeds": list(request.tune_seeds) if choices else [],
        }
        ordered = {v.label: configs[v.label] for v in request.variants}
        write_all(self.output, results, ordered, facts)
        return results

    def _first(self, variant: Variant) -> Variant:
        """Return a row with the first combination of its search, if it has one."""
        for search in self._searches:
            if variant.label in search.labels:
                return variant.with_settings(search.grid()[0])
        return variant

    def _trials_of(self, name: str) -> list[Task]:
        return [task.within(self._cell, self.output.name) for task in self._trials[name]]

    def _search(self, search: Search, scheduler: RunScheduler) -> Choice:
        tasks, archive = self._trials_of(search.name), scheduler.archive
        self._say(
            f"Search for {search.name}: {len(search.grid())} combinations, judged on the validation set."
        )
        scheduler.carry_out(tasks, search=True)
        trials = []
        for settings, candidate in zip(search.grid(), search.candidates(), strict=True):
            own = [task for task in tasks if task.variant.label == candidate.label]
            trials.append(Trial(settings, tuple(_validation(task, archive) for task in own)))
        failures = [f"{t.name}: {why}" for t in tasks if (why := scheduler.failures.get(t.name))]
        choice = choose(search, trials, some_of(failures))
        self._say(
            f"Chosen for {search.name}: {' '.join(choice.best.settings)} (validation {choice.best.score:.4f})."
        )
        return choice

    def _results(self, plan: Plan, scheduler: RunScheduler) -> Results:
        request, tasks, archive = self._request, plan.tasks, scheduler.archive
        names = {task.name for task in (*tasks, *self.trials)}
        rows = []
        for variant in request.variants:
            own = [task for task in tasks if task.variant.label == variant.label]
            runs = []
            for task in own:
                entry = archive.completed(task.identity) or archive.unfinished(task.identity)
                runs.append(read_run(entry, task.config.rounds) if entry else None)
            rows.append(Row(variant.label, tuple(request.seeds), tuple(runs)))
        asked = request.target
        return Results(
            title=_title(tasks),
            command=self._request.typed,
            rows=tuple(rows),
            rounds=max(task.config.rounds for task in tasks),
            target=asked if asked is not None else default_target(rows),
            chosen_target=asked is not None,
            choices=plan.choices,
            failures=tuple(
                f"{name}: {reason}" for name, reason in scheduler.failures.items() if name in names
            ),
        )

    def _digest(self) -> str:
        """Return ten hex digits that name what is compared."""
        content = [[task.variant.label, task.identity.key] for task in self._tasks]
        content += [[name, t.identity.key] for name, ts in self._trials.items() for t in ts]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:10]


def _tuned(variant: Variant, choices: Sequence[Choice]) -> Variant:
    for choice in choices:
        if variant.label in choice.search.labels:
            return variant.with_settings(choice.best.settings)
    return variant


def _require_validation(task: Task) -> None:
    """Refuse a search that would have to judge by the test set."""
    config = task.config
    if config.settings.trains_on_validation:
        raise ConfigError(
            f"--tune judges by the validation split, from which method={config.method} learns: leave it out of the "
            "search."
        )
    at_server = config.data.validation > 0 and config.evaluation.on in ("server", "both")
    if not (at_server or config.data.validated_at_sites):
        raise ConfigError(
            "--tune judges by the validation split, and there is none: set data.validation above 0, such as 0.1, with "
            "evaluation.on=server or both, or with data.validation_at=sites."
        )


def _validation(task: Task, archive: Archive) -> float:
    """Return a task's validation accuracy after its last round; NaN if it was not completed."""
    entry = archive.completed(task.identity)
    run = read_run(entry, task.config.rounds) if entry else None
    return run.rounds[-1].validation if run and run.completed else math.nan


def _title(tasks: Sequence[Task]) -> str:
    """Say what was compared, on what; where rows differ, all there is."""
    told = [_about(task.config) for task in tasks]
    return ", ".join(" or ".join(dict.fromkeys(each)) for each in zip(*told, strict=True))


def _about(config: Config) -> tuple[str, ...]:
    division = config.partition
    how = f"{division.kind} {division.alpha:g}" if division.kind == "dirichlet" else division.kind
    return config.dataset, f"{config.federation.sites} sites", how, f"{config.rounds} rounds"
