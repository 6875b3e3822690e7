"""What a report says of random masking."""

from __future__ import annotations

from common.settings.disclosure import Disclosure
from nectar.report.facts import Facts, Given


def facts(disclosed: Disclosure, given: Given) -> Facts:
    """Return it."""
    return Facts(
        "random masking",
        ("No training example left a device: a part of an update travelled.",),
        (
            "A random part of the update of every device was sent, value by value, and is a function of private data.",
        ),
        carries="a part of the update",
    )
