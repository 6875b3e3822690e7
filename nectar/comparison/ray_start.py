"""Starting the runs of a comparison on a Ray cluster: each a task with its cores, whose record comes home as one file.

Ray's nodes trust each other, and what they send is unpickled here: whoever reaches a cluster's ports runs code on it.
"""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from common.errors import NectarError
from common.storage.files import write_text
from nectar.comparison.run_process import start_process
from nectar.engines.remote.fetching import unpack
from nectar.engines.simulation import no_cluster, require_cluster
from nectar.records.record import RunRecord
from server_app.sending import LATEST, FetchRequest, pack_record

#: words of a run that name places of this machine
_NOTE, _OUTPUT = "--note-record=", "output-dir="

#: seconds between two looks at how far a run is
_EVERY = 2.0

#: bytes of a record, packed, that come home: they pass through two nodes' memory
LIMIT = 4_000_000_000


@dataclass(frozen=True)
class Ended:
    """How a run on another node ended: its exit code, its log, and its record as a name and an archive."""

    code: int
    log: bytes
    record: str = ""
    content: bytes = b""


class RayStarter(ExitStack):
    """Starts runs on a Ray cluster, as `LocalStarter` does on this machine; use as a context manager.

    Parameters
    ----------
    address : str
        The cluster's, as `ray.init` takes it: ``HOST:PORT`` of its head, or ``auto`` on one of its nodes.
    home : Path
        The output directory, where the records come to lie.

    Raises
    ------
    NectarError
        If Ray is not installed, or no cluster answers there.
    """

    #: a record that broke off lies on this machine, and nothing of it travels
    continues = False

    def __init__(self, address: str, home: Path) -> None:
        super().__init__()
        if find_spec("ray") is None:
            raise NectarError(
                "--ray needs Ray, which is not installed: get it with `pip install 'flwr[simulation]'`, on every node."
            )
        import ray

        require_cluster(address)
        # Ray prints what its raylets say of a lost node on the standard output, whatever the logging level.
        ray._private.worker.print_to_stdstream = lambda *_, **__: None
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (OSError, RuntimeError, ValueError) as error:
            raise no_cluster(address, error) from None
        self.callback(ray.shutdown)
        from ray.util.queue import Queue
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._home = home
        # Beside this process: what is told outlives any other node.
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self._told: Any = Queue(actor_options={"num_cpus": 0, "scheduling_strategy": here})
        self._reached: dict[str, int] = {}

    def reached(self, name: str) -> int | None:
        """Return the rounds that the run with this log's name has done; None while no node has begun it."""
        self._reached |= dict(self._told.get_nowait_batch(self._told.qsize()))
        return self._reached.get(name)

    def jobs(self, cores: int, gpu: bool) -> int:
        """Return how many runs of ``cores`` cores, and a GPU, the cluster's nodes carry at a time."""
        import ray

        found: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        nodes = [node["Resources"] for node in found if node["Alive"]]
        fitting = [
            min(int(node.get("CPU", 0) // cores), int(node.get("GPU", 0)) if gpu else 1 << 30)
            for node in nodes
        ]
        if not sum(fitting):
            raise NectarError(
                f"--ray: no node has the {cores} cores{' and the GPU' * gpu} of a run: set compute.server_cores, "
                "compute.client_cores or compute.workers lower, or add a node."
            )
        return sum(fitting)

    def start(
        self, words: Sequence[str], log: Path, *, threads: int, cores: int, gpu: bool
    ) -> _OnRay:
        """Start ``nectar run`` with ``words`` wherever the cluster has ``cores`` cores free, and a GPU."""
        import ray

        own = [word for word in words if not word.startswith((_NOTE, _OUTPUT))]
        note = next(Path(word.removeprefix(_NOTE)) for word in words if word.startswith(_NOTE))
        task = ray.remote(carry_out).options(
            num_cpus=cores, num_gpus=int(gpu), max_retries=0, name=log.stem
        )
        tell = Telling(self._told, log.stem)
        return _OnRay(
            task.remote(own, threads, cores, str(self._home), tell), log, note, self._home
        )


class _OnRay:
    """A run that the cluster carries out."""

    pid = 0  # of no process of this machine

    def __init__(self, reference: Any, log: Path, note: Path, home: Path) -> None:
        self._reference = reference
        self._log, self._note, self._home = log, note, home
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return its exit code once it has ended and its record is here; 1 where its node was lost."""
        import ray

        if self.returncode is None and ray.wait([self._reference], timeout=0)[0]:
            self.returncode = self._fetched()
        return self.returncode

    def _fetched(self) -> int:
        import ray

        try:
            ended: Ended = ray.get(self._reference)
            self._log.write_bytes(ended.log)
            if ended.record:
                place = self._home / ended.record
                unpack(ended.content, place)
                write_text(self._note, f"{place}\n")
        except (ray.exceptions.RayError, NectarError) as error:
            write_text(self._log, f"{error}\n{_lost(error)}\n")
            return 1
        return ended.code

    def send_signal(self, sig: int, /) -> None:
        """Cancel it, gently unless the signal is SIGKILL."""
        import ray

        ray.cancel(self._reference, force=sig == signal.SIGKILL)


def _lost(error: Exception) -> str:
    """Say in one sentence why a run has no record; Ray's own account, of many lines, is above it in the log."""
    import ray

    if isinstance(error, (ray.exceptions.NodeDiedError, ray.exceptions.WorkerCrashedError)):
        return "its node was lost: the same command makes it again"
    reason = (str(error).strip().splitlines() or ["no reason was given"])[-1]
    return f"it could not be carried out: {reason}"


def _name_home(output: Path, home: str) -> None:
    """Let the record name the output directory in which it will lie, not this node's temporary folder."""
    quoted = json.dumps(home)
    for path in output.glob("*/config.yaml"):
        text = path.read_text(encoding="utf-8")
        write_text(path, text.replace(f"{_OUTPUT[:-1]}: {output}", f"{_OUTPUT[:-1]}: {quoted}"))
    for path in output.glob("*/provenance.json"):
        write_text(path, path.read_text(encoding="utf-8").replace(str(output), quoted[1:-1]))


@dataclass
class Telling:
    """Tells the comparison how far a run is."""

    queue: Any
    name: str
    last: int = -1

    def tell(self, output: Path) -> None:
        """Tell the rounds on record below ``output``, if they are more than before."""
        done = max(
            (RunRecord(path.parent).done for path in output.glob("*/config.yaml")), default=0
        )
        if done > self.last:
            self.queue.put((self.name, done))
            self.last = done


def carry_out(words: Sequence[str], threads: int, cores: int, home: str, telling: Telling) -> Ended:
    """Be the task: carry the run out in a process of its own and a folder that goes with it."""
    with tempfile.TemporaryDirectory(prefix="nectar-run-") as folder:
        log, output = Path(folder, "log"), Path(folder, "runs")
        process = start_process([*words, f"{_OUTPUT}{output}"], log, threads=threads, cores=cores)
        try:
            while (code := process.poll()) is None:
                telling.tell(output)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_EVERY)
        except BaseException:  # the comparison was interrupted
            process.send_signal(signal.SIGTERM)
            process.wait()
            raise
        written = log.read_bytes()
        if code:
            return Ended(code, written)
        _name_home(output, home)
        packed = pack_record(output, FetchRequest(LATEST), LIMIT)
        return Ended(code, written, packed.record, packed.content)
