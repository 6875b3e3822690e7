"""When freed memory goes back to the system: only where the process has grown by an eighth of the weights."""

from __future__ import annotations

import pytest

from common.learning import compute


def test_memory_is_given_back_once_an_eighth_of_a_copy_more_is_held_than_ever_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    megabytes, given = [0], list[int]()
    monkeypatch.setattr(compute, "_most_held", [0])
    monkeypatch.setattr(compute, "_resident", lambda: megabytes[0] * 2**20)
    monkeypatch.setattr(compute, "return_freed_memory", lambda: given.append(megabytes[0]))
    for held in (300, 250, 304, 300, 310, 314, 400, 390):
        megabytes[0] = held
        compute.return_if_large(40 * 2**20)
        compute.return_if_large(2**20)  # a small model's never
    assert given == [300, 310, 400]
