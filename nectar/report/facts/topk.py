"""What a report says of top-k."""

from __future__ import annotations

from common.settings.disclosure import Disclosure
from nectar.report.facts import Facts, Given


def facts(disclosed: Disclosure, given: Given) -> Facts:
    """Return it."""
    return Facts(
        "top-k",
        ("No training example left a device: a part of an update travelled.",),
        (
            "The largest values of the update of every device were sent, with their places, and are functions of "
            "private data.",
        ),
        carries="a part of the update",
    )
