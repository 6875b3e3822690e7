"""The lists of tests that take long and of those with weights of their own name tests that are there."""

from __future__ import annotations

import re
import tomllib

import pytest
from places import ROOT

TIERS = tomllib.loads((ROOT / "tests" / "tiers.toml").read_text())


def _check(name: str) -> None:
    file, _, function = name.partition("[")[0].partition("::")
    text = (ROOT / file).read_text()
    assert not function or re.search(rf"^def {function}\(", text, re.MULTILINE), name


@pytest.mark.parametrize("tier", TIERS)
def test_every_name_is_that_of_a_test(tier: str) -> None:
    for name in TIERS[tier]:
        _check(name)
    assert TIERS[tier] == sorted(set(TIERS[tier]))


def test_at_most_twenty_tests_are_exempt_from_the_jitter_each_with_a_reason() -> None:
    exempt = tomllib.loads((ROOT / "tests" / "jitter.toml").read_text())["exempt"]
    for name, reason in exempt.items():
        _check(name)
        assert reason.strip(), name
    assert len(exempt) <= 20
