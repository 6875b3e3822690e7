"""Carrying out runs as child processes, several at a time, each only once among all comparisons."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock, Timeout

from common.learning.compute import torch_device
from nectar.comparison.at_work import AtWork, sentence
from nectar.comparison.live_processes import others
from nectar.comparison.plan import Task
from nectar.comparison.ray_start import RayStarter
from nectar.comparison.run_start import GRACE, RunStarter, Started
from nectar.engines import processes
from nectar.engines.cores import available_cores
from nectar.engines.flower.client import plain
from nectar.records.archive import Archive, rounds_in
from nectar.records.identity import Identity
from server_app.record import ALONE, KnownRun, Record, known_run

_POLL, _EVERY = 0.5, 60.0

#: how a run is ended: it has seconds to put its record in order
_STEPS = ((signal.SIGTERM, GRACE), (signal.SIGKILL, GRACE))

#: beside the records: a lock a run, held by the comparison that carries it out
LOCKS = ".compare"

Say = Callable[[str], None]


@dataclass
class _Child:
    """A run that goes on."""

    task: Task
    process: Started
    lock: FileLock
    log: Path
    resumed: bool
    alone: bool
    before: int
    started: float = field(default_factory=time.monotonic)


class RunScheduler:
    """Carries out tasks; what has a record already is left as it is.

    Parameters
    ----------
    output_dir : Path
        Where records go; the locks lie there too.
    jobs : int
        Runs at a time; 0: as many as the cores allow.
    alone : bool
        Whether only records count that were made alone.
    ray : str
        The Ray cluster whose nodes carry them out; empty: this machine does.
    """

    def __init__(
        self,
        archive: Archive,
        output_dir: Path,
        logs: Path,
        jobs: int,
        alone: bool,
        say: Say,
        ray: str = "",
    ) -> None:
        self.archive = archive
        self._output_dir, self._ray = output_dir, ray
        self._locks = output_dir / LOCKS
        self._logs = logs
        self._jobs = jobs
        self._alone = alone
        self._say = say
        self._children: list[_Child] = []
        self._waiting: set[Identity] = set()
        self._total = self._done = 0
        self._search = False
        self._share = 1
        self.failures: dict[str, str] = {}

    def carry_out(self, tasks: Iterable[Task], *, search: bool = False) -> None:
        """Run what has no record yet; return when every task has one or has failed.

        Of a ``search`` the validation accuracies alone are printed. Failures are kept in ``failures`` by the run's
        name; they keep no other run from going on. Whatever raises here, a signal for one, first ends the children.
        """
        unique = list({task.identity: task for task in tasks}.values())
        pending = [t for t in unique if self.record_of(t) is None and t.name not in self.failures]
        self._total, self._done = len(unique), len(unique) - len(pending)
        self._search = search
        self._say(f"{len(unique)} runs, {self._done} of them there already.")
        if not pending:
            return
        self._locks.mkdir(parents=True, exist_ok=True)
        self._logs.mkdir(parents=True, exist_ok=True)
        begun = said = time.monotonic()
        there = self._done
        with RayStarter(self._ray, self._output_dir) if self._ray else RunStarter() as starter:
            cores, gpu = most_of_a_run(unique)
            jobs = self._jobs or starter.jobs(cores, gpu)
            own = max(1, available_cores() // min(jobs, len(pending)))
            self._share = cores if self._ray else own
            try:
                while pending or self._children:
                    for task in list(pending):
                        if len(self._children) < jobs and self._begin(task, starter):
                            pending.remove(task)
                    self._watch()
                    if self._children and time.monotonic() >= said + _EVERY:
                        said = time.monotonic()
                        self._tell(len(pending), self._done - there, said - begun)
                    time.sleep(_POLL)
            finally:
                self._end()

    def _tell(self, waiting: int, ended: int, seconds: float) -> None:
        """Say what is at work."""
        runs = [
            AtWork(c.task.name, c.before, _rounds_so_far(c.log), c.task.config.rounds)
            for c in self._children
        ]
        self._say(
            sentence(
                runs,
                ended=ended,
                waiting=waiting,
                done=self._done,
                total=self._total,
                seconds=seconds,
            )
        )

    def record_of(self, task: Task) -> KnownRun | None:
        """Return the completed record of a task."""
        return self.archive.completed(task.identity, alone=self._alone)

    def _begin(self, task: Task, starter: RunStarter | RayStarter) -> bool:
        """Start a task, or take note that it cannot be or is done; False if another comparison is at it."""
        if task.identity.has_changed(task.config):
            # Its numbers would be another source's than those of its row's other runs.
            self._fail(
                task, "not begun, because its source has changed: give the same command again"
            )
            return True
        lock = FileLock(self._locks / f"{task.identity.key}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            if task.identity not in self._waiting:
                self._waiting.add(task.identity)
                self._say(f"another comparison is at {task.name}: its record is waited for.")
            return False
        if self.record_of(task) is not None:  # made by another comparison meanwhile
            lock.release()
            self._finish(task, "made by another comparison")
            return True
        # What was begun beside others can no longer be one that ran alone.
        fresh = self._alone or not starter.continues
        before = None if fresh else self.archive.unfinished(task.identity)
        log = self._logs / f"{task.file_name}.log"
        continued = before.directory if before else None
        process = _start(starter, task, continued, log, self._share)
        done = 0 if before is None else rounds_in(before.directory)
        child = _Child(task, process, lock, log, before is not None, before is None, done)
        self._children.append(child)
        return True

    def _watch(self) -> None:
        """Take leave of the children that have ended; note who is not alone."""
        own = {child.process.pid for child in self._children}
        beside = len(self._children) > 1 or others(own)
        for child in list(self._children):
            child.alone = child.alone and not beside
            if child.process.poll() is not None:
                self._children.remove(child)
                self._close(child)

    def _close(self, child: _Child) -> None:
        task, code = child.task, child.process.returncode
        entry = _note(child)
        child.lock.release()
        if code != 0 or isinstance(entry, str):
            reason = entry if code == 0 and isinstance(entry, str) else _last_sentence(child.log)
            self._fail(task, f"{reason} (exit code {code}; log: {child.log})")
            return
        accuracy = _accuracy(entry, ("validation",) if self._search else ("test", "sites"))
        judged = "validation accuracy" if self._search else "accuracy"
        said = "" if accuracy is None else f"{judged} {accuracy:.4f}, "
        again = ", continued" if child.resumed else ""
        self._finish(task, f"{said}{time.monotonic() - child.started:.0f} s{again}")

    def _fail(self, task: Task, reason: str) -> None:
        self.failures[task.name] = reason
        self._finish(task, f"FAILED: {reason}")

    def _finish(self, task: Task, words: str) -> None:
        self._done += 1
        self._say(f"[{self._done}/{self._total}] {task.name}: {words}")

    def _end(self) -> None:
        """End the children that are left, in order if they listen, and wait for them."""
        started = [child.process for child in self._children]
        processes.end(lambda: [each for each in started if each.poll() is None], _STEPS)
        for child in self._children:
            _note(child)
            child.lock.release()
        self._children.clear()


def most_of_a_run(tasks: Sequence[Task]) -> tuple[int, bool]:
    """Return the most cores that one of ``tasks`` computes on, and whether one of them is on a GPU."""
    return max(task.cores for task in tasks), any(map(_on_gpu, tasks))


def _on_gpu(task: Task) -> bool:
    return torch_device(task.config.compute.device).type == "cuda"


def _start(
    starter: RunStarter | RayStarter, task: Task, resume: Path | None, log: Path, share: int
) -> Started:
    """Start the run of a task, which may share out ``share`` cores among processes of its own."""
    words = [f"--note-record={_note_of(log)}", *task.words]
    words += [f"resume={resume}"] if resume else []
    _note_of(log).unlink(missing_ok=True)  # of an earlier run
    return starter.start(words, log, threads=task.threads, cores=share, gpu=_on_gpu(task))


def _note_of(log: Path) -> Path:
    """Return the file into which the run of a log writes where its record is."""
    return log.with_suffix(".record")


def _note(child: _Child) -> KnownRun | str:
    """Note in an ended child's record what only the comparison knows; say why it is not its task's, if it is not."""
    try:
        entry = known_run(Path(_note_of(child.log).read_text(encoding="utf-8").rstrip("\n")))
    except OSError:
        entry = None
    if entry is None:
        return "it ended before it had a record"
    if why := child.task.identity.why_not(entry.provenance):
        return why
    Record(entry.directory).note(**{ALONE: child.alone})
    return entry


def _rounds_so_far(log: Path) -> int:
    """Return how many rounds the run of a log has done; 0 before it has a record."""
    try:
        return rounds_in(Path(_note_of(log).read_text(encoding="utf-8").rstrip("\n")))
    except OSError:
        return 0


def _last_sentence(log: Path) -> str:
    lines = [line.strip() for line in plain(log.read_text(errors="replace")).splitlines()]
    said = [line for line in lines if line]
    own = [line.removeprefix("nectar: ") for line in said if line.startswith("nectar: ")]
    return (own or said or ["it said nothing"])[-1]


def _accuracy(entry: KnownRun, parts: Iterable[str]) -> float | None:
    """Return the last round's accuracy on the first of ``parts`` that was judged."""
    last = Record(entry.directory).metrics()[-1:]
    found = [line[part]["accuracy"] for line in last for part in parts if line.get(part)]
    return float(found[0]) if found else None
