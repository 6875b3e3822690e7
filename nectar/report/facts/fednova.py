"""What a report says of FedNova."""

from __future__ import annotations

from common.settings.disclosure import Disclosure
from nectar.report.facts import Facts, Given


def facts(disclosed: Disclosure, given: Given) -> Facts:
    """Return it."""
    return Facts(
        "FedNova",
        ("No training example left a device: weights travelled.",),
        ("The trained weights of every device were sent, and are functions of private data.",),
        carries="weights",
    )
