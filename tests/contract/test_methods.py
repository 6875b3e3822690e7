"""What holds of every method, whatever it computes: one function a property, one row of `cases` a method.

What is a method's own, its numbers, is in tests/strategies/test_<method>.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federation import MissingGrid, TamperedGrid, numbers, run, same_end
from tiers import only_these_first

from client_app import device
from client_app.decode_cache import DecodeCache
from common.config.loading import load
from common.division import Division
from common.errors import ConfigError
from common.learning.run import Run
from common.methods import METHODS
from common.samples.inputs import samples
from common.settings.fedavg import OWN_MODELS
from common.wire.weights import Weights
from nectar.engines.local_grid import LocalGrid
from nectar.engines.local_run import run_here
from nectar.export.bundle import export
from nectar.export.model import ExportedModel
from nectar.export.scoring import score
from nectar.records.record import RunRecord
from nectar.report.page import page
from nectar.report.view import View
from server_app.record import Record
from tests.contract.base import (
    Runs,
    assert_same,
    assert_same_end,
    broken_off,
    ended_with,
)
from tests.contract.cases import CASES, POOLED, SITES, Case, rows
from tests.contract.hostile import SPOILT, longer, spoiler

#: methods of which no site is asked anything
ALONE = ("central", "server")


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """Runs that are made once; that no test changed a shared record is seen at the end."""
    made = Runs(tmp_path_factory.mktemp("contract"))
    yield made
    made.require_unchanged()


def config_in(
    tmp_path: Path, runs: Runs, case: Case, more: str = "", **keys: Any
) -> dict[str, Any]:
    """Return the run config of a run that a test makes for itself."""
    return runs.config(case, more, **keys) | {"output-dir": str(tmp_path / "runs")}


def plain(case: Case) -> bool:
    return case.plain


def asks(case: Case) -> bool:
    return case.method not in ALONE


def lasts(case: Case) -> bool:
    return case.plain and asks(case) and not case.once


# ---- the numbers do not depend on how a run is carried out ------------------------------------------------


@pytest.mark.promise(
    "Records",
    "A run killed at any write goes on to the numbers of an unbroken one",
)
@pytest.mark.parametrize("case", rows())
def test_broken_off_behind_each_round_a_run_has_the_numbers_of_an_unbroken_one(
    runs: Runs, tmp_path: Path, case: Case
) -> None:
    assert_same(broken_off(config_in(tmp_path, runs, case)), runs.base(case).record)


@pytest.mark.extended
@pytest.mark.promise(
    "Records",
    "A pool gives the numbers of one process, to the bit; a dead worker costs its site that "
    "round; nothing is left or printed after",
)
@pytest.mark.parametrize("case", rows(lambda case: case.name in POOLED))
def test_two_processes_give_the_numbers_of_one(runs: Runs, tmp_path: Path, case: Case) -> None:
    """There one site answers the roll call for all, which the record does not show either."""
    pooled = run_here(load(config_in(tmp_path, runs, case, "compute.workers=2")))
    assert_same(pooled, runs.base(case).record)
    one, other = (r.directory / "partition.json" for r in (pooled, runs.base(case).record))
    assert one.read_bytes() == other.read_bytes()


class Forgetful(DecodeCache):
    """Decodes all that comes, each time."""

    def decode(self, arrays: Any, spec: Any) -> Any:
        """Return the payload in memory of its own."""
        return spec.decode(arrays)


def built_anew(run: Run, weights: Weights) -> Any:
    model = run.build_model()
    weights.load_into(model)
    return model


@pytest.mark.parametrize("case", rows(asks))
def test_a_wave_of_devices_that_share_nothing_at_a_time_gives_the_numbers_of_all_at_once(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: Case
) -> None:
    """Each builds its own model, and decodes what came to it."""
    at_once = runs.base(case).record
    monkeypatch.setattr(Run, "model_with", built_anew)
    monkeypatch.setattr(device, "DECODE_CACHE", Forgetful())
    assert_same(run(config_in(tmp_path, runs, case, "federation.wave=3")), at_once)


NOT_INSIDE = ("fedssyn", "server", "ridge", *OWN_MODELS)


def goes_inside(case: Case) -> bool:
    return case.plain and case.method in METHODS and case.method not in NOT_INSIDE


@pytest.mark.parametrize("case", rows(goes_inside))
def test_inside_fedssyn_with_nothing_shared_a_method_is_itself(
    runs: Runs, tmp_path: Path, case: Case
) -> None:
    inside = f"fedssyn.inner={case.method} fedssyn.source=none"
    around = run(config_in(tmp_path, runs, case, inside, method="fedssyn"))
    alone = runs.base(case).record
    assert same_end(around, alone)
    told = ("test", "sites", "notes", "floats_up", "rejected")
    for one, other in zip(numbers(around)[1:], numbers(alone)[1:], strict=True):
        assert {name: one.get(name) for name in told} == {name: other.get(name) for name in told}


#: by settings under which a method's own part is nothing: what it then is, a case under some settings
NEUTRAL = {
    "fedprox.mu=0": ("fedavg", ""),
    "fedprox.mu=0 fedprox.momentum=0.5": ("fedavg", "fedavg.momentum=0.5"),
    "moon.mu=0": ("fedavg", ""),
    "moon.mu=0 model.projection=8": ("fedavg", "model.projection=8"),
    "feddyn.alpha=0": ("fedavg", "fedavg.weighting=uniform"),
    "fedpvr.layers=none": ("fedavg", "fedavg.weighting=uniform"),
    "fedpvr.layers=features,head": ("scaffold", ""),
    "fedmix.mix=0": ("fedavg", ""),
    "fedmix.mean_of=2000": ("fedavg", ""),
    "fedgen.strength=0": ("fedavg", ""),
    "dense.server_iterations=0 dense.momentum=0 dense.distil=every": ("fedavg", ""),
    "feddpms.smallest=100000": ("fedvae", "fedvae.weighting=counts"),
}


@pytest.mark.parametrize("words", NEUTRAL)
def test_a_method_whose_own_part_is_nothing_is_the_plainer_one_to_the_bit(
    runs: Runs, tmp_path: Path, words: str
) -> None:
    method, (name, settings) = words.partition(".")[0], NEUTRAL[words]
    case, plainer = (next(c for c in CASES if c.name == each) for each in (method, name))
    neutral = run(config_in(tmp_path, runs, case, words))
    plain = runs.base(plainer, settings).record
    assert same_end(neutral, plain)
    assert [line["test"] for line in neutral.metrics()] == [
        line["test"] for line in plain.metrics()
    ]


# ---- sites that are late, lost, spoilt or gone ------------------------------------------------------------


#: those whose sites and servers keep something of rounds that were taken, a kind each
LATER = (
    "fedavg int8",
    "scaffold",
    "feddyn",
    "feddm warm",
    "fedgen",
    "fedssyn",
    "feddpms",
    "lowrank",
    "ditto",
    "FedAdam",
)


@pytest.mark.promise(
    "Absurd figures, and the roll call",
    "An update of 1e20, or with which the model gives no finite numbers, is rejected; the "
    "bounds change no number of an honest run",
)
@pytest.mark.promise(
    "Absurd figures, and the roll call",
    "Parts that no honest site has leave nothing in a checkpoint",
)
@pytest.mark.parametrize("behind", [1, pytest.param(3, marks=pytest.mark.extended)])
@pytest.mark.parametrize("case", rows(asks))
def test_a_spoilt_reply_costs_its_sender_alone_and_counts_like_one_that_never_was(
    runs: Runs, tmp_path: Path, case: Case, behind: int
) -> None:
    """In one round as many sites spoil theirs as there are ways; in the next they go on from what was last taken."""
    if behind > 1 and case.name not in LATER:
        return
    hostile = {f"partition-{i}": spoil for i, spoil in enumerate(SPOILT.values())}
    rounds, sites = behind + (not case.once), len(hostile) + SITES
    text = f"federation.sites={sites} federation.participation=1 data.images=300"
    config = config_in(tmp_path, runs, case, text, rounds=rounds)
    tampers = {i: spoiler(spoil, behind) for i, spoil in enumerate(hostile.values())}
    spoilt = run(config, TamperedGrid, tampers=tampers)
    line = spoilt.metrics()[behind]
    assert line["rejected"].keys() == hostile.keys()
    assert line["accepted"] == [f"partition-{i}" for i in range(len(hostile), sites)]
    assert case.once or not spoilt.metrics()[-1]["rejected"]
    absent = run(config, MissingGrid, absent={(site, behind) for site in hostile}, lost=set())
    assert_same_end(spoilt, absent, but="spending")  # what was charged stays charged, taken or not


class LeavingGrid(LocalGrid):
    """A federation whose last node is not there in round 2: it leaves, and comes back."""

    _round = 0

    def push_messages(self, messages: Any) -> list[str]:
        """Note the round."""
        messages = list(messages)
        rounds = [m.metadata.group_id for m in messages if m.metadata.message_type == "train"]
        self._round = max([self._round, *map(int, rounds)])
        return super().push_messages(messages)

    def get_node_ids(self) -> list[int]:
        """Return those that are there when the next round begins."""
        nodes = super().get_node_ids()
        return nodes[:-1] if self._round == 1 else nodes


@pytest.mark.parametrize("case", rows(lasts))
def test_a_site_that_leaves_is_let_go_and_taken_back(
    runs: Runs, tmp_path: Path, case: Case
) -> None:
    words = "federation.participation=1 federation.join_deadline=0.1"
    lines = run(config_in(tmp_path, runs, case, words, rounds=3), LeavingGrid).metrics()
    names = [f"partition-{i}" for i in range(SITES)]
    assert [line["accepted"] for line in lines[1:]] == [names, names[:-1], names]
    assert not any(line["rejected"] for line in lines)


CLIPPED = (
    *("fedavg", "fedprox", "fednova", "scaffold", "feddyn", "fedpvr", "moon", "masking"),
    *("topk", "lowrank", "fedgen", "dense", "feddf", "FedAdam", "FedMedian"),
)


@pytest.mark.parametrize("inside", ["", pytest.param("fedssyn", marks=pytest.mark.extended)])
@pytest.mark.parametrize("case", rows(lambda case: case.name in CLIPPED))
def test_a_long_update_is_shortened(runs: Runs, tmp_path: Path, case: Case, inside: str) -> None:
    """What is 40 times as long as the others' counts for what may be believed of it, and its site stays."""
    words = "federation.max_update=0"
    config = config_in(tmp_path, runs, case, words, rounds=1)
    if inside and case.method in METHODS:
        config |= {
            "method": inside,
            "set": f"{config['set']} fedssyn.inner={case.method} fedssyn.source=none",
        }
    line = run(config, TamperedGrid, tampers={1: longer}).metrics()[1]
    assert list(line["shortened"]) == ["partition-1"]
    assert 0 < line["shortened"]["partition-1"] < 0.5
    assert not line["rejected"]


# ---- what an honest site is believed, and what it keeps to itself ------------------------------------------

CROWDS = {
    "hold-outs": "data.site_holdout=0.2 federation.sites=3 federation.participation=0.7 "
    "federation.max_examples=150 partition.kind=dirichlet partition.alpha=5",
    "one class a site": "partition.kind=by_class partition.classes_per_client=1 federation.sites=10",
    "few of a class": "partition.kind=dirichlet partition.alpha=0.05 federation.sites=5",
    "private counts": "privacy.noise_multiplier=1 privacy.noise=seeded privacy.examples=140 "
    "data.site_holdout=0.2 evaluation.on=server",
    "public counts": "privacy.noise_multiplier=1 privacy.noise=seeded privacy.counts=public "
    "data.site_holdout=0.2 evaluation.on=server",
}


#: figures that follow from the settings and public counts, or are of noisy means
OF_NOBODY = {"seeded-noise", "normalizer", "synthetic", "noise-multiplier"}


def taken(config: dict[str, Any]) -> bool:
    """Return whether the method can do what is asked; where it cannot it says so before it begins."""
    try:
        load(config)
    except ConfigError:
        return False
    return True


@pytest.mark.promise(
    "Absurd figures, and the roll call",
    "No honest site is refused for its counts, whatever the method",
)
@pytest.mark.parametrize("crowd", only_these_first(CROWDS, "hold-outs", "one class a site"))
@pytest.mark.parametrize("case", rows(plain))
def test_no_honest_reply_is_refused(runs: Runs, case: Case, crowd: str) -> None:
    """And of a private run no figure of the examples is in the record."""
    if not taken(runs.config(case, CROWDS[crowd])):
        return
    record = runs.base(case, CROWDS[crowd]).record
    lines = record.metrics()
    assert len(lines) == case.rounds + 1
    assert not any(line["rejected"] or line["unevaluated"] for line in lines)
    if crowd == "private counts" and asks(case):
        sites = json.loads((record.directory / "partition.json").read_text())["sites"]
        assert {site["examples"] for site in sites.values()} == {1}
    if crowd in ("private counts", "public counts") and asks(case):
        for line in lines[1:]:
            assert set(line["seconds"]["by_site"].values()) == {None}
            told = {name for figures in line["devices"].values() for name in figures}
            assert told <= OF_NOBODY, told


def real_images(record: Record) -> torch.Tensor:
    """Return the sites' images as a model gets them, one a row."""
    division = Division(RunRecord.open(record.directory).config)
    parts = np.concatenate(division.partition(division.config.federation.sites))
    held = samples(division.dataset.train, division.run.info)
    return held.at(torch.as_tensor(parts)).inputs(slice(None)).flatten(1)


@pytest.mark.parametrize("case", rows(lambda case: case.method != "real" and asks(case)))
def test_no_image_of_a_site_is_in_a_checkpoint_or_in_what_sites_remember(
    runs: Runs, case: Case
) -> None:
    record = runs.base(case).record
    real = real_images(record)
    kept = [value for path, value in tensors(ended_with(record)) if value.shape[-2:] == (8, 8)]
    for images in kept:
        if images.dtype == torch.float32:
            assert float(torch.cdist(images.flatten(1), real).min()) > 1e-3


def tensors(found: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a nested value by their paths."""
    each = (
        found.items()
        if isinstance(found, dict)
        else enumerate(found)
        if isinstance(found, list)
        else ()
    )
    for key, value in each:
        yield from tensors(value, f"{path}/{key}")
    if isinstance(found, torch.Tensor):
        yield path, found


# ---- the record -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", rows(asks))
def test_the_bytes_of_a_round_are_those_that_were_sent(runs: Runs, case: Case) -> None:
    record, sizes = runs.base(case)
    assert [line["bytes"] for line in record.metrics()[1:]] == [*sizes.values()]


@pytest.mark.parametrize("case", rows(plain))
def test_its_record_is_reported_exported_and_scored(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: Case
) -> None:
    monkeypatch.setattr("nectar.export.bundle.write_graphs", lambda *_: ({}, ""))
    past = RunRecord.open(runs.base(case).record.directory)
    assert past.completed
    text = page([View(past)])
    assert past.id in text
    if past.config.method in OWN_MODELS:
        return
    name = next(iter(past.checkpoint().models))
    exported = ExportedModel.open(export(past, tmp_path / "out", model=name).folder)
    division = Division(past.config)
    test = samples(division.dataset.test, division.run.info)
    found = score(exported, [(test.raw, test.labels)], torch.device("cpu"))
    told = past.rounds[-1]
    assert found.accuracy == pytest.approx(
        told.get("models", {}).get(name, told["test"])["accuracy"]
    )
