"""The settings of a federation small enough to run in a second."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: the fixture ``small``: run configs of it
Small = Callable[..., dict[str, Any]]

#: a federation that trains for real and is done in a second: few clients, few steps, a narrow model
SMALL = (
    "federation.sites=3 model.width=8 partition.alpha=1.0 feddm.iterations=3 feddm.ipc=2 "
    "feddm.real_batch=32 real.ipc=2 image_training.epochs=5 "
    "fedavg.epochs=1 fedavg.batch=64"
)
