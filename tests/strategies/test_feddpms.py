"""FedDPMS in rounds: what travels when, what equals FedVAE, and what becomes of lost replies and killed servers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from federation import TamperedGrid, run
from small import Small

import common.learning.training
from common.config.loading import load
from common.division import Division
from common.privacy.accounting import epsilon
from common.privacy.events import Event
from common.specs.feddpms import MECHANISM, decoder_spec, shared_spec, start_decoder
from common.storage import tensor_file
from server_app.checkpoint import Checkpoint
from server_app.record import Record

pytestmark = pytest.mark.extended

#: T_p = 2 of 6 rounds; every mean is sent, and the copies around it are taken whatever they look like
VAE = "model.name=vae model.depth=1 model.embedding=6 fedvae.preliminary_rounds=2 fedvae.epochs=1"
DPMS = f"{VAE} feddpms.smallest=1 feddpms.copies=4 feddpms.classes=2"
ALL = f"{DPMS} feddpms.mechanism=paper"


def notes(record: Record) -> list[Mapping[str, Any]]:
    return [line.get("notes", {}) for line in record.metrics()]


def floats(record: Record) -> list[int]:
    return [line["floats_up"] for line in record.metrics()]


def test_decoder_and_means_travel_once_and_the_variance_in_the_first_stage_alone(
    small: Small,
) -> None:
    config = small(method="feddpms", rounds=5, set=DPMS)
    record = run(config)
    here = Division(load(config)).run
    whole, shared, decoder = (
        sum(int(np.prod(s)) for s in spec.shapes)
        for spec in (here.spec, shared_spec(here), decoder_spec(here))
    )
    assert whole - shared == here.build_model().spread.weight.numel() + 6  # type: ignore[union-attr, operator]
    means = 2 * 6
    lines = floats(record)  # lists of classes are integers, and count for none
    assert lines[:4] == [0, 3 * whole, 3 * (whole + decoder), 3 * (shared + means)]
    assert lines[4:] == [3 * shared, 3 * shared]  # each was helped in round 4
    down = [sum(line["bytes"]["down"].values()) for line in record.metrics()]
    assert 3 * 4 * decoder < down[4] - down[3] < 3 * (4 * decoder + 4 * means + 2_000)
    assert down[5] == pytest.approx(down[3], rel=0.01)


def test_the_divergence_counts_as_set(small: Small) -> None:
    """Six numbers a code: the mean of the KL is its sum with a sixth of the weight, where the error is its mean."""
    text = f"{VAE} fedvae.squared_error=mean fedvae.kl="
    summed, mean = (run(small(method="fedvae", rounds=1, set=text + kl)) for kl in ("sum", "mean"))
    losses = [record.metrics()[1]["train"]["train-loss"] for record in (summed, mean)]
    assert losses[1] < losses[0]


def test_the_papers_overhead_is_alpha_n_l_over_the_parameters(small: Small) -> None:
    """r1 = alpha n l / Theta is 4 copies of 2 classes with 6 numbers each, where all are accepted."""
    record = run(small(method="feddpms", rounds=3, set=f"{ALL} feddpms.sigma=0.01"))
    alone = run(small(method="fedvae", rounds=3, set=VAE))
    more = floats(record)[3] - floats(alone)[3]
    sent = Checkpoint.load(record.last).strategy["exchange"]["vectors"]
    assert more == sum(v.numel() for v in sent.values())
    assert 0 < more <= 3 * 4 * 2 * 6
    assert all(
        len(v) % 4 == 0 for v in sent.values()
    )  # next to no noise: all copies of a class, or none


def test_the_record_says_who_helped_whom_and_what_it_cost(small: Small) -> None:
    record = run(small(method="feddpms", rounds=5, set=DPMS))
    third, fourth = notes(record)[3], notes(record)[4]
    assert list(third) == ["privacy", "spent"]
    assert list(fourth) == ["matches", "spent"]
    assert len(third["privacy"]) == 3
    for message in third["privacy"].values():
        assert message["seeded"]
        assert (message["releases"], message["delta"]) == (1, 1e-5)
        assert message["epsilon"] > 0
    for site, spent in third["spent"].items():
        noise = third["privacy"][site]["noise-multiplier"]
        charged = Event(MECHANISM, noise, adjacency="replace-one")
        assert spent["events"] == [charged.to_dict()]
        assert (
            spent["epsilon"] == epsilon([charged], 1e-5).value > third["privacy"][site]["epsilon"]
        )
    assert fourth["spent"] == third["spent"], "a site shares its means once"
    state = Checkpoint.load(record.last).strategy["exchange"]
    for site, match in fourth["matches"].items():
        assert match["helper"] != site
        assert match["classes"] == sorted(set(state["labels"][match["helper"]].tolist()))
    assert state["helped"] == {i: m["helper"] for i, m in fourth["matches"].items()}


@pytest.mark.long
def test_synthetic_images_change_the_rounds_behind_the_match(small: Small) -> None:
    helped = run(small(method="feddpms", rounds=5, set=ALL))
    alone = run(small(method="fedvae", rounds=5, set=VAE))
    one, other = ([n["test"]["loss"] for n in r.metrics()] for r in (helped, alone))
    assert one[:4] == other[:4]
    assert one[4] != other[4]
    added = [line["devices"] for line in helped.metrics()][4:]
    assert all("synthetic" in figures for line in added for figures in line.values())
    assert max(figures["synthetic"] for figures in added[0].values()) > 0


def test_an_epoch_draws_as_many_as_the_site_has_images_of_its_own(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cost is FedAvg's: with a thousand copies beside some 430 images a pass is over as many as before."""
    passes: list[tuple[int, int]] = []
    real = common.learning.training.batches

    def counted(n: int, *rest: Any, **named: Any) -> Any:
        passes.append((n, rest[-1]))
        return real(n, *rest, **named)

    monkeypatch.setattr(common.learning.training, "batches", counted)
    many = f"{ALL} feddpms.copies=1000 feddpms.max_draws=1 feddpms.sigma=0.01"
    record = run(small(method="feddpms", rounds=4, set=many))
    held = [site["examples"] for site in _held(record).values()]
    added = [int(f.get("synthetic", 0)) for f in record.metrics()[4]["devices"].values()]
    assert max(added) >= 1000
    assert passes[-3:] == [(n + m, n) for n, m in zip(held, added, strict=True)]


def _versions(record: Record, server_round: int) -> dict[str, Any]:
    found = (record.directory / "state").rglob(f"{server_round:06d}.safetensors")
    return {path.parents[2].name: path for path in found}


def test_decoders_start_equal_and_the_average_is_of_the_sites(small: Small) -> None:
    """Before the first step every site has the decoder of the run's seed; another seed has another."""
    one, again, other = (
        start_decoder(Division(load(small(method="feddpms", set=VAE, seed=s))).run)
        for s in (3, 3, 4)
    )
    pairs = list(zip(one.parameters(), again.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in pairs)
    assert not torch.equal(next(one.parameters()), next(other.parameters()))


def test_the_handed_over_decoder_is_the_mean_by_size(small: Small) -> None:
    record = run(small(method="feddpms", rounds=2, set=DPMS))
    kept = Checkpoint.load(record.last).strategy["decoder"]
    own = {s: tensor_file.load(p)[0] for s, p in _versions(record, 2).items()}
    sizes = {s: v["examples"] for s, v in _held(record).items()}
    for name, mean in kept.items():
        parts = [own[s][f"decoder/{name}"].double() * sizes[s] for s in own]
        expected = torch.stack(parts).sum(0) / sum(sizes.values())
        assert torch.allclose(mean.double(), expected, atol=1e-7)


def _held(record: Record) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((record.directory / "partition.json").read_text())["sites"]
    return found


def test_the_decoder_is_let_go_of_once_a_site_has_shared_and_was_helped(small: Small) -> None:
    record = run(small(method="feddpms", rounds=6, set=DPMS))
    names = {s: tensor_file.load(p)[0] for s, p in _versions(record, 6).items()}
    for each in names.values():
        assert any(name.startswith("synthetic/") for name in each)
        assert not any(name.startswith("decoder/") for name in each)


# ---- refusals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "figure", [2.5, *(pytest.param(f, marks=pytest.mark.long) for f in (-1.0, 9.0))]
)
def test_a_number_of_synthetic_images_that_it_cannot_have_is_refused(
    small: Small, figure: float
) -> None:
    """It weighs the site's model: at most 4 copies of 2 classes."""

    def claims(message: Any, reply: Any) -> Any:
        if message.metadata.group_id == "5":
            reply.content["metrics"]["synthetic"] = figure
        return reply

    record = run(small(method="feddpms", rounds=5, set=DPMS), TamperedGrid, tampers={1: claims})
    (why,) = record.metrics()[5]["rejected"].values()
    assert f"its synthetic is {figure:g}" in why


@pytest.mark.parametrize(
    "figure", [1e-200, None, *(pytest.param(f, marks=pytest.mark.long) for f in (-1.0, 1e12))]
)
def test_noise_that_no_class_of_the_site_can_have_costs_it_its_place_and_not_the_run(
    small: Small, figure: float | None
) -> None:
    """Epsilon is reckoned from it: its square is 0 or more than a float holds, or it is not there."""

    def claims(message: Any, reply: Any) -> Any:
        if message.metadata.group_id == "3":
            if figure is None:
                del reply.content["metrics"]["noise-multiplier"]
            else:
                reply.content["metrics"]["noise-multiplier"] = figure
        return reply

    record = run(small(method="feddpms", rounds=3, set=DPMS), TamperedGrid, tampers={1: claims})
    (why,) = record.metrics()[3]["rejected"].values()
    assert "its noise-multiplier is" in why
    assert set(notes(record)[3]["privacy"]) == {"partition-0", "partition-2"}
