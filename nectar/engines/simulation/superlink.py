"""A SuperLink of the run's own, and what works for it, as children."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import cache_from_source, find_spec
from pathlib import Path

from common.code.imports import FOLDER
from nectar.engines import processes
from nectar.engines.flower.app import copy_bundled
from nectar.engines.flower.client import (
    RAY_ADDRESS,
    SUBMIT_SECONDS,
    Client,
    CommandOutcome,
    Job,
    LaunchError,
    plain,
    run_number,
    run_words,
    scripts_directory,
    silent,
)
from nectar.engines.flower.connection import Connection
from nectar.engines.simulation import warm, workspace

CONNECTION = "nectar"

_START_SECONDS = 120.0
_ATTEMPTS = 3  # another process may take the free port between our look and the SuperLink's start
_POLL_SECONDS = 0.05

#: what a simulation of Nectar needs, none of it part of the app
_SIMULATION_IMPORTS = ("flwr.clientapp", "flwr.serverapp", "torch", "safetensors.torch")


class SuperLink:
    """A SuperLink for one run, and what one asks of it.

    Flower's programs import for seconds each. So all are started at once, and each gets its words when they are known:
    the SuperExec when the SuperLink answers, ``flwr run`` too, the simulation when the SuperExec calls it.

    Parameters
    ----------
    directory
        The run's temporary directory: working directory of everything, home of everything.
    cluster
        The Ray cluster on which devices work; empty: a Ray of its own.
    """

    def __init__(self, directory: Path, cluster: str = "") -> None:
        self._directory = directory
        self._app = directory / "app"
        self._tidying = threading.Thread(target=self._tidy, daemon=True)
        self._place = Place(directory, run_environment(directory, cluster))
        self._port = _free_port()
        self._superlink = self._start_superlink()
        self._superexec = self._place.start_warm("flower-superexec", self._superlink)
        self._flwr = self._place.start_warm("flwr", self._superlink)
        self._simulation = self._place.start_warm(
            "flwr-simulation", self._superlink, ["ray"], _SIMULATION_IMPORTS
        )
        self._place.put_in_place_of(self._simulation, "flwr-simulation")

    def submit(self, job: Job) -> str:
        """Hand the app to the SuperLink, as soon as that answers, and return the run's number.

        Raises
        ------
        LaunchError
            The SuperLink ends, or does not answer in time, or Flower refuses the app; the sentence holds its reason.
        """
        self._wait()
        self._superexec.begin(["--insecure", "--runtime-api-address", f"127.0.0.1:{self._port}"])
        self._write_connection()
        copy_bundled(job.app, self._app)
        self._flwr.begin(run_words(self._app, CONNECTION, job.options()))
        try:
            code = self._flwr.process.wait(SUBMIT_SECONDS)
        except subprocess.TimeoutExpired:
            raise silent("run", SUBMIT_SECONDS, self._superlink.last_words()) from None
        message = self._flwr.log.read_text(encoding="utf-8", errors="replace")
        return run_number(subprocess.CompletedProcess(["flwr"], code, message, ""))

    def log_lines(self) -> Iterator[str]:
        """Yield the run's log as it is written, from its first line to the end of the simulation's process."""
        read = 0
        while True:
            over = self._simulation.ended or any(
                program.ended for program in self._serving().values()
            )
            for line, end in self._simulation.new_lines(read):
                if over or line.endswith(b"\n"):
                    yield line.decode(errors="replace")
                    read = end
            if over:
                return
            time.sleep(_POLL_SECONDS)

    def outcome(self, run: str) -> CommandOutcome:
        """Ask how the run stands; LaunchError if the SuperLink is gone or gives no sensible answer."""
        code = self._simulation.process.poll()
        # Flower's simulation exits with 0 only after a run that completed.
        if code == 0:
            return CommandOutcome("finished:completed", "")
        for name, program in self._serving().items():
            if program.ended:
                raise LaunchError(f"Flower's {name} ended before the run{program.last_words()}")
        found = self._client().outcome(run)
        if code is None or found.finished:
            return found
        message = self._simulation.last_words()
        return CommandOutcome(
            "finished:failed", f"its process ended with exit code {code}{message}"
        )

    def tidy(self) -> None:
        """Delete, beside the run, what only its start needed: thousands of small files, for seconds on a slow disk."""
        self._tidying.start()

    def settle(self) -> None:
        """Wait until what :meth:`tidy` deletes is deleted."""
        if self._tidying.ident is not None:
            self._tidying.join()

    def _tidy(self) -> None:
        for folder in (bytecode_folder(self._directory), self._app):
            shutil.rmtree(folder, ignore_errors=True)

    def reap(self) -> None:
        """Collect the exit statuses of the ended programs, so that no zombie stays."""
        for program in (*self._serving().values(), self._flwr, self._simulation):
            program.process.wait()

    def _serving(self) -> dict[str, Program]:
        """Give what a run cannot go on without."""
        return {"SuperLink": self._superlink, "SuperExec": self._superexec}

    def _client(self) -> Client:
        return Client(
            scripts_directory() / "flwr",
            CONNECTION,
            self._place.environment,
            self._directory,
            self._superlink.last_words,
        )

    def _start_superlink(self) -> Program:
        return self._place.start(
            "flower-superlink",
            "--insecure",
            "--simulation",
            "--disable-runtime-dependency-installation",
            *("--isolation", "process"),
            *("--host", "127.0.0.1"),
            *("--port", str(self._port)),
        )

    def _wait(self) -> None:
        """Wait until the SuperLink answers; start it again, on another port, if it ends instead."""
        for attempt in range(1, _ATTEMPTS + 1):
            if self._answers():
                return
            if not self._superlink.ended:
                raise LaunchError(
                    f"Flower's SuperLink gave no answer on port {self._port} within "
                    f"{_START_SECONDS:.0f} seconds{self._superlink.last_words()}"
                )
            if attempt == _ATTEMPTS:
                message = self._superlink.last_words()
                raise LaunchError(f"Flower's SuperLink ended at its start{message}")
            self._port = _free_port()
            self._superlink = self._start_superlink()

    def _answers(self) -> bool:
        address = f"127.0.0.1:{self._port}"
        there = Connection(CONNECTION, address, None, insecure=True, home=self._directory)
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline and not self._superlink.ended:
            if not there.health(5.0):
                return not self._superlink.ended
            time.sleep(_POLL_SECONDS)
        return False

    def _write_connection(self) -> None:
        home = self._directory / "flower"
        home.mkdir(exist_ok=True)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "{CONNECTION}"\n\n'
            f'[superlink.{CONNECTION}]\naddress = "127.0.0.1:{self._port}"\ninsecure = true\n',
            encoding="utf-8",
        )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# ---- environment ---------------------------------------------------------------------------------
# The environment in which a run's processes live.


def run_environment(directory: Path, cluster: str = "") -> dict[str, str]:
    """Give the environment of the run's processes.

    The user's own, with Flower's home, Ray's temporary directory and the mark in the run's
    directory. PYTHONPATH stays (a method may be a user's own module) but is made absolute, the
    processes having another working directory; the app's code precedes it on the server and on the
    devices alike. The folder in which the command was started is searched last. RAY_ADDRESS is
    ``cluster``, or goes: it would take the devices to a cluster that nobody named.
    """
    variables = dict(os.environ)
    variables.pop(RAY_ADDRESS, None)
    if cluster:
        variables[RAY_ADDRESS] = cluster
    if path := variables.get("PYTHONPATH"):
        entries = [str(Path(entry).absolute()) for entry in path.split(os.pathsep)]
        variables["PYTHONPATH"] = os.pathsep.join(entries)
    for name in ("NO_PROXY", "no_proxy"):
        variables[name] = ",".join(filter(None, [variables.get(name), "127.0.0.1", "localhost"]))
    programs = str(scripts_directory())
    first = (str(directory / "bin"), programs)
    variables["PATH"] = os.pathsep.join(filter(None, [*first, variables.get("PATH")]))
    variables.setdefault("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", "0.1")
    return variables | {
        FOLDER: str(Path.cwd()),
        "FLWR_HOME": str(directory / "flower"),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_TMPDIR": str(directory),
        "RAY_USAGE_STATS_ENABLED": "0",
        # Below `uv run` Ray would carry the working directory to its workers, and in it all that it writes itself.
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        # They would not be used: Flower's actors run in an environment of their own.
        "RAY_prestart_worker_first_driver": "0",
        "PYTHONUNBUFFERED": "1",
        **bytecode_variables(directory),
        **workspace.mark(directory),
    }


# ---- programs ------------------------------------------------------------------------------------
# The programs of a simulation: each a child in a session of its own, with its output in a file.


@dataclass(frozen=True)
class Program:
    """A program that was started.

    Attributes
    ----------
    words
        Where a program that was started warm finds its words.
    """

    process: subprocess.Popen[bytes]
    log: Path
    words: Path

    @property
    def ended(self) -> bool:
        """Tell whether the program has ended."""
        return self.process.poll() is not None

    def begin(self, words: Sequence[str]) -> None:
        """Let a program that was started warm begin, with `words`."""
        written = self.words.with_suffix(".part")
        written.write_bytes(b"".join(os.fsencode(word) + b"\0" for word in words))
        written.rename(self.words)

    def new_lines(self, begin: int = 0) -> Iterator[tuple[bytes, int]]:
        """Yield what it says from byte `begin` on, line by line, and where each line ends."""
        with self.log.open("rb") as log:
            log.seek(begin)
            for line in log:
                begin += len(line)
                yield line, begin

    def last_words(self) -> str:
        """Give the end of what it said, for a message about its failure."""
        try:
            lines = plain(self.log.read_text(encoding="utf-8", errors="replace")).split("\n")
        except OSError:
            return "."
        message = [line.strip() for line in lines if line.strip()]
        return f"; its log ends: {' | '.join(message[-5:])}" if message else "; it wrote no log."


@dataclass(frozen=True)
class Place:
    """Where the programs of one simulation run."""

    directory: Path
    environment: Mapping[str, str]

    def start(self, name: str, *words: str) -> Program:
        """Start a program of this environment's."""
        return self._started(name, [str(scripts_directory() / name), *words])

    def start_warm(
        self, name: str, after: Program, first: Sequence[str] = (), then: Sequence[str] = ()
    ) -> Program:
        """Start a program that does its imports and then waits for its words.

        Parameters
        ----------
        after
            A program that imports much of the same: the imports wait until it has said something. Python keeps a
            compiled module, so that of two processes one after the other only the first compiles it.
        first, then
            Modules to import too, before and behind that wait.
        """
        program = str(scripts_directory() / name)
        # -P: what lies beside that file is no top-level module.
        command = [sys.executable, "-P", warm.__file__, str(os.getpid()), program]
        files = [str(self._words(name)), str(after.log)]
        return self._started(name, [*command, *files, ",".join(first), ",".join(then)])

    def put_in_place_of(self, program: Program, name: str) -> None:
        """Let whoever calls the program `name` by its name pass its words to `program`, which waits for them."""
        folder = self.directory / "bin"
        folder.mkdir(exist_ok=True)
        script = folder / name
        part, words = (shlex.quote(str(path)) for path in (f"{program.words}.part", program.words))
        script.write_text(f"#!/bin/sh\nprintf '%s\\0' \"$@\" > {part} && mv {part} {words}\n")
        script.chmod(0o700)

    def _words(self, name: str) -> Path:
        return self.directory / f"{name}.words"

    def _started(self, name: str, command: Sequence[str]) -> Program:
        file = self.directory / f"{name}.log"
        with file.open("ab") as log:
            process = processes.start(
                command,
                environment=self.environment,
                folder=self.directory,
                output=log,
                errors=subprocess.STDOUT,
            )
        return Program(process, file, self._words(name))


# ---- bytecode ------------------------------------------------------------------------------------
# One compilation of a module for all of a run's processes, where Python may not keep it beside the module.
#
# A dozen processes import the same packages. Where these came without bytecode, and PYTHONDONTWRITEBYTECODE is set as
# in many container images, each would compile them again: half of the seconds that a start takes.

_LARGE = ("fastapi", "flwr", "pydantic", "ray", "torch")


def bytecode_variables(directory: Path) -> dict[str, str]:
    """Give the variables that make a run's processes keep their bytecode in its `directory`, if they need any."""
    if not _lacking():
        return {}
    # Empty is unset to Python.
    return {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(bytecode_folder(directory))}


@contextlib.contextmanager
def shared_bytecode(directory: Path) -> Iterator[None]:
    """Let what this process imports within share the bytecode of the run's processes."""
    before = sys.dont_write_bytecode, sys.pycache_prefix
    if _lacking():
        sys.dont_write_bytecode, sys.pycache_prefix = False, str(bytecode_folder(directory))
    try:
        yield
    finally:
        sys.dont_write_bytecode, sys.pycache_prefix = before


def bytecode_folder(directory: Path) -> Path:
    """Give where the bytecode of the run in `directory` lies, if it is kept."""
    return directory / "bytecode"


def _lacking() -> bool:
    """Return whether Python may write no bytecode, and one of the packages that take longest was installed without."""
    return sys.dont_write_bytecode and not all(map(_compiled, _LARGE))


def _compiled(package: str) -> bool:
    found = find_spec(package)
    if found is None or found.origin is None:
        return True
    return Path(cache_from_source(found.origin)).is_file()
