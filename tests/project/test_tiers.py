"""The list of tests that take long names tests that are there."""

from __future__ import annotations

import re
import tomllib

import pytest
from places import ROOT

TIERS = tomllib.loads((ROOT / "tests" / "tiers.toml").read_text())


@pytest.mark.parametrize("tier", TIERS)
def test_every_name_is_that_of_a_test(tier: str) -> None:
    for name in TIERS[tier]:
        file, _, function = name.partition("[")[0].partition("::")
        text = (ROOT / file).read_text()
        assert not function or re.search(rf"^def {function}\(", text, re.MULTILINE), name
    assert TIERS[tier] == sorted(set(TIERS[tier]))
