"""What a report says of FedVAE."""

from __future__ import annotations

from common.settings.disclosure import Disclosure
from nectar.report.facts import Facts, Given


def facts(disclosed: Disclosure, given: Given) -> Facts:
    """Return it."""
    return Facts(
        "FedVAE",
        (
            "No training example left a device, and no decoder: weights of encoders and classifiers travelled.",
        ),
        ("The trained weights of every device were sent, and are functions of private data.",),
        carries="weights",
    )
