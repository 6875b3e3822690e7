"""FedDM with differential privacy, run whole: what leaves a site, what it remembers, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from federation import run
from flwr.app import RecordDict
from small import Small
from torch import Tensor

from client_app.feddm import FedDMClient
from client_app.state import ContextState
from common.config.loading import load
from common.division import Division
from common.errors import FederationError
from common.privacy.events import Event
from common.samples.inputs import Samples
from common.settings.feddm import FedDMSettings
from common.specs.images import images_spec
from common.wire.images import SyntheticImages, SyntheticImagesSpec
from common.wire.weights import Weights
from synth.distribution_matching import Extra
from synth.private_release import Gaussian

pytestmark = pytest.mark.promise(
    "What leaves a site is not a private image",
    "Each release is charged before it is drawn",
)

PUBLIC = "privacy.counts=public"
MECHANISMS = ("gradient", "feature")


def private(mechanism: str, sigma: float = 1.0, text: str = PUBLIC) -> str:
    return f"feddm.mechanism={mechanism} privacy.noise_multiplier={sigma} {text}"


def client(config: dict[str, Any], *, own: bool = False) -> FedDMClient:
    """Return a client with 24 digits-like images of the classes 1, 3 and 7: 12, 8 and 4 of them."""
    run_ = Division(load(config)).run
    labels = torch.tensor([1] * 12 + [3] * 8 + [7] * 4)
    images = torch.randn(24, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    none = Samples.of(images[:0], labels[:0])
    state = ContextState(RecordDict())
    return FedDMClient(run_, "a", Samples.of(images, labels), none, state, user_data=own)


def reply(device: FedDMClient, server_round: int = 1, taken: int = 0) -> tuple[Any, dict[str, Any]]:
    weights = Weights.of(device.run.build_model()).encode()
    asked = {"server-round": server_round, "phase": "synthesize", "taken": taken}
    arrays, _, figures = device.fit(weights, asked)
    return arrays, figures


def spec(device: FedDMClient) -> SyntheticImagesSpec:
    return images_spec(device.run, 9)


# ---- whole runs ---------------------------------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_run_learns_with_little_noise_and_not_with_much(small: Small, mechanism: str) -> None:
    """25 steps: sigma 0.01 has an epsilon of more than 100,000, sigma 1000 one below 0.1."""
    text = (
        f"{PUBLIC} privacy.clip=5 feddm.iterations=25 feddm.image_lr=10 feddm.real_batch=64 "
        "image_training.epochs=60 image_training.lr=0.05"
    )
    accuracy = {
        sigma: run(small(rounds=1, set=private(mechanism, sigma, text))).metrics()[-1]["test"]
        for sigma in (0.01, 1000.0)
    }
    assert accuracy[0.01]["accuracy"] > 0.5
    assert accuracy[1000.0]["accuracy"] < 0.35


# ---- what a site sends and remembers ------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_without_an_iteration_nothing_of_the_images_is_in_the_reply(
    small: Small, mechanism: str
) -> None:
    """Noise by class alone; so a start that held anything of them would show here."""
    config = small(set=f"{private(mechanism)} feddm.iterations=0")
    one, other = client(config), client(config)
    other.samples = Samples.of(torch.full((24, 1, 8, 8), 3.0), other.samples.labels)
    assert all((a == b).all() for a, b in zip(reply(one)[0], reply(other)[0], strict=True))


def test_an_empty_class_and_a_full_one_send_equally_many(small: Small) -> None:
    device = client(small(set=f"{private('feature')} feddm.ipc=3"))
    sent = device.synthesize(Weights.of(device.run.build_model()))
    assert isinstance(sent, SyntheticImages)
    assert sent.labels.tolist() == [1] * 3 + [3] * 3 + [7] * 3


def test_a_second_round_goes_on_from_the_first_ones_images(small: Small) -> None:
    device = client(small(set=f"{private('gradient')} feddm.iterations=0 feddm.start=noise"))
    first, _ = reply(device)
    second, _ = reply(device, 2, taken=1)
    assert all((a == b).all() for a, b in zip(first, second, strict=True))


def test_a_class_that_the_site_did_not_hold_starts_from_noise(small: Small) -> None:
    """And one that it no longer holds is left out: nothing is refused for what the site's data are."""
    device = client(small(set=f"{private('feature')} feddm.iterations=0 feddm.start=noise"))
    first = spec(device).decode(reply(device)[0])
    device.samples = Samples.of(device.samples.raw, (device.samples.labels + 4) % 11)
    second = spec(device).decode(reply(device, 2, taken=1)[0])
    assert second.labels.tolist() == [0, 0, 5, 5, 7, 7]
    assert torch.equal(second.images[4:], first.images[4:])
    assert not torch.equal(second.images[:4], first.images[:4])


def test_counts_with_noise_are_drawn_once(small: Small) -> None:
    text = "feddm.counts_noise=5 feddm.iterations=1"
    device = client(small(set=private("feature", 1.0, text)))
    reply(device)
    device.begin({"server-round": 2, "taken": 1})
    first = device._counts()
    reply(device, 2, taken=1)
    assert first is not None
    assert torch.equal(first, device._counts())  # type: ignore[arg-type]
    assert not torch.equal(first, torch.tensor([12.0, 8.0, 4.0]))


# ---- what is charged ----------------------------------------------------------------------------------


def uncharged(device: FedDMClient) -> int:
    """Return how many releases of a round are in no event that was charged before them."""
    drawn = 0
    released = Gaussian.released

    def counted(self: Gaussian, sums: Tensor) -> Tensor:
        nonlocal drawn
        drawn += 1
        assert device.round.charged is not None, "noise before the charge"
        return released(self, sums)

    with patch.object(Gaussian, "released", counted):
        reply(device)
    assert device.round.charged is not None
    return drawn - sum(event.steps for event in device.round.charged.events)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_each_release_of_a_round_is_charged(small: Small, mechanism: str) -> None:
    """By the class of the highest rate: of 12, 8 and 4 images 5 are drawn on average, of the last all."""
    text = f"{PUBLIC} feddm.iterations=7 feddm.real_batch=5"
    device = client(small(set=private(mechanism, 1.5, text)))
    assert uncharged(device) == 0
    assert device.round.charged is not None
    assert device.round.charged.events == (Event(f"feddm-{mechanism}", 1.5, 1.0, 7),)
    text = f"{PUBLIC} feddm.iterations=7 feddm.real_batch=2"
    device = client(small(set=private(mechanism, 1.5, text)))
    assert uncharged(device) == 0
    assert device.round.charged.events == (Event(f"feddm-{mechanism}", 1.5, 0.5, 7),)


def test_counts_with_noise_are_an_event_of_their_own(small: Small) -> None:
    device = client(small(set=private("feature", 1.0, "feddm.counts_noise=5 feddm.iterations=2")))
    assert uncharged(device) == 0
    assert device.round.charged is not None
    first, second = device.round.charged.events
    assert first == Event("feddm-counts", 5.0)
    assert (second.mechanism, second.steps) == ("feddm-feature", 2)


def told(config: dict[str, Any], images: float) -> dict[str, Any]:
    """Return the figures of a reply to which the images could have given nothing else: without an iteration."""
    device = client(config)
    device.samples = Samples.of(torch.full((24, 1, 8, 8), images), device.samples.labels)
    return {name: v for name, v in reply(device)[1].items() if name != "seconds"}


# ---- what is refused ----------------------------------------------------------------------------------


def test_a_model_whose_examples_see_each_other_is_refused(small: Small) -> None:
    device = client(small(set=f"{private('feature')} model.norm=batch"))
    with pytest.raises(FederationError, match=r"choose another model\.norm"):
        reply(device)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_so_is_one_in_which_no_layer_says_so(
    small: Small, monkeypatch: pytest.MonkeyPatch, mechanism: str
) -> None:
    """A user's own, which takes the mean of a batch off, and has no batch norm: refused before anything is charged."""
    device = client(small(set=private(mechanism)))
    model = device.model(Weights.of(device.run.build_model()))
    embed = type(model).embed

    class Centred(type(model)):  # type: ignore[misc]
        def embed(self, x: Tensor) -> Tensor:
            """Return the embeddings less their mean."""
            h: Tensor = embed(self, x)
            return h - h.mean(0)

    model.__class__ = Centred
    monkeypatch.setattr(FedDMClient, "model", lambda *_: model)
    assert not model.couples_samples
    with pytest.raises(FederationError, match="see each other"):
        reply(device)
    assert device.round.charged is None


def test_a_term_of_one_s_own_is_refused_under_a_mechanism_that_would_not_cover_it() -> None:
    class Own(FedDMClient):
        def extra(self) -> Extra:
            return lambda shown: shown.images.sum()

        def settings(self, cls: Any) -> Any:
            return FedDMSettings(mechanism="feature", start="noise")

    client = Own.__new__(Own)
    client.run = SimpleNamespace(config=load({}))  # type: ignore[assignment]
    nothing = torch.zeros(0)
    with pytest.raises(FederationError, match="not what a further term of the loss does"):
        client._match_privately(Weights({}), nothing, nothing, torch.Generator())
