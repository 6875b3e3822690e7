"""What a report says of SCAFFOLD."""

from __future__ import annotations

from common.settings.disclosure import Disclosure
from nectar.report.facts import Facts, Given


def facts(disclosed: Disclosure, given: Given) -> Facts:
    """Return it."""
    return Facts(
        "SCAFFOLD",
        ("No training example left a device: weights and control variates travelled.",),
        (
            "The trained weights of every device were sent, and what its control variate changed by: functions of "
            "private data.",
        ),
        carries="weights and control variates",
    )
