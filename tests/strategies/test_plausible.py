"""Finite but absurd: one site's 1e20 is rejected by name, in the first round and of two sites, under every method."""

from __future__ import annotations

import weakref
from statistics import median_low
from typing import Any

import numpy as np
import pytest
import torch
from federation import TamperedGrid, last, numbers, run
from flwr.app import Message
from small import Small
from tampering import with_arrays

from common.sites import Site
from common.wire.form import Spec
from common.wire.weights import Weights
from strategies.exchange.lengths import length_of, too_long, weights_length
from strategies.exchange.replies import Upload, read_upload
from strategies.exchange.screening import TOGETHER

pytestmark = pytest.mark.promise(
    "Absurd figures, and the roll call",
    "An update of 1e20, or with which the model gives no finite numbers, is rejected; the "
    "bounds change no number of an honest run",
)


def implausible(arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Return an upload of 1e20 where it holds floating values."""
    return [
        np.full_like(a, 1e20) if i and np.issubdtype(a.dtype, np.floating) and a.ndim else a
        for i, a in enumerate(arrays)
    ]


@pytest.mark.parametrize("method", ["fedavg", "feddm", "flwr.serverapp.strategy:FedAdam"])
def test_of_two_sites_the_one_that_sends_1e20_is_rejected(small: Small, method: str) -> None:
    """There is no majority; of more sites the methods' contract shows it."""
    config = small(method=method, rounds=1, set="federation.sites=2")
    record = run(config, TamperedGrid, tampers={1: with_arrays(implausible)})
    line = record.metrics()[1]
    assert list(line["rejected"]) == ["partition-1"]
    assert line["test"]["loss"] < 100
    assert all(bool((t.abs() < 1e6).all()) for t in last(record).weights.values())


def test_who_wants_no_bound_has_none(small: Small) -> None:
    config = small(method="fedavg", rounds=1, set="federation.max_update=0")

    def large(arrays: list[np.ndarray]) -> list[np.ndarray]:
        return [arrays[0], *(a * np.float32(1e6) for a in arrays[1:])]

    line = run(config, TamperedGrid, tampers={1: with_arrays(large)}).metrics()[1]
    assert line["rejected"] == {}
    line = run(
        small(method="fedavg", rounds=1), TamperedGrid, tampers={1: with_arrays(large)}
    ).metrics()[1]
    assert list(line["rejected"]) == ["partition-1"]


def test_a_model_that_gives_no_numbers_is_rejected_although_its_update_is_short(
    small: Small,
) -> None:
    """A running variance below zero: short, finite, and the end of every loss."""

    def negative(arrays: list[np.ndarray]) -> list[np.ndarray]:
        ones = [a.ndim == 1 and np.issubdtype(a.dtype, np.floating) for a in arrays]
        return [
            arrays[0],
            *(a - 5 if one else a for a, one in zip(arrays[1:], ones[1:], strict=True)),
        ]

    config = small(method="fedavg", rounds=1, set="model.norm=batch")
    line = run(config, TamperedGrid, tampers={1: with_arrays(negative)}).metrics()[1]
    assert "gives no finite numbers" in line["rejected"]["partition-1"]
    assert np.isfinite(line["test"]["loss"])


def test_waves_judge_by_those_before_them(small: Small) -> None:
    config = small(method="fedavg", rounds=1, set="federation.wave=1")
    line = run(config, TamperedGrid, tampers={2: with_arrays(implausible)}).metrics()[1]
    assert list(line["rejected"]) == ["partition-2"]


def test_the_round_is_judged_in_groups_so_that_memory_is_flat_in_sites(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    payloads: list[weakref.ref[Any]] = []
    held: list[int] = []

    def watched(reply: Message, site: Site, spec: Spec) -> Upload:
        upload = read_upload(reply, site, spec)
        payloads.append(weakref.ref(upload.payload))
        held.append(sum(payload() is not None for payload in payloads))
        return upload

    monkeypatch.setattr("strategies.exchange.screening.read_upload", watched)
    config = small(method="fedavg", rounds=1, set="federation.sites=40 partition.kind=iid")
    line = run(config, TamperedGrid, tampers={20: with_arrays(implausible)}).metrics()[1]
    assert len(held) == 40
    assert max(held) <= TOGETHER + 1
    assert list(line["rejected"]) == ["partition-20"]


def test_the_bound_is_wide_robust_to_idle_sites_and_holds_for_a_lone_one() -> None:
    assert too_long([1.0, 99.0], own=10.0, factor=100.0) == [None, None]
    assert too_long([0.0, 9.0], own=10.0, factor=100.0) == [None, None]  # one did nothing
    assert [bool(message) for message in too_long([1.0, 1e20], 10.0, 100.0)] == [False, True]
    assert [bool(message) for message in too_long([1.0, 1.0, float("inf")], 10.0, 100.0)][2]
    assert too_long([1e20], 10.0, 100.0)[0]
    assert too_long([900.0], 10.0, 100.0) == [None]
    assert too_long([1e20], 10.0, 0.0) == [None]


@pytest.mark.parametrize("count", [2, 3, 4, 7, 8])
def test_an_update_is_held_against_the_lower_median_of_the_others(count: int) -> None:
    """By the definition, over lengths some of which are equal; those that were judged before count and are not said."""
    drawn = torch.Generator().manual_seed(count)
    for _ in range(50):
        lengths = torch.randint(1, 6, (count,), generator=drawn).float().pow(3).tolist()
        usual = [median_low(lengths[:i] + lengths[i + 1 :]) for i in range(count)]
        plain = [length > 2 * u for length, u in zip(lengths, usual, strict=True)]
        assert [message is not None for message in too_long(lengths, 0.0, 2.0)] == plain
        assert [message is not None for message in too_long(lengths, 0.0, 2.0, known=1)] == plain[
            1:
        ]


def test_the_length_of_an_update_with_a_large_layer_is_that_of_its_values() -> None:
    old = Weights({"a": torch.zeros(700, 1000), "b": torch.zeros(2)})
    new = Weights({"a": torch.full((700, 1000), 2.0), "b": torch.tensor([3.0, 0.0])})
    assert length_of(new, old) == pytest.approx((4 * 700_000 + 9) ** 0.5, rel=1e-12)
    assert weights_length(new) == pytest.approx((4 * 700_000 + 9) ** 0.5, rel=1e-12)


@pytest.mark.extended
@pytest.mark.parametrize("method", ["fedavg", "feddm"])
def test_the_bounds_change_no_number_of_an_honest_run(small: Small, method: str) -> None:
    bounded = run(small(method=method, rounds=2, set="partition.alpha=0.05 partition.min_size=1"))
    free = (
        "partition.alpha=0.05 partition.min_size=1 federation.max_update=0 federation.max_pixel=0"
    )
    assert numbers(bounded) == numbers(run(small(method=method, rounds=2, set=free)))
