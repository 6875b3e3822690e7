"""What a report says of training in one place."""

from __future__ import annotations

from common.settings.disclosure import Disclosure
from nectar.report.facts import Facts, Given


def facts(disclosed: Disclosure, given: Given) -> Facts:
    """Return it."""
    return Facts(
        "central training",
        (
            "This is no federated learning: the server trained on the union of the partitions, the bound that "
            "federations are measured against.",
        ),
        ("The data lay in one place.",),
        carries="nothing",
    )
