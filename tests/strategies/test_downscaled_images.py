"""Images distilled at half their size: what travels is a quarter, what is learned from and compared is whole."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from federation import TamperedGrid, run
from small import Small
from tampering import with_arrays
from torch.testing import assert_close

from client_app.outbound import count_copies
from common.config.loading import load
from common.division import Division
from common.errors import ConfigError
from common.learning.run import Run
from common.models import build
from common.samples.inputs import Samples
from common.sites import Site
from common.specs.images import half_shape, images_spec
from common.wire.images import SyntheticImages
from common.wire.weights import Weights
from strategies.exchange.replies import Upload
from strategies.feddm import FedDM
from synth.distribution_matching import OfHalfSize, doubled, halved

HALF = "feddm.side=half feddm.start=noise"


def made(words: str = HALF) -> Run:
    return Division(load({"method": "feddm", "set": f"model.width=8 {words}"})).run


def test_four_pixels_become_their_mean_and_one_becomes_four() -> None:
    image = torch.tensor([[1.0, 3.0, 0.0, 0.0], [5.0, 7.0, 0.0, 8.0]])[None, None]
    assert halved(image).flatten().tolist() == [4.0, 2.0]
    assert_close(
        doubled(torch.tensor([[0.0, 4.0]])[None, None])[0, 0, 0], torch.tensor([0, 1.0, 3, 4])
    )
    even = torch.full((2, 3, 4, 6), 0.25)
    assert torch.equal(doubled(halved(even)), even)


def test_a_network_sees_them_doubled_and_its_gradient_reaches_the_small_ones() -> None:
    model = build("convnet", (1, 8, 8), 10, depth=1, width=4).double()
    small = torch.randn(3, 1, 4, 4, dtype=torch.float64, requires_grad=True)
    half = OfHalfSize(model)
    assert torch.equal(half.embed(small), model.embed(doubled(small)))
    assert torch.equal(half.classify(half.embed(small)), model(doubled(small)))
    assert half.couples_samples == model.couples_samples
    assert torch.autograd.gradcheck(lambda x: half.classify(half.embed(x)), (small,), atol=1e-4)


def test_a_side_that_is_odd_is_refused_in_a_sentence() -> None:
    plain = made()
    odd = Run(plain.config, replace(plain.info, shape=(1, 8, 7)))
    with pytest.raises(ConfigError, match=r"even sides.*8 x 7.*leave feddm\.side=full"):
        half_shape(odd)
    with pytest.raises(ConfigError, match="even sides"):
        FedDM(odd)


def test_what_is_sent_is_a_quarter_and_what_is_learned_from_is_whole() -> None:
    run_ = made()
    server = FedDM(run_)
    assert server.half
    assert images_spec(run_, 2, half=True).shape == (1, 4, 4)
    sent = SyntheticImages(torch.randn(4, 1, 4, 4), torch.arange(4))
    weights = Weights.of(run_.build_model())
    server.update(1, weights, [Upload(Site("partition-0", 1, examples=9), sent, 9, {})])
    (shown,) = server.pictures().values()
    assert torch.equal(shown.images, doubled(sent.images))


@pytest.mark.extended
def test_a_run_counts_and_sends_a_quarter_of_the_values(small: Small) -> None:
    words = f"{HALF} feddm.warm=on wire.images=jpeg:60"
    whole, full = (run(small(set=each)) for each in (words, "feddm.start=noise"))
    for one, other in zip(whole.metrics()[1:], full.metrics()[1:], strict=True):
        assert 4 * one["floats_up"] == other["floats_up"]


@pytest.mark.parametrize("wire", ["float32", "jpeg:60"])
def test_a_reply_of_the_wrong_sides_is_that_sites_rejection(small: Small, wire: str) -> None:
    """A site that takes the run for one of full size, or the other way round."""

    def larger(arrays: list[np.ndarray]) -> list[np.ndarray]:
        n = len(arrays[2])
        shown = SyntheticImages(
            torch.zeros(n, 1, 8, 9), torch.from_numpy(arrays[2].astype(np.int64))
        )
        return replace(shown, codec=wire, mean=(0.5,), std=(0.5,)).encode()

    config = small(method="feddm", rounds=1, set=f"{HALF} wire.images={wire}")
    line = run(config, TamperedGrid, tampers={1: with_arrays(larger)}).metrics()[1]
    assert list(line["rejected"]) == ["partition-1"]
    message = line["rejected"]["partition-1"]
    assert "(n, 1, 4, 4), n at most" in message if wire == "float32" else "pixels wide" in message
    assert len(line["accepted"]) == 2


def test_from_real_images_they_are_these_averaged_and_copies_are_counted_at_full_size() -> None:
    """Images of one value each are their own halves, blown up: copies, which at half the size nobody could compare."""
    info = made().info
    levels = torch.linspace(-1, 1, 6)[:, None, None, None]
    samples = Samples.of(levels.expand(-1, 1, 8, 8).contiguous(), torch.arange(6))
    sent = SyntheticImages(halved(samples.inputs(slice(0, 3))), torch.arange(3))
    counted = count_copies(sent, samples, info)
    assert counted is not None
    assert (counted.images, counted.equal) == (3, 3)
    far = SyntheticImages(torch.tensor([-1.0, 1.0]).repeat(1, 1, 4, 2), torch.arange(1))
    assert not count_copies(far, samples, info).found  # type: ignore[union-attr]


@pytest.mark.extended
@pytest.mark.parametrize(
    "words",
    [
        "feddm.start=real",
        "feddm.start=mean feddm.dsa=flip_crop",
        "feddm.start=mix:2",
        "feddm.mechanism=feature privacy.noise_multiplier=1 privacy.counts=public",
        "feddm.mechanism=gradient privacy.noise_multiplier=1 privacy.counts=public",
    ],
)
def test_every_start_and_mechanism_has_it(small: Small, words: str) -> None:
    line = run(small(method="feddm", rounds=1, set=f"feddm.side=half {words}")).metrics()[1]
    assert line["rejected"] == {}
    assert line["floats_up"] % 16 == 0
