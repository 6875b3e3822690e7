"""The program of a fork: Flower's `flwr-clientapp`, which also stops when its run ends and runs only a pinned app.

And what asks for a fork: Flower's own `flower-superexec`, with an executor that starts no program for a ClientApp.

It uses private modules of Flower: what these programs call is not public.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import subprocess
import sys
import threading
import time
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from logging import getLogger
from pathlib import Path
from types import ModuleType
from typing import Any

import flwr.clientapp.utils as loading
import flwr.supercore.superexec.run_superexec as superexec_loop
import flwr.supernode.runtime.run_clientapp as process
import httpx
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Error, Message
from flwr.cli.install import install_from_fab
from flwr.common.constant import SubStatus
from flwr.proto.node_pb2 import Node
from flwr.proto.run_pb2 import GetRunRequest
from flwr.supercore.cli import flower_superexec
from flwr.supercore.constant import TaskType
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor
from flwr.supercore.superexec.executor.types import ExecutionSpec, LaunchResult
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.cli import flwr_clientapp
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from nectar.engines.site import approval, zygote

logger = getLogger("flwr")

#: What the ClientApp of this release imports from others. Not the app's own modules, which come with the bundle.
THIRD_PARTIES = (
    "torch",
    "numpy.random",
    "safetensors.torch",
    "pydantic",
    "yaml",
    "filelock",
    "PIL.ImageOps",
    "scipy.special",
)

#: what a pinned app's modules are found by
_APP = "client_app.app"

#: seconds between two questions whether the run is still going on; a shorter piece of work asks none
LOOK_EVERY = 5.0


@dataclass(frozen=True)
class Pin:
    """The one app that a site runs: its bundle's SHA-256, and the site's own copy, unpacked."""

    total: str
    folder: Path


def pinned(content: bytes, folder: Path) -> Pin:
    """Unpack the bundle that the site has read below ``folder``."""
    with contextlib.redirect_stdout(sys.stderr):
        app = install_from_fab(content, install_dir=folder, skip_prompt=True)
    return Pin(hashlib.sha256(content).hexdigest(), app)


@dataclass(frozen=True)
class Fleet:
    """How the site's node connects to its SuperLink, at HOST:PORT, with the site's key."""

    address: str
    certificates: str | None  #: path to the authority's; None for the system's
    key: ec.EllipticCurvePrivateKey

    def client(self) -> FleetHttpClient:
        """Return a client that signs as the node does."""
        return FleetHttpClient.from_server_address(
            self.address,
            False,
            self.certificates,
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="SuperNode"),
                NodeAuthHttpInterceptor(self.key, self.key.public_key()),
            ],
        )


def fleet_of(words: Sequence[str]) -> Fleet | None:
    """Read a SuperNode's options; None if the node has no key: then Flower lets only the SuperNode speak for it."""
    parser = ArgumentParser(allow_abbrev=False, add_help=False, exit_on_error=False)
    for option in ("superlink", "root-certificates", "auth-supernode-private-key"):
        parser.add_argument(f"--{option}")
    options = parser.parse_known_args(list(words))[0]
    if not (options.superlink and options.auth_supernode_private_key):
        return None
    try:
        content = Path(options.auth_supernode_private_key).expanduser().read_bytes()
        key = load_ssh_private_key(content, None)
    except (
        OSError,
        ValueError,
        UnsupportedAlgorithm,
    ):  # the SuperNode reports what is wrong with it
        return None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        return None
    return Fleet(options.superlink, options.root_certificates, key)


def preload(pin: Pin | None) -> None:
    """Import what a ClientApp needs; of the app itself something only where it is the site's own copy."""
    for name in THIRD_PARTIES:
        importlib.import_module(name)
    if pin is not None:
        sys.path.insert(0, str(pin.folder))
        importlib.import_module(_APP)


def run(pin: Pin | None, fleet: Fleet | None) -> None:
    """Run `flwr-clientapp`, which ends by SystemExit."""
    # a fresh process would draw this state again; torch's is fixed, and Python sees to its own
    importlib.import_module("numpy").random.seed()
    if pin is not None:
        _use(pin)
    pull = process.pull_task_input

    def fetch(client: Any) -> tuple[Any, ...]:
        message, context, run, fab = task = pull_watched(client, fleet, pull)
        is_pinned = pin is not None and pin.total == hashlib.sha256(fab.content).hexdigest()
        if (
            pin is None or is_pinned
        ):  # another one is refused where it would be unpacked; its owner is not asked
            about = run.run_id, fab.content, context.run_config, context.node_config
            try:
                approval.require(*about, pinned=is_pinned)
            except approval.NotApproved as reason:
                give_up(client, message, context, str(reason), reason.code)
        with contextlib.suppress(OSError):  # what `ps` and `top` show; not every system has it
            Path("/proc/self/comm").write_text("flwr-clientapp", encoding="utf-8")
        return task

    _replace(process, "pull_task_input", fetch)
    flwr_clientapp()


def _use(pin: Pin) -> None:
    """Let Flower unpack nothing and load the site's own copy, under any name that a bundle has."""

    def reviewed(fab: bytes, **options: object) -> Path:
        if hashlib.sha256(fab).hexdigest() != pin.total:
            raise PermissionError(f"this site runs only the app {pin.total[:16]}")
        return pin.folder

    _replace(process, "install_from_fab", reviewed)
    for module in (process, loading):
        _replace(module, "get_project_dir", lambda *names: pin.folder)


def _replace(module: ModuleType, name: str, function: Callable[..., object]) -> None:
    """Replace a function that Flower calls by this name; AttributeError where it does so no more."""
    getattr(module, name)
    setattr(module, name, function)


def pull_watched(
    client: Any, fleet: Fleet | None, pull: Callable[[Any], tuple[Any, ...]]
) -> tuple[Any, ...]:
    """Fetch the task; from now on this process ends once its run is over, since what is missing may never come."""
    message = context = None
    if fleet is not None:
        link = fleet.client()
        watched = partial(watch, partial(is_over, link), lambda: give_up(client, message, context))
        threading.Thread(target=watched, daemon=True).start()
    message, context, *rest = pull(client)
    return message, context, *rest


def watch(over: Callable[[], bool], stop: Callable[[], None], every: float = LOOK_EVERY) -> None:
    """Ask every so many seconds whether the run is over, and stop once it is."""
    waiting = threading.Event()
    while not waiting.wait(every):
        if over():
            stop()
            return


def is_over(link: FleetHttpClient) -> bool:
    """Ask the SuperLink about this task's run, as the node would before its reply; unknown counts as going on."""
    try:
        node, run = Node(node_id=TaskIdentity.node_id), TaskIdentity.run_id
        link.GetRun(GetRunRequest(node=node, run_id=run))
    except httpx.HTTPStatusError as error:
        return error.response.status_code == httpx.codes.FORBIDDEN
    except Exception:  # also before the SuperNode has said which run it is
        return False
    return False


def give_up(
    client: Any,
    message: Message | None,
    context: Any,
    sentence: str = "the run has ended, so this site stops computing for it",
    code: int = approval.RAISED,
) -> None:
    """End this process in the middle of its work; with a reply where the SuperNode waits for one."""
    logger.info("%s", sentence)
    try:
        if message is not None:
            reply = Message(Error(code=code, reason=sentence), reply_to=message)
            process.push_message(client, reply, context)
        process.push_task_output(client, None, SubStatus.STOPPED, sentence)
    finally:
        os._exit(0)


# ---- SuperExec -----------------------------------------------------------------------------------

#: seconds after the last ClientApp was started until the zygote's end. The next begins with three seconds of imports,
#: a hundredth of such a pause; most rounds follow sooner
IDLE = 300.0


def superexec() -> None:
    """Run `flower-superexec` with the `ForkExecutor`."""
    only = json.loads(os.environ[zygote.SITE])["only"]
    executor = ForkExecutor(zygote.command(), only=only)
    _replace(superexec_loop, "get_executor", lambda *_, **__: executor)
    flower_superexec()


class ForkExecutor(SubprocessExecutor):
    """Starts ClientApps as forks of a zygote, which is started when none runs.

    ``command`` is the zygote's. With ``only``, nothing but ClientApps is started; ``idle`` seconds after the last one
    was started the zygote is to end.
    """

    def __init__(self, command: Sequence[str], *, only: bool, idle: float = IDLE) -> None:
        self._command, self._only, self._idle = command, only, idle
        self._zygote: subprocess.Popen[bytes] | None = None
        self._ending: list[subprocess.Popen[bytes]] = []
        self._end_at = 0.0

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        """Write the words of a ClientApp to the zygote."""
        if spec.task_type != TaskType.CLIENT_APP:
            if self._only:
                return LaunchResult.failed("this site starts only ClientApps")
            return super().launch(spec)
        line = json.dumps(_words(spec)).encode() + b"\n"
        try:
            self._write(line)
        except BrokenPipeError:  # it was killed
            self.close()
            self._write(line)
        return LaunchResult.accepted()

    def reconcile(self) -> None:
        """Let the zygote end after a while without a new ClientApp."""
        self._ending = [process for process in self._ending if process.poll() is None]
        if time.monotonic() > self._end_at:
            self.close()

    def close(self) -> None:
        """Let the zygote end, once its forks have."""
        if self._zygote is not None:
            self._zygote.stdin.close()  # type: ignore[union-attr]
            self._ending.append(self._zygote)
            self._zygote = None

    def _write(self, line: bytes) -> None:
        if self._zygote is None:
            self._zygote = subprocess.Popen(self._command, stdin=subprocess.PIPE, bufsize=0)
        self._zygote.stdin.write(line)  # type: ignore[union-attr]
        self._end_at = time.monotonic() + self._idle


def _words(spec: ExecutionSpec) -> list[str]:
    """Return the options of `flwr-clientapp`; a zygote's input shows them to no other user, as a command line would."""
    words = ["--runtime-api-address", spec.runtime_api_address, "--token", spec.token]
    if spec.insecure:
        words.append("--insecure")
    elif spec.root_certificates_path is not None:
        words += ["--root-certificates", spec.root_certificates_path]
    if spec.parent_pid is not None:
        words += ["--parent-pid", str(spec.parent_pid)]
    if spec.runtime_dependency_install:
        words.append("--allow-runtime-dependency-installation")
    return words
