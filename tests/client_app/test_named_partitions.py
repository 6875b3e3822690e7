"""A node that holds a partition of a known data set draws as that partition, whatever its owner calls it."""

from __future__ import annotations

from typing import Any

import pytest
from flwr.app import ArrayRecord, Message
from real_site import Site
from small import Small

from common.sites import Site as Member
from common.sites import in_site_order


def sent(small: Small, method: str, text: str, phase: str, **node: Any) -> list[Any]:
    site = Site(small(method=method, set=text), **node)
    reply: Message = site.train(phase)
    assert not reply.has_error(), reply.error.reason
    arrays = reply.content["arrays"]
    assert isinstance(arrays, ArrayRecord)
    return [array.numpy().tolist() for array in arrays.values()]


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("method", "text", "phase"),
    [
        ("fedavg", "fedavg.epochs=1 data.site_holdout=0.2", "train"),
        ("masking", "masking.epochs=1", "train"),
        ("feddm", "feddm.iterations=2 feddm.ipc=2", "synthesize"),
        ("fedavg", "fedavg.epochs=1 privacy.noise_multiplier=1 privacy.counts=public", "train"),
    ],
)
def test_a_name_changes_no_draw_of_a_partition(
    small: Small, method: str, text: str, phase: str
) -> None:
    plain = sent(small, method, text, phase)
    assert sent(small, method, text, phase, site="Klinikum Köln") == plain
    assert sent(small, method, f"{text} seed=5", phase) != plain, "it is drawn at all"


def test_the_order_is_that_of_the_partitions() -> None:
    """Sums of floats go by it: named backwards, they are added as in a simulation."""
    members = [Member(n, i, 5, i, 3, drawn_as=f"partition-{i}") for i, n in enumerate("zya")]
    assert [site.name for site in in_site_order(reversed(members))] == ["z", "y", "a"]
