"""The device of a server that trains alone: it is counted, and asked for nothing but evaluations."""

from __future__ import annotations

from client_app.device import DeviceClient


class ServerClient(DeviceClient):
    """Has no phase."""
