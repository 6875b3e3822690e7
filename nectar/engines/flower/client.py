"""Flower's command line client, asked for JSON: start a run, read its log, learn its outcome."""

import io
import json
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nectar.engines import processes
from nectar.engines.flower.job import LaunchError

SUBMIT_SECONDS = 300.0
_LIST_SECONDS = 120.0


@dataclass(frozen=True)
class Outcome:
    """How a run stands: Flower's status and its details."""

    status: str
    details: str

    @property
    def finished(self) -> bool:
        """Tell whether the run is over."""
        return self.status.startswith("finished:")

    @property
    def completed(self) -> bool:
        """Tell whether the run is over and went well."""
        return self.status == "finished:completed"

    @property
    def reason(self) -> str:
        """What is said of a run that did not complete."""
        given = self.details if self.details not in ("", "N/A") else "Flower gives no reason"
        return f"The run did not complete ({self.status.partition(':')[2]}): {given}"


class Refused(LaunchError):
    """Flower's client gave an answer, and the answer is no; the sentence holds its reason."""


class LogBroken(LaunchError):
    """A log that ended before its run: the connection broke."""


@dataclass(frozen=True)
class Client:
    """What one asks of a SuperLink through ``flwr``.

    Attributes
    ----------
    connection
        The connection's name in the configuration of `environment`'s Flower home.
    environment
        The environment in which ``flwr`` runs.
    directory
        Its working directory.
    last_words
        Gives the end of a sentence about a failure.
    """

    program: Path
    connection: str
    environment: Mapping[str, str]
    directory: Path
    last_words: Callable[[], str] = lambda: "."

    def submit(self, app: Path, options: Sequence[str]) -> str:
        """Hand an app to the SuperLink, and return the run's number; LaunchError with Flower's reason if it refuses."""
        words = run_words(app, self.connection, options)
        return run_number(self._call(words, SUBMIT_SECONDS))

    def log_lines(self, run: str, watch: Callable[[], object]) -> Iterator[str]:
        """Yield the run's log as it is written, from its first line to the run's end.

        Parameters
        ----------
        watch
            Called in a thread of its own; when it returns, the SuperLink is taken for gone. Flower's
            client itself waits for one to come back, and for ever where a network is cut.

        Raises
        ------
        LogBroken
            The connection broke; the log begins again when it is asked for again.
        """
        process = processes.start(
            [str(self.program), "log", run, self.connection, "--stream"],
            environment=self.environment,
            folder=self.directory,
            output=subprocess.PIPE,
            # Flower's own words about a connection that broke are no lines of the log.
            errors=subprocess.DEVNULL,
        )
        assert process.stdout is not None
        lines = io.TextIOWrapper(process.stdout, encoding="utf-8", errors="replace")

        def end() -> None:
            watch()
            process.kill()

        threading.Thread(target=end, daemon=True).start()
        try:
            yield from lines
            if process.wait():
                raise LogBroken(f"The log of run {run} broke off{self.last_words()}")
        finally:
            lines.close()
            process.kill()
            process.wait()

    def log_so_far(self, run: str) -> str:
        """Return what the run has logged until now; LaunchError without an answer or such a run."""
        done = self._call(["log", run, self.connection, "--show"], _LIST_SECONDS)
        if done.returncode:
            raise _failed("log", done)
        return done.stdout

    def outcome(self, run: str) -> Outcome:
        """Ask how the run stands; LaunchError if the SuperLink is gone or gives no sensible answer."""
        answer = self.ask(["list", self.connection, "--run-id", run], _LIST_SECONDS)
        try:
            entry = answer["runs"][0]
            return Outcome(str(entry["status"]), str(entry["status-details"]))
        except (KeyError, IndexError, TypeError):
            raise LaunchError(
                f"The run's outcome is unknown, Flower answered {json.dumps(answer)}"
                f"{self.last_words()}"
            ) from None

    def stop(self, run: str) -> None:
        """End a run; LaunchError if the SuperLink does not answer, or there is no such run or it is over."""
        self.ask(["stop", run, self.connection], _LIST_SECONDS)

    def ask(self, arguments: Sequence[str], seconds: float) -> dict[str, Any]:
        """Call ``flwr`` for a JSON answer.

        Raises
        ------
        Refused
            It says no; the sentence is its reason alone.
        LaunchError
            It gives no answer in time, or none that can be read.
        """
        return _answer(arguments[0], self._call([*arguments, "--format", "json"], seconds))

    def _call(self, arguments: Sequence[str], seconds: float) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                [str(self.program), *arguments],
                cwd=self.directory,
                env=dict(self.environment),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                encoding="utf-8",
                errors="replace",
                timeout=seconds,
                check=False,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired:
            raise silent(arguments[0], seconds, self.last_words()) from None


def run_words(app: Path, connection: str, options: Sequence[str]) -> list[str]:
    """Give the words behind ``flwr`` that hand an app to a SuperLink."""
    return ["run", str(app), connection, *options, "--format", "json"]


def run_number(done: subprocess.CompletedProcess[str]) -> str:
    """Read the run's number from what ``flwr run`` answered; LaunchError with Flower's reason if it refuses."""
    try:
        answer = _answer("run", done)
    except Refused as refusal:
        raise LaunchError(f"Flower did not start the run: {refusal}") from None
    if not answer.get("run-id"):
        raise LaunchError(f"Flower did not start the run, it answered {json.dumps(answer)}")
    return str(answer["run-id"])


def silent(program: str, seconds: float, last_words: str) -> LaunchError:
    """Give the error of a ``flwr`` that does not answer."""
    return LaunchError(f"`flwr {program}` gave no answer within {seconds:.0f} seconds{last_words}")


def _answer(program: str, done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Read the JSON that ``flwr`` answered; notes may stand around it."""
    try:
        read, _ = json.JSONDecoder().raw_decode(done.stdout[done.stdout.index("{") :])
        answer = dict(read)
    except ValueError:
        raise _failed(program, done) from None
    # What fails prints success: false, and may exit with 0 all the same.
    if answer.get("success") is False:
        raise Refused(_refusal(answer))
    return answer


def _failed(program: str, done: subprocess.CompletedProcess[str]) -> LaunchError:
    said = " ".join((done.stdout + done.stderr).split()) or "nothing"
    return LaunchError(f"`flwr {program}` failed (exit code {done.returncode}), it said: {said}")


def _refusal(answer: Mapping[str, Any]) -> str:
    reason = " ".join(str(answer.get("error-message") or json.dumps(answer)).split())
    # Flower puts its notes about the project and the connection before the refusal itself.
    for opening in ("[code:", "Connection to the SuperLink"):
        if opening in reason:
            return reason[reason.index(opening) :]
    return reason
