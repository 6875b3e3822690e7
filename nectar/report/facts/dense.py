"""What a report says of DENSE."""

from __future__ import annotations

from common.settings.disclosure import Disclosure
from nectar.report.facts import Facts, Given


def facts(disclosed: Disclosure, given: Given) -> Facts:
    """Return it."""
    return Facts(
        "DENSE",
        ("No training example left a device: weights travelled.",),
        (
            "The trained weights of every device were sent, and are functions of private data.",
            "The server made up images that these models take for each class; the record has some of them, which show "
            "what can be read from the weights.",
        ),
        carries="weights",
        pictures="images that the server made up for all the devices' models together",
    )
