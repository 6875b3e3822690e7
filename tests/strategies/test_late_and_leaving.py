"""Sites that join the sums of a record, or leave them: a new record, as if they had been there all along, or never."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from federation import MissingGrid, PromptGrid
from federation import run as run_on

import nectar
from common.division import Division
from common.errors import ConfigError, FederationError, NectarError
from nectar.arguments import parse_arguments
from nectar.recorded_run import RecordedRun
from nectar.records.identity import Identity
from nectar.records.outputs import with_recorded
from nectar.records.real_images import RealImages, real_images
from nectar.records.record import RunRecord
from nectar.records.run_list import Archive
from server_app.app import make_strategy
from strategies.ridge import Ridge

QUICK: dict[str, Any] = {"ridge.width": 17, "federation.sites": 3, "evaluation.batch": 400}
KEPT = QUICK | {"ridge.keep": "sites"}
FORMS = ("int8", "integers")
NAMES = ["partition-0", "partition-1", "partition-2"]


def ran(output: Path, *without: str, **more: Any) -> RecordedRun:
    """Run with digits in three parts, of which the sites ``without`` never answer."""
    typed = {"method": "ridge", "dataset": "digits", "output-dir": str(output)}
    words = [f"{key}={value}" for key, value in {**typed, **QUICK, **more}.items()]
    return on_grid(words, *without)


def on_grid(words: list[str], *without: str, grid: Any = MissingGrid) -> RecordedRun:
    missing = {"absent": {(site, 1) for site in without}, "lost": set()}
    config = with_recorded(parse_arguments(words))
    record = run_on(config, grid, **(missing if grid is MissingGrid else {}))
    return RecordedRun.open(record.directory)


def again(run: RecordedRun, *words: str, without: tuple[str, ...] = ()) -> RecordedRun:
    return on_grid([f"resume={run.directory}", *words], *without)


def restored(run: RecordedRun) -> Ridge:
    strategy = make_strategy(Division(run.config).run)
    assert isinstance(strategy, Ridge)
    strategy.restore(run.checkpoint().strategy)
    return strategy


def head(run: RecordedRun) -> torch.Tensor:
    state = run.checkpoint().model("")
    return torch.cat([state["head.weight"], state["head.bias"][:, None]], 1)


def files(run: RecordedRun) -> dict[str, bytes]:
    """Return what a record holds, but for the lock of its writer."""
    named = [p for p in run.directory.rglob("*") if p.is_file() and "checkpoint" in str(p)]
    return {str(p): p.read_bytes() for p in [*named, run.directory / "metrics.jsonl"]}


# ---- a site is late ---------------------------------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.parametrize("form", FORMS)
def test_a_late_site_is_asked_alone_and_the_model_is_that_of_all(tmp_path: Path, form: str) -> None:
    more = {"ridge.form": form}
    first = ran(tmp_path, "partition-2", **more)
    assert first.rounds[-1]["accepted"] == NAMES[:2]
    before = files(first)
    late = again(first, "federation.newcomers=any")
    assert files(first) == before
    assert late.directory != first.directory
    assert list(late.rounds[-1]["bytes"]["down"]) == ["partition-2"]
    assert late.rounds[-1]["notes"]["in_total"] == NAMES
    assert list(late.partition["sites"]) == NAMES
    whole = ran(tmp_path, **more)
    assert torch.equal(head(late), head(whole))
    assert late.rounds[-1]["test"] == whole.rounds[-1]["test"]
    assert late.accuracy == whole.accuracy > first.accuracy


@pytest.mark.extended
def test_a_site_that_is_in_the_total_is_not_asked_again(tmp_path: Path) -> None:
    first = ran(tmp_path, "partition-2")
    late = again(first, "federation.newcomers=any")
    there = sorted(tmp_path.iterdir())
    with pytest.raises(
        FederationError, match=r"no site is new: .* has partition-0, partition-1, p"
    ):
        again(late, "federation.newcomers=any")
    with pytest.raises(FederationError, match="no site is new"):
        again(late)
    assert sorted(tmp_path.iterdir()) == there
    assert Archive(tmp_path).completed(Identity.of(first.config)).id == first.id
    state = late.checkpoint().strategy
    assert list(state["rows"]) == NAMES
    assert not state["sites"]


@pytest.mark.extended
def test_sites_that_were_not_chosen_are_late_too_in_a_run_as_it_is_typed(tmp_path: Path) -> None:
    more = QUICK | {"ridge.form": "integers"}
    first = nectar.run(
        "ridge", output_dir=tmp_path, progress=False, **more, **{"federation.participation": 0.34}
    )
    assert len(first.rounds[-1]["accepted"]) == 1
    late = nectar.run(resume=first.directory, progress=False, **{"federation.newcomers": "any"})
    assert len(late.rounds[-1]["accepted"]) == 2
    assert torch.equal(head(late), head(ran(tmp_path, **more)))


@pytest.mark.extended
def test_a_late_sites_noise_is_its_own_and_the_totals_grows(tmp_path: Path) -> None:
    noise = {"privacy.noise_multiplier": 0.1}
    first = ran(tmp_path, "partition-1", **noise)
    late = again(first, "federation.newcomers=any")
    penalties = [
        run.rounds[-1]["notes"]["penalty"] for run in (first, late, ran(tmp_path, **noise))
    ]
    assert penalties[1] == penalties[2]
    assert penalties[1] == pytest.approx(penalties[0] * 1.5**0.5)
    spent = late.rounds[-1]["notes"]["spent"]
    assert {name: one["epsilon"] for name, one in spent.items()} == dict.fromkeys(
        spent, spent["partition-1"]["epsilon"]
    )
    assert sorted(spent) == NAMES


# ---- a site leaves ----------------------------------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.parametrize(("form", "axes"), [("int8", "server"), ("integers", "random")])
def test_without_a_sites_sums_the_model_is_that_of_a_run_that_never_had_it(
    tmp_path: Path, form: str, axes: str, caplog: pytest.LogCaptureFixture
) -> None:
    more = KEPT | {"ridge.form": form, "ridge.axes": axes}
    whole = ran(tmp_path, **more)
    before = files(whole)
    left = again(whole, "ridge.forget=partition-1", without=tuple(NAMES))
    assert f"NOT forgotten: {whole.directory}, copies and exports" in caplog.text
    assert files(whole) == before
    never = ran(tmp_path, "partition-1", **more)
    assert torch.equal(head(left), head(never))
    assert not torch.equal(head(left), head(whole))
    assert left.rounds[-1]["test"] == never.rounds[-1]["test"]
    assert left.rounds[-1]["notes"]["penalty"] == never.rounds[-1]["notes"]["penalty"]
    assert not left.rounds[-1]["bytes"]["down"]
    kept, other = left.checkpoint().strategy, never.checkpoint().strategy
    assert kept["rows"] == other["rows"]
    assert all(map(torch.equal, kept["total"], other["total"]))
    assert kept["sites"].keys() == other["sites"].keys() == {"partition-0", "partition-2"}
    assert list(left.partition["sites"]) == ["partition-0", "partition-2"]
    assert left.partition["simulated"] is True
    assert left.completed


@pytest.mark.extended
def test_who_was_forgotten_stays_so_and_a_late_one_joins_what_is_left(tmp_path: Path) -> None:
    more = KEPT | {"ridge.form": "integers"}
    first = ran(tmp_path, "partition-2", **more)
    left = again(first, "ridge.forget=partition-0")
    late = again(left, "federation.newcomers=any")
    assert late.rounds[-1]["accepted"] == ["partition-2"]
    assert late.rounds[-1]["notes"]["forgotten"] == ["partition-0"]
    assert torch.equal(head(late), head(ran(tmp_path, "partition-0", **more)))
    alone = again(late, "ridge.forget=partition-2")
    assert alone.rounds[-1]["notes"]["forgotten"] == ["partition-0", "partition-2"]
    assert torch.equal(head(alone), head(left))
    with pytest.raises(FederationError, match="and partition-0, partition-2 forgotten"):
        again(alone, "ridge.forget=partition-0")


@pytest.mark.extended
def test_the_coding_error_is_of_those_that_are_left(tmp_path: Path) -> None:
    whole = ran(tmp_path, **KEPT)
    strategy = restored(again(whole, "ridge.forget=partition-0"))
    assert list(strategy._rows) == ["partition-1", "partition-2"]
    total = sum(strategy._rows.values())
    assert strategy._total is not None
    assert strategy._summing.count(strategy._total) == pytest.approx(total)


@pytest.mark.extended
def test_the_record_of_those_that_are_left_still_knows_who_held_what(tmp_path: Path) -> None:
    whole = ran(tmp_path, **KEPT)
    left = again(whole, "ridge.forget=partition-0")
    before, after = (real_images(RunRecord.open(run.directory)) for run in (whole, left))
    assert isinstance(before, RealImages)
    assert isinstance(after, RealImages)
    assert (before.shares, after.shares) == (3, 3)
    assert list(after.parts) == ["partition-1", "partition-2"]
    for site, part in after.parts.items():
        assert part.tolist() == before.parts[site].tolist()


# ---- what is refused --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RecordedRun:
    return ran(tmp_path_factory.mktemp("whole"), **KEPT)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["ridge.forget=north"],
            r"north: .* has partition-0, partition-1, partition-2 in its total; name some",
        ),
        (["ridge.forget=partition-0,north"], "name some of these"),
        (["ridge.forget=partition-0,partition-1,partition-2"], "not all"),
        (["ridge.forget=partition-0", "ridge.width=9"], r"other settings \(.*ridge.width"),
        (["ridge.forget=partition-0", "ridge.keep=none"], "run again without the site"),
        (["federation.newcomers=any", "rounds=2"], "set rounds=1"),
        (["federation.newcomers=any"], "no site is new"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence_and_makes_no_record(
    whole: RecordedRun, words: list[str], message: str
) -> None:
    with pytest.raises(NectarError, match=message):
        again(whole, *words)
    assert [*whole.directory.parent.iterdir()] == [whole.directory]


@pytest.mark.extended
def test_forgetting_is_of_a_record_and_of_sums(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs a record"):
        ran(tmp_path, **(KEPT | {"ridge.forget": "partition-1"}))
    config = {"method": "fedavg", "dataset": "digits", "output-dir": str(tmp_path)}
    other = run_on(config | {"set": "federation.sites=2 fedavg.epochs=1"})
    with pytest.raises(ConfigError, match="method=fedavg learned from a site cannot be removed"):
        on_grid([f"resume={other.directory}", "ridge.forget=partition-1"])


@pytest.mark.extended
def test_a_record_that_stopped_before_it_was_done_is_not_taken_for_a_run(tmp_path: Path) -> None:
    whole = ran(tmp_path, **KEPT)
    left = again(whole, "ridge.forget=partition-1")
    for file in (left.directory / "checkpoint").iterdir():
        file.unlink()
    with pytest.raises(FederationError, match="stopped before its first round was done"):
        again(left)


@pytest.mark.extended
def test_replies_that_come_one_by_one_are_added_once(tmp_path: Path) -> None:
    first = ran(tmp_path, "partition-2", **{"ridge.form": "integers"})
    late = on_grid([f"resume={first.directory}", "federation.newcomers=any"], grid=PromptGrid)
    assert torch.equal(head(late), head(ran(tmp_path, **{"ridge.form": "integers"})))


@pytest.mark.extended
def test_several_leave_at_once(tmp_path: Path) -> None:
    whole = ran(tmp_path, **KEPT)
    left = again(whole, "ridge.forget=partition-2, partition-0")
    assert torch.equal(head(left), head(ran(tmp_path, "partition-0", "partition-2", **KEPT)))
