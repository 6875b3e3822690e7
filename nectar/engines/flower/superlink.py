"""A SuperLink's Control API over one connection: its nodes, and who is registered.

One of the three modules that touch Flower's private parts: each call of its command line is a process of three seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, UnregisterNodeRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from nectar.engines.flower.client import CommandRefused, LaunchError
from nectar.engines.flower.connection import Connection

_THIS_MACHINE = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Node:
    """A SuperNode as the SuperLink lists it.

    Attributes
    ----------
    number : str
        Its node id.
    public_key : bytes
        The site's public half, in PEM.
    name : str
        The name under which it was registered; empty if it has none.
    status : str
        Flower's: registered (it never came), online, offline or unregistered.
    since : str
        Since when it is online, or when it was seen last, UTC; empty if it never came.
    """

    number: str
    public_key: bytes
    name: str
    status: str
    since: str = ""


class SuperLink:
    """Who asks, as :func:`superlink` gives it.

    Each method raises CommandRefused where the SuperLink says no, and LaunchError where it does not answer.
    """

    def __init__(self, client: ControlHttpClient, address: str) -> None:
        self._client, self._address = client, address

    def nodes(self) -> list[Node]:
        """Return every node that Flower knows."""
        with self._answering():
            listed = self._client.ListNodes(ListNodesRequest()).nodes_info
        found = []
        for node in listed:
            online = node.status == "online"
            since = _utc(node.last_activated_at if online else node.last_deactivated_at)
            about = str(node.node_id), node.public_key, node.name, node.status
            found.append(Node(*about, since))
        return found

    def register(self, key: ec.EllipticCurvePublicKey, name: str) -> str:
        """Register a site's public half, and return the number of its node."""
        request = RegisterNodeRequest(public_key=public_key_to_bytes(key), name=name)
        with self._answering():
            return str(self._client.RegisterNode(request).node_id)

    def unregister(self, node: str) -> None:
        """Take a node's registration back; a running SuperNode ends by it."""
        with self._answering():
            self._client.UnregisterNode(UnregisterNodeRequest(node_id=int(node)))

    @contextlib.contextmanager
    def _answering(self) -> Iterator[None]:
        try:
            yield
        except httpx.HTTPStatusError as error:
            raise _refusal(error.response, self._address) from None
        except (httpx.HTTPError, ValueError) as error:
            raise LaunchError(
                f"The SuperLink at {self._address} gives no answer ({error}): is it reachable?"
            ) from None


@contextlib.contextmanager
def superlink(connection: Connection) -> Iterator[SuperLink]:
    """Open a connection to the Control API of a SuperLink, for as many questions as there are."""
    connection.tls()  # says what is wrong with the certificates
    names = ("NO_PROXY", "no_proxy")
    direct = [host for name in names for host in os.environ.get(name, "").split(",") if host]
    os.environ |= dict.fromkeys(names, ",".join(dict.fromkeys([*direct, *_THIS_MACHINE])))
    certificates = connection.root_certificates
    client = ControlHttpClient.from_server_address(
        connection.address,
        connection.insecure,
        None if certificates is None else str(certificates),
        interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
    )
    try:
        yield SuperLink(client, connection.address)
    finally:
        client.close()


def _refusal(response: httpx.Response, address: str) -> LaunchError:
    """Return Flower's sentence, with its code as its command line writes it."""
    try:
        told = json.loads(response.text)
        return CommandRefused(f"[code: {told['code']}] {told['detail']}")
    except (ValueError, KeyError, TypeError):
        return LaunchError(f"The SuperLink at {address} answers {response.status_code}")


def _utc(time: str) -> str:
    return f"{datetime.fromisoformat(time).astimezone(UTC):%Y-%m-%d %H:%M:%SZ}" if time else ""
