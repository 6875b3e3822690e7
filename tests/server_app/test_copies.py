"""Copies among the images that were sent: counted by the sites, told by log, record and report, before all else."""

from __future__ import annotations

import logging

import pytest
import torch
from federation import TamperedGrid, run
from flwr.app import Message
from small import Small

from client_app.outbound import count_copies
from common.data.published.catalogue import describe
from common.samples.inputs import Samples
from common.specs.fedsynth import SyntheticBatches
from common.wire.images import Copies, SyntheticImages
from common.wire.weights import Weights
from nectar.records.record import RunRecord
from nectar.report.page import page
from nectar.report.view import View
from server_app.record import Record
from synth import copies
from synth.copies import nearest_distances

pytestmark = pytest.mark.promise(
    "What leaves a site is not a private image",
    "Log, record and report say first how many sent images are copies",
)


def site(count: int = 30) -> tuple[Samples, torch.Tensor]:
    """Return digits of noise, as raw values that a site keeps, and as a model gets them."""
    rng = torch.Generator().manual_seed(3)
    info = describe("digits")
    raw = torch.randint(0, 17, (count, 1, 8, 8), generator=rng, dtype=torch.uint8)
    factor, offset = 1 / (16 * info.std[0]), -info.mean[0] / info.std[0]
    held = Samples(
        raw,
        torch.arange(count) % 10,
        torch.tensor(factor)[None, None, None],
        torch.tensor(offset)[None, None, None],
    )
    return held, held.inputs(slice(None))


def test_a_site_counts_what_equals_and_what_nearly_equals_one_of_its_own() -> None:
    held, own = site()
    info = describe("digits")
    std = info.std[0]
    noise = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(4))
    sent = torch.cat([own[:3], own[3:5] + 0.03 / std * noise.sign(), own[5:7] + noise / std])
    images = SyntheticImages(sent, torch.zeros(7, dtype=torch.int64))
    assert count_copies(images, held, info) == Copies(7, 3, 2)
    beyond = SyntheticImages(own[:1] + 99.0 * (own[:1] == own.max()), torch.zeros(1).long())
    assert count_copies(beyond, held, info) == Copies(1, 1, 0), "a screen shows the same"
    batches = SyntheticBatches(sent[:6].view(2, 3, 1, 8, 8), torch.zeros(2, 3).long())
    assert count_copies(batches, held, info) == Copies(6, 3, 2)
    assert count_copies(Weights({"w": torch.zeros(2)}), held, info) is None


def test_a_sites_word_that_is_no_count_is_left_out() -> None:
    good = Copies(5, 1, 2).figures()
    bad: list[dict[str, float]] = [
        {},
        {**good, "images-equal": 6.0},
        {**good, "images-near": -1.0},
        {**good, "images-sent": 0.5},
        {**good, "images-sent": 1e300},
    ]
    assert Copies.reported(bad) is None
    assert Copies.reported([good, *bad, good]) == Copies(10, 2, 4)
    assert Copies.recorded([{"copies": None}, {}, {"copies": {"images": 3, "equal": "x"}}]) is None


def total(record: Record) -> Copies:
    return Copies(**RunRecord.open(record.directory).provenance["copies"])


@pytest.mark.extended
def test_it_is_told_first(small: Small, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "flwr"):
        record = run(small(method="real", rounds=2))
    found = total(record)
    assert found.images == found.equal > 0
    lines = record.metrics()
    one = {"images": found.images // 2, "equal": found.images // 2, "near": 0}
    assert [line["copies"] for line in lines] == [None, one, one]
    message = [r.getMessage() for r in caplog.records]
    (at,) = (i for i, s in enumerate(message) if s.startswith("REAL IMAGES, round 1: "))
    assert message[at + 1].startswith("round 1/2:")
    text = page([View(RunRecord.open(record.directory))])
    assert 0 < text.index("sent images equal a real one of their site") < text.index("Completed:")


@pytest.mark.extended
def test_from_noise_it_says_that_there_are_none_once(
    small: Small, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "flwr"):
        record = run(small(rounds=2, set="feddm.start=noise"))
    assert not total(record).found
    message = [r.getMessage() for r in caplog.records if "sent images" in r.getMessage()]
    assert len(message) == 1
    assert message[0].startswith("Copies: 0 of ")
    text = page([View(RunRecord.open(record.directory))])
    assert text.index(f"Copies: 0 of {total(record).images} sent images") < text.index("Completed:")


@pytest.mark.extended
def test_where_no_images_are_sent_nothing_is_counted(small: Small) -> None:
    record = run(small(method="fedavg", rounds=1))
    assert "copies" not in RunRecord.open(record.directory).provenance
    assert "Copies: " not in page([View(RunRecord.open(record.directory))])


def test_a_site_that_claims_nonsense_ends_nothing(small: Small) -> None:
    def claims(instruction: Message, reply: Message) -> Message:
        reply.content.metric_records["metrics"]["images-sent"] = 1e300
        return reply

    record = run(small(method="real", rounds=1), TamperedGrid, tampers={0: claims})
    line = record.metrics()[1]
    others = [line["devices"][name]["images-sent"] for name in ("partition-1", "partition-2")]
    assert line["copies"]["images"] == sum(others)


# ---- the distance from an image to the nearest real one ----------------------------------------------


def test_the_distance_is_the_root_of_the_mean_square_to_the_nearest() -> None:
    real = torch.stack([torch.zeros(1, 2, 2), torch.ones(1, 2, 2)])
    asked = torch.tensor([[0.0, 0, 0, 0.4], [1, 1, 1, 1]]).view(2, 1, 2, 2)
    found = nearest_distances(asked, lambda at: real[at], 2)
    assert found.tolist() == pytest.approx([0.2, 0.0])


def test_pieces_give_what_one_piece_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = torch.Generator().manual_seed(1)
    real, asked = torch.rand(23, 3, 4, 4, generator=rng), torch.rand(5, 3, 4, 4, generator=rng)
    asked[3] = real[22]
    whole = nearest_distances(asked, lambda at: real[at], 23)
    monkeypatch.setattr(copies, "_VALUES", 4 * 48)
    assert torch.equal(nearest_distances(asked, lambda at: real[at], 23), whole)
    assert whole[3] == 0
    assert (whole[:3] > 0.1).all()


def test_of_no_real_image_nothing_is_a_copy() -> None:
    assert (
        nearest_distances(torch.zeros(2, 1, 2, 2), lambda at: at, 0).tolist() == [float("inf")] * 2
    )
