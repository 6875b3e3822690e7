"""SCAFFOLD and FedPVR: steps by hand, control variates that add up whatever goes wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small import Small
from tiny import Tiny

from common.config.loading import load
from common.division import Division
from common.errors import ConfigError
from common.specs.averaging import CONTROL, control_spec
from common.wire.bundle import Bundle
from common.wire.weights import Weights


def control(tiny: Tiny) -> float:
    """Return the server's c."""
    return float(tiny.strategy.state_dict()[CONTROL]["head.weight"])


def test_two_rounds_by_hand(tmp_path: Path) -> None:
    """Two steps of 1/2, option II.

    Round 1, c = c_k = 0: w_k = a - a/4 = 0.75, 2.25; c_k+ = (0 - w_k) / (2 * 1/2) = -0.75, -2.25; c = -1.5.
    Round 2 from 1.5: c - c_k = -0.75, 0.75, so that the steps go to a' = a - (c - c_k) = 1.75, 2.25:
    w_k = a' + (1.5 - a')/4 = 1.6875, 2.0625, their mean 1.875;
    c_k+ = c_k - c + (1.5 - w_k) = 0.75 - 0.1875, -0.75 - 0.5625; c = (0.5625 - 1.3125)/2.
    """
    tiny = Tiny(tmp_path, "scaffold")
    assert (tiny.round(1), control(tiny)) == (1.5, -1.5)
    assert (tiny.round(2), control(tiny)) == (1.875, -0.375)
    assert [float(tiny.remembered(i)) for i in (0, 1)] == [0.5625, -1.3125]


def test_option_one_by_hand(tmp_path: Path) -> None:
    """c_k+ is the gradient at w_r: -1, -3 in round 1, c = -2; round 2 goes to a - (c - c_k) = 2 at both sites."""
    tiny = Tiny(tmp_path, "scaffold", "option=I")
    assert (tiny.round(1), control(tiny)) == (1.5, -2.0)
    assert (tiny.round(2), control(tiny)) == (2 - 0.5 / 4, -0.5)


def test_the_correction_is_not_carried_on_by_momentum(tmp_path: Path) -> None:
    """Momentum 1/2 in round 2, from 1.875 (round 1: a/2, then v = -a/2 - a/2 = -a, w_k = a; c_k = -a, c = -2, w = 2).

    Site 0, c - c_k = -1: v = 1, w = 2 - 1/2 (1 - 1) = 2; v = 1/2 + 1 = 3/2, w = 2 - 1/2 (3/2 - 1) = 1.75.
    Under momentum the correction would have counted 1.5 times in the second step.
    Site 1, c - c_k = 1: v = -1, w = 2; v = -3/2, w = 2 - 1/2 (-3/2 + 1) = 2.25.
    """
    tiny = Tiny(tmp_path, "scaffold", "momentum=0.5")
    assert (tiny.round(1), control(tiny)) == (2.0, -2.0)
    tiny.round(2)
    assert [float(tiny.remembered(i)) for i in (0, 1)] == [1 + 0.25, -1 - 0.25]


@pytest.mark.extended
@pytest.mark.parametrize(
    ("method", "option", "momentum"),
    [("scaffold", "I", "0.9"), ("scaffold", "II", "0.9"), ("fedpvr", "II", "0.0")],
)
def test_at_the_optimum_no_site_drifts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, option: str, momentum: str
) -> None:
    """Eight steps of 0.02 a round: FedAvg's sites end .15 from the optimum with momentum 0, .51 from it with 0.9."""
    monkeypatch.setattr("tiny.HALVES", "epochs=8 lr=0.02 batch=1")
    tiny = Tiny(tmp_path, method, f"option={option} momentum={momentum}")
    for number in range(1, 70):
        tiny.round(number)
    plan = tiny.strategy.instructions(70, tiny.weights, tiny.sites)
    for upload in tiny._uploads(70, plan, ()):
        assert isinstance(upload.payload, Bundle)
        ended = upload.payload.part("weights", Weights).tensors["head.weight"]
        assert float(ended) == pytest.approx(2.0, abs=2e-3)


@pytest.mark.extended
@pytest.mark.parametrize(
    "method",
    ["scaffold", *(pytest.param(name, marks=pytest.mark.long) for name in ("fedpvr", "feddyn"))],
)
def test_weighted_by_counts_its_optimum_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """One example at 1, three at 3: their mean is 2.5; the plain mean over sites is 2."""
    monkeypatch.setattr("tiny.HALVES", "epochs=4 lr=0.05 batch=1")
    alpha = " alpha=0.3" if method == "feddyn" else ""
    found = []
    for weighting in ("counts", "uniform"):
        words = f"weighting={weighting}{alpha}"
        tiny = Tiny(tmp_path / weighting, method, words, examples=(1, 3))
        found.append([tiny.round(number) for number in range(1, 121)][-1])
    assert found == pytest.approx([2.5, 2.0], abs=1e-3)


def test_weighted_by_counts_control_variates_add_up(tmp_path: Path) -> None:
    """sum_k n_k c_k = n c, whoever is absent, whatever is lost."""
    counts = (1, 2, 5)
    tiny = Tiny(tmp_path, "scaffold", "weighting=counts", wants=(1, 3, 8), examples=counts)
    for number in range(1, 7):
        absent = [1] if number in (3, 4) else []
        tiny.round(number, absent=absent, lost={2: [0], 5: [2]}.get(number, []))
        own = [float(tiny.remembered(i)) if f"site-{i}" in tiny.taken else 0.0 for i in range(3)]
        each = sum(n * c for n, c in zip(counts, own, strict=True))
        assert each == pytest.approx(8 * control(tiny), abs=1e-5), number


@pytest.mark.parametrize("option", ["I", "II"])
def test_control_variates_add_up_through_absence_loss_and_restart(
    tmp_path: Path, option: str
) -> None:
    """sum_k c_k = K c: a site that is not asked keeps its c_k, one whose reply is lost goes back to the one before."""
    tiny = Tiny(tmp_path, "scaffold", f"option={option}", wants=(1, 3, 8))
    for number in range(1, 9):
        absent = [1] if number in (3, 4, 5, 6) else []
        lost = {2: [0], 5: [2], 7: [0, 2]}.get(number, [])
        tiny.round(number, absent=absent, lost=lost)
        if number in (2, 6):
            tiny.restart()
        each = sum(float(tiny.remembered(i)) for i in range(3) if f"site-{i}" in tiny.taken)
        assert each == pytest.approx(3 * control(tiny), abs=1e-6), number


def test_control_variates_are_of_parameters_and_of_the_layers_named(small: Small) -> None:
    made = Division(load(small(method="scaffold", set="model.norm=batch"))).run
    assert {n for n in made.spec.names if "running" in n}
    assert not {n for n in control_spec(made).names if "running" in n or "num_batches" in n}
    made = Division(load(small(method="fedpvr"))).run
    assert control_spec(made).names == ("head.weight", "head.bias")
    with pytest.raises(ConfigError, match=r"fedpvr.layers names 'fc', the model has .*head"):
        control_spec(Division(load(small(method="fedpvr", set="fedpvr.layers=fc"))).run)


def test_the_local_path_changes_with_c(tmp_path: Path) -> None:
    """A correction that is never applied would leave w_k what it is."""
    tiny, other = (Tiny(tmp_path / str(i), "scaffold") for i in (0, 1))
    other.strategy.load_state_dict({CONTROL: {"head.weight": torch.ones(1, 1)}})
    assert other.round(1) == tiny.round(1) - 0.75
