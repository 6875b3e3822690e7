"""What a fork does: Flower's own `flwr-clientapp`, with the run's end seen and, where a site pins, its app alone.

One of the two modules that touch Flower's private parts: what `flwr-clientapp` calls is not public.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import sys
import threading
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from logging import getLogger
from pathlib import Path
from types import ModuleType
from typing import Any

import flwr.clientapp.utils as loading
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
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supernode.cli import flwr_clientapp
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from nectar.engines.site import approval

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
    """The one app that a site runs.

    Attributes
    ----------
    total : str
        The bundle's SHA-256.
    folder : Path
        The site's own copy, unpacked.
    """

    total: str
    folder: Path


def pinned(content: bytes, folder: Path) -> Pin:
    """Unpack the bundle that the site has read below ``folder``."""
    with contextlib.redirect_stdout(sys.stderr):
        app = install_from_fab(content, install_dir=folder, skip_prompt=True)
    return Pin(hashlib.sha256(content).hexdigest(), app)


@dataclass(frozen=True)
class Fleet:
    """How the site's node speaks to its SuperLink.

    Attributes
    ----------
    address : str
        HOST:PORT.
    certificates : str, optional
        Path to the authority's certificate; None for the system's.
    key : EllipticCurvePrivateKey
        The site's.
    """

    address: str
    certificates: str | None
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
    """Read a SuperNode's options; None if the node has no key, which Flower lets nobody else speak for."""
    parser = ArgumentParser(allow_abbrev=False, add_help=False, exit_on_error=False)
    for option in ("superlink", "root-certificates", "auth-supernode-private-key"):
        parser.add_argument(f"--{option}")
    options = parser.parse_known_args(list(words))[0]
    if not (options.superlink and options.auth_supernode_private_key):
        return None
    try:
        content = Path(options.auth_supernode_private_key).expanduser().read_bytes()
        key = load_ssh_private_key(content, None)
    except (OSError, ValueError, UnsupportedAlgorithm):  # the SuperNode says what is wrong with it
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
    """Be `flwr-clientapp`; ends as that does, by SystemExit."""
    # a fresh process would draw this state again; torch's is fixed, and Python sees to its own
    importlib.import_module("numpy").random.seed()
    if pin is not None:
        _use(pin)
    pull = process.pull_task_input

    def fetch(client: Any) -> tuple[Any, ...]:
        task = looked_after(client, fleet, pull)
        _require_approval(client, pin, task)
        with contextlib.suppress(OSError):  # what `ps` and `top` show; not every system has it
            Path("/proc/self/comm").write_text("flwr-clientapp", encoding="utf-8")
        return task

    _replace(process, "pull_task_input", fetch)
    flwr_clientapp()


def _use(pin: Pin) -> None:
    """Let Flower unpack nothing and load the site's own copy, whatever name a bundle comes under."""

    def reviewed(fab: bytes, **options: object) -> Path:
        if hashlib.sha256(fab).hexdigest() != pin.total:
            raise PermissionError(f"this site runs the app {pin.total[:16]} and no other")
        return pin.folder

    _replace(process, "install_from_fab", reviewed)
    for module in (process, loading):
        _replace(module, "get_project_dir", lambda *names: pin.folder)


def _require_approval(client: Any, pin: Pin | None, task: tuple[Any, ...]) -> None:
    """Return where the site's owner lets the run begin; else reply why not, and end this process."""
    message, context, run, fab = task
    pinned = pin is not None and hashlib.sha256(fab.content).hexdigest() == pin.total
    if pin is not None and not pinned:
        return  # refused where it would be unpacked; its owner is not asked
    try:
        approval.require(
            run.run_id, fab.content, context.run_config, context.node_config, pinned=pinned
        )
    except approval.Withheld as withheld:
        give_up(client, message, context, str(withheld), withheld.code)


def _replace(module: ModuleType, name: str, function: Callable[..., object]) -> None:
    """Replace a function that Flower calls by this name; AttributeError where it does so no more."""
    getattr(module, name)
    setattr(module, name, function)


def looked_after(
    client: Any, fleet: Fleet | None, pull: Callable[[Any], tuple[Any, ...]]
) -> tuple[Any, ...]:
    """Fetch the task, and look after it from the first answer on: once the run is over, the rest may never come."""
    if fleet is None:
        return pull(client)
    fetched: list[tuple[Any, ...]] = []
    link, ask = fleet.client(), client.PullTaskInput

    def asked(request: Any) -> Any:
        task = ask(request)

        def over() -> bool:
            return is_over(link, task.context.node_id, task.run.run_id)

        def stop() -> None:
            give_up(client, *(fetched[0][:2] if fetched else (None, None)))

        threading.Thread(target=watch, args=(over, stop), daemon=True).start()
        return task

    client.PullTaskInput = asked
    fetched.append(pull(client))
    return fetched[0]


def watch(over: Callable[[], bool], stop: Callable[[], None], every: float = LOOK_EVERY) -> None:
    """Ask every so many seconds whether the run is over, and stop once it is."""
    waiting = threading.Event()
    while not waiting.wait(every):
        if over():
            stop()
            return


def is_over(link: FleetHttpClient, node_id: int, run_id: int) -> bool:
    """Ask the SuperLink about a run, as the node would before it sends its reply; unknown counts as going on."""
    try:
        link.GetRun(GetRunRequest(node=Node(node_id=node_id), run_id=run_id))
    except httpx.HTTPStatusError as error:
        return error.response.status_code == httpx.codes.FORBIDDEN
    except Exception:
        return False
    return False


def give_up(
    client: Any,
    message: Message | None,
    context: Any,
    sentence: str = "the run is over: this site computes no further for it",
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
