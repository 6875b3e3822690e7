"""What a site remembers of runs of another kind is as if it were not there; no run deletes what another one wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from federation import numbers, same_end
from named_site import equal, served, versions
from small import Small

from client_app.state import state_kind_of
from common.config.loading import load
from common.specs.updates import VERSIONS_KEPT
from nectar.records.outputs import with_recorded
from server_app.record import Record

pytestmark = pytest.mark.promise(
    "Records",
    "Nothing learned without noise reaches a private run, and no run deletes another's memory",
)

RECORD = "20260101-000000-victim-digits-seed0-abcdef"
ONE = "federation.sites=1"
PRIVATE = "privacy.noise_multiplier=1 privacy.examples=200"
PUBLIC = "privacy.noise_multiplier=1 privacy.counts=public"
VAE = "model.name=vae model.depth=1 model.embedding=6 fedvae.preliminary_rounds=1 fedvae.epochs=1"
INT8 = "wire.weights=int8 wire.error_feedback=on"
OWN = "model.norm=batch model.depth=1 model.width=4 model.statistics=local evaluation.on=none"
INNER = "fedssyn.source=none fedssyn.inner="

#: what remembers something, as a method and its settings, and what must not read it; the first without noise
PAIRS = {
    "fedvae, feddpms": (("fedvae", VAE), ("feddpms", f"{VAE} {PUBLIC}")),
    "feddyn": (("feddyn", "feddyn.alpha=1"), ("feddyn", f"feddyn.alpha=1 {PRIVATE}")),
    "scaffold": (("scaffold", ""), ("scaffold", PRIVATE)),
    "int8": (("fedavg", INT8), ("fedavg", f"{INT8} {PRIVATE}")),
    "statistics": (("fedavg", OWN), ("fedavg", f"{OWN} model.train=head {PRIVATE}")),
    "feddm": (
        ("feddm", "feddm.start=noise feddm.warm=on"),
        ("feddm", f"feddm.start=noise feddm.warm=on feddm.mechanism=feature {PUBLIC}"),
    ),
    **{
        f"fedssyn around {inner}": (
            ("fedssyn", f"{INNER}{inner} {text}"),
            ("fedssyn", f"{INNER}{inner} {text} {PRIVATE}"),
        )
        for inner, text in {"feddyn": "feddyn.alpha=1", "scaffold": "", "fedavg": INT8}.items()
    },
}


def config(small: Small, method: str, text: str, rounds: int = 1) -> dict[str, Any]:
    return small(method=method, rounds=rounds, set=f"{ONE} {text}")


def at(state: Path) -> dict[str, Any]:
    return {"state-dir": str(state)}


@pytest.mark.sweep
@pytest.mark.parametrize("turned", [False, True], ids=["into a private run", "out of one"])
@pytest.mark.parametrize("name", PAIRS)
def test_memory_of_another_kind_is_as_if_it_were_not_there(
    small: Small, tmp_path: Path, name: str, turned: bool
) -> None:
    """The same bits leave a site that has it and one that has nothing, whatever round the server goes on from."""
    before, after = reversed(PAIRS[name]) if turned else PAIRS[name]
    _, worked = served(config(small, *before, rounds=2), 11, at(tmp_path / "a"), record=RECORD)
    assert not any(reply.has_error() for reply in worked)
    assert versions(tmp_path / "a"), "there is something to read"
    message = {"record": RECORD, "taken": 2}
    _, found = served(config(small, *after), 12, at(tmp_path / "a"), **message)
    _, nothing = served(config(small, *after), 12, at(tmp_path / "b"), **message)
    assert equal(found, nothing)


@pytest.mark.sweep
@pytest.mark.parametrize("text", ["", "privacy.clip=2", "feddyn.alpha=.5", "privacy.counts=public"])
def test_so_is_that_of_the_same_method_by_another_mechanism(
    small: Small, tmp_path: Path, text: str
) -> None:
    """And that of the very same is read."""
    first = config(small, "feddyn", f"feddyn.alpha=1 {PRIVATE}", rounds=2)
    other = config(small, "feddyn", f"feddyn.alpha=1 {PRIVATE} {text}")
    served(first, 11, at(tmp_path / "a"), record=RECORD)
    found, nothing = (
        served(other, 12, at(tmp_path / place), record=RECORD, taken=2)[1] for place in "ab"
    )
    assert equal(found, nothing) == bool(text)


def test_what_decides_no_number_decides_no_kind(small: Small) -> None:
    run = config(small, "feddyn", PRIVATE)
    kind = state_kind_of(load(run))
    for text in ("federation.round_deadline=99", "privacy.delta=1e-6", "compute.client_cores=1"):
        assert state_kind_of(load({**run, "set": f"{run['set']} {text}"})) == kind
    assert state_kind_of(load({**run, "rounds": 99})) == kind
    for text in ("privacy.noise_multiplier=2", "privacy.examples=9", "feddyn.alpha=.5"):
        assert state_kind_of(load({**run, "set": f"{run['set']} {text}"})) != kind


# ---- an earlier release's ------------------------------------------------------------------------------


@pytest.mark.sweep
@pytest.mark.parametrize("private", [False, True])
def test_an_earlier_releases_is_read_by_runs_that_are_not_private_alone(
    small: Small, tmp_path: Path, private: bool
) -> None:
    """It lies in the site's folder itself."""
    text = f"feddyn.alpha=1 {PRIVATE if private else ''}"
    served(config(small, "feddyn", text, rounds=2), 11, at(tmp_path / "a"), record=RECORD)
    for path, content in versions(tmp_path / "a").items():
        path.unlink()
        (path.parents[2] / path.name).write_bytes(content)
    found, nothing = (
        served(config(small, "feddyn", text), 12, at(tmp_path / p), record=RECORD, taken=2)[1]
        for p in "ab"
    )
    assert equal(found, nothing) == private


# ---- whose a version is ---------------------------------------------------------------------------------

DYN = "feddyn.alpha=1"


def resumed(record: Record, rounds: int, number: int, state: Path) -> Record:
    words = with_recorded({"resume": str(record.directory), "rounds": rounds})
    return served(words, number, at(state))[0]


@pytest.mark.extended
@pytest.mark.parametrize("text", [DYN, "feddyn.alpha=2"])
def test_a_run_that_names_anothers_record_deletes_nothing_of_it(
    small: Small, tmp_path: Path, text: str
) -> None:
    whole, _ = served(config(small, "feddyn", DYN, rounds=7), 10, at(tmp_path / "whole"))
    record, _ = served(config(small, "feddyn", DYN, rounds=5), 11, at(tmp_path / "state"))
    written = versions(tmp_path / "state")
    assert sorted(path.name[:6] for path in written) == ["000003", "000004", "000005"]
    for number in (12, 13):
        served(
            config(small, "feddyn", text, rounds=2),
            number,
            at(tmp_path / "state"),
            record=record.id,
            taken=0,
        )
    found = versions(tmp_path / "state")
    assert {path: found.get(path) for path in written} == written
    record = resumed(record, 7, 14, tmp_path / "state")
    assert same_end(record, whole)
    assert numbers(record)[1:] == numbers(whole)[1:]


@pytest.mark.extended
def test_one_that_names_the_right_round_too_takes_nothing_from_a_run_that_goes_on(
    small: Small, tmp_path: Path
) -> None:
    whole, _ = served(config(small, "feddyn", DYN, rounds=7), 10, at(tmp_path / "whole"))
    record, _ = served(config(small, "feddyn", DYN, rounds=5), 11, at(tmp_path / "state"))
    for number in (12, 13):
        served(
            config(small, "feddyn", DYN, rounds=1),
            number,
            at(tmp_path / "state"),
            record=record.id,
            taken=5,
        )
    assert same_end(resumed(record, 7, 11, tmp_path / "state"), whole)


@pytest.mark.extended
def test_a_run_that_is_resumed_again_and_again_keeps_a_few_versions(
    small: Small, tmp_path: Path
) -> None:
    whole, _ = served(config(small, "feddyn", DYN, rounds=8), 10, at(tmp_path / "whole"))
    record, _ = served(config(small, "feddyn", DYN, rounds=2), 11, at(tmp_path / "state"))
    for rounds in range(3, 9):
        record = resumed(record, rounds, 10 + rounds, tmp_path / "state")
    assert same_end(record, whole)
    assert len(versions(tmp_path / "state")) <= 2 * (VERSIONS_KEPT + 1)


@pytest.mark.extended
def test_the_engines_of_one_machine_take_over_from_each_other(small: Small, tmp_path: Path) -> None:
    """A simulated site's memory lies in the record, and each engine's run has a number of its own."""
    run = config(small, "feddyn", DYN, rounds=3)
    whole, _ = served(run, 10, {"simulated": True})
    record, _ = served({**run, "rounds": 1}, 11, {"simulated": True})
    for rounds, number in ((2, 1), (3, 12)):
        words = with_recorded({"resume": str(record.directory), "rounds": rounds})
        record, _ = served(words, number, {"simulated": True})
    assert same_end(record, whole)
