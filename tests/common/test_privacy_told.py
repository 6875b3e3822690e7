"""What a site tells of its charges: what was written is read, and nothing that cannot be computed or recorded."""

from __future__ import annotations

import json
from typing import Any

import pytest

from common.privacy.events import Event
from common.privacy.head import Head
from common.privacy.told import Told

TOLD = Told((Event("dp-sgd", 1.0, 0.5, 3),), head=Head())


def test_what_was_written_is_read() -> None:
    assert Told.read(TOLD.to_config()) == TOLD


@pytest.mark.parametrize("number", [float("inf"), float("nan"), 10**400, -1, "1", None])
def test_noise_that_is_no_finite_number_is_refused(number: Any) -> None:
    """An infinite multiplier would stand in the record, where JSON has no such number."""
    event = Event("dp-sgd", 1.0).to_dict() | {"noise_multiplier": number}
    with pytest.raises(ValueError, match=r"noise|no event"):
        Told.read({**TOLD.to_config(), "events": json.dumps([event])})
