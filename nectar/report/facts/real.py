"""What a report says of REAL."""

from __future__ import annotations

from common.settings.disclosure import Disclosure
from nectar.report.facts import Facts, Given
from nectar.report.facts.surrogate import labels_sent


def facts(disclosed: Disclosure, given: Given) -> Facts:
    """Return it."""
    return Facts(
        "REAL",
        (),
        (
            "Real images were sent, as they are: the method gives data away, to be measured.",
            *labels_sent(disclosed),
        ),
        pictures="real images of the sites",
    )
