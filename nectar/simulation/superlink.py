"""A SuperLink of the run's own, as a child."""

import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from nectar.flower.client import Client, Outcome
from nectar.flower.job import Job, LaunchError, scripts_directory
from nectar.flower.log import plain
from nectar.simulation.environment import environment

CONNECTION = "nectar"

_START_SECONDS = 120.0
_ATTEMPTS = 3  # another process may take the free port between our look and the SuperLink's start


class SuperLink:
    """A SuperLink for one run, and what one asks of it.

    Parameters
    ----------
    directory
        The run's temporary directory: working directory of everything, home of everything.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._environment = environment(directory)
        self._log = directory / "superlink.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._client = Client(
            scripts_directory() / "flwr",
            CONNECTION,
            self._environment,
            directory,
            self._last_words,
        )

    def start(self) -> None:
        """Start the SuperLink and wait until it answers.

        Raises
        ------
        LaunchError
            It ends, or does not answer in time.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            port = _free_port()
            self._write_connection(port)
            self._process = self._spawn(port)
            if self._answers(port):
                return
            if self._process.poll() is None:
                raise LaunchError(
                    f"Flower's SuperLink gave no answer on port {port} within "
                    f"{_START_SECONDS:.0f} seconds{self._last_words()}"
                )
            if attempt == _ATTEMPTS:
                raise LaunchError(f"Flower's SuperLink ended at its start{self._last_words()}")

    def submit(self, job: Job) -> str:
        """Hand the app to the SuperLink.

        Returns
        -------
        str
            The run's number.

        Raises
        ------
        LaunchError
            Flower refuses the app; the sentence holds its reason.
        """
        return self._client.submit(job.app, job.options())

    def log_lines(self, run: str) -> Iterator[str]:
        """Yield the run's log as it is written, from its first line to the run's end."""
        return self._client.log_lines(run, self.reap)

    def outcome(self, run: str) -> Outcome:
        """Ask how the run stands.

        Raises
        ------
        LaunchError
            The SuperLink is gone or gives no sensible answer.
        """
        if self._process is None or self._process.poll() is not None:
            raise LaunchError(f"Flower's SuperLink ended before the run{self._last_words()}")
        return self._client.outcome(run)

    def reap(self) -> None:
        """Collect the exit status of the ended SuperLink, so that no zombie stays."""
        if self._process is not None:
            self._process.wait()

    def _spawn(self, port: int) -> "subprocess.Popen[bytes]":
        # A session of its own: Ctrl-C goes to the wrapper alone, which ends things in order.
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [
                    str(scripts_directory() / "flower-superlink"),
                    "--insecure",
                    "--simulation",
                    "--disable-runtime-dependency-installation",
                    *("--host", "127.0.0.1"),
                    *("--port", str(port)),
                ],
                cwd=self._directory,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _answers(self, port: int) -> bool:
        assert self._process is not None
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                with opener.open(f"http://127.0.0.1:{port}/health", timeout=5):
                    return self._process.poll() is None
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)
        return False

    def _write_connection(self, port: int) -> None:
        home = self._directory / "flower"
        home.mkdir(exist_ok=True)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "{CONNECTION}"\n\n'
            f'[superlink.{CONNECTION}]\naddress = "127.0.0.1:{port}"\ninsecure = true\n',
            encoding="utf-8",
        )

    def _last_words(self) -> str:
        """Give the end of the SuperLink's own log, for a message about its failure."""
        try:
            lines = plain(self._log.read_text(encoding="utf-8", errors="replace")).split("\n")
        except OSError:
            return "."
        said = [line.strip() for line in lines if line.strip()]
        return f"; its log ends: {' | '.join(said[-5:])}" if said else "; it wrote no log."


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
