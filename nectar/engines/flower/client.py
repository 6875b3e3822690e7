"""Flower's command line client, asked for JSON: start a run, read and show its log, learn its outcome."""

from __future__ import annotations

import io
import json
import re
import shlex
import subprocess
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from common.config.keys import TYPED
from common.errors import NectarError
from nectar.arguments import to_flwr
from nectar.engines import processes
from nectar.engines.flower.marked_lines import is_marked, marked_content

SUBMIT_SECONDS = 300.0
_LIST_SECONDS = 120.0


@dataclass(frozen=True)
class CommandOutcome:
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


class LaunchError(NectarError):
    """A simulation could not be started, or ended without an outcome."""


class CommandRefused(LaunchError):
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

    def outcome(self, run: str) -> CommandOutcome:
        """Ask how the run stands; LaunchError if the SuperLink is gone or gives no sensible answer."""
        answer = self.ask(["list", self.connection, "--run-id", run], _LIST_SECONDS)
        try:
            entry = answer["runs"][0]
            return CommandOutcome(str(entry["status"]), str(entry["status-details"]))
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
    except CommandRefused as refusal:
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
        raise CommandRefused(_refusal(answer))
    return answer


def _failed(program: str, done: subprocess.CompletedProcess[str]) -> LaunchError:
    message = " ".join((done.stdout + done.stderr).split()) or "nothing"
    return LaunchError(f"`flwr {program}` failed (exit code {done.returncode}), it said: {message}")


def _refusal(answer: Mapping[str, Any]) -> str:
    reason = " ".join(str(answer.get("error-message") or json.dumps(answer)).split())
    # Flower puts its notes about the project and the connection before the refusal itself.
    for opening in ("[code:", "Connection to the SuperLink"):
        if opening in reason:
            return reason[reason.index(opening) :]
    return reason


# ---- log -----------------------------------------------------------------------------------------
# The run's log as the terminal shows it: Flower's lines, without Flower's and Ray's small talk.

_RETRY_SECONDS = 2.0

#: the log of a run that is over is read so often, until a reading does not break off
_READINGS = 3

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_INFORMS = re.compile(r"^(?:\x1b\[\d+m)?INFO (?:\x1b\[0m)?: {0,7}")
_LEVEL = r"(?:\(\w+ pid=\d+\) )?(?:INFO|WARNING)\s*:\s*"

# Whole lines, never parts of one, and none at the level of an error: a line that is not known to
# be idle is shown.
_IDLE = re.compile(
    "|".join(
        [
            rf"{_LEVEL}$",
            rf"{_LEVEL}Starting logstream for run_id `\d+`$",
            rf"{_LEVEL}Starting Flower Simulation$",
            rf"{_LEVEL}Since flwr 1\.32, default simulated SuperNodes changed from 10 to 2\.$",
            rf"{_LEVEL}Federation `[^`]*` \(\d+ simulated SuperNodes\)$",
            rf"{_LEVEL}To change federation size, use the following command:$",
            rf"{_LEVEL}flwr federation simulation-config .*$",
            rf"{_LEVEL}Manually terminating ClientAppActor(?: \[repeated .*)?$",
            r"(?:\(\w*\s*pid=\d+\) )?\[mutex\.cc : \d+\] RAW: .*$",
            r"Using SuperLink: .*$",
            r"Successfully installed \S+ to \S+$",
            r".*FutureWarning: Tip: In future versions of Ray, Ray will no longer override "
            r"accelerator visible devices env var .*$",
        ]
    )
)
_WARNING_SOURCE = re.compile(r"\s+warnings\.warn\($")


def plain(line: str) -> str:
    """Give `line` without terminal colours."""
    return _COLOUR.sub("", line)


class NoiseFilter:
    """Says line by line what is worth showing; remembers a cut warning for its second line."""

    def __init__(self) -> None:
        self._after_warning = False

    def shows(self, line: str) -> bool:
        """Return whether `line` (with or without its line end and colours) carries information."""
        text = plain(line).rstrip()
        source_line = self._after_warning and _WARNING_SOURCE.match(text) is not None
        idle = source_line or _IDLE.match(text) is not None
        self._after_warning = idle and "FutureWarning" in text
        return not idle


class Screen:
    """Where a log is shown.

    Parameters
    ----------
    verbose
        Whether every line is, idle ones too.
    """

    def __init__(self, out: TextIO, *, verbose: bool) -> None:
        self._out = out
        self._verbose = verbose
        self._noise = NoiseFilter()
        self._explained = False

    def show(self, line: str) -> None:
        """Show a line of the log, line end included; colours are for terminals alone, marked lines for programs.

        Behind the sentence that says why a run stopped Flower says it again, as a traceback.
        """
        self._explained = self._explained or bool(marked_content(line, "stopped"))
        if is_marked(line):
            return
        if self._verbose or (self._noise.shows(line) and not self._explained):
            line = _INFORMS.sub("", line)
            self._out.write(line if self._out.isatty() else plain(line))
            self._out.flush()

    def say(self, sentence: str) -> None:
        """Show a sentence of our own."""
        self._out.write(f"{sentence}\n")
        self._out.flush()

    def say_failed(self, outcome: CommandOutcome) -> None:
        """Show that a run did not complete, with Flower's reason unless the log has said it."""
        self.say("The run did not complete." if self._explained else outcome.reason)


def follow_lines(
    lines: Callable[[], Iterator[str]],
    outcome: Callable[[], CommandOutcome],
    see: Callable[[str], object],
) -> CommandOutcome:
    """Read a run's log, each line once, until the run is over.

    Parameters
    ----------
    lines
        Gives the log from its beginning to the run's end; raises LogBroken where the connection breaks.
    see
        Called with each line, its line end included; the log's very last one may have none.
    """
    seen, left = 0, _READINGS
    while True:
        half, whole = "", True
        try:
            for number, line in enumerate(lines()):
                # After a broken connection the log comes again from its beginning.
                if number < seen:
                    continue
                if line.endswith("\n"):
                    see(line)
                    seen = number + 1
                else:
                    half = line
        except LogBroken:
            whole = False
        found = outcome()
        if found.finished:
            left -= 1
            if whole or not left:
                if half:
                    see(half)
                return found
        time.sleep(_RETRY_SECONDS)


# ---- job -----------------------------------------------------------------------------------------
# What is to be simulated, and the plain ``flwr run`` command that does it.

RAY_ADDRESS = "RAY_ADDRESS"
"""The variable that takes a process of Ray to a cluster that is there."""

Scalar = str | int | float | bool


@dataclass(frozen=True)
class Resources:
    """Simulated devices and what each may use.

    Attributes
    ----------
    client_cores
        Cores a device at work takes.
    client_gpus
        Share of a GPU a device at work takes.
    workers
        Devices at work at a time.
    cluster
        The Ray cluster whose cores bound these instead; empty: a Ray of the run's own.
    """

    supernodes: int
    client_cores: int
    client_gpus: float
    workers: int
    cluster: str = ""

    def federation_config(self) -> str:
        """Give Flower's ``--federation-config`` string."""
        # Ray refuses to be told how many cores a cluster has that is there.
        own = "" if self.cluster else f" init-args-num-cpus={self.workers * self.client_cores}"
        return (
            f"num-supernodes={self.supernodes} "
            f"client-resources-num-cpus={self.client_cores} "
            f"client-resources-num-gpus={float(self.client_gpus)}{own}"
        )


def plain_command(app: Path, run_config: Mapping[str, Scalar], resources: Resources) -> str:
    """Return the line that simulates the app with nothing but Flower, ready for a POSIX shell.

    Flower's own dependency installation is off in it: it costs time at every run, and its clean-up can make a run that
    went well be reported as failed. The scripts' directory leads PATH because Flower finds its own programs there.
    """
    overrides = to_flwr({k: v for k, v in run_config.items() if v != "" and k != TYPED})
    config = ["--run-config", overrides] if overrides else []
    federation = ["--federation-config", resources.federation_config()]
    cluster = resources.cluster
    return " ".join(
        [
            f'env PATH={shlex.quote(str(scripts_directory()))}:"$PATH"',
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1",
            *([f"{RAY_ADDRESS}={shlex.quote(cluster)}"] if cluster else []),
            shlex.join(["flwr", "run", str(app), *config, *federation, "--stream"]),
        ]
    )


def scripts_directory() -> Path:
    """Give the directory of this environment's programs (``flwr``, ``flower-superlink``)."""
    return Path(sysconfig.get_path("scripts"))
