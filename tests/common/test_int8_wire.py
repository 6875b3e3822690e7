"""A model as its update of a byte a parameter: off by half a level at most, and nothing else gets in."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from common.config.loading import load
from common.errors import PayloadError
from common.models import build
from common.specs.updates import as_updates, sends_updates
from common.wire.bundle import Bundle, BundleSpec, leaves
from common.wire.int8_update import Int8Update, Int8UpdateSpec
from common.wire.weights import Weights, WeightsSpec

MODEL = build("convnet", (1, 8, 8), 10, depth=1, width=4, norm="batch")
FORM = WeightsSpec.of(MODEL)
BASE = Weights.of(MODEL)
SPEC = Int8UpdateSpec(FORM, BASE)


def moved(seed: int = 0) -> Weights:
    rng = torch.Generator().manual_seed(seed)
    return Weights(
        {
            name: t + 3 if t.dtype == torch.int64 else t + torch.randn(t.shape, generator=rng) / 50
            for name, t in BASE.tensors.items()
        }
    )


def test_a_parameter_is_off_by_half_a_level_and_statistics_and_counts_by_nothing() -> None:
    new = moved()
    update, left = Int8Update.of(new, BASE, FORM.trained)
    got = SPEC.decode(update.encode())
    assert list(got.tensors) == list(FORM.names)
    for name in FORM.names:
        if name not in FORM.trained:
            assert torch.equal(got.tensors[name], new.tensors[name]), name
            continue
        change = new.tensors[name].double() - BASE.tensors[name].double()
        half = float(change.abs().max()) / 127 / 2
        off = new.tensors[name].double() - got.tensors[name].double()
        assert float(off.abs().max()) <= half * (1 + 1e-4)
        assert_close(left[name].double(), off, rtol=0, atol=1e-6)
    assert set(left) == set(FORM.trained)


def test_levels_are_those_on_paper() -> None:
    """Changes .127, -.0634, .0005 at a scale of .001: 127, -63, 0 (of .5 the even one) and .0016 to 2."""
    base = Weights({"w": torch.zeros(4), "n": torch.tensor(7)})
    form = WeightsSpec(("w", "n"), ((4,), ()), (torch.float32, torch.int64), ("w",))
    new = Weights({"w": torch.tensor([0.127, -0.0634, 0.0004, 0.0016]), "n": torch.tensor(9)})
    update, left = Int8Update.of(new, base, form.trained)
    assert update.levels["w"].tolist() == [127, -63, 0, 2]
    assert_close(update.scales, torch.tensor([0.001]))
    assert_close(left["w"], torch.tensor([0.0, -0.0004, 0.0004, -0.0004]), rtol=0, atol=1e-7)
    got = Int8UpdateSpec(form, base).decode(update.encode())
    assert_close(got.tensors["w"], torch.tensor([0.127, -0.063, 0.0, 0.002]))
    assert got.tensors["n"] == 9


def test_what_one_update_falls_short_by_is_sent_with_the_next() -> None:
    """Five times the same small change: fed back, all of them together are off by half a level of one."""
    base = Weights({"w": torch.zeros(2)})
    change = Weights({"w": torch.tensor([1.0, 0.003])})
    sums, owed = torch.zeros(2, dtype=torch.float64), None
    for _ in range(5):
        update, owed = Int8Update.of(change, base, ("w",), owed)
        sums += update.levels["w"].double() * update.scales[0].double()
    assert_close(
        sums + owed["w"], torch.tensor([5.0, 0.015], dtype=torch.float64), rtol=0, atol=1e-6
    )
    assert abs(float(sums[1]) - 0.015) <= 1 / 127 / 2 * 1.01
    alone = Int8Update.of(change, base, ("w",))[0]
    assert int(alone.levels["w"][1]) == 0  # without, it would never arrive


def test_a_large_models_update_takes_a_quarter_of_its_bytes() -> None:
    model = build("convnet", (3, 32, 32), 10, depth=3, width=64)
    base = Weights.of(model)
    new = Weights({n: t + torch.randn_like(t) / 100 for n, t in base.tensors.items()})
    update, _ = Int8Update.of(new, base, WeightsSpec.of(model).trained)
    coded = sum(a.nbytes for a in update.encode())
    assert coded < 0.26 * sum(a.nbytes for a in new.encode())
    assert update.floats == new.floats


@given(st.floats(1e-44, 3e38), st.integers(0, 2**31))
def test_a_change_of_any_size_travels(size: float, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    base = Weights({"w": torch.zeros(6)})
    new = Weights({"w": (torch.rand(6, generator=rng) * 2 - 1) * size})
    form = WeightsSpec(("w",), ((6,),), (torch.float32,), ("w",))
    update, _ = Int8Update.of(new, base, form.trained)
    got = Int8UpdateSpec(form, base).decode(update.encode()).tensors["w"].double()
    largest = float(new.tensors["w"].abs().max())
    assert float((got - new.tensors["w"].double()).abs().max()) <= largest / 127 * 0.51 + 1e-43


def test_no_change_is_none() -> None:
    update, left = Int8Update.of(BASE, BASE, FORM.trained)
    got = SPEC.decode(update.encode())
    assert all(torch.equal(got.tensors[n], t) for n, t in BASE.tensors.items())
    assert not any(t.any() for t in left.values())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_model_that_is_no_number_is_not_sent(value: float) -> None:
    tensors = {**BASE.tensors, "head.bias": torch.full_like(BASE.tensors["head.bias"], value)}
    with pytest.raises(PayloadError, match=r"update of 'head.bias' holds 10 of 10 values"):
        Int8Update.of(Weights(tensors), BASE, FORM.trained)


# ---- what is refused ----------------------------------------------------------------------------------


def sent() -> list:  # type: ignore[type-arg]
    return Int8Update.of(moved(), BASE, FORM.trained)[0].encode()


def with_scale(value: float):  # type: ignore[no-untyped-def]
    def spoil(arrays: list) -> list:  # type: ignore[type-arg]
        scales = arrays[1].copy()
        scales[0] = value
        return [arrays[0], scales, *arrays[2:]]

    return spoil


FIRST = FORM.names[0]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (with_scale(-1e-3), "list of scales holds -0.001 where 0 to inf"),
        (with_scale(3e38), f"the weight '{FIRST}' holds .* not finite"),
        (lambda a: [*a[:2], np.full_like(a[2], -128), *a[3:]], "holds -128 where -127 to 127"),
    ],
)
def test_an_update_that_is_not_as_agreed_is_refused(spoil, said: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(PayloadError, match=said):
        SPEC.decode(spoil(sent()))


# ---- which part is a model ----------------------------------------------------------------------------


def test_the_model_alone_of_a_bundle_is_coded() -> None:
    control = FORM.parameters
    expects = BundleSpec({"weights": FORM, "control": control})
    given = Bundle({"weights": BASE, "control": BASE.only(control)})
    coded = dict(leaves(as_updates(expects, given)))
    assert coded == {"weights": Int8UpdateSpec(FORM, BASE), "control": control}
    inner = BundleSpec({"inner": expects})
    nested = dict(leaves(as_updates(inner, Bundle({"inner": given}))))
    assert isinstance(nested["inner/weights"], Int8UpdateSpec)
    assert nested["inner/control"] is control


def test_what_the_receiver_never_sent_travels_whole() -> None:
    more = WeightsSpec((*FORM.names, "new"), (*FORM.shapes, (2,)), (*FORM.dtypes, torch.float32))
    assert as_updates(more, BASE) is more
    assert as_updates(FORM, Bundle({"decoder": BASE})) is FORM


@pytest.mark.parametrize(
    ("method", "coded"),
    [("fedavg", True), ("scaffold", True), ("fedssyn", True), ("feddm", False), ("topk", False)],
)
def test_methods_whose_sites_send_models_code_them(method: str, coded: bool) -> None:
    assert sends_updates(load({"method": method, "set": "wire.weights=int8"})) is coded
    assert not sends_updates(load({"method": method}))
