"""What a report says of FedDGM."""

from __future__ import annotations

from common.settings.disclosure import Disclosure
from nectar.report.facts import Facts, Given


def facts(disclosed: Disclosure, given: Given) -> Facts:
    """Return the facts of a run, by what its devices disclosed and by its settings."""
    return Facts(
        "FedDGM",
        ("No training example left a device: weights travelled.",),
        (
            "The trained weights of every device were sent, and are functions of private data: the server made images "
            "of each device's weights, which show what can be read from them.",
            *_counts(disclosed),
        ),
        carries="weights",
        pictures="what the server distilled from a device's weights",
    )


def _counts(disclosed: Disclosure) -> tuple[str, ...]:
    if not disclosed.class_counts:
        return ()
    return ("Every device told how many examples of each class it has.",)
