"""A federation on loopback whose parts a test starts, kills, freezes and starts again one by one."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from deployment import ROOT, Deployment, signal_session

from server_app.record import Record

#: what a wait without a promise may take on a busy machine
PATIENCE = 400.0


class FaultFederation(Deployment):
    """A SuperLink with a database, and SuperNodes by the names of their sites.

    Parameters
    ----------
    directory : Path
        Where everything lies; the sites' states in ``state``.
    nodes : mapping of str to str
        Each site's own part of its node config, by the site's name; one that names its state keeps it there.
    """

    def __init__(self, directory: Path, nodes: Mapping[str, str]) -> None:
        super().__init__(directory, list(nodes.values()))
        self.configs = dict(nodes)
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        #: where a site reaches the SuperLink, if not at its own port
        self.ports: dict[str, int] = {}

    @property
    def port(self) -> int:
        """The SuperLink's."""
        return self._port

    @property
    def superlink_options(self) -> Sequence[str]:
        """How the SuperLink is started: on its database if there is one."""
        return ("--insecure", "--database", str(self.directory / "superlink.db"))

    def start_superlink(self) -> subprocess.Popen[bytes]:
        """Start the SuperLink, again too."""
        self.running["superlink"] = super().start_superlink()
        return self.running["superlink"]

    def start_nodes(self) -> None:
        """Leave that to the test."""

    def start(self, *sites: str) -> None:
        """Start the SuperNodes of ``sites``."""
        for site in sites:
            address = f"127.0.0.1:{self.ports.get(site, self._port)}"
            node = self._node(site, self.configs[site], "--insecure", address=address)
            self.running[site] = node

    def kill(self, part: str) -> None:
        """Kill a part with its process group, as a machine that loses its power would."""
        signal_session(self.running[part].pid, signal.SIGKILL)
        self.running[part].wait()

    def freeze(self, site: str) -> None:
        """Stop a SuperNode where it is, as a machine that hangs would."""
        signal_session(self.running[site].pid, signal.SIGSTOP)

    def thaw(self, site: str) -> None:
        """Let it go on."""
        signal_session(self.running[site].pid, signal.SIGCONT)

    def kill_app(self, part: str, program: str) -> None:
        """Wait until ``program`` is at work at ``part``, and kill its process and no other.

        A process that dies before it has fetched its task is started again by Flower: at work means, of a process of
        its own, that torch is there, which the app imports and Flower does not; a fork of the site's own program
        bears this name from then on.
        """
        home = f"FLWR_HOME={self.directory}/{part}".encode()

        def at_work() -> list[int]:
            found = [p for p in _processes() if home in _proc(p, "environ").split(b"\0")]
            return [p for p in found if _is(p, program) and b"libtorch" in _proc(p, "maps")]

        until(at_work, f"{program} at {part}")
        for pid in at_work():
            os.kill(pid, signal.SIGKILL)

    def heard(self, part: str, text: str) -> int:
        """Return how often ``part`` has logged ``text`` since it was started."""
        return self.log(part).count(text)

    def log(self, name: str) -> str:
        """Return what ``name`` has logged since it was started."""
        return (self.directory / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def submit_words(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        """Start `nectar submit`, its output in the log ``name``."""
        command = [sys.executable, "-m", "nectar.cli", "submit", "lab", "--insecure"]
        with (self.directory / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [*command, *words],
                cwd=ROOT,
                env=self._environment("cli"),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._started.append(process)
        return process


def _processes() -> Iterator[int]:
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def _is(pid: int, program: str) -> bool:
    name = program.encode()
    return name in _proc(pid, "cmdline") or _proc(pid, "comm").strip() == name


def _proc(pid: int, name: str) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_bytes()
    return b""


_over = threading.Event()
_within: list[None] = []


@contextlib.contextmanager
def nobody_waits_on() -> Iterator[None]:
    """Behind the outermost of these, what waits in other threads gives up: the tests are over, or were interrupted."""
    _over.clear()
    _within.append(None)
    try:
        yield
    finally:
        _within.pop()
        if not _within:
            _over.set()


def until(
    condition: Callable[[], Any], what: str, *, while_runs: subprocess.Popen[bytes] | None = None
) -> float:
    """Wait until ``condition`` holds and return how many seconds that took; give up when ``while_runs`` has ended."""
    begun = time.monotonic()
    while not condition():
        if while_runs is not None and while_runs.poll() is not None:
            raise ChildProcessError(f"{what} cannot come: {while_runs.args} has ended")
        if time.monotonic() - begun > PATIENCE or _over.wait(0.1):
            raise TimeoutError(f"{what} did not come within {time.monotonic() - begun:.0f} s")
    return time.monotonic() - begun


def lines_in(output: Path) -> list[dict[str, Any]]:
    """Return the rounds recorded so far in the one record below ``output``, without round 0."""
    return [line for d in output.glob("*") for line in Record(d).metrics() if line["round"]]
