"""What a report says of FedSynth."""

from __future__ import annotations

from common.settings.disclosure import Disclosure
from nectar.report.facts import Facts, Given


def facts(disclosed: Disclosure, given: Given) -> Facts:
    """Return the facts of a run, by what its devices disclosed and by its settings."""
    return Facts(
        "FedSynth",
        ("No training example and no weights left a device: synthetic batches travelled.",),
        (
            "The synthetic batches are functions of private data, and stand for an update: whoever has them and the "
            "round's weights has the update. The nearer it comes to the device's own, the more of its data they show.",
            _start(disclosed),
            _labels(disclosed, given),
        ),
    )


def _start(disclosed: Disclosure) -> str:
    if disclosed.began_as == "class means":
        return "They started from the mean of each of the device's classes (start=statistics), which is private data."
    return "They started from noise."


def _labels(disclosed: Disclosure, given: Given) -> str:
    if not disclosed.labels:
        return "Their labels were drawn for all devices alike."
    if given("labels") == "fixed":
        return (
            "Their labels were drawn by the device's own class frequencies, which can be read off them; of text they "
            "are words that it holds."
        )
    return "Each was sent with a trained label, from which the device's classes can be read."
