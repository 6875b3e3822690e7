"""What one site, or two, can do to a secret sum by lying: rounds that go on, rounds that fail, and who is named."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federation import last, resumed, run, run_unmasked, same_end
from flwr.app import Message
from places import ROOT
from secret_liars import (
    LIES,
    NUMBERS,
    Lie,
    LyingGrid,
    accusing,
    effect,
    equal_keys,
    keys_of_first,
    old_keys_of_first,
    on_vector,
    random_vector,
    rubbish,
    same_point,
    weighing,
)
from secret_sites import KEYS, OPENING, SHARES, TRAIN, DroppingGrid
from small import Small

from common.config.loading import load
from common.draws.private_draws import KeyStream
from common.errors import FederationError, PayloadError
from common.secret import cohort
from common.secret.cohort import RECORD, shares_of
from common.secret.summand import form_of
from common.wire.weights import Weights, WeightsSpec
from server_app.record import Record
from synth.private_release import Gaussian

pytestmark = pytest.mark.promise(
    "Absurd figures, and the roll call",
    "One site's lie ends no run under a secret sum, or stops it after two rounds, as [a "
    "table](secret-sum.md#what-one-site-can-do) says; forged accusations open no vector",
)


def lied(
    small: Small, sites: int, lies: Mapping[int, Lie], words: str = "", rounds: int = 3
) -> tuple[Record, LyingGrid]:
    """Run with some liars, and return the record and the grid."""
    grids: list[LyingGrid] = []

    class Noted(LyingGrid):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            grids.append(self)

    settings = f"federation.sites={sites} federation.secret=on {words}"
    record = run(small(method="fedavg", rounds=rounds, set=settings), Noted, lies=lies)
    return record, grids[0]


def without(small: Small, sites: int, gone: set[int], rounds: int = 3) -> Record:
    """Run without some sites, in the same numbers without masks."""
    settings = f"federation.sites={sites} federation.secret=on"
    drops = {(TRAIN, number): gone for number in range(1, rounds + 1)}
    config = small(method="fedavg", rounds=rounds, set=settings)
    return run_unmasked(config, DroppingGrid, drops=drops)


def in_totals(record: Record) -> list[int]:
    return [line["notes"]["secret"]["sites"] for line in record.metrics()[1:]]


def named(record: Record) -> list[dict[str, str]]:
    return [line["rejected"] for line in record.metrics()[1:]]


# ---- keys -------------------------------------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.parametrize(
    ("lies", "out"),
    [
        ({4: equal_keys}, {4}),
        ({4: keys_of_first}, {0, 4}),
        ({4: same_point}, {0, 4}),
        ({3: keys_of_first, 4: keys_of_first}, {0, 3, 4}),
    ],
)
def test_keys_that_are_no_sites_alone_are_asked_for_again_and_then_left_out(
    small: Small, lies: Mapping[int, Lie], out: set[int]
) -> None:
    """Whoever had a key first is not told from who came later, and both are out of that round alone."""
    sites = 3 * len(out) + 3
    record, grid = lied(small, sites, lies, "federation.secret_colluders=0")
    assert in_totals(record) == [sites - len(out)] * 3
    for rejected in named(record):
        assert {*rejected} == {f"partition-{i}" for i in out}
        assert all("keys are another site's too" in why for why in rejected.values())
    assert same_end(record, without(small, sites, out))
    assert grid.asked.count((KEYS, 1)) == 1, "an honest site is asked for keys once"


@pytest.mark.extended
def test_a_key_that_was_copied_before_costs_its_first_owner_nothing(small: Small) -> None:
    """Asked again, it has another; who gives its old one has no private key to it, and cannot be one of the roll."""
    record, _ = lied(small, 5, {4: old_keys_of_first}, rounds=2)
    assert in_totals(record) == [4, 4]
    assert [{*rejected} for rejected in named(record)] == [{"partition-4"}] * 2
    assert same_end(record, without(small, 5, {4}, rounds=2))


# ---- shares -----------------------------------------------------------------------------------------


@pytest.mark.extended
def test_rubbish_for_all_is_found_and_the_round_goes_on_without_its_sender(small: Small) -> None:
    record, grid = lied(small, 5, {2: rubbish()})
    assert in_totals(record) == [4, 4, 4]
    for rejected in named(record):
        assert {*rejected} == {"partition-2"}
        assert "cannot read the shares that it has sealed" in rejected["partition-2"]
    assert same_end(record, without(small, 5, {2}))
    assert grid.asked.count((SHARES, 0)) == 6, "each round has two attempts"


@pytest.mark.extended
@pytest.mark.parametrize("sites", [5, 7])
def test_rubbish_for_one_expels_nobody(small: Small, sites: int) -> None:
    record, grid = lied(small, sites, {2: rubbish(0)})
    assert in_totals(record) == [sites] * 3
    assert named(record) == [{}, {}, {}]
    assert same_end(record, without(small, sites, set()))
    assert grid.asked.count((SHARES, 0)) == 3


@pytest.mark.extended
def test_rubbish_for_more_than_lie_leaves_its_sender_out_of_the_same_attempt(small: Small) -> None:
    """Two of ten cannot read it, which is one more than may lie. The seven others open its key."""
    words = "federation.secret_colluders=1"
    record, grid = lied(small, 10, {2: rubbish(0, 1)}, words)
    assert in_totals(record) == [9, 9, 9]
    assert [{*rejected} for rejected in named(record)] == [{"partition-2"}] * 3
    assert same_end(record, without(small, 10, {2}))
    assert grid.asked.count((SHARES, 0)) == 3


@pytest.mark.extended
def test_who_accuses_too_many_is_out_and_those_it_accuses_are_not(small: Small) -> None:
    record, grid = lied(small, 5, {2: accusing()})
    assert in_totals(record) == [4, 4, 4]
    for rejected in named(record):
        assert {*rejected} == {"partition-2"}
        assert "says of partition-0, partition-1, partition-3" in rejected["partition-2"]
    assert same_end(record, without(small, 5, {2}))
    assert grid.asked.count((SHARES, 0)) == 3


@pytest.mark.sweep
@pytest.mark.parametrize("liars", [1, 2, 3])
def test_as_many_accusers_as_may_lie_put_nobody_out(small: Small, liars: int) -> None:
    """All of them accuse the same honest site, of which the seven others have shares enough."""
    lies = {9 - i: accusing(0) for i in range(liars)}
    record, _ = lied(small, 10, lies, rounds=1)
    assert in_totals(record) == [10]
    assert named(record) == [{}]


@pytest.mark.extended
@pytest.mark.parametrize("sites", [3, 4])
def test_of_three_or_four_sites_two_are_not_told_apart(small: Small, sites: int) -> None:
    """Rubbish for one of three: no total is opened, and the run stops with the second round."""
    lies = {1: rubbish(0)} if sites == 3 else {1: rubbish(0, 1)}
    if sites == 3:
        with pytest.raises(FederationError, match=r"partition-0 cannot read partition-1's shares"):
            lied(small, sites, lies)
    else:
        record, _ = lied(small, sites, lies)
        assert in_totals(record) == [3, 3, 3]


NOISE = "federation.secret_clip=1 privacy.noise_multiplier=8 privacy.examples=50"


def test_under_noise_the_first_failed_round_ends_the_run_and_is_written_down(small: Small) -> None:
    """A vector has left each site by then: nothing is asked for again, and what each was charged is in the record."""
    config = small(
        method="fedavg", rounds=3, set=f"federation.sites=5 federation.secret=on {NOISE}"
    )
    with pytest.raises(FederationError, match="round 1's secret sum fails"):
        run(config, LyingGrid, lies={2: rubbish()})
    (found,) = Path(config["output-dir"]).glob("2*")
    notes = Record(found).metrics()[1]["notes"]
    assert len(notes["spent"]) == 5
    assert "epsilon_server" not in notes["secret"], "no share was given"


@pytest.mark.extended
def test_a_total_that_was_opened_for_nothing_counts_all_the_same(small: Small) -> None:
    """The server has it, whatever it can make of it; a resumed run adds the next one to it."""
    config = small(
        method="fedavg", rounds=2, set=f"federation.sites=5 federation.secret=on {NOISE}"
    )
    with pytest.raises(FederationError, match="round 1's secret sum fails"):
        run(config, LyingGrid, lies={4: on_vector(random_vector)})
    (found,) = Path(config["output-dir"]).glob("2*")
    wasted = Record(found).metrics()[1]["notes"]["secret"]
    again = resumed(Record(found)).metrics()[2]["notes"]["secret"]
    honest, _ = lied(small, 5, {}, NOISE, rounds=2)
    for name in ("epsilon_server", "epsilon_colluders"):
        told = [line["notes"]["secret"][name] for line in honest.metrics()[1:]]
        assert [wasted[name], again[name]] == pytest.approx(told)


def rubbish_twice(*holders: int) -> Lie:
    """Seal rubbish for some, and open wrong shares of one's own."""

    def lie(grid: LyingGrid, kind: str, message: Message, reply: Message) -> None:
        rubbish(*holders)(grid, kind, message, reply)
        if kind == OPENING:
            record = reply.content.config_records[RECORD]
            record[cohort.OPENED] = [b"\1" * 33] * len(record[cohort.OPENED])  # type: ignore[arg-type]

    return lie


@pytest.mark.extended
@pytest.mark.parametrize(("sites", "colluders", "holders"), [(4, 1, 1), (5, 1, 1), (7, 2, 2)])
def test_rubbish_for_as_many_as_may_lie_and_wrong_shares_fail_the_round_as_the_page_says(
    small: Small, sites: int, colluders: int, holders: int
) -> None:
    words = f"federation.secret_colluders={colluders}"
    with pytest.raises(FederationError, match=r"round 2's .* a site sent something else"):
        lied(small, sites, {sites - 1: rubbish_twice(*range(holders))}, words)
    if sites == 7:
        record, _ = lied(small, sites, {sites - 1: rubbish_twice(0)}, words)
        assert in_totals(record) == [7, 7, 7]


# ---- weights and lengths ----------------------------------------------------------------------------


@pytest.mark.sweep
@pytest.mark.parametrize("more", [10**6, -(10**6), 1, -1])
def test_a_weight_that_is_no_sites_own_is_refused_where_all_weigh_alike(
    small: Small, more: int
) -> None:
    with pytest.raises(FederationError, match=r"round 2's .* beyond what 5 sites can add up to"):
        lied(small, 5, {1: on_vector(weighing(more))})


@pytest.mark.extended
def test_with_counts_that_are_told_the_weight_is_their_sum(small: Small) -> None:
    """And an honest run weighs by them, as without masks."""
    words = "fedavg.weighting=counts privacy.counts=public"
    with pytest.raises(FederationError, match="beyond what 5 sites can add up to"):
        lied(small, 5, {1: on_vector(weighing(1))}, words)
    honest, _ = lied(small, 5, {}, words)
    plain = run(small(method="fedavg", rounds=3, set=f"federation.sites=5 {words}"))
    for name, tensor in last(plain).weights.items():
        assert torch.allclose(tensor, last(honest).weights[name], atol=1e-4), name


@pytest.mark.extended
def test_scaffold_and_feddyn_weigh_by_counts_that_are_told(small: Small) -> None:
    for method in ("scaffold", "feddyn"):
        ends = []
        for secret in ("on", "off"):
            words = f"federation.sites=4 federation.secret={secret} {method}.weighting=counts"
            words += f" {method}.epochs=1 privacy.counts=public federation.robust=none"
            ends.append(last(run(small(method=method, rounds=3, set=words))))
        for name, tensor in ends[0].weights.items():
            assert torch.allclose(tensor, ends[1].weights[name], atol=1e-4), (method, name)


@pytest.mark.extended
def test_without_counts_the_most_that_a_site_has_is_typed_and_holds(small: Small) -> None:
    words = "fedavg.weighting=counts federation.max_examples=1000"
    with pytest.raises(FederationError, match="beyond what 5 sites can add up to"):
        lied(small, 5, {1: on_vector(weighing(5001))}, words)


def test_sites_weigh_alike_unless_somebody_says_otherwise(small: Small) -> None:
    for method in ("fedavg", "fedprox", "scaffold", "feddyn"):
        config = load(small(method=method, set="federation.secret=on"))
        assert config.settings.model_dump()["weighting"] == "uniform"
        assert load(config.to_run_config()) == config
    assert load(small(method="fedavg")).settings.model_dump()["weighting"] == "counts"


def of_length(length: float, form: Any) -> np.ndarray:
    """Return a vector's numbers that are so long, in C, all alike."""
    numbers = form.numbers - 2
    each = round(length / math.sqrt(numbers) / form.step)
    return np.full(numbers, each, dtype=np.int64)


@pytest.mark.extended
@pytest.mark.parametrize("noise", [0.0, 0.01, 1.0, 8.0])
def test_no_total_is_longer_than_its_sites_can_make_it(noise: float) -> None:
    """All five at the longest in one direction pass, with noise of the system; a hundredth more than that does not."""
    words = "federation.sites=5 federation.secret=on federation.secret_clip=10 privacy.examples=100"
    config = load({"method": "fedavg", "set": f"{words} privacy.noise_multiplier={noise}"})
    spec = WeightsSpec(("w",), ((10_000,),), (torch.float32,), ("w",))
    form, base = form_of(config, spec, 5), Weights({"w": torch.zeros(10_000)})
    mechanism = Gaussian(noise, 10.0, KeyStream().normal) if noise else None

    def share(steps: torch.Tensor) -> torch.Tensor:
        return steps if mechanism is None else mechanism.share(steps, shares_of(config.federation))

    made = Weights({"w": torch.full((10_000,), 5.0)})
    for _ in range(20):
        parts = [form.summand(made, base, 1, share) for _ in range(5)]
        total = sum(parts[1:], parts[0])
        mean = form.total(total, 5, base).payload
        assert isinstance(mean, Weights)
        assert float(mean.tensors["w"].norm()) >= 10 * (1 - 1e-3)
    long = of_length(50 * 1.01 + 10 * 3 * noise * math.sqrt(10_000), form)
    for length in (long, of_length(320.0 * 5 * (1 + noise), form)):
        spoiled = form.words(np.concatenate([length, [5, 0]]))
        assert np.abs(length).max() <= 5 * form.most, "each number alone is one that can be"
        with pytest.raises(PayloadError, match="beyond what 5 sites can add up to"):
            form.total(spoiled, 5, base)


# ---- the page's table -------------------------------------------------------------------------------


def table() -> dict[str, dict[tuple[int, int], str]]:
    """Return what the page says that each lie does, by sites and colluders."""
    _, lines = (ROOT / "docs" / "secret-sum.md").read_text().split("| one site lies about |", 1)
    head, _, *rest = lines.split("\n\n")[0].splitlines()
    numbers = [
        tuple(map(int, re.findall(r"\d+", each))) for each in head.split("|") if each.strip()
    ]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in rest]
    return {row[0]: dict(zip(numbers, row[1:], strict=True)) for row in rows}  # type: ignore[arg-type]


@pytest.mark.extended
@pytest.mark.parametrize("numbers", NUMBERS)
def test_the_page_says_what_each_lie_does(small: Small, numbers: tuple[int, int]) -> None:
    said = table()
    assert said.keys() == LIES.keys()
    config = small(method="fedavg", rounds=2)
    place = Path(config["output-dir"])
    found = {
        lie: effect({**config, "output-dir": str(place / str(i))}, *numbers, LIES[lie])
        for i, lie in enumerate(LIES)
    }
    assert found == {lie: row[numbers] for lie, row in said.items()}
