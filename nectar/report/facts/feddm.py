"""What a report says of FedDM."""

from __future__ import annotations

from common.settings.disclosure import Disclosure
from nectar.report.facts import Facts, Given
from nectar.report.facts.surrogate import labels_sent


def facts(disclosed: Disclosure, given: Given) -> Facts:
    """Return the facts of a run, by what its devices disclosed and by its settings."""
    return Facts(
        "FedDM",
        protected(disclosed),
        (images(disclosed, given), *labels_sent(disclosed), *_left_out(given)),
    )


def protected(disclosed: Disclosure) -> tuple[str, ...]:
    """Return what images protected."""
    if disclosed.began_as != "noise":
        return ()
    return (
        "No real image left a device: the images sent started from noise, and were changed until the model "
        "embedded them as it embeds the real ones.",
    )


def images(disclosed: Disclosure, given: Given) -> str:
    """Return what is to be known of the images."""
    if disclosed.differentially_private:
        return (
            f"The synthetic images are made of sums with noise (feddm.mechanism={given('mechanism')}), to which each "
            "real image gave no more than the clip: the epsilon of all rounds together is theirs."
        )
    if disclosed.unchanged:
        return "Real images were sent as they are: start=real with iterations=0 changes nothing in them."
    if disclosed.began_as == "class means":
        return (
            "The images sent began as the mean of each of the device's classes (start=mean) with noise upon it, which "
            "is private data: of a class with few images it shows what these look like."
        )
    if str(given("start")).startswith("mix"):
        return (
            f"Each image sent began as the mean of a few real ones (start={given('start')}): it shows what these have "
            "in common, and real images can be told from it. Do not call that private."
        )
    if disclosed.began_as == "real examples":
        return "The images sent began as real ones (start=real), and look like them: do not call that private."
    return "The synthetic images are functions of private data."


def _left_out(given: Given) -> tuple[str, ...]:
    if given("small_class") != "leave_out" or not str(given("start")).startswith("mix"):
        return ()
    return (
        f"Of classes with fewer images than {given('start')} takes, devices sent none (small_class=leave_out): a label "
        "that was sent says that there are as many.",
    )
