"""FedAF's server: what it hands on, what it learns from, and what it believes of a reply."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from federation import TamperedGrid, run
from small import Small
from tampering import times, with_part

from common.config.loading import load
from common.division import Division
from common.errors import PayloadError
from common.sites import Site
from common.specs.logits import IMAGES, LOGITS, OTHERS, SHARES, WEIGHTS
from common.wire.bundle import Bundle
from common.wire.images import SyntheticImages
from common.wire.tensors import LABELS, VECTORS, Tensors, latent_means
from common.wire.weights import Weights
from strategies.exchange.replies import Upload
from strategies.fedaf import FedAF
from strategies.feddm import FedDM
from synth.aggregation_free import knowledge_gap

FIVE = (
    "federation.sites=5 partition.alpha=0.5 model.depth=2 image_training.epochs=5 fedaf.iterations=2 "
    "fedaf.ipc=2 fedaf.local_epochs=1"
)


def means(classes: list[int], rows: torch.Tensor) -> Tensors:
    return latent_means(rows, torch.tensor(classes), "float32")


def upload(
    site: int, classes: list[int], logits: torch.Tensor, shares: torch.Tensor, seed: int = 0
) -> Upload:
    drawn = torch.randn(
        2 * len(classes), 1, 8, 8, generator=torch.Generator().manual_seed(seed + site)
    )
    parts = {
        IMAGES: SyntheticImages(drawn, torch.tensor(classes).repeat(2)),
        LOGITS: means(classes, logits),
        SHARES: means(classes, shares),
    }
    sender = Site(f"partition-{site}", site + 1, examples=10)
    return Upload(sender, Bundle(parts), 10, {})


def server(text: str = "") -> tuple[FedAF, Weights]:
    run = Division(load({"method": "fedaf", "set": f"model.width=8 {text}"})).run
    return FedAF(run), Weights.of(run.build_model())


def two_sites() -> list[Upload]:
    """Classes 0 and 1 at one site, 1 and 2 at the other."""
    rows = torch.arange(10.0)
    even = torch.full((2, 10), 0.1)
    return [
        upload(0, [0, 1], torch.stack([rows, rows + 1]), even),
        upload(1, [1, 2], torch.stack([rows + 3, -rows]), even),
    ]


@pytest.mark.extended
def test_from_the_second_round_every_site_gets_the_mean_over_those_that_hold_a_class() -> None:
    fedaf, weights = server("image_training.epochs=1")
    site = Site("partition-0", 1, examples=10)
    first = fedaf.instructions(1, weights, [site])["partition-0"].payload
    assert isinstance(first, Bundle)
    assert set(first.parts) == {WEIGHTS}
    after = fedaf.update(1, weights, two_sites())
    second = fedaf.instructions(2, after, [site])["partition-0"].payload
    assert isinstance(second, Bundle)
    others = second.part(OTHERS, Tensors)
    rows = torch.arange(10.0)
    assert others[LABELS].tolist() == [0, 1, 2]
    torch.testing.assert_close(others[VECTORS], torch.stack([rows, rows + 2, -rows]))


def test_without_its_term_the_server_learns_as_feddms_does() -> None:
    """To the bit, from the same images."""
    text = "image_training.epochs=3"
    fedaf, weights = server(f"fedaf.global_strength=0 {text}")
    sent = two_sites()
    images = [
        Upload(u.site, u.payload_as(Bundle).part(IMAGES, SyntheticImages), 10, {}) for u in sent
    ]
    feddm = FedDM(Division(load({"method": "feddm", "set": f"model.width=8 {text}"})).run)
    one, two = fedaf.update(1, weights, sent), feddm.update(1, weights, images)
    assert two.tensors.keys() == one.tensors.keys()
    assert all(torch.equal(one.tensors[name], tensor) for name, tensor in two.tensors.items())


def test_the_model_comes_nearer_to_the_sites_shares() -> None:
    """Shares of class 0 that look like class 7's, against the images' own labels."""
    odd = torch.full((1, 10), 0.02)
    odd[0, 7] = 0.82
    sent = [upload(0, [0], torch.zeros(1, 10), odd)]
    gaps = []
    for strength in (0, 5):
        fedaf, weights = server(
            f"fedaf.global_strength={strength} image_training.steps=40 image_training.batch=2 "
            "image_training.ball=0"
        )
        model = fedaf.run.build_model()
        fedaf.update(1, weights, sent).load_into(model)
        images = sent[0].payload_as(Bundle).part(IMAGES, SyntheticImages)
        shares = torch.full((10, 10), torch.nan)
        shares[0] = odd
        with torch.no_grad():
            gaps.append(float(knowledge_gap(model(images.images), images.labels, shares, 2.0)))
    assert gaps[1] < 0.2 * gaps[0]


@pytest.mark.parametrize(
    ("classes", "means_of"), [([0, 1], [0, 2]), ([0, 1], [0])], ids=["other", "fewer"]
)
def test_parts_of_different_classes_are_refused(classes: list[int], means_of: list[int]) -> None:
    fedaf, weights = server()
    good = upload(0, classes, torch.zeros(2, 10), torch.full((2, 10), 0.1))
    lies = means(means_of, torch.full((len(means_of), 10), 0.1))
    for part in (LOGITS, SHARES):
        parts = {**good.payload_as(Bundle).parts, part: lies}
        with pytest.raises(PayloadError, match="are of different classes"):
            fedaf.prepare(1, weights, Upload(good.site, Bundle(parts), 10, {}))


@pytest.mark.extended
def test_mean_logits_are_held_beside_the_others(small: Small) -> None:
    """Mean logits at 50 times their length move nobody's next round by more than honest ones could."""
    config = small(method="fedaf", rounds=2, set=FIVE)
    record = run(config, TamperedGrid, tampers={1: with_part(LOGITS, times(50), [1])})
    line = record.metrics()[1]
    assert "partition-1" in {**line["rejected"], **line.get("shortened", {})}


def test_so_is_the_mean_of_one_class_among_ten(small: Small) -> None:
    """Twenty times its length is but six times the root mean square of all ten."""

    def longer(rows: np.ndarray, base: object, draw: object) -> np.ndarray:
        return np.concatenate([rows[:1] * 20, rows[1:]])

    config = small(method="fedaf", rounds=1, set=f"{FIVE} partition.kind=iid")
    line = run(config, TamperedGrid, tampers={1: with_part(LOGITS, longer, [1])}).metrics()[1]
    assert "partition-1" in line["rejected"]


@pytest.mark.extended
def test_without_local_epochs_the_shares_are_the_rounds_models(small: Small) -> None:
    config = small(method="fedaf", rounds=1, set=f"{FIVE} fedaf.local_epochs=0")
    assert not run(config).metrics()[1]["rejected"]
