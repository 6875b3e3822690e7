"""A Ray cluster that is there."""

from __future__ import annotations

import socket

from nectar.engines.flower.client import LaunchError


def knock(address: str) -> None:
    """See who listens at ``HOST:PORT``, which Ray tries for minutes; LaunchError if nobody; other forms are Ray's."""
    host, colon, port = address.rpartition(":")
    if not colon or "/" in address:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, ValueError, OverflowError) as error:
        raise no_cluster(address, error) from None


def no_cluster(address: str, error: Exception) -> LaunchError:
    """Return the sentence that there is no cluster."""
    reason = str(error).strip().partition("\n")[0]
    return LaunchError(
        f"No Ray cluster answers at {address} ({reason}): start one with `ray start --head`, and give HOST:PORT of its "
        "head."
    )
