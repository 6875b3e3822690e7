"""What a report says of FedAF."""

from __future__ import annotations

from common.settings.disclosure import Disclosure
from nectar.report.facts import Facts, Given
from nectar.report.facts.feddm import images, protected
from nectar.report.facts.surrogate import labels_sent


def facts(disclosed: Disclosure, given: Given) -> Facts:
    """Return what FedDM's images disclose, and the means that are sent beside them."""
    return Facts(
        "FedAF",
        protected(disclosed),
        (
            images(disclosed, given),
            "Beside the images every site sent the mean outputs of two models on its real images of each class, as "
            "they are: of a class of one image those are that image's.",
            *labels_sent(disclosed),
        ),
    )
