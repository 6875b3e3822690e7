"""A real federation on loopback: one SuperLink, SuperNodes as processes of their own, and the flwr CLI."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from places import ROOT

from nectar.arguments import to_flwr

PROGRAMS = Path(sys.executable).parent

#: what starts a SuperNode: the site's own program, or Flower's alone
SITE, PLAIN = ("nectar", "site"), ("flower-supernode",)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Deployment:
    """Starts everything on entry, ends everything it started on exit, by pid."""

    def __init__(
        self, directory: Path, nodes: int | Sequence[str], program: Sequence[str] = SITE
    ) -> None:
        self.directory, self.program = directory, program
        if isinstance(nodes, int):
            nodes = [f"partition-id={i} num-partitions={nodes}" for i in range(nodes)]
        self.nodes = nodes  # each one's own part of its node config
        self.supernodes: list[subprocess.Popen[bytes]] = []
        self._started: list[subprocess.Popen[bytes]] = []
        self._outputs: dict[str, Path] = {}
        self._port = free_port()

    def __enter__(self) -> Self:
        home = self.directory / "cli"
        home.mkdir()
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "lab"\n[superlink.lab]\naddress = "{self.address}"\n{self.trust}\n'
        )
        try:
            self.start_superlink()
            self.start_nodes()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    @property
    def address(self) -> str:
        """The SuperLink's."""
        return f"127.0.0.1:{self._port}"

    @property
    def trust(self) -> str:
        """How Flower's command line trusts it."""
        return "insecure = true"

    @property
    def superlink_options(self) -> Sequence[str]:
        """How the SuperLink is started."""
        return ("--insecure",)

    def start_superlink(self) -> subprocess.Popen[bytes]:
        """Start the SuperLink, and wait until it listens."""
        options = ("--disable-runtime-dependency-installation", "--port", str(self._port))
        process = self._spawn("superlink", "flower-superlink", *options, *self.superlink_options)
        end = time.monotonic() + 300
        while time.monotonic() < end:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self._port)) == 0:
                    return process
            time.sleep(0.2)
        raise TimeoutError("the SuperLink did not open its port")

    def start_nodes(self) -> None:
        """Start all SuperNodes."""
        for config in self.nodes:
            self.join(config)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._started:
            signal_session(process.pid, signal.SIGCONT)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in self._started:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                signal_session(process.pid, signal.SIGKILL)
                process.wait()
        self._kill_what_is_left()

    def _kill_what_is_left(self) -> None:
        """Kill what outlived its parent: a ServerApp in the middle of a call waits for its SuperLink for ever."""
        home = f"FLWR_HOME={self.directory}/".encode()
        for entry in [path for path in Path("/proc").iterdir() if path.name.isdigit()]:
            with contextlib.suppress(OSError):
                if home in (entry / "environ").read_bytes():
                    os.kill(int(entry.name), signal.SIGKILL)

    def join(self, config: str) -> None:
        """Start one more SuperNode, with its own part of its node config."""
        self.supernodes.append(self._node(f"node-{len(self.supernodes)}", config, "--insecure"))

    def _node(
        self, name: str, config: str, *options: str, program: Sequence[str] = (), address: str = ""
    ) -> subprocess.Popen[bytes]:
        state = "" if "state-dir=" in config else f" state-dir='{self.directory}/state'"
        return self._spawn(
            name,
            *(program or self.program),
            *("--superlink", address or self.address),
            *("--port", str(free_port())),
            *("--node-config", f"{config}{state}"),
            *options,
        )

    def submit(self, run_config: Mapping[str, Any], app: Path = ROOT) -> str:
        """Start a run and return its id."""
        answer = self._flwr("run", str(app), "lab", "-c", to_flwr(run_config), "--format", "json")
        assert answer.get("success"), answer
        run_id = str(answer["run-id"])
        self._outputs[run_id] = Path(str(run_config["output-dir"]))
        return run_id

    def wait(self, run_id: str, seconds: float = 600.0) -> str:
        """Return the run's final status.

        To ask Flower takes two seconds of a core each time: it is asked once the record says that the run is over, and
        every 20 seconds, in case the ServerApp does not come to write that.
        """
        end = time.monotonic() + seconds
        while (now := time.monotonic()) < end:
            while not self._is_over(run_id) and time.monotonic() < min(end, now + 20):
                time.sleep(0.2)
            (found,) = self._flwr("list", "lab", "--run-id", run_id, "--format", "json")["runs"]
            if str(found["status"]).startswith("finished"):
                return str(found["status"])
        raise TimeoutError(f"run {run_id} did not end within {seconds:g} s")

    def _is_over(self, run_id: str) -> bool:
        outcomes = [
            json.loads(path.read_text(encoding="utf-8"))["outcome"]
            for path in self._outputs[run_id].glob("*/provenance.json")
        ]
        return bool(outcomes) and "running" not in outcomes

    def server_log(self, run_id: str) -> str:
        """Return what the run's ServerApp logged."""
        done = subprocess.run(
            [str(PROGRAMS / "flwr"), "log", run_id, "lab", "--show"],
            env=self._environment("cli"),
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout + done.stderr

    def stop_node(self, index: int) -> None:
        """Freeze a SuperNode, as a machine that hangs would: SIGSTOP."""
        signal_session(self.supernodes[index].pid, signal.SIGSTOP)

    def _flwr(self, *words: str) -> dict[str, Any]:
        done = subprocess.run(
            [str(PROGRAMS / "flwr"), *words],
            env=self._environment("cli"),
            capture_output=True,
            text=True,
            check=False,
        )
        answer: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
        return answer

    def _spawn(self, name: str, *command: str | Sequence[str]) -> subprocess.Popen[bytes]:
        program, *rest = map(str, command)
        with (self.directory / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [str(PROGRAMS / program), *rest],
                cwd=self.directory,
                env=self._environment(name),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def _environment(self, name: str) -> dict[str, str]:
        return os.environ | {
            "PATH": f"{PROGRAMS}:{os.environ['PATH']}",
            "FLWR_HOME": str(self.directory / name),
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
        }


class Secured(Deployment):
    """The same with TLS and node authentication, its keys made and its sites registered by `nectar keys`.

    Parameters
    ----------
    directory : Path
        Where everything lies; the keys in ``keys``.
    nodes : mapping of str to str
        Each site's own part of its node config, by the site's name.
    """

    def __init__(self, directory: Path, nodes: Mapping[str, str]) -> None:
        super().__init__(directory, list(nodes.values()))
        self.sites = dict(nodes)
        self.keys = directory / "keys"
        self.ca = str(self.keys / "ca.crt")
        for words in (["ca", str(self.keys)], ["server", str(self.keys), "superlink.test"]):
            assert nectar("keys", *words) == 0
        if self.sites:
            assert nectar("keys", "node", str(self.keys), *self.sites) == 0

    @property
    def trust(self) -> str:
        """How Flower's command line trusts it."""
        return f'root-certificates = "{self.ca}"'

    @property
    def superlink_options(self) -> Sequence[str]:
        """How the SuperLink is started."""
        return (
            "--enable-supernode-auth",
            *("--ssl-ca-certfile", self.ca),
            *("--ssl-certfile", str(self.keys / "server.pem")),
            *("--ssl-keyfile", str(self.keys / "server.key")),
            *("--database", str(self.directory / "superlink.db")),
        )

    def start_nodes(self) -> None:
        """Register the sites' keys, and start all SuperNodes."""
        public = [str(self.keys / "nodes" / f"{site}.pub") for site in self.sites]
        register = ["keys", "register", self.address, *public, "--ca", self.ca]
        assert nectar(*register, "--wait", "120") == 0
        for site in self.sites:
            self.supernodes.append(self.supernode(site))

    def supernode(
        self,
        site: str,
        *,
        log: str = "",
        key: Path | str | None = "own",
        ca: Path | None = None,
        config: str = "",
        address: str = "",
    ) -> subprocess.Popen[bytes]:
        """Start a SuperNode; ``key=None`` gives it none, a ``log`` makes it one of Flower's alone."""
        own = self.keys / "nodes" / site if key == "own" else key
        pair = [] if own is None else ["--auth-supernode-private-key", str(own)]
        return self._node(
            log or f"node-{site}",
            config or self.sites[site],
            *("--root-certificates", str(ca or self.ca)),
            *pair,
            program=PLAIN if log else (),
            address=address,
        )

    def log(self, name: str) -> str:
        """Return what a process has logged so far."""
        return (self.directory / f"{name}.log").read_text(encoding="utf-8", errors="replace")


def signal_session(leader: int, number: signal.Signals) -> None:
    """Signal every process of a session: a site's program has its SuperNode in a process group of its own."""
    for pid in [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]:
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(pid) == leader:
                os.kill(pid, number)


def nectar(*words: str) -> int:
    """Run a command of Nectar's in this process; return its exit code."""
    from nectar.cli import main

    return main(list(words))
