"""What a report says of FedDM."""

from __future__ import annotations

from common.settings.disclosure import Disclosure
from nectar.report.facts import Facts, Given
from nectar.report.facts.surrogate import labels_sent


def facts(disclosed: Disclosure, given: Given) -> Facts:
    """Return the facts of a run, by what its devices disclosed and by its settings."""
    return Facts(
        "FedDM", _protected(disclosed), (_images(disclosed, given), *labels_sent(disclosed))
    )


def _protected(disclosed: Disclosure) -> tuple[str, ...]:
    if disclosed.began_as != "noise":
        return ()
    return (
        "No real image left a device: the images sent started from noise, and were changed until the model "
        "embedded them as it embeds the real ones.",
    )


def _images(disclosed: Disclosure, given: Given) -> str:
    if disclosed.differentially_private:
        return (
            f"The synthetic images are made of sums with noise (feddm.mechanism={given('mechanism')}), to which each "
            "real image gave no more than the clip: the epsilon of all rounds together is theirs."
        )
    if disclosed.unchanged:
        return "Real images were sent as they are: start=real with iterations=0 changes nothing in them."
    if disclosed.began_as == "real examples":
        return "The images sent began as real ones (start=real), and look like them: do not call that private."
    return "The synthetic images are functions of private data."
