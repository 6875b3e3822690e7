"""The runs of a comparison: planned before any of them starts, then run in processes, several at a time.

`PlannedRun` is one run, `plan` resolves and checks them, `Scheduler` carries out those that have no record yet, each
only once among all comparisons that share an output directory.
"""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock, Timeout

from common.config.keys import TYPED
from common.config.resolved import Config
from common.errors import ConfigError
from common.learning.compute import torch_device
from common.settings.sections import LONGEST, MEASURES, TrackSettings
from nectar.arguments import format_duration, parse_arguments, resolved, with_fitting_sites
from nectar.comparison.request import Cell, CompareOptions, Variant, file_name
from nectar.comparison.run_process import RunStarter, runs_at_a_time
from nectar.engines import processes
from nectar.engines.cores import available_cores
from nectar.engines.flower.log import plain
from nectar.engines.preflight import check
from nectar.records.identity import Identity
from nectar.records.record import SEARCH, RunRecord
from nectar.records.run_list import Archive
from nectar.text import plural

#: the folder, among the records, with a lock for each run that a comparison is carrying out
LOCKS = ".compare"

_POLL, _EVERY = 0.5, 60.0

#: how a run is ended: it has 20 seconds to put its record in order
_STEPS = ((signal.SIGTERM, 20.0), (signal.SIGKILL, 20.0))

#: running jobs that are named; of the others their number is said
_NAMED = 4

Say = Callable[[str], None]


# -- what is planned ----------------------------------------------------------------------------


@dataclass(frozen=True)
class PlannedRun:
    """One run: a row, a seed, and what they resolve to.

    Parameters
    ----------
    identity : Identity
        What its record is found by.
    cell : str
        What a grid calls the comparison that it is part of.
    """

    variant: Variant
    seed: int
    config: Config
    identity: Identity
    cell: str = ""

    @property
    def name(self) -> str:
        """The run's name in messages."""
        place = f"{self.cell}: " if self.cell else ""
        return f"{place}{self.variant.label}, seed {self.seed}"

    @property
    def file_name(self) -> str:
        """The run's name in file names."""
        own = f"{file_name(self.variant.label)}-seed{self.seed}"
        return f"{file_name(self.cell)}-{own}-{self.identity.key[:6]}" if self.cell else own

    @property
    def words(self) -> list[str]:
        """What ``nectar run`` is called with: the resolved configuration, which no later change of a file alters."""
        run_config = self.config.to_run_config()
        return [f"{key}={value}" for key, value in run_config.items() if value != ""]

    def within(self, cell: str, group: str) -> PlannedRun:
        """Return the run as one of a cell's, with its names at a tracker if it has one: its identity is the same."""
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
        """Threads of each of its processes: server and sites take turns."""
        return max(self.config.compute.server_cores, self.config.compute.client_cores)

    @property
    def cores(self) -> int:
        """Cores that it uses: ``compute.workers`` sites compute at the same time."""
        compute = self.config.compute
        return max(compute.server_cores, compute.client_cores * max(1, compute.workers))

    @property
    def on_gpu(self) -> bool:
        """Whether it computes on a GPU."""
        return torch_device(self.config.compute.device).type == "cuda"


def plan(cell: Cell, variants: Sequence[Variant], seeds: Iterable[int]) -> list[PlannedRun]:
    """Resolve every run of ``variants`` and ``seeds``, row by row, and check that it can start.

    Raises
    ------
    NectarError
        If a configuration cannot be resolved, is known to fail, or evaluates nothing that could be compared.
    """
    seeds = list(seeds)
    return [_planned(cell, variant, seed) for variant in variants for seed in seeds]


def _planned(cell: Cell, variant: Variant, seed: int) -> PlannedRun:
    words = parse_arguments(cell.words(variant, seed))
    typed = cell.options.typed
    if variant.label.startswith(SEARCH):
        typed += f" '#{SEARCH.strip()}'"  # so that `latest` and `nectar runs` recognise the runs of a search
    config = with_fitting_sites(resolved({TYPED: typed} | words))
    if config.evaluation.on == "none":
        raise ConfigError(
            "evaluation.on=none leaves nothing to compare: choose server, sites or both."
        )
    check(config)
    return PlannedRun(variant, seed, config, Identity.of(config))


# -- carrying them out --------------------------------------------------------------------------


class _Job(NamedTuple):
    """A run in progress: its process, its log, and the rounds done before this process started."""

    run: PlannedRun
    process: subprocess.Popen[bytes]
    log: Path
    before: int


class Scheduler:
    """Carries out runs, one thread and one process each; runs that already have a record are skipped.

    Parameters
    ----------
    records : Path
        The output directory, where records and locks go.
    options : CompareOptions
        How many runs go on at a time, and whether only records count that were made alone.
    """

    def __init__(self, records: Path, logs: Path, options: CompareOptions, say: Say) -> None:
        self.archive = Archive(records)
        self.failures: dict[str, str] = {}
        self._records, self._logs, self._options, self._say = records, logs, options, say
        self._jobs: list[_Job] = []
        self._waiting: set[Identity] = set()
        self._total = self._done = 0
        #: held while a run is started or counted, and while something is said
        self._mutex = threading.RLock()
        self._stop = threading.Event()

    def carry_out(self, runs: Iterable[PlannedRun], *, search: bool = False) -> None:
        """Carry out the runs that have no record; return when each has one or has failed.

        Of a ``search`` only validation accuracies are printed. Failures are kept in ``failures`` by the run's name;
        they do not stop the other runs. An exception, such as a signal's, first ends the children.
        """
        unique = list({run.identity: run for run in runs}.values())
        pending = [r for r in unique if self.record_of(r) is None and r.name not in self.failures]
        self._total, self._done = len(unique), len(unique) - len(pending)
        self._say(
            f"{plural(len(unique), 'run')}: {self._done} cached, {len(unique) - self._done} to do"
        )
        if not pending:
            return
        (self._records / LOCKS).mkdir(parents=True, exist_ok=True)
        self._logs.mkdir(parents=True, exist_ok=True)
        most, gpu = max(run.cores for run in unique), any(run.on_gpu for run in unique)
        jobs = min(self._options.parallel or runs_at_a_time(most, gpu), len(pending))
        cores = max(1, available_cores() // jobs)
        carry_out = partial(self._carry_out, starter=RunStarter(), cores=cores, search=search)
        with ThreadPoolExecutor(jobs) as pool:
            try:
                self._work(lambda run: pool.submit(carry_out, run), pending)
            finally:
                self._end()

    def record_of(self, run: PlannedRun) -> RunRecord | None:
        """Return the completed record of a run."""
        return self.archive.completed(run.identity, alone=self._options.alone)

    def _work(
        self, submit: Callable[[PlannedRun], Future[bool]], pending: Iterable[PlannedRun]
    ) -> None:
        """Carry out every run, retry those that another comparison holds, and report progress once a minute."""
        started = said = time.monotonic()
        there, going = self._done, {submit(run): run for run in pending}
        while going:
            for future in wait(going, _EVERY, FIRST_COMPLETED).done:
                run = going.pop(future)
                if not future.result():
                    going[submit(run)] = run
            if self._jobs and time.monotonic() >= said + _EVERY:
                said = time.monotonic()
                with self._mutex:
                    self._say_progress(len(going), self._done - there, said - started)

    def _carry_out(self, run: PlannedRun, *, starter: RunStarter, cores: int, search: bool) -> bool:
        """Run it; False if another comparison is running it."""
        lock = FileLock(self._records / LOCKS / f"{run.identity.key}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            if run.identity not in self._waiting:
                self._waiting.add(run.identity)
                self._say(f"{run.name}: another comparison is running it; waiting for its record.")
            return self._stop.wait(_POLL)
        try:
            self._carry_out_locked(run, starter, cores, search)
        finally:
            lock.release()
        return True

    def _carry_out_locked(
        self, run: PlannedRun, starter: RunStarter, cores: int, search: bool
    ) -> None:
        if run.identity.has_changed(run.config):
            # Its numbers would be another source's than those of its row's other runs.
            self._fail(run, "skipped: Nectar's source changed meanwhile; run the command again")
            return
        if self.record_of(run) is not None:
            self._finish(run, "made by another comparison")
            return
        # A continued run cannot count as one that ran alone.
        before = None if self._options.alone else self.archive.unfinished(run.identity)
        resume = None if before is None else before.directory
        log, started = self._logs / f"{run.file_name}.log", time.monotonic()
        with self._mutex:
            if self._stop.is_set():
                return
            process = _start(starter, run, resume, log, cores, self._options.alone)
            job = _Job(run, process, log, 0 if before is None else before.done)
            self._jobs.append(job)
        code = process.wait()
        with self._mutex:
            self._jobs.remove(job)
        if self._stop.is_set():
            return
        entry = _ended(log, code, run.identity)
        if isinstance(entry, str):
            self._fail(run, f"{entry} (exit code {code}; log: {log})")
            return
        measure = run.config.evaluation.measure
        found = _measured(entry, ("validation",) if search else ("test", "sites"), measure)
        judged = "validation " * search + MEASURES[measure]
        shown = "" if found is None else f"{judged} {found:.4f}, "
        again = ", continued" if resume else ""
        self._finish(run, f"{shown}{time.monotonic() - started:.0f} s{again}")

    def _fail(self, run: PlannedRun, reason: str) -> None:
        self.failures[run.name] = reason
        self._finish(run, f"FAILED: {reason}")

    def _finish(self, run: PlannedRun, message: str) -> None:
        with self._mutex:
            self._done += 1
            self._say(f"[{self._done}/{self._total}] {run.name}: {message}")

    def _say_progress(self, going: int, ended: int, seconds: float) -> None:
        jobs = []
        for job in self._jobs:
            record = _record_of(job.log)
            reached = record.done if record else 0
            jobs.append(RunningJob(job.run.name, job.before, reached, job.run.config.rounds))
        done, waiting = f"{self._done} of {self._total} runs done", going - len(jobs)
        self._say(progress(jobs, done, ended=ended, waiting=waiting, seconds=seconds))

    def _end(self) -> None:
        """Start no more runs, and end the running processes, gracefully if they respond."""
        with self._mutex:
            self._stop.set()
        processes.end(
            lambda: [job.process for job in self._jobs if job.process.poll() is None], _STEPS
        )


def _start(
    starter: RunStarter, run: PlannedRun, resume: Path | None, log: Path, cores: int, timed: bool
) -> subprocess.Popen[bytes]:
    """Start a run, which may divide ``cores`` cores among its own processes."""
    note = log.with_suffix(".record")
    words = [f"--note-record={note}", *run.words, *([f"resume={resume}"] if resume else [])]
    note.unlink(missing_ok=True)  # of an earlier run
    # what names a certain GPU has to see it
    gpu = run.on_gpu and ":" not in run.config.compute.device
    return starter.start(words, log, threads=run.threads, cores=cores, gpu=gpu, timed=timed)


def _record_of(log: Path) -> RunRecord | None:
    """Return the record of the run with this log, which writes down its place; None before that."""
    try:
        place = log.with_suffix(".record").read_text(encoding="utf-8")
    except OSError:
        return None
    return RunRecord.find(Path(place.rstrip("\n")))


def _ended(log: Path, code: int, identity: Identity) -> RunRecord | str:
    """Return the record of the run with this log, which ended with this code, or why it failed."""
    if code:
        return _last_sentence(log)
    entry = _record_of(log)
    if entry is None:
        return "it ended before it made a record"
    return identity.why_not(entry.provenance) or entry


def _last_sentence(log: Path) -> str:
    lines = [line.strip() for line in plain(log.read_text(errors="replace")).splitlines()]
    written = [line for line in lines if line]
    own = [line.removeprefix("nectar: ") for line in written if line.startswith("nectar: ")]
    return (own or written or ["it said nothing"])[-1]


def _measured(entry: RunRecord, parts: Iterable[str], measure: str) -> float | None:
    """Return the last round's measure on the first of ``parts`` that was judged."""
    last = entry.rounds[-1:]
    found = [line[part].get(measure) for line in last for part in parts if line.get(part)]
    return float(found[0]) if found and found[0] is not None else None


class RunningJob(NamedTuple):
    """A run in progress: rounds done when its process started, done now, and planned."""

    name: str
    before: int
    reached: int
    rounds: int


def progress(
    jobs: Sequence[RunningJob], done: str, *, ended: int, waiting: int, seconds: float
) -> str:
    """Describe the runs in progress and estimate when all will be done, from the pace until now.

    Parameters
    ----------
    ended, waiting : int
        Runs that have ended, and that have not started.
    seconds : float
        Since the first one started.
    """
    named = [f"{job.name} (round {max(0, job.reached)} of {job.rounds})" for job in jobs[:_NAMED]]
    if len(jobs) > _NAMED:
        named.append(f"{len(jobs) - _NAMED} more")
    made = ended + sum(max(0, j.reached - j.before) / max(1, j.rounds) for j in jobs)
    left = waiting + sum(max(0, j.rounds - j.reached) / max(1, j.rounds) for j in jobs)
    span = seconds * left / made if made else 0
    until = f", about {format_duration(span)} more" if span >= 1 else ""
    return f"Running: {'; '.join(named) or 'nothing'}. {done}{until}."
