"""What a report says of FedMix."""

from __future__ import annotations

from common.settings.disclosure import Disclosure
from nectar.report.facts import Facts, Given


def facts(disclosed: Disclosure, given: Given) -> Facts:
    """Return the facts of a run, by what its devices disclosed and by its settings."""
    size = given("mean_of")
    return Facts(
        "FedMix",
        (
            f"No single training example left a device: weights travelled, and means of {size} images.",
        ),
        (
            f"Every device sent means of {size} of its images each, with their mean labels, and every other device "
            "received them: a mean of a few images shows what they have in common, and nothing hides it.",
            "The trained weights of every device were sent, and are functions of private data.",
        ),
        pictures=f"means of {size} images",
    )
