"""A SuperLink of the run's own, and what works for it, as children."""

import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from nectar.engines.flower.app import copy_bundled
from nectar.engines.flower.client import (
    SUBMIT_SECONDS,
    Client,
    Job,
    LaunchError,
    Outcome,
    run_number,
    run_words,
    scripts_directory,
    silent,
)
from nectar.engines.simulation import bytecode
from nectar.engines.simulation.environment import environment
from nectar.engines.simulation.programs import Place, Program

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
        self._place = Place(directory, environment(directory, cluster))
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
        said = self._flwr.log.read_text(encoding="utf-8", errors="replace")
        return run_number(subprocess.CompletedProcess(["flwr"], code, said, ""))

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

    def outcome(self, run: str) -> Outcome:
        """Ask how the run stands; LaunchError if the SuperLink is gone or gives no sensible answer."""
        code = self._simulation.process.poll()
        # Flower's simulation exits with 0 only after a run that completed.
        if code == 0:
            return Outcome("finished:completed", "")
        for name, program in self._serving().items():
            if program.ended:
                raise LaunchError(f"Flower's {name} ended before the run{program.last_words()}")
        found = self._client().outcome(run)
        if code is None or found.finished:
            return found
        said = self._simulation.last_words()
        return Outcome("finished:failed", f"its process ended with exit code {code}{said}")

    def tidy(self) -> None:
        """Delete, beside the run, what only its start needed: thousands of small files, for seconds on a slow disk."""
        self._tidying.start()

    def settle(self) -> None:
        """Wait until what :meth:`tidy` deletes is deleted."""
        if self._tidying.ident is not None:
            self._tidying.join()

    def _tidy(self) -> None:
        for folder in (bytecode.folder(self._directory), self._app):
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
        """Wait until the SuperLink answers; start it anew, on another port, if it ends instead."""
        for attempt in range(1, _ATTEMPTS + 1):
            if self._answers():
                return
            if not self._superlink.ended:
                raise LaunchError(
                    f"Flower's SuperLink gave no answer on port {self._port} within "
                    f"{_START_SECONDS:.0f} seconds{self._superlink.last_words()}"
                )
            if attempt == _ATTEMPTS:
                said = self._superlink.last_words()
                raise LaunchError(f"Flower's SuperLink ended at its start{said}")
            self._port = _free_port()
            self._superlink = self._start_superlink()

    def _answers(self) -> bool:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline and not self._superlink.ended:
            try:
                with opener.open(f"http://127.0.0.1:{self._port}/health", timeout=5):
                    return not self._superlink.ended
            except (urllib.error.URLError, OSError):
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
