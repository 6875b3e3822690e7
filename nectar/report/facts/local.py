"""What a report says of local training."""

from __future__ import annotations

from common.settings.disclosure import Disclosure
from nectar.report.facts import Facts, Given


def facts(disclosed: Disclosure, given: Given) -> Facts:
    """Return it."""
    return Facts(
        "local training",
        (
            "No training example left a device: each device's weights travelled to the server, to be judged, and to no "
            "other device.",
            "A figure is the mean over the devices' own models.",
        ),
        ("The trained weights of every device were sent, and are functions of private data.",),
        carries="weights",
    )
