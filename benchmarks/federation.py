"""A SuperLink and SuperNodes as processes of this machine, for what is measured of a real federation."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from nectar.arguments import to_flwr
from nectar.engines.flower.plain_command import scripts_directory
from nectar.operate.keys.authority import make_authority, make_nodes, make_server

ROOT = Path(__file__).resolve().parent.parent

_PATIENCE = 180.0


class Federation:
    """Started on entry without nodes; on exit everything that it started is ended.

    Parameters
    ----------
    sites : sequence of str
        The sites' names, for whose nodes there are keys.
    program : sequence of str
        What starts a SuperNode: the site's own program, or ``["flower-supernode"]``.
    """

    def __init__(
        self,
        directory: Path,
        sites: Sequence[str],
        *,
        host: str = "127.0.0.1",
        tls: bool = True,
        environment: Mapping[str, str] | None = None,
        program: Sequence[str] = ("nectar", "site"),
    ) -> None:
        self.program = program
        self.directory, self.sites, self.host, self.tls = directory, sites, host, tls
        self.port = free_port()
        self._variables = dict(environment or {})
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        keys = self.directory / "keys"
        home = self.directory / "cli"
        home.mkdir(parents=True)
        # The SuperLink's own SuperExec reaches it at the address that it listens on.
        serve = ["--host", "0.0.0.0" if self.host != "127.0.0.1" else self.host]
        serve += ["--port", str(self.port), "--disable-runtime-dependency-installation"]
        connection = f'address = "{self.host}:{self.port}"\n'
        if self.tls:
            make_authority(keys)
            make_server(keys, [self.host])
            make_nodes(keys, self.sites)
            serve += ["--ssl-ca-certfile", str(keys / "ca.crt"), "--enable-supernode-auth"]
            serve += ["--ssl-certfile", str(keys / "server.pem")]
            serve += ["--ssl-keyfile", str(keys / "server.key")]
            connection += f'root-certificates = "{keys / "ca.crt"}"\n'
        else:
            serve.append("--insecure")
            connection += "insecure = true\n"
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "lab"\n[superlink.lab]\n{connection}'
        )
        try:
            self._spawn("superlink", ["flower-superlink", *serve])
            _wait(self._answers, "the SuperLink did not open its port")
            if self.tls:
                for site in self.sites:
                    self.flwr("supernode", "register", str(keys / "nodes" / f"{site}.pub"), "lab")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._started):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def start_node(
        self, site: str, config: str, prefix: Sequence[str] = ()
    ) -> subprocess.Popen[bytes]:
        """Start ``site``'s SuperNode with its node config, behind ``prefix``, such as ``ip netns exec NAME``."""
        keys = self.directory / "keys"
        secure = ["--root-certificates", str(keys / "ca.crt")]
        secure += ["--auth-supernode-private-key", str(keys / "nodes" / site)]
        command = [*self.program, "--superlink", f"{self.host}:{self.port}"]
        command += secure if self.tls else ["--insecure"]
        state = f"site='{site}' state-dir='{self.directory / 'state'}'"
        command += ["--port", str(free_port()), "--node-config", f"{config} {state}"]
        return self._spawn(site, command, prefix)

    def submit(self, run_config: Mapping[str, Any]) -> str:
        """Start a run of this project's app and return its id."""
        words = ["run", str(ROOT), "lab", "-c", to_flwr(run_config), "--format", "json"]
        return str(self.flwr(*words)["run-id"])

    def wait(self, run_id: str, seconds: float = 600.0) -> None:
        """Wait for the run's end; RuntimeError if it did not complete."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            (found,) = self.flwr("list", "lab", "--run-id", run_id)["runs"]
            if str(found["status"]).startswith("finished"):
                if found["status"] != "finished:completed":
                    raise RuntimeError(
                        f"the run ended {found['status']}: {found['status-details']}"
                    )
                return
            time.sleep(3)
        raise TimeoutError(f"run {run_id} did not end within {seconds:g} s")

    def flwr(self, *words: str) -> dict[str, Any]:
        """Call Flower's command line for its JSON answer."""
        words = words if "--format" in words else (*words, "--format", "json")
        done = subprocess.run(
            [str(scripts_directory() / "flwr"), *words],
            env=self._environment("cli"),
            capture_output=True,
            text=True,
            check=False,
        )
        answer: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
        if not answer.get("success", True):
            raise RuntimeError(f"flwr {words[0]}: {answer}")
        return answer

    def _spawn(
        self, name: str, command: Sequence[str], prefix: Sequence[str] = ()
    ) -> subprocess.Popen[bytes]:
        program = str(scripts_directory() / command[0])
        with (self.directory / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [*prefix, program, *command[1:]],
                cwd=self.directory,
                env=self._environment(name),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def _environment(self, name: str) -> dict[str, str]:
        own = {
            "PATH": f"{scripts_directory()}:{os.environ['PATH']}",
            "FLWR_HOME": str(self.directory / name),
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_TELEMETRY_ENABLED": "0",
        }
        return {**os.environ, **own, **self._variables}

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((self.host, self.port)) == 0


def free_port() -> int:
    """Return a port of the loopback that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def rounds_of(output: Path) -> list[dict[str, Any]]:
    """Return the lines of the one record below ``output`` so far."""
    lines = [p.read_text() for p in output.glob("*/metrics.jsonl")]
    return [json.loads(line) for line in "".join(lines).splitlines() if line.endswith("}")]


def _wait(condition: Any, otherwise: str) -> None:
    end = time.monotonic() + _PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(otherwise)
        time.sleep(0.1)
