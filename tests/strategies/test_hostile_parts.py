"""One hostile site of five: each part of a reply is believed as far as an honest site can send it, and no further."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from federation import TamperedGrid, run
from small import Small
from tampering import away_from_start, filled, times, with_arrays, with_part

from common.config.loading import load
from common.division import Division
from common.errors import ConfigError, PayloadError
from common.settings.sections import WireSettings
from common.sites import Site
from common.wire.bundle import Bundle
from common.wire.weights import Weights
from server_app.checkpoint import Checkpoint
from server_app.record import Record
from strategies.base import Instruction, Strategy
from strategies.exchange.lengths import shares_kept
from strategies.exchange.replies import Upload
from strategies.exchange.rules import Clipping, Rule, image_rule, require_valid
from strategies.exchange.screening import Screen
from strategies.fedavg import FedAvg
from strategies.sparse import SparseAverage

pytestmark = pytest.mark.promise(
    "Absurd figures, and the roll call",
    "Parts that no honest site has leave nothing in a checkpoint",
)

HOSTILE = "partition-1"

#: a federation of five in which FedAvg learns
FIVE = (
    "federation.sites=5 partition.alpha=0.5 fedavg.epochs=5 fedavg.lr=0.1 model.width=16 model.depth=2 "
    "scaffold.lr=0.05 fedpvr.lr=0.05 image_training.epochs=5"
)


def hostile(
    small: Small, method: str, part: str, change: Any, words: str = FIVE, **asked: Any
) -> Record:
    rounds = asked.pop("during", range(1, 99))
    config = small(method=method, set=words, **asked)
    return run(config, TamperedGrid, tampers={1: with_part(part, change, rounds)})


def named(record: Record) -> dict[int, set[str]]:
    return {line["round"]: set(line["rejected"]) for line in record.metrics() if line["rejected"]}


def accuracy(record: Record) -> float:
    return float(record.metrics()[-1]["test"]["accuracy"])


def largest(state: Any) -> float:
    if isinstance(state, Mapping):
        return max(map(largest, state.values()), default=0.0)
    if isinstance(state, torch.Tensor) and state.is_floating_point() and state.numel():
        return float(state.abs().max()) if bool(state.isfinite().all()) else float("inf")
    return 0.0


def kept(record: Record) -> float:
    """Return the largest magnitude in the newest checkpoint."""
    checkpoint = Checkpoint.load(record.last)
    return max(largest(checkpoint.weights), largest(checkpoint.strategy))


# ---- control variates -----------------------------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.parametrize(("change", "during"), [(filled(1e4), [2]), (times(-10), range(1, 99))])
def test_a_control_variate_is_that_of_the_path_that_the_model_took(
    small: Small, change: Any, during: Sequence[int]
) -> None:
    record = hostile(small, "scaffold", "control", change, rounds=3, during=during)
    assert named(record) == {r: {HOSTILE} for r in during if r <= 3}
    assert "its part 'control'" in record.metrics()[min(during)]["rejected"][HOSTILE]
    assert kept(record) < 1e3


@pytest.mark.extended
@pytest.mark.parametrize("clients", [5, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 2))])
def test_under_option_one_a_gradient_is_held_beside_the_others(small: Small, clients: int) -> None:
    words = f"{FIVE} federation.sites={clients} scaffold.option=I"
    assert named(run(small(method="scaffold", rounds=2, set=words))) == {}
    record = hostile(small, "scaffold", "control", filled(1e6), words, rounds=2, during=[2])
    if clients > 1:
        assert named(record) == {2: {HOSTILE}}
    assert kept(record) < 1e3


# ---- means, soft labels, codecs ---------------------------------------------------------------------------


@pytest.mark.sweep
@pytest.mark.parametrize("value", [-0.2, 0.3])
def test_soft_labels_are_shares(small: Small, value: float) -> None:
    def labels(array: np.ndarray, base: object, draw: object) -> np.ndarray:
        return array + value if array.ndim == 2 else array

    record = hostile(small, "fedmix", "means", labels, rounds=1)
    assert "soft labels" in record.metrics()[1]["rejected"][HOSTILE]


@pytest.mark.parametrize(("means", "farthest"), [(False, 3.0), (True, 1.0)])
def test_images_reach_as_far_as_max_pixel_says_and_means_as_far_as_real_ones(
    small: Small, means: bool, farthest: float
) -> None:
    division = Division(load(small(method="feddm", set="federation.max_pixel=3")))
    rule = image_rule(division.run, "the server", "nothing", means=means)
    assert rule.require
    for share, fits in ((0.999, True), (-0.999, True), (1.01, False), (-1.01, False)):
        values = torch.full((2, 1, 8, 8), share * farthest * division.run.info.largest)
        with nullcontext() if fits else pytest.raises(PayloadError, match="range of digits"):
            rule.require(Weights({}), cast(Any, None), SimpleNamespace(examples=values))


# ---- long updates -----------------------------------------------------------------------------------------


@pytest.mark.extended
def test_a_shortened_control_variate_is_that_of_the_shorter_path(small: Small) -> None:
    """What the server makes of a site at 40 times its way equals what it makes of one that went the share itself."""
    words = f"{FIVE} federation.max_update=0 scaffold.momentum=0"
    config = small(method="scaffold", rounds=1, set=words)

    # c is 0 in the first round, so that what c_k changed by is as far from it as w_k is from w_r
    record = run(config, TamperedGrid, tampers={1: away_from_start(40.0)})
    share = record.metrics()[1]["shortened"][HOSTILE]
    other = run(config, TamperedGrid, tampers={1: away_from_start(40.0 * share)})
    one, two = Checkpoint.load(record.last), Checkpoint.load(other.last)
    for name, tensor in one.weights.items():
        assert torch.allclose(tensor, two.weights[name], rtol=1e-4, atol=1e-5)
    for name, tensor in one.strategy["control"].items():
        assert torch.allclose(tensor, two.strategy["control"][name], rtol=1e-4, atol=1e-5)


@pytest.mark.extended
def test_running_statistics_are_held_against_the_others_apart(small: Small) -> None:
    """Means of 30 are far longer than honest ones; those of 3 are not, and still bring the model to chance."""

    def lie(arrays: list[np.ndarray]) -> list[np.ndarray]:
        means = [i for i, name in enumerate(names, 1) if name.endswith("running_mean")]
        for i in means:
            arrays[i] = np.full_like(arrays[i], 30.0)
        return arrays

    words = f"{FIVE} model.norm=batch"
    config = small(method="fedavg", rounds=3, set=words)
    names = Division(load(config)).run.spec.names
    honest = run(config)
    assert all(not line["rejected"] and "shortened" not in line for line in honest.metrics()[1:])
    record = run(config, TamperedGrid, tampers={1: with_arrays(lie)})
    for line in record.metrics()[1:]:
        assert {*line["rejected"], *line.get("shortened", {})} == {HOSTILE}
    assert accuracy(record) > accuracy(honest) - 0.25


def test_the_share_that_is_kept_is_worked_out_by_hand() -> None:
    assert shares_kept([1.0, 1.0, 2.0, 40.0, 1.0], 3.0) == [1, 1, 1, 0.025, 1]
    assert shares_kept([1.0, 3.0, 1.0], 3.0) == [1, 1, 1]
    assert shares_kept([1.0, 30.0], 3.0) == [1, 1]  # of two nobody knows which is usual
    assert shares_kept([0.0, 0.0, 5.0], 3.0) == [1, 1, 1]  # nor beside those that have not moved
    assert shares_kept([1.0, 1.0, 30.0], 0.0) == [1, 1, 1]
    assert shares_kept([2.0, 2.0, 2.0, 16.0], 3.0, known=3) == [0.125]


def test_a_share_of_a_way_ends_on_it() -> None:
    start = Weights({"w": torch.tensor([1.0, 2.0]), "count": torch.tensor(3)})
    ended = Weights({"w": torch.tensor([5.0, -2.0]), "count": torch.tensor(7)})
    nearer = Clipping("", start, 0.25).of(ended)
    assert torch.equal(nearer.tensors["w"], torch.tensor([2.0, 1.0]))
    assert nearer.tensors["count"] == 7


# ---- the hook ---------------------------------------------------------------------------------------------


def test_a_method_that_does_not_say_what_it_believes_is_refused_when_its_class_is_made() -> None:
    with pytest.raises(
        TypeError, match=r"Silent has no rules for its replies: write validation_rules"
    ):

        class Silent(Strategy):
            def instructions(
                self, server_round: int, weights: Weights, sites: Sequence[Site]
            ) -> Mapping[str, Instruction]:
                return {}

            def update(
                self, server_round: int, weights: Weights, uploads: Iterable[Upload]
            ) -> Weights:
                return weights


def test_a_part_of_which_no_bound_speaks_is_not_asked_for(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(self: FedAvg) -> Mapping[str, Rule]:
        return {}

    monkeypatch.setattr(FedAvg, "validation_rules", nothing)
    with pytest.raises(ConfigError, match=r"without a rule in FedAvg\.validation_rules: add"):
        run(small(method="fedavg", rounds=1))


@pytest.mark.extended
def test_a_loss_that_leaps_is_told_and_nothing_goes_back(
    small: Small, caplog: pytest.LogCaptureFixture
) -> None:
    words = f"{FIVE} federation.robust=none federation.max_update=0"
    config = small(method="fedavg", rounds=4, set=words)
    with caplog.at_level("WARNING", "flwr"):
        run(config, TamperedGrid, tampers={1: with_part("", times(-50), [4])})
    told = [r.getMessage() for r in caplog.records if "leapt" in r.getMessage()]
    assert len(told) == 1
    assert told[0].startswith("round 4: the test loss leapt from")
    assert "--best` writes the best round's model" in told[0]


@pytest.mark.extended
def test_a_site_whose_update_cannot_be_shortened_is_rejected_and_not_noted_as_shortened(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an upload with two long parts the first is clipped before the second fails."""
    compared, clipped, calls = Screen._compared, FedAvg.clipped, list[Clipping]()

    def twice(self: Screen, group: list[Upload]) -> Any:
        for verdict in compared(self, group):
            yield replace(verdict, clippings=verdict.clippings * 2)

    def fails(self: FedAvg, upload: Upload, clipping: Clipping) -> Upload:
        calls.append(clipping)
        if len(calls) == 2:
            raise PayloadError("the second part has no shorter form")
        return clipped(self, upload, clipping)

    monkeypatch.setattr(Screen, "_compared", twice)
    monkeypatch.setattr(FedAvg, "clipped", fails)
    words = f"{FIVE} federation.max_update=0"
    tampers = {1: with_part("", times(40.0))}
    line = run(
        small(method="fedavg", rounds=1, set=words), TamperedGrid, tampers=tampers
    ).metrics()[1]
    assert len(calls) == 2
    assert list(line["rejected"]) == [HOSTILE]
    assert "shortened" not in line


def test_an_update_that_nobody_can_shorten_costs_its_site_its_place(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SparseAverage, "clipped", Strategy.clipped)
    config = small(method="masking", rounds=1, set=f"{FIVE} federation.max_update=0")
    record = run(config, TamperedGrid, tampers={1: with_part("", times(40.0))})
    assert "Masking.clipped does not shorten it" in record.metrics()[1]["rejected"][HOSTILE]


def test_a_bound_holds_for_every_part_of_the_bundle_that_it_names() -> None:
    def never(*_: Any) -> None:
        raise PayloadError("no")

    wide, own = Rule("", "", "", require=never), Rule("", "", "")
    weights = Weights({"w": torch.ones(1)})
    inside = Bundle({"a": Bundle({"b": weights, "c": weights})})
    upload = Upload(Site("north", 1, 1), inside, 1, {})
    with pytest.raises(PayloadError, match="its part 'a/b': no"):
        require_valid({"a": wide}, WireSettings(), weights, upload)
    require_valid({"a": wide, "a/b": own, "a/c": own}, WireSettings(), weights, upload)
