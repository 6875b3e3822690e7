"""A short run of the fuzzer of rounds; ``tests/helpers/fuzzing_rounds.py`` says how a long one is done."""

from __future__ import annotations

from collections.abc import Sequence

import fuzzing_rounds
import pytest
from fuzzing_rounds import CASES

from common.methods import METHODS
from strategies.exchange import judging
from strategies.exchange import round as exchange


def some(method: str) -> list[int]:
    """Return the numbers of sequences of a method with its plain settings."""
    first = next(i for i, (name, _) in enumerate(CASES) if name == method)
    return [first + i * len(CASES) for i in range(8)]


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
    assert asked == METHODS.keys() - {"central"}


def unbounded(lengths: Sequence[float], own: float, factor: float, known: int = 0) -> list[None]:
    return [None] * (len(lengths) - known)


def unshortened(lengths: Sequence[float], factor: float, known: int = 0) -> list[float]:
    return [1.0] * (len(lengths) - known)


def test_it_sees_updates_that_are_not_held_against_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(judging, "too_long", unbounded)
    monkeypatch.setattr(judging, "shares_kept", unshortened)
    monkeypatch.setattr(judging.Trial, "gives_numbers", lambda *_: True)
    fuzzer = fuzzing_rounds.RoundsFuzzer(1, lambda said: None)
    for number in some("fedavg"):
        fuzzer.sequence(number)
    assert any("reaches" in failure for failure in fuzzer.tally.failures)


def test_it_sees_honest_sites_that_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    read = exchange.read_upload

    def picky(reply: object, site: exchange.Site, spec: object) -> object:
        if site.name == "partition-3":
            raise exchange.PayloadError("no")
        return read(reply, site, spec)  # type: ignore[arg-type]

    fuzzing_rounds.usual_sizes(*CASES[some("fedavg")[0]], 4)
    fuzzing_rounds.usual_sizes(*CASES[some("fedavg")[0]], 5)
    monkeypatch.setattr(exchange, "read_upload", picky)
    fuzzer = fuzzing_rounds.RoundsFuzzer(1, lambda said: None)
    for number in some("fedavg")[:3]:
        fuzzer.sequence(number)
    assert any("rejected partition-3: no" in failure for failure in fuzzer.tally.failures)
