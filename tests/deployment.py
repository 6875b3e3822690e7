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

from common.grammar import to_flwr

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = Path(sys.executable).parent


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Deployment:
    """Starts everything on entry, ends everything it started on exit, by pid."""

    def __init__(self, directory: Path, nodes: int | Sequence[str]) -> None:
        self.directory = directory
        if isinstance(nodes, int):
            nodes = [f"partition-id={i} num-partitions={nodes}" for i in range(nodes)]
        self.nodes = nodes  # each one's own part of its node config
        self.supernodes: list[subprocess.Popen[bytes]] = []
        self._started: list[subprocess.Popen[bytes]] = []
        self._port = free_port()

    def __enter__(self) -> Self:
        self._spawn(
            "superlink",
            "flower-superlink",
            "--insecure",
            "--disable-runtime-dependency-installation",
            "--port",
            str(self._port),
        )
        home = self.directory / "cli"
        home.mkdir()
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "lab"\n[superlink.lab]\naddress = "127.0.0.1:{self._port}"\ninsecure = true\n'
        )
        try:
            self._wait_for_port()
        except TimeoutError:
            self.__exit__(None, None, None)
            raise
        for i, config in enumerate(self.nodes):
            node = self._spawn(
                f"node-{i}",
                "flower-supernode",
                "--insecure",
                "--superlink",
                f"127.0.0.1:{self._port}",
                "--port",
                str(free_port()),
                "--node-config",
                f"{config} state-dir='{self.directory}/state'",
            )
            self.supernodes.append(node)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._started:
            with contextlib.suppress(ProcessLookupError):
                for what in (signal.SIGCONT, signal.SIGTERM):
                    os.killpg(process.pid, what)
        for process in self._started:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def submit(self, run_config: Mapping[str, Any]) -> str:
        """Start a run and return its id."""
        answer = self._flwr("run", str(ROOT), "lab", "-c", to_flwr(run_config), "--format", "json")
        assert answer.get("success"), answer
        return str(answer["run-id"])

    def wait(self, run_id: str, seconds: float = 300.0) -> str:
        """Return the run's final status."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            (found,) = self._flwr("list", "lab", "--run-id", run_id, "--format", "json")["runs"]
            if str(found["status"]).startswith("finished"):
                return str(found["status"])
            time.sleep(3)
        raise TimeoutError(f"run {run_id} did not end within {seconds:g} s")

    def stop_node(self, index: int) -> None:
        """Freeze a SuperNode, as a machine that hangs would: SIGSTOP."""
        os.killpg(self.supernodes[index].pid, signal.SIGSTOP)

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

    def _wait_for_port(self) -> None:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self._port)) == 0:
                    return
            time.sleep(0.2)
        raise TimeoutError("the SuperLink did not open its port")
