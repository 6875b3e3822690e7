"""What noise on a latent mean hides: one image, given the encoder; and the encoder trained on it, which breaks that."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

import pytest
import torch
from federation import run
from flwr.app import RecordDict
from opacus.accountants import PRVAccountant
from small import Small
from torch import Tensor

import client_app.feddpms
from client_app.feddpms import FedDPMSClient
from client_app.state import ContextState, names_of
from common.config.loading import load
from common.division import Division
from common.learning.run import Run
from common.learning.training import train
from common.models import Classifier
from common.models.encoder import Decoder, VAEEncoder
from common.privacy.accounting import latent_sensitivity
from common.privacy.events import Event
from common.samples.inputs import Samples
from common.specs.feddpms import DECODER, MECHANISM, SYNTHETIC, WEIGHTS, shared_spec, start_decoder
from common.wire.bundle import Bundle
from common.wire.tensors import LABELS, VECTORS
from common.wire.weights import Weights
from server_app.checkpoint import Checkpoint
from server_app.record import Record
from synth.latent_sharing import mean_steps
from synth.private_release import Gaussian

pytestmark = pytest.mark.extended

VAE = "model.name=vae model.depth=1 model.embedding=6"
IMAGES = 12


@pytest.fixture
def here(small: Small) -> Run:
    return Division(
        load(small(method="feddpms", set=f"{VAE} feddpms.smallest=1 feddpms.sigma=0.0"))
    ).run


def neighbours(seed: int, images: int = IMAGES, classes: int = 1) -> tuple[Samples, Samples]:
    """Two sets that differ in their first image, which is nothing like the others: all bright, all dark."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(images, 1, 8, 8, generator=rng)
    y = torch.arange(images) % classes
    one, other = x.clone(), x.clone()
    one[0], other[0] = 2.0, -2.0
    return Samples.of(one, y), Samples.of(other, y)


def device(run_: Run, samples: Samples) -> FedDPMSClient:
    none = Samples.of(samples.raw[:0], samples.labels[:0])
    return FedDPMSClient(run_, "a", samples, none, ContextState(RecordDict()))


def shared_mean(run_: Run, samples: Samples, encoder: Classifier, trained: Classifier) -> Tensor:
    """Return what the device's own code sends, with no noise on it, of its first class."""
    client = device(run_, samples)
    sent = client._means(Weights.of(encoder), trained, start_decoder(run_))
    assert sent[LABELS].tolist()[0] == 0
    return sent[VECTORS][0].double()


def trained_on(run_: Run, samples: Samples) -> Classifier:
    """Return the run's model after steps of SGD on ``samples``, in the order of one seed."""
    model = run_.build_model()
    settings = run_.config.settings.model_copy(
        update={"epochs": 60, "batch": 25, "lr": 0.3, "local_optimizer": "sgd"}
    )
    train(model, samples, settings, run_.task, torch.Generator().manual_seed(5))  # type: ignore[arg-type]
    return model


def test_given_the_encoder_one_image_moves_a_mean_by_less_than_the_bound(here: Run) -> None:
    model = here.build_model()
    assert isinstance(model, VAEEncoder)
    with torch.no_grad():  # bright images get codes of 1, dark ones of 0, where the bound is tight
        bright, dark = (model.features(torch.full((1, 1, 8, 8), v)) for v in (2.0, -2.0))
        model.mu.weight.copy_(1000 * (bright - dark).expand_as(model.mu.weight))
        model.mu.bias.copy_(-(model.mu.weight @ (bright + dark)[0]) / 2)
    moved = []
    for seed in range(20):
        one, other = (shared_mean(here, s, model, model) for s in neighbours(seed))
        moved.append(float((one - other).norm()))
    bound = latent_sensitivity(6, IMAGES)
    assert bound == pytest.approx(6**0.5 / 12)
    # a sum of so many numbers of at most 1, in float32, on either side of a difference, and six differences
    rounding = 6**0.5 * 2 * IMAGES * 2**-24
    assert 0.99 * bound < max(moved) <= bound + rounding


@pytest.mark.long
def test_an_encoder_that_was_trained_on_the_image_moves_it_further(small: Small) -> None:
    """The paper's ``trained``: two runs of training that differ in one image give encoders that differ for all of them.

    Ten classes of ten images that are noise, which the encoder learns by heart; the sets differ in one image.
    """
    text = f"{VAE} feddpms.smallest=1 feddpms.sigma=0.0 feddpms.latents=trained"
    here = Division(load(small(method="feddpms", set=text))).run
    moved = []
    for seed in range(3):
        one, other = (
            shared_mean(here, s, here.build_model(), trained_on(here, s))
            for s in neighbours(seed, images=100, classes=10)
        )
        moved.append(float((one - other).norm()))
    assert min(moved) > latent_sensitivity(6, 10)


def test_received_weights_are_those_that_encode_unless_the_paper_is_asked_for(small: Small) -> None:
    """The default takes no notice of what was trained; ``trained`` takes none of what was received."""
    samples = neighbours(0)[0]
    found = {}
    for latents in ("received", "trained"):
        text = f"{VAE} feddpms.smallest=1 feddpms.sigma=0.0 feddpms.latents={latents}"
        here = Division(load(small(method="feddpms", set=text))).run
        w, other = here.build_model(), here.build_model()
        with torch.no_grad():
            other.get_parameter("mu.bias").add_(1.0)
        codes = {"received": w, "trained": other}[latents].eval().embed(samples.raw)
        found[latents] = shared_mean(here, samples, w, other)
        assert torch.allclose(found[latents], codes.mean(0).double(), atol=1e-6)
    assert not torch.allclose(found["received"], found["trained"])


@pytest.mark.parametrize("came", ["with this instruction", "with the last one"])
def test_copies_are_judged_by_the_federations_decoder_and_not_by_the_sites(
    small: Small, monkeypatch: pytest.MonkeyPatch, came: str
) -> None:
    """The paper's accept test at a site that still remembers the decoder which it trained itself."""
    text = f"{VAE} feddpms.smallest=1 feddpms.mechanism=paper fedvae.epochs=1"
    here = Division(load(small(method="feddpms", set=text))).run
    client, w = device(here, neighbours(0)[0]), Weights.of(here.build_model())
    own = Weights.of(start_decoder(here))
    zeros = Weights({name: torch.zeros_like(t) for name, t in own.tensors.items()})
    last = own if came == "with this instruction" else zeros
    client.state.save(1, names_of({"decoder": last.tensors}), 0)
    client.begin({"server-round": 2, "taken": 1})
    judged: list[Decoder] = []

    def spied(*arguments: Any) -> tuple[Tensor, Tensor]:
        judged.extend(a for a in arguments if isinstance(a, Decoder))
        return arguments[0](torch.arange(len(arguments[1]))), arguments[1]

    monkeypatch.setattr(client_app.feddpms, "_accepted", spied)
    parts = {WEIGHTS: w.only(shared_spec(here))}
    client.share(Bundle(parts if last is zeros else {**parts, DECODER: zeros}))
    (decoder,) = judged
    assert not any(bool(p.any()) for p in decoder.parameters())


@pytest.mark.parametrize("norm", [0.3, 1.0, 5.0])
def test_cut_to_a_length_the_bound_is_that_of_the_length(norm: float) -> None:
    """Brute force: codes at corners of [0, 1]^6 and random ones, one exchanged for another."""
    rng = torch.Generator().manual_seed(1)
    corners = torch.tensor([[int(b) for b in f"{i:06b}"] for i in range(64)]).double()
    codes = torch.cat([corners, torch.rand(40, 6, generator=rng, dtype=torch.float64)])
    rest, still = codes[-(IMAGES - 1) :], Gaussian(1.0, 1.0, torch.zeros)
    labels = torch.zeros(IMAGES, dtype=torch.int64)
    each = [mean_steps(torch.cat([c[None], rest]), labels, [0], norm, still)[0] for c in codes]
    means = still.values(torch.stack(each))
    moved = float(torch.cdist(means, means).max())
    bound = latent_sensitivity(6, IMAGES, norm)
    assert 0.9 * bound < moved <= bound * (1 + 1e-9)


def test_the_noise_is_sigma_on_each_number_and_each_class(small: Small) -> None:
    """One class of 12 images, 400 devices' worth of noise: its spread within five standard errors of sigma."""
    text = f"{VAE} feddpms.smallest=1 feddpms.sigma=0.7 privacy.noise=system"
    here = Division(load(small(method="feddpms", set=text))).run
    model, samples = here.build_model(), neighbours(0)[0]
    sent = torch.stack([shared_mean(here, samples, model, model) for _ in range(400)])
    noise = sent - model.embed(samples.raw).mean(0).double()
    assert float(noise.std()) == pytest.approx(0.7, rel=5 / (2 * 2400) ** 0.5)
    assert (
        len(noise.flatten().unique()) > noise.numel() - 10
    )  # of float32, two are the same at times


def test_a_class_below_the_least_number_is_never_shared(small: Small) -> None:
    record = run(
        small(
            method="feddpms",
            rounds=3,
            set=f"{VAE} fedvae.preliminary_rounds=2 fedvae.epochs=1 feddpms.smallest=100",
        )
    )
    held = json.loads((record.directory / "partition.json").read_text())["sites"]
    shared = Checkpoint.load(record.last).strategy["exchange"]["labels"]
    classes = {site: labels.tolist() for site, labels in shared.items()}
    expected = {}
    for site, about in held.items():
        counts = about["classes"]
        most = sorted(range(10), key=lambda c: (-counts[c], c))[:3]
        expected[site] = [c for c in most if counts[c] >= 100]
    assert classes == expected
    assert 0 < sum(map(len, expected.values())) < 9


# ---- to the record and the report --------------------------------------------------------------------


LATENT, SIGMA, BATCH = 6, 2.0, 16
TEXT = (
    f"model.name=vae model.depth=1 model.embedding={LATENT} fedvae.preliminary_rounds=2 fedvae.epochs=1 "
    f"feddpms.batch={BATCH} feddpms.smallest=1 feddpms.copies=4 feddpms.sigma={SIGMA} privacy.noise_multiplier=1.5"
)
PUBLIC = f"{TEXT} privacy.counts=public"


def training(record: Record, site: str, n: int) -> Counter[float]:
    """Return the steps of all rounds by their sample rate: once a site is helped it draws from more than its own."""
    steps: Counter[float] = Counter()
    for line in record.metrics()[1:]:
        pool = n + line["devices"][site].get(SYNTHETIC, 0)
        steps[BATCH / pool] += math.ceil(n / BATCH)
    return steps


def test_a_site_is_charged_for_every_rounds_steps_and_for_its_means(small: Small) -> None:
    """The noise on means is sigma m / sqrt(l), m the images of the smallest class shared; an exchange counts as two."""
    record = run(small(method="feddpms", rounds=4, set=PUBLIC))
    sites = json.loads((record.directory / "partition.json").read_text())["sites"]
    last = record.metrics()[-1]["notes"]["spent"]
    helped = 0
    for site, about in sites.items():
        events = [Event.read(event) for event in last[site]["events"]]
        steps = training(record, site, about["examples"])
        helped += len(steps) > 1
        taken = {e.sample_rate: e.steps for e in events if e.mechanism == "dp-sgd"}
        assert taken == steps
        (means,) = [event for event in events if event.mechanism == MECHANISM]
        smallest = sorted(about["classes"])[-3]
        noise = SIGMA * smallest / math.sqrt(LATENT)
        assert means.noise_multiplier == pytest.approx(noise)
        assert (means.steps, means.adjacency) == (1, "replace-one")
        assert len(events) == 1 + len(taken)
        accountant = PRVAccountant()
        accountant.history = [(1.5, q, number) for q, number in steps.items()] + [(noise, 1.0, 2)]
        assert last[site]["epsilon"] == pytest.approx(accountant.get_epsilon(1e-5), rel=0.02)
    assert helped, "nobody was helped, and all rates are those of the sites' own images"
