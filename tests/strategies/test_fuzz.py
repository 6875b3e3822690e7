"""Short runs of the fuzzers; ``tests/helpers/fuzzing.py`` and ``fuzzing_rounds.py`` say how long ones are done."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence

import fuzzing
import fuzzing_rounds
import pytest
from fuzzing_rounds import CASES

import common.specs
import common.wire
import common.wire.form
from common.methods import METHODS
from common.wire.tensors import Tensors
from common.wire.weights import Weights
from strategies.exchange import screening

pytestmark = pytest.mark.promise(
    "What comes over the wire",
    "Damaged payloads are a `PayloadError` or what their spec says",
    also="`python tests/helpers/fuzzing.py --payloads 100000 --seed 0`",
)


@pytest.mark.extended
def test_damaged_payloads_of_every_kind_are_refused_or_what_their_spec_says() -> None:
    tally = fuzzing.fuzz(0, 600, seed=1)
    assert not tally.failures, "\n".join(tally.failures)
    for way in ("arrays", "records", "objects", "evaluation", "riding", "roll_call"):
        assert tally.accepted[way] > 10
        assert tally.refused[way] > 10


@pytest.mark.extended
def test_what_methods_send_and_are_sent_in_parts_is_refused_or_what_its_spec_says() -> None:
    names = ("scaffold", "fedmix", "fedgen", "feddpms")
    some = {name: case for case in CASES if (name := case[0]) in names}
    fedssyn = [case for case in CASES if "fedssyn.diagnostics" in case[1]]
    kinds = fuzzing.kinds_of_methods([*some.values(), *fedssyn])
    bundles = {part for kind in kinds for part in getattr(kind.payload, "parts", ())}
    assert bundles >= {"control", "means", "generator", "decoder", "scarce", "inner", "share"}
    tally = fuzzing.fuzz(0, 600, 1, kinds)
    assert not tally.failures, "\n".join(tally.failures)
    assert tally.accepted["arrays"] > 10
    assert tally.refused["arrays"] > 10


def test_it_knows_every_kind_of_payload() -> None:
    modules = [
        importlib.import_module(f"{package.__name__}.{found.name}")
        for package in (common.wire, common.specs)
        for found in pkgutil.iter_modules(package.__path__)
    ]
    classes = {cls for module in modules for cls in vars(module).values() if isinstance(cls, type)}
    named = {cls for cls in classes if isinstance(getattr(cls, "kind", None), str)}
    payloads = {cls for cls in named if hasattr(cls, "encode")}
    assert {type(kind.payload) for kind in fuzzing.KINDS} == payloads
    forms = {kind.payload.kind for kind in fuzzing.KINDS if isinstance(kind.payload, Tensors)}
    assert forms == {"tensors", "class-list", "latent-means"}


def test_it_sees_a_check_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common.wire.form, "require_finite", lambda name, tensor: None)
    weights = [kind for kind in fuzzing.KINDS if isinstance(kind.payload, Weights)]
    tally = fuzzing.fuzz(0, 250, 1, weights)
    assert any("is not finite" in failure for failure in tally.failures)


# ---- rounds with a hostile site: a short run of fuzzing_rounds.py ------------------------------------


def some(method: str) -> list[int]:
    """Return the numbers of sequences of a method with its plain settings."""
    first = next(i for i, (name, _) in enumerate(CASES) if name == method)
    return [first + i * len(CASES) for i in range(16)]


@pytest.mark.extended
def test_what_one_hostile_site_sends_ruins_nothing_in_this_round_or_later() -> None:
    fuzzer = fuzzing_rounds.RoundsFuzzer(1, lambda said: None)
    for method in ("feddm", "scaffold", "fedmix", "feddpms", "local", "topk", "fedavg"):
        fuzzer.sequence(some(method)[0])
    tally = fuzzer.tally
    assert not tally.failures, "\n".join(tally.failures)
    assert 5 < sum(tally.rejected.values()) < sum(tally.spoiled.values())


def test_it_knows_every_method_that_asks_sites() -> None:
    asked = {method for method, _ in CASES if ":" not in method}
    # A sequence needs later rounds, and ridge has one: tests/strategies/test_ridge.py spoils its sums.
    assert asked == METHODS.keys() - {"central", "server", "ridge"}


def unbounded(
    lengths: Sequence[float], own: float, factor: float, known: int = 0, earlier: float = 0.0
) -> list[None]:
    return [None] * (len(lengths) - known)


def unshortened(
    lengths: Sequence[float], factor: float, known: int = 0, earlier: float = 0.0
) -> list[float]:
    return [1.0] * (len(lengths) - known)


@pytest.mark.long
@pytest.mark.extended
def test_it_sees_updates_that_are_not_held_against_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(screening, "too_long", unbounded)
    monkeypatch.setattr(screening, "shares_kept", unshortened)
    monkeypatch.setattr(screening.FiniteCheck, "gives_numbers", lambda *_: True)
    fuzzer = fuzzing_rounds.RoundsFuzzer(1, lambda said: None)
    for number in some("fedavg"):
        fuzzer.sequence(number)
    assert any("reaches" in failure for failure in fuzzer.tally.failures)


@pytest.mark.extended
def test_it_sees_honest_sites_that_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    read = screening.read_upload

    def picky(reply: object, site: screening.Site, spec: object) -> object:
        if site.name == "partition-3":
            raise screening.PayloadError("no")
        return read(reply, site, spec)  # type: ignore[arg-type]

    fuzzing_rounds.usual_sizes(*CASES[some("fedavg")[0]], 4)
    fuzzing_rounds.usual_sizes(*CASES[some("fedavg")[0]], 5)
    monkeypatch.setattr(screening, "read_upload", picky)
    fuzzer = fuzzing_rounds.RoundsFuzzer(1, lambda said: None)
    for number in some("fedavg")[:3]:
        fuzzer.sequence(number)
    assert any("rejected partition-3: no" in failure for failure in fuzzer.tally.failures)
