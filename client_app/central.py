"""The device of training in one place: it is counted, and asked for nothing but evaluations."""

from __future__ import annotations

from client_app.device import DeviceClient


class CentralClient(DeviceClient):
    """Has no phase."""
