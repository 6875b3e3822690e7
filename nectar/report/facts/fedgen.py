"""What a report says of FedGEN."""

from __future__ import annotations

from common.settings.disclosure import Disclosure
from nectar.report.facts import Facts, Given


def facts(disclosed: Disclosure, given: Given) -> Facts:
    """Return it."""
    return Facts(
        "FedGEN",
        ("No training example left a device: weights travelled.",),
        (
            "The trained weights of every device were sent, and are functions of private data.",
            "Each device told its number of images of every class. From these and the last layers of the weights the "
            "server learned a generator of latents of each class, which every device received.",
        ),
        carries="weights",
    )
