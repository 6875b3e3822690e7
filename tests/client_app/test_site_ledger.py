"""A private run at a real site: charged before it draws, within its owner's budget, and nothing else told."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from private_method import MULTIPLIER
from real_site import RECORD, Site
from small import Small

from client_app.owner.ledger import NO_BUDGET
from common.draws.private_draws import KeyStream
from common.privacy.accounting import epsilon
from common.privacy.events import Event
from common.privacy.ledger import LEDGER, Ledger, LedgerTip, PrivacyReport
from nectar.operate.privacy_plan import rounds_left

pytestmark = [
    pytest.mark.usefixtures("fresh_data"),
    pytest.mark.promise(
        "A site is the master of its own machine",
        "Epsilon is never under-counted, over kills, retries and all runs; no run passes the "
        "budget; with one, runs that are not private are refused",
    ),
]


METHOD = "private_method:METHOD"
EVENT = Event("noisy", MULTIPLIER)
BUDGET = 1.2
FITS = rounds_left([], [EVENT], BUDGET, 1e-5)


@pytest.fixture
def site(small: Small, tmp_path: Path) -> Callable[..., Site]:
    """Return a maker of the site, whose noise is its system's."""

    def make(text: str = "", **node: Any) -> Site:
        run = small(method=METHOD, set=f"privacy.noise=system {text}")
        kept = {"state-dir": str(tmp_path / "state"), "allow-imports": "private_method"}
        return Site(run, **{**kept, **node})

    return make


def told(reply: Any) -> PrivacyReport:
    return PrivacyReport.read(dict(reply.content.config_records["privacy"]))


def test_each_answer_is_charged_a_repeated_round_again_and_every_run_to_one_ledger(
    site: Callable[..., Site], tmp_path: Path
) -> None:
    for record in (RECORD, RECORD, "20260102-000000-another-run"):
        assert not site().train("train", record=record).has_error()
    lines = Ledger(tmp_path / "state").read()
    assert lines.events == [EVENT] * 3
    first = lines.charges[0]
    assert (first.record, first.round, first.phase, first.method) == (RECORD, 1, "train", "noisy")
    assert (first.site, first.unit) == ("partition-0", "example")
    assert first.data == "partition 0 of 1 of digits"


def test_the_ledgers_head_goes_along_and_counts_only_where_they_are_public(
    site: Callable[..., Site], tmp_path: Path
) -> None:
    message = told(site().train("train"))
    assert message == PrivacyReport((), complete=True, head=Ledger(tmp_path / "state").read().head)
    site().train("train", record="20260102-000000-another-run")
    message = told(site("privacy.counts=public").train("train"))
    assert message.events == (Event("noisy", MULTIPLIER, steps=2),), "this run's alone, both rounds"
    assert message.head is not None
    assert message.head.length == 3


def test_two_sites_on_one_ledger_are_told_their_own_charges_and_share_the_budget(
    site: Callable[..., Site], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    public, seen = "privacy.counts=public", []
    caplog.set_level("WARNING", "flwr")
    for name in ("north", "south", "north"):
        seen.append(told(site(public, site=name).train("train")))
    assert [message.events for message in seen] == [
        (EVENT,),
        (EVENT,),
        (Event("noisy", MULTIPLIER, steps=2),),
    ]
    assert Ledger(tmp_path / "state").read().events == [EVENT] * 3
    warned = [record.getMessage() for record in caplog.records if "charges of" in record.msg]
    assert ["has charges of north too" in line for line in warned] == [True, False]
    assert "has charges of south too, which count for north's budget" in warned[1]
    spent = epsilon([EVENT] * 3, 1e-5).value
    assert site(site="south", **{"privacy-epsilon": spent}).train("train").has_error()
    assert not site(site="south", **{"privacy-epsilon": 1.3 * spent}).train("train").has_error()


# ---- the budget ---------------------------------------------------------------------------------------


def test_the_budget_is_kept_over_all_runs_and_refuses_without_drawing(
    site: Callable[..., Site], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert FITS is not None
    assert FITS >= 2
    node = {"privacy-epsilon": BUDGET}
    for number in range(FITS):
        record = f"20260101-00000{number}-run"
        assert not site(**node).train("train", record=record).has_error()
    before = (tmp_path / "state" / LEDGER).read_bytes()
    drawn: list[object] = []
    monkeypatch.setattr(KeyStream, "normal", lambda stream, shape: drawn.append(shape))
    for text, record in (("", RECORD), ("noisy.epochs=2", "other"), ("noisy.multiplier=7", "more")):
        reply = site(text, **node).train("train", record=record)
        assert reply.error.reason == NO_BUDGET
    assert drawn == []
    assert (tmp_path / "state" / LEDGER).read_bytes() == before
    spent = epsilon(Ledger(tmp_path / "state").read().events, 1e-5).value
    assert spent <= BUDGET < epsilon([EVENT] * (FITS + 1), 1e-5).value


def test_less_noise_and_a_smaller_delta_cost_more(site: Callable[..., Site]) -> None:
    one = epsilon([EVENT], 1e-5).value
    node = {"privacy-epsilon": one}
    assert site("noisy.multiplier=4", **node).train("train").error.reason == NO_BUDGET
    strict = site(**{"privacy-epsilon": one, "privacy-delta": 1e-9})
    assert strict.train("train").error.reason == NO_BUDGET
    assert not site(**node).train("train").has_error()


def test_no_noise_is_beyond_every_budget(site: Callable[..., Site]) -> None:
    assert (
        site("noisy.multiplier=0", **{"privacy-epsilon": 1e6}).train("train").error.reason
        == NO_BUDGET
    )


def test_a_run_that_is_not_private_is_beyond_it_too(small: Small, tmp_path: Path) -> None:
    node = {"privacy-epsilon": 8, "state-dir": str(tmp_path / "state")}
    message = Site(small(method="fedavg"), **node).refusal()
    assert "privacy-epsilon" in message
    assert "method=fedavg" in message


def test_a_budget_without_a_place_for_its_ledger_refuses_every_run(small: Small) -> None:
    message = Site(small(method="fedavg"), **{"privacy-epsilon": 3}).refusal()
    assert "names no state-dir, which holds its ledger" in message


# ---- no release before its line -----------------------------------------------------------------------


class Killed(BaseException):
    """A kill: nothing behind it runs."""


def test_a_site_killed_as_it_draws_has_counted_it(
    site: Callable[..., Site], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []

    def killed(stream: object, shape: object) -> None:
        found.append(Ledger(tmp_path / "state").read().head.length)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(KeyStream, "normal", killed)
        with pytest.raises(Killed):
            site().train("train")
    assert found == [1]
    assert not site().train("train").has_error()
    assert Ledger(tmp_path / "state").read().head.length == 2


def test_noise_that_nothing_was_charged_for_is_not_drawn(site: Callable[..., Site]) -> None:
    reply = site("noisy.forgets=on").train("train")
    assert "noise for which nothing was charged" in str(reply.error.reason)


def test_a_site_without_a_place_for_a_ledger_takes_no_part_in_what_is_private(small: Small) -> None:
    run = small(method=METHOD, set="privacy.noise=system")
    reply = Site(run, **{"allow-imports": "private_method"}).train("train")
    assert "names a state-dir" in str(reply.error.reason)


@pytest.mark.parametrize("damage", ["edited", "gone"])
def test_a_ledger_that_cannot_be_relied_on_lets_nothing_out(
    site: Callable[..., Site], tmp_path: Path, damage: str
) -> None:
    site().train("train")
    path = tmp_path / "state" / LEDGER
    if damage == "gone":
        path.unlink()
    else:
        path.write_text(path.read_text().replace("noisy", "quiet"))
    reason = str(site().train("train").error.reason)
    assert reason == "this site's privacy ledger cannot be used, and its log says why"


# ---- an older copy ------------------------------------------------------------------------------------


def test_an_older_copy_is_refused_once_the_server_has_seen_a_later_head(
    site: Callable[..., Site], tmp_path: Path
) -> None:
    state, backup = tmp_path / "state", tmp_path / "backup"
    site().train("train")
    shutil.copytree(state, backup)
    later = told(site().train("train")).head
    assert later is not None
    assert not site().train("train", head=later).has_error()
    shutil.rmtree(state)
    shutil.copytree(backup, state)
    for reply in (site().train("train", head=later), site().roll_call({"partition-0": later})):
        assert reply.error.reason == (
            "this site's privacy ledger is older than one that the server has seen"
        )
    assert Ledger(state).read().head.length == 1
    assert not site().roll_call({"partition-1": later}).has_error(), "another site's"


def test_a_site_that_lost_its_state_is_refused_too(site: Callable[..., Site], small: Small) -> None:
    head = LedgerTip(1, "ab" * 32)
    assert "is older than" in str(site().roll_call({"partition-0": head}).error.reason)
    nowhere = Site(small(method="fedavg")).roll_call({"partition-0": head})
    assert "keeps no privacy ledger" in str(nowhere.error.reason)


# ---- what stays at the site ---------------------------------------------------------------------------


@pytest.mark.promise(
    "A site is the master of its own machine",
    "In a private run no count, time or figure leaves beside the mechanism",
)
def test_no_count_no_time_and_no_figure_of_private_data_leaves(site: Callable[..., Site]) -> None:
    reply = site().train("train")
    (record,) = reply.content.metric_records.values()
    assert set(record) == {"draws", "num-examples"}
    assert record["num-examples"] == 1
    (sizes,) = site().roll_call().content.metric_records.values()
    assert dict(sizes) == {"num-examples": 1, "num-partitions": 1}


def test_public_counts_are_told_and_nothing_else(site: Callable[..., Site]) -> None:
    reply = site("privacy.counts=public").train("train")
    (record,) = reply.content.metric_records.values()
    assert set(record) == {"draws", "num-examples"}
    assert record["num-examples"] > 100
    (sizes,) = site("privacy.counts=public").roll_call().content.metric_records.values()
    assert sizes["num-examples"] == record["num-examples"]


@pytest.mark.parametrize("asked", ["class-counts", "held-out"])
def test_a_server_that_asks_for_more_counts_gets_none(
    site: Callable[..., Site], asked: str
) -> None:
    reply = site().roll_call(**{asked: True})
    assert "reports no counts by class" in str(reply.error.reason)


def test_nor_does_an_evaluation_that_no_setting_speaks_of(site: Callable[..., Site]) -> None:
    reply = site("data.site_holdout=0.2").evaluate()
    assert "evaluation at sites is not possible in a private run" in str(reply.error.reason)


def test_seeded_noise_is_charged_to_the_record_alone(small: Small, tmp_path: Path) -> None:
    node = {"state-dir": str(tmp_path / "state"), "allow-imports": "private_method"}
    message = told(Site(small(method=METHOD), **node).train("train"))
    assert message == PrivacyReport((EVENT,), seeded=True)
    assert not (tmp_path / "state" / LEDGER).exists()


def test_the_log_of_what_left_names_the_same_figures(
    site: Callable[..., Site], tmp_path: Path
) -> None:
    site().train("train")
    (line,) = (tmp_path / "state/released.jsonl").read_text().splitlines()
    assert json.loads(line)["figures"] == "draws num-examples"


def test_what_the_ledger_keeps_is_its_owners_alone(
    site: Callable[..., Site], tmp_path: Path
) -> None:
    site().train("train")
    assert not [p for p in (tmp_path / "state").rglob("*") if p.stat().st_mode & 0o077]
