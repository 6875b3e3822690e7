"""The SuperLink's Control API over one connection, for what is asked of it many times: a site's key each.

One of the three modules that touch Flower's private parts: each call of its command line is a process of three seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from nectar.engines.flower.client import CommandRefused, LaunchError
from nectar.engines.flower.connection import Connection, environment


class Control:
    """Who asks, as :func:`control` gives it; each method raises CommandRefused where the SuperLink says no."""

    def __init__(self, client: Any, address: str) -> None:
        self._client, self._address = client, address

    def nodes(self) -> dict[bytes, tuple[str, str]]:
        """Return the number and status of every node that Flower knows, by its public key in PEM."""
        answer = self._ask(lambda: self._client.ListNodes(ListNodesRequest()))
        return {
            node.public_key: (str(node.node_id), str(node.status)) for node in answer.nodes_info
        }

    def register(self, key: ec.EllipticCurvePublicKey, name: str) -> str:
        """Register a site's public half, and return the number of its node."""
        request = RegisterNodeRequest(public_key=public_key_to_bytes(key), name=name)
        return str(self._ask(lambda: self._client.RegisterNode(request)).node_id)

    def _ask(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except httpx.HTTPStatusError as error:
            raise CommandRefused(_reason(error.response)) from None
        except httpx.HTTPError as error:
            raise LaunchError(
                f"The SuperLink at {self._address} gives no answer ({error}): is it reachable?"
            ) from None


@contextlib.contextmanager
def control(connection: Connection) -> Iterator[Control]:
    """Open a connection to the Control API of a SuperLink, for as many questions as there are."""
    proxies = {key: environment(connection.home)[key] for key in ("NO_PROXY", "no_proxy")}
    os.environ.update(proxies)
    certificates = connection.root_certificates
    client = ControlHttpClient.from_server_address(
        connection.address,
        connection.insecure,
        None if certificates is None else str(certificates),
        interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
    )
    try:
        yield Control(client, connection.address)
    finally:
        client.close()


def _reason(response: httpx.Response) -> str:
    """Return Flower's sentence, with its code as its command line writes it."""
    try:
        told = json.loads(response.text)
        return f"[code: {told['code']}] {told['detail']}"
    except (ValueError, KeyError, TypeError):
        return f"it answers {response.status_code}"
