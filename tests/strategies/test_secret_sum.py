"""Whole runs of a secret sum: the numbers of the same grid without masks, whoever is missing in which exchange."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federation import TamperedGrid, last, numbers, resumed, run, run_unmasked, same_end
from flwr.app import ArrayRecord, ConfigRecord, Message
from secret_sites import EXCHANGES, KEYS, OPENING, SHARES, TRAIN, DroppingGrid
from small import Small

from common.config.loading import load
from common.errors import ConfigError, FederationError
from common.secret import cohort
from common.secret.cohort import RECORD
from common.wire.npy import array_of
from nectar.records.outputs import with_recorded
from server_app.record import Record


def figures(record: Record) -> list[Any]:
    """Return what each round came to, but for the bytes, which masks' exchanges add to."""
    return [{k: v for k, v in line.items() if k != "bytes"} for line in numbers(record)]


METHODS = {
    "fedavg": "fedavg.epochs=1 fedavg.weighting=uniform",
    "fedprox": "fedprox.epochs=1 fedprox.weighting=counts privacy.counts=public",
    "scaffold": "scaffold.epochs=1",
    "feddyn": "feddyn.epochs=1 feddyn.weighting=counts privacy.counts=public",
    "ridge": "ridge.width=9",
}


# ---- the same numbers -------------------------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.parametrize("method", METHODS)
def test_a_run_has_the_numbers_of_the_same_grid_without_masks(small: Small, method: str) -> None:
    rounds = 1 if method == "ridge" else 3
    settings = f"federation.sites=4 {METHODS[method]} evaluation.on=server"
    on, off = (
        small(method=method, rounds=rounds, set=f"{settings} federation.secret={secret}")
        for secret in ("on", "off")
    )
    there = {"on": run(on), "unmasked": run_unmasked(on), "off": run(off)}
    assert figures(there["on"]) == figures(there["unmasked"])
    assert same_end(there["on"], there["unmasked"])
    for name, tensor in last(there["off"]).weights.items():
        if method != "ridge":  # whose plain form rounds to bytes
            assert torch.allclose(tensor, last(there["on"]).weights[name], atol=1e-4), name


@pytest.mark.extended
def test_ridge_has_the_solution_of_integers_to_the_bit(small: Small) -> None:
    there = {
        secret: run(
            small(
                method="ridge",
                rounds=1,
                set=f"federation.sites=4 ridge.width=9 ridge.form=integers federation.secret={secret}",
            )
        )
        for secret in ("on", "off")
    }
    assert same_end(there["on"], there["off"])


@pytest.mark.extended
def test_two_of_three_sites_asked_a_round_have_keys_when_it_is_their_turn(small: Small) -> None:
    settings = "federation.sites=6 federation.participation=0.5 federation.secret=on fedavg.weighting=uniform"
    config = small(method="fedavg", rounds=4, set=settings)
    assert figures(run(config)) == figures(run_unmasked(config))


@pytest.mark.extended
def test_a_resumed_run_is_the_unbroken_one(small: Small) -> None:
    """The keys that came with round 2's opening are another process's; round 3 begins with new ones."""
    for method in ("fedavg", "scaffold"):
        settings = "federation.sites=4 federation.secret=on"
        broken = run(small(method=method, rounds=2, set=settings))
        whole = run(small(method=method, rounds=4, set=settings))
        assert same_end(resumed(broken, 4), whole)


def test_the_line_says_how_many_are_in_the_total_and_the_log_what_it_withstands(
    small: Small, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "flwr")
    record = run(small(method="fedavg", rounds=1, set="federation.sites=5 federation.secret=on"))
    notes = [line.get("notes") for line in record.metrics()]
    assert notes[1] == {"secret": {"asked": 5, "threshold": 4, "sites": 5}}
    assert cohort.WITHSTANDS.format(colluders=1, threshold=4) in caplog.text
    assert "federation.min_replies=1 is raised to 4" in caplog.text
    assert "federation.robust=clip and federation.max_update are off" in caplog.text


def test_updates_that_are_cut_are_counted_and_named_by_nobody(
    small: Small, caplog: pytest.LogCaptureFixture
) -> None:
    settings = "federation.sites=4 federation.secret=on federation.secret_clip=0.01"
    record = run(small(method="fedavg", rounds=1, set=settings))
    assert record.metrics()[1]["notes"]["secret"]["shortened"] == 4
    assert "4 of 4 updates were longer than federation.secret_clip=0.01" in caplog.text


def test_nothing_of_a_site_alone_is_in_its_reply_or_the_record(small: Small) -> None:
    """No count, loss or time; and no secret in any file of the record."""
    record = run(small(method="fedavg", rounds=2, set="federation.sites=4 federation.secret=on"))
    for line in record.metrics()[1:]:
        assert not {key for site in (line.get("sites_train") or {}).values() for key in site}
    told = json.loads((record.directory / "partition.json").read_text())["sites"]
    assert {row["examples"] for row in told.values()} == {1}
    kept = {path.name for path in record.directory.rglob("*") if path.is_file()}
    assert not [name for name in kept if "secret" in name]
    assert not (record.directory.parent / ".secret-sum").exists()


# ---- who is missing ---------------------------------------------------------------------------------

#: six sites and no colluder: four open a sum
SIX = "federation.sites=6 federation.secret={} federation.secret_colluders=0"


@pytest.mark.extended
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_sites_that_are_gone_in_an_exchange_are_missing_in_the_total(
    small: Small, exchange: str
) -> None:
    """As in a run without masks that lacks them; who is gone at the opening has sent its vector, and is in it."""
    settings, drops = SIX, {(exchange, 1): {1, 2}}
    there = run(
        small(method="fedavg", rounds=2, set=settings.format("on")), DroppingGrid, drops=drops
    )
    without = {(TRAIN, 1): drops[exchange, 1]} if exchange != OPENING else {}
    config = small(method="fedavg", rounds=2, set=settings.format("on"))
    assert same_end(there, run_unmasked(config, DroppingGrid, drops=without))
    notes = [line["notes"]["secret"]["sites"] for line in there.metrics()[1:]]
    assert notes == [6 if exchange == OPENING else 4, 6]


@pytest.mark.extended
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_one_more_and_the_round_fails_and_the_model_stays_as_it_was(
    small: Small, exchange: str
) -> None:
    """What fails before the opening is tried twice, after it once. The next round follows; two in a row are the end."""
    grids: list[DroppingGrid] = []

    class Noted(DroppingGrid):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            grids.append(self)

    gone = {0, 2, 4}
    config = small(method="fedavg", rounds=2, set=f"{SIX.format('on')} evaluation.on=server")
    record = run(config, Noted, drops={(exchange, 1): gone})
    start, failed, after = record.metrics()
    assert (failed["updated"], failed["accepted"]) == (False, [])
    assert failed["test"] == start["test"] != after["test"]
    assert re.search("nothing is learned: 3 of 6", failed["notes"]["secret"]["failed"])
    asked = [seen for seen in grids[0].seen if seen[:2] == (exchange, 1)]
    assert len(asked) == (6 if exchange == OPENING else 12)
    assert after["notes"]["secret"]["sites"] == 6
    with pytest.raises(FederationError, match=r"round 2's secret sum fails, .* 3 of 6"):
        run(config, DroppingGrid, drops={(exchange, 1): gone, (exchange, 2): gone})


@pytest.mark.extended
def test_after_two_failed_rounds_a_run_can_be_resumed_from_the_next(small: Small) -> None:
    """Round 3 is failed and written down: sites open no second total of it, so that nobody asks for one."""
    config = small(method="fedavg", rounds=5, set=SIX.format("on"))
    drops = {(OPENING, number): {0, 2, 4} for number in (2, 3)}
    with pytest.raises(FederationError, match="round 3's secret sum fails"):
        run(config, DroppingGrid, drops=drops)
    (found,) = Path(config["output-dir"]).glob("2*")
    assert [line["round"] for line in Record(found).metrics()] == [0, 1, 2, 3]
    assert Record(found).stated()["outcome"].startswith("failed: round 3's")
    assert [line.get("updated", True) for line in resumed(Record(found)).metrics()] == [
        *(True, True, False, False, True, True)
    ]


@pytest.mark.extended
def test_some_are_gone_in_each_exchange_and_in_two_rounds(small: Small) -> None:
    drops = {(KEYS, 1): {0}, (TRAIN, 1): {3}, (SHARES, 2): {1}, (TRAIN, 2): {2}, (OPENING, 3): {5}}
    config = small(method="scaffold", rounds=3, set=SIX.format("on"))
    without = {(TRAIN, 1): {0, 3}, (TRAIN, 2): {1, 2}}
    expected = run_unmasked(config, DroppingGrid, drops=without)
    assert same_end(run(config, DroppingGrid, drops=drops), expected)


def test_three_exchanges_a_round_and_four_in_the_first(small: Small) -> None:
    """And one more for whoever had no part in the opening before."""
    grids = []

    class Noted(DroppingGrid):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            grids.append(self)

    drops = {(TRAIN, 2): {4}}
    run(small(method="fedavg", rounds=3, set=SIX.format("on")), Noted, drops=drops)
    asked = {
        n: {k: [m[0] for m in grids[0].seen if m[:2] == (k, n)] for k in EXCHANGES}
        for n in (1, 2, 3)
    }
    counts = {n: [len(each) for each in kinds.values()] for n, kinds in asked.items()}
    assert counts == {1: [6, 6, 6, 6], 2: [0, 6, 6, 5], 3: [1, 6, 6, 6]}


# ---- who sends something else -----------------------------------------------------------------------


def reply_with(change: Callable[[ConfigRecord], None]) -> Any:
    """Return what changes a site's answer to a query."""

    def tamper(asked: Message, reply: Message) -> Message:
        change(reply.content.config_records[RECORD])
        return reply

    return tamper


def _short(record: ConfigRecord) -> None:
    record[cohort.OPENED] = [bytes(each)[:-1] for each in record[cohort.OPENED]]  # type: ignore[union-attr]


def _repeated(record: ConfigRecord) -> None:
    record[cohort.OPENED] = [record[cohort.OPENED][0]] * len(record[cohort.OPENED])  # type: ignore[index, arg-type, assignment]


def _foreign(record: ConfigRecord) -> None:
    record[cohort.OPENED] = [b"\1" * 33] * len(record[cohort.OPENED])  # type: ignore[arg-type]


@pytest.mark.sweep
@pytest.mark.parametrize("change", [_short, _repeated, _foreign])
def test_shares_of_something_else_are_left_out_where_the_others_are_enough(
    small: Small, change: Callable[[ConfigRecord], None]
) -> None:
    config = small(method="fedavg", rounds=1, set=SIX.format("on"))
    honest = run(config | {"output-dir": str(Path(config["output-dir"]) / "honest")})
    there = run(config, TamperedGrid, tampers={1: reply_with(change)}, kind=OPENING)
    assert same_end(there, honest)


def test_where_they_are_not_the_round_fails(small: Small) -> None:
    config = small(method="fedavg", rounds=2, set="federation.sites=3 federation.secret=on")
    with pytest.raises(
        FederationError, match=r"round 2's .* the shares that came of .* a site sent something else"
    ):
        run(config, TamperedGrid, tampers={1: reply_with(_foreign)}, kind=OPENING)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("kind", "key", "value", "said"),
    [
        (KEYS, cohort.MASK_KEY, bytes(32), "must be an X25519 public key"),
        (KEYS, cohort.SEAL_KEY, b"x", "must be of 32 bytes"),
        (SHARES, cohort.SEALED, [b"x" * 82] * 4, "must be 5, not"),
        (SHARES, cohort.SEALED, [b"x" * 81] * 5, "must be of 82 bytes"),
        (SHARES, cohort.COMMITMENT, "x", "must be of 32 bytes"),
    ],
)
def test_an_answer_that_is_none_costs_its_site_the_round(
    small: Small, caplog: pytest.LogCaptureFixture, kind: str, key: str, value: Any, said: str
) -> None:
    def change(record: ConfigRecord) -> None:
        record[key] = value

    config = small(method="fedavg", rounds=1, set=SIX.format("on"))
    record = run(config, TamperedGrid, tampers={1: reply_with(change)}, kind=kind)
    assert record.metrics()[1]["notes"]["secret"]["sites"] == 5
    assert re.search(f"without partition-1: secret .*{said}", caplog.text)


def _vector(make: Callable[[np.ndarray], np.ndarray]) -> Any:
    """Return what changes the masked vector of a reply."""

    def tamper(asked: Message, reply: Message) -> Message:
        arrays = reply.content.array_records["arrays"]
        changed = [array.numpy() for array in arrays.values()]
        changed[1] = make(changed[1])
        reply.content["arrays"] = ArrayRecord({f"{i}": array_of(a) for i, a in enumerate(changed)})
        return reply

    return tamper


@pytest.mark.sweep
@pytest.mark.parametrize(
    "make",
    [
        lambda v: v[:-1],
        lambda v: np.append(v, v[:1]),
        lambda v: v.astype(np.int64),
        lambda v: v.astype(float),
    ],
)
def test_a_vector_of_another_length_or_modulus_costs_its_site_the_round(
    small: Small, make: Callable[[np.ndarray], np.ndarray]
) -> None:
    config = small(method="fedavg", rounds=1, set=SIX.format("on"))
    there = run(config, TamperedGrid, tampers={1: _vector(make)})
    assert same_end(there, run_unmasked(config, DroppingGrid, drops={(TRAIN, 1): {1}}))


def test_a_vector_of_another_round_or_of_rubbish_fails_the_round_unnamed(small: Small) -> None:
    config = small(method="fedavg", rounds=4, set=SIX.format("on"))
    kept: list[np.ndarray] = []

    def replay(vector: np.ndarray) -> np.ndarray:
        kept.append(vector.copy())
        return kept[0]

    with pytest.raises(
        FederationError, match=r"round 3's .* beyond what 6 sites can add up to"
    ) as failed:
        run(config, TamperedGrid, tampers={1: _vector(replay)})
    assert "partition-1" not in str(failed.value)


def test_a_round_that_was_opened_is_not_opened_again_of_other_sites(
    small: Small, tmp_path: Path
) -> None:
    """Real sites remember; a run that goes back with one site fewer is refused by each of them."""
    from secret_sites import Sites

    sites = Sites(tmp_path, 5)
    for number in (1, 2):
        sites.up_to_masked(number)
        sites.at("site-0", number, names=sites.names).opening()
    sites.up_to_masked(1, "later")
    with pytest.raises(FederationError, match="would be some sites' own"):
        sites.at("site-0", 1, "later", names=sites.names[:4]).opening()


# ---- late sites of ridge ----------------------------------------------------------------------------


@pytest.mark.extended
def test_a_group_of_late_sites_is_a_total_of_its_own_and_a_smaller_one_is_none(
    small: Small,
) -> None:
    """No two totals that are known differ by fewer sites than the threshold: it is of all sites, not of the group."""
    settings = (
        "federation.sites=12 federation.secret={} federation.secret_colluders=0 ridge.width=9"
    )
    config = small(method="ridge", rounds=1, set=settings.format("on"))
    with pytest.raises(FederationError, match=r"6 of 12 sites are left"):
        run(config, DroppingGrid, drops={(TRAIN, 1): {*range(6)}})
    first = run(config, DroppingGrid, drops={(TRAIN, 1): {*range(4)}})
    again = with_recorded({"resume": str(first.directory), "set": "federation.newcomers=any"})
    with pytest.raises(FederationError, match=r"4 of 4 sites are left .* and 8 open it"):
        run(again)


# ---- what excludes it -------------------------------------------------------------------------------


def test_what_turns_the_looks_off_may_be_typed(small: Small) -> None:
    load(
        small(
            method="fedavg",
            set="federation.secret=on federation.robust=none federation.max_update=0",
        )
    )


def test_running_statistics_are_refused_as_the_run_begins(small: Small) -> None:
    config = small(method="fedavg", rounds=1, set="federation.secret=on model.norm=batch")
    with pytest.raises(ConfigError, match="running statistics"):
        run(config)
