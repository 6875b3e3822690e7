"""A SuperLink's Control API over one connection: runs, their logs, and nodes.

It uses private modules of Flower, since each call of its command line is a process of three seconds.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.common.serde import user_config_to_proto
from flwr.proto import control_pb2 as api
from flwr.proto.fab_pb2 import Fab
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.run_pb2 import Run as FlowerRun
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from nectar.engines.flower.app import app_files
from nectar.engines.flower.connection import Connection
from nectar.engines.flower.errors import CommandRefused, LaunchError
from nectar.engines.flower.federation import Node, Run
from nectar.operate.keys.authority import pem_fingerprint

_THIS_MACHINE = ("127.0.0.1", "localhost", "::1")

#: seconds to wait for an answer, and for the next lines of a log before it is requested again
_ANSWER, _SILENCE = 120.0, 30.0


class SuperLink:
    """Who asks, as :func:`superlink` gives it.

    Each method raises CommandRefused where the SuperLink says no, and LaunchError where it does not answer.
    """

    def __init__(self, client: ControlHttpClient, address: str) -> None:
        self._client, self._address = client, address

    def start(self, bundle: bytes, config: Mapping[str, str | int | float | bool]) -> str:
        """Submit an app to the SuperLink, and return the run's number; LaunchError with Flower's reason if refused."""
        stated = {key: value for key, value in config.items() if value != ""}
        request = api.StartRunRequest(
            fab=Fab(hash_str=hashlib.sha256(bundle).hexdigest(), content=bundle),
            override_config=user_config_to_proto(stated),
        )
        try:
            with self._answering():
                answer = self._client.StartRun(request)
        except CommandRefused as refusal:
            raise LaunchError(f"Flower did not start the run: {refusal}") from None
        if not answer.HasField("run_id"):
            raise LaunchError(
                f"Flower did not start the run: {answer.note or 'Flower gives no reason'}"
            )
        return str(answer.run_id)

    def run(self, number: str) -> Run:
        """Return what the SuperLink lists of a run."""
        return self._runs(api.ListRunsRequest(run_id=int(number)))[0]

    def runs(self) -> list[Run]:
        """Return the newest runs, the last one first."""
        return self._runs(api.ListRunsRequest())

    def stop(self, run: str) -> None:
        """Stop a run."""
        with self._answering():
            self._client.StopRun(api.StopRunRequest(run_id=int(run)))

    def log(self, run: str, after: float = 0.0) -> Iterator[tuple[float, str]]:
        """Yield what a run logs, line ends and all, each piece with the ``after`` that continues after it.

        It ends with the run, or when nothing has come for long: where a network is cut nothing ever comes.
        """
        request = api.StreamLogsRequest(run_id=int(run), after_timestamp=after)
        with self._answering(), contextlib.suppress(httpx.ReadTimeout):
            for piece in self._client.StreamLogs(request):
                yield piece.latest_timestamp, piece.log_output

    def nodes(self) -> list[Node]:
        """Return every node that Flower knows."""
        with self._answering():
            listed = self._client.ListNodes(api.ListNodesRequest()).nodes_info
        return [_node(node) for node in listed]

    def register(self, key: ec.EllipticCurvePublicKey, name: str) -> str:
        """Register a site's public key, and return the number of its node."""
        request = api.RegisterNodeRequest(public_key=public_key_to_bytes(key), name=name)
        with self._answering():
            return str(self._client.RegisterNode(request).node_id)

    def unregister(self, node: str) -> None:
        """Unregister a node; its SuperNode exits if it is running."""
        with self._answering():
            self._client.UnregisterNode(api.UnregisterNodeRequest(node_id=int(node)))

    def _runs(self, request: api.ListRunsRequest) -> list[Run]:
        with self._answering():
            answer = self._client.ListRuns(request)
        newest = sorted(answer.run_dict.values(), key=lambda run: run.pending_at, reverse=True)
        return [_run(run, answer.now) for run in newest]

    @contextlib.contextmanager
    def _answering(self) -> Iterator[None]:
        try:
            yield
        except httpx.HTTPStatusError as error:
            raise _refusal(error.response, self._address) from None
        except (httpx.HTTPError, ValueError) as error:  # or the answer is not Flower's
            raise LaunchError(
                f"The SuperLink at {self._address} does not answer ({error}): is it reachable?"
            ) from None


@contextlib.contextmanager
def superlink(connection: Connection) -> Iterator[SuperLink]:
    """Open a connection to the Control API of a SuperLink, for any number of requests."""
    connection.tls()  # raises if the certificates cannot be used
    names = ("NO_PROXY", "no_proxy")
    direct = [host for name in names for host in os.environ.get(name, "").split(",") if host]
    os.environ |= dict.fromkeys(names, ",".join(dict.fromkeys([*direct, *_THIS_MACHINE])))
    certificates = connection.root_certificates
    client = ControlHttpClient.from_server_address(
        connection.address,
        connection.insecure,
        None if certificates is None else str(certificates),
        interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI"), Patience()],
    )
    try:
        yield SuperLink(client, connection.address)
    finally:
        client.close()


class Patience:
    """How long is waited: Flower's client has half a minute for every answer, and all time for a log's next line."""

    def intercept(self, context: Any, call_next: Callable[[Any], httpx.Response]) -> httpx.Response:
        """Pass a request on."""
        seconds = context.request.extensions["timeout"]
        seconds["read"] = _ANSWER
        response = call_next(context)
        seconds["read"] = _SILENCE
        return response


def own_bundle() -> bytes:
    """Return the installed app's bundle, byte for byte as ``flwr build`` makes it; LaunchError if that fails."""
    from flwr.cli.build import build_fab_from_files

    try:
        return build_fab_from_files(app_files())[0]
    except ValueError as error:
        raise LaunchError(f"Flower cannot make a bundle of the installed app: {error}") from None


def _refusal(response: httpx.Response, address: str) -> LaunchError:
    """Return Flower's sentence, with its code as its command line writes it."""
    try:
        answer = json.loads(response.text)
        return CommandRefused(f"[code: {answer['code']}] {answer['detail']}")
    except (ValueError, KeyError, TypeError):
        return LaunchError(f"The SuperLink at {address} answers {response.status_code}")


def _run(run: FlowerRun, now: str) -> Run:
    started, end = _time(run.running_at), _time(run.finished_at or now)
    seconds = (end - started).total_seconds() if started and end else 0.0
    status = ":".join(filter(None, [run.status.status, run.status.sub_status]))
    return Run(str(run.run_id), status, run.status.details, seconds)


def _node(node: NodeInfo) -> Node:
    online = node.status == "online"
    since = _time(node.last_activated_at if online else node.last_deactivated_at)
    day = f"{since:%Y-%m-%d %H:%M:%SZ}" if since else ""
    key = pem_fingerprint(node.public_key)
    return Node(node.name, str(node.node_id), node.status, day, key)


def _time(text: str) -> datetime | None:
    return datetime.fromisoformat(text).astimezone(UTC) if text else None
