"""Runs with DP-SGD: plain training where clip and noise do nothing, what is charged, and what no reply tells."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from federation import run
from real_site import Site
from small import Small
from torch import Tensor, nn

from client_app import local_training
from client_app.device import DeviceClient
from client_app.draws import Draws
from common.config.loading import load
from common.division import Division
from common.learning.training import Gradients, Objective, dp_sgd
from common.privacy.events import Event
from common.specs.fedssyn import DONE
from nectar.records.record import RunRecord
from nectar.report.privacy import exposed
from nectar.report.view import View
from server_app.checkpoint import Checkpoint
from server_app.record import Record
from synth.private_release import Gaussian

PRIVATE = "privacy.noise_multiplier=1 privacy.counts=public"
CUT = "model.depth=2 data.images=300 fedavg.batch=16 fedavg.lr=0.1"
VAE = "model.name=vae model.depth=1 fedvae.epochs=1 fedvae.preliminary_rounds=1"


def weights(record: Any) -> dict[str, Tensor]:
    return dict(Checkpoint.load(record.last).weights)


def examples_of(record: Any) -> dict[str, int]:
    sites = json.loads((record.directory / "partition.json").read_text())["sites"]
    return {site: row["examples"] for site, row in sites.items()}


# ---- without clip and noise it is plain training -----------------------------------------------------------


def unbounded(
    model: nn.Module, objective: Objective, x: Tensor, targets: Tensor, *rest: Tensor
) -> Tensor:
    """The private rule with an infinite clip, no noise, and plain's divisor."""
    rule = dp_sgd(Gaussian(0.0, math.inf, lambda shape: torch.full(tuple(shape), math.nan)), len(x))
    return rule(model, objective, x, targets, *rest)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("method", "text"),
    [
        ("fedavg", "fedavg.momentum=0.9 fedavg.weight_decay=0.01"),
        ("fedprox", "fedprox.mu=0.1"),
        ("scaffold", ""),
        ("feddyn", "feddyn.alpha=0.1"),
        ("moon", "moon.mu=5.0 model.projection=8"),
        (
            "fedgen",
            "fedgen.hidden=8 fedgen.noise=4 fedgen.generator_steps=3 fedgen.generator_batch=16",
        ),
        ("fedvae", VAE),
    ],
)
@pytest.mark.usefixtures("smooth")
def test_with_an_infinite_clip_and_no_noise_it_is_plain_training(
    small: Small, monkeypatch: pytest.MonkeyPatch, method: str, text: str
) -> None:
    """With plain's batches and divisor, two rounds deep, to 1e-6 of the weights."""
    given = {"method": method, "rounds": 2}
    plain = weights(run(small(**given, set=f"{CUT} {text}")))

    def gradients(client: Any, *_: Any) -> Any:
        return client.generator("local-training"), Gradients(unbounded)

    monkeypatch.setattr(local_training, "_gradients", gradients)
    private = weights(run(small(**given, set=f"{CUT} {text} {PRIVATE}")))
    for name, tensor in plain.items():
        torch.testing.assert_close(private[name], tensor, rtol=1e-6, atol=1e-6)


# ---- what is charged ------------------------------------------------------------------------------------


def charged(record: Record, server_round: int = -1) -> dict[str, Event]:
    """Return what each site was charged up to a round: one kind of event, with all of its steps."""
    spent = record.metrics()[server_round]["notes"]["spent"]
    found = {}
    for site, told in spent.items():
        (event,) = told["events"]
        found[site] = Event.read(event)
    return found


def steps_of(n: int, rounds: int = 1) -> Event:
    """Return FedAvg's: q = 64 / n and ceil(1 / q) steps a round."""
    return Event("dp-sgd", 1.0, 64 / n, rounds * math.ceil(n / 64))


@pytest.mark.extended
def test_a_site_is_charged_each_round_for_its_steps(small: Small) -> None:
    record = run(small(method="fedavg", rounds=2, set=PRIVATE))
    sizes = examples_of(record)
    for rounds in (1, 2):
        assert charged(record, rounds) == {site: steps_of(n, rounds) for site, n in sizes.items()}
    assert len(set(sizes.values())) == 3


@pytest.mark.extended
def test_with_private_counts_every_site_has_the_same_steps(small: Small) -> None:
    text = "privacy.noise_multiplier=1 privacy.examples=200 fednova.momentum=0.5"
    record = run(small(method="fednova", rounds=1, set=text))
    assert set(charged(record).values()) == {Event("dp-sgd", 1.0, 64 / 200, 4)}
    told = record.metrics()[-1]["train"]["normalizer"]
    assert told == pytest.approx(1 + 1.5 + 1.75 + 1.875), "a_k of four steps, at each site"


@pytest.mark.extended
@pytest.mark.parametrize("objective", ["loss", "update"])
def test_fedsynth_is_charged_for_the_training_that_it_rests_on(
    small: Small, objective: str
) -> None:
    """Its own steps on real batches with objective=loss, or local training's, which objective=update imitates."""
    fidelity = "off" if objective == "loss" else "on"
    text = (
        f"{PRIVATE} fedsynth.objective={objective} fedsynth.fidelity={fidelity} fedsynth.rate=2 "
        "fedsynth.real_batch=100 fedsynth.iterations=7"
    )
    record = run(small(method="fedsynth", rounds=1, set=text))
    for site, n in examples_of(record).items():
        own = Event("dp-sgd", 1.0, 100 / n, 7)
        assert charged(record)[site] == (own if objective == "loss" else steps_of(n))


# ---- what leaves ----------------------------------------------------------------------------------------


@pytest.mark.extended
def test_what_steers_a_private_run_travels_and_is_of_nobodys_data(small: Small) -> None:
    """Fedssyn's word that its images are made; and inside it FedNova's a_k, which public counts alone decide."""
    text = f"{PRIVATE} data.images=200 {DDPM} fedssyn.inner=fednova fedssyn.shared=off"
    record = run(small(method="fedssyn", rounds=2, set=text))
    made, learned = (line["devices"] for line in record.metrics()[1:])
    assert list(made.values()) == 3 * [{DONE: 1.0, "seeded-noise": 1.0}]
    for site, n in examples_of(record).items():
        assert learned[site] == {"normalizer": math.ceil(n / 64), "seeded-noise": 1.0}


def test_a_model_that_normalises_over_its_batch_is_refused_before_it_is_charged(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    def charge(client: DeviceClient, steps: object) -> None:
        raise AssertionError("it was charged")

    monkeypatch.setattr(local_training, "charge", charge)
    given = small(method="fedavg", set=f"{PRIVATE} model.norm=batch")
    message = str(Site(given).train("train").error.reason)
    assert "choose model.norm=group or instance" in message


def test_noise_is_what_the_settings_say(small: Small) -> None:
    """With nobody drawn, one step moves each weight by lr sigma C / B times a normal number: 0.1 x 4 x 0.5 / 2."""
    text = (
        "privacy.noise_multiplier=4 privacy.clip=0.5 privacy.examples=2 federation.sites=1 fedavg.batch=2 "
        "fedavg.lr=0.1 fedavg.epochs=1"
    )
    given = small(method="fedavg", rounds=1, set=text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Draws, "sample", lambda *_: torch.zeros(0, dtype=torch.int64))
        record = run(given)
    start = dict(Division(load(given)).run.build_model().named_parameters())
    moved = torch.cat([(weights(record)[n] - p.detach()).flatten() for n, p in start.items()])
    sigma = 0.1 * 4 * 0.5 / 2
    assert len(moved) > 500
    assert float(moved.std()) == pytest.approx(sigma, rel=5 / math.sqrt(2 * len(moved)))


# ---- Fedssyn's generators -------------------------------------------------------------------------------

DDPM = (
    "fedssyn.epochs=2 fedssyn.batch=16 fedssyn.width=4 fedssyn.multipliers=1 fedssyn.blocks=1 fedssyn.attention= "
    "fedssyn.diffusion_steps=20 fedssyn.sampling_steps=3 fedssyn.size=5 fedssyn.noise_multiplier=1.5 "
    "fedssyn.multiplicity=2"
)


@pytest.mark.extended
def test_a_private_generator_is_charged_with_the_training_that_follows(small: Small) -> None:
    """On 75 % of a site's images: q = 16 / m, ceil(2 m / 16) steps; and as much again where its images are found."""
    given = small(method="fedssyn", rounds=3, set=f"{PRIVATE} {CUT} {DDPM}")
    record = run(given)
    for site, n in examples_of(record).items():
        m = max(1, round(0.75 * n))
        events = [Event.read(e) for e in record.metrics()[-1]["notes"]["spent"][site]["events"]]
        made = Event("dp-ddpm", 1.5, 16 / m, math.ceil(2 * m / 16))
        assert made in events
        (learned,) = [event for event in events if event.mechanism == "dp-sgd"]
        assert learned.noise_multiplier == 1.0
        assert learned.sample_rate == pytest.approx(16 / (n + 5)), (
            "from its own images and its share"
        )
    assert not any(line.get("rejected") for line in record.metrics())
    again = run(given).metrics()[1]["notes"]["spent"]
    assert all(any(e["mechanism"] == "dp-ddpm" for e in told["events"]) for told in again.values())


@pytest.mark.extended
def test_private_images_beside_a_training_that_is_not(small: Small) -> None:
    """As in the paper: the images are private, what is learned from the site's own is not, and no more is charged."""
    record = run(small(method="fedssyn", rounds=2, set=f"{CUT} {DDPM}"))
    for told in record.metrics()[-1]["notes"]["spent"].values():
        assert [event["mechanism"] for event in told["events"]] == ["dp-ddpm"]
    message = " ".join(exposed(View(RunRecord.open(record.directory))))
    assert "released by dp-ddpm in this run has an epsilon of" in message
    assert "Nothing else that was sent in this run is differentially private." in message
    assert "nothing about them is differentially private" not in message
