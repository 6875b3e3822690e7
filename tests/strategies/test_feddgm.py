"""FedDGM in rounds: which models travel, which are learned of what is distilled, and what is kept between rounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from federation import TamperedGrid, last, run
from flwr.app import Message
from small import Small
from tampering import with_arrays

from common.config.loading import load
from common.division import Division
from common.errors import ConfigError
from common.learning.run import Run
from common.samples.inputs import Samples
from common.sites import Site
from common.wire.weights import Weights
from strategies import surrogate as global_models
from strategies.exchange.lengths import weights_length
from strategies.exchange.replies import Upload
from strategies.feddgm import FedDGM
from strategies.surrogate import SURROGATE

#: what runs in a moment: two images a class, three steps of a student of three, two global models
TINY = (
    "feddgm.together=2 data.images=200 model.depth=2 feddgm.epochs=2 feddgm.ipc=2 feddgm.iterations=3 "
    "feddgm.inner_epochs=3 "
    "feddgm.global_epochs=2 feddgm.surrogate_epochs=2 feddgm.global_models=mlp,convnet feddgm.generator=pixels"
)
DEPTHS = "feddgm.depths=partition-1:1"
#: bytes of an array that travels besides its numbers: NumPy's header
HEADER = 128


@pytest.mark.extended
def test_the_first_global_model_gives_the_figures_and_the_others_stand_beside(small: Small) -> None:
    record = run(small(method="feddgm", set=f"{TINY} {DEPTHS}"))
    for line in record.metrics()[1:]:
        assert set(line["models"]) == {"mlp", "convnet", SURROGATE, "depth-1"}
        own = {key: value for key, value in line["test"].items() if key != "confusion"}
        assert own == line["models"]["mlp"]
    assert set(last(record).models) == {"mlp", "convnet"}


def test_each_site_trains_the_surrogate_of_its_depth(small: Small) -> None:
    """In bytes: a network of one block has fewer weights in its convolutions, and more in its last layer."""
    config = small(method="feddgm", rounds=1, set=f"{TINY} {DEPTHS}")
    record = run(config)
    a_run = Division(load(config)).run
    expected = {
        name: sum(4 * int(np.prod(shape)) + HEADER for shape in shapes_of(a_run.with_model(name)))
        for name in ("", "depth-1")
    }
    up = record.metrics()[1]["bytes"]["up"]
    assert up["partition-1"] - up["partition-0"] == pytest.approx(
        expected["depth-1"] - expected[""], abs=40
    )


def shapes_of(a_run: Run) -> list[tuple[int, ...]]:
    return [tuple(t.shape) for t in a_run.build_model().state_dict().values()]


@pytest.mark.long
@pytest.mark.extended
def test_matching_is_noted_by_site_and_falls(small: Small) -> None:
    record = run(
        small(method="feddgm", rounds=1, set=f"{TINY} feddgm.iterations=60 feddgm.latent_lr=50")
    )
    noted = record.metrics()[1]["notes"]["matching"]
    assert set(noted) == set(record.metrics()[1]["accepted"])
    for site in noted.values():
        first, final = site["loss"]
        assert final < first
        assert site["step-size"] > 0


def test_weights_that_come_back_as_they_were_sent_cost_the_site_its_place(small: Small) -> None:
    def echo(instruction: Message, reply: Message) -> Message:
        sent = next(iter(instruction.content.array_records.values())).to_numpy_ndarrays()
        return with_arrays(lambda arrays: sent)(instruction, reply)

    record = run(small(method="feddgm", rounds=1, set=TINY), TamperedGrid, tampers={0: echo})
    (reason,) = record.metrics()[1]["rejected"].values()
    assert "nothing can be distilled of a site that has not trained" in reason
    assert len(record.metrics()[1]["accepted"]) == 2


ONE_BLOCK = "federation.sites=4 feddgm.depths=partition-1:1,partition-2:1,partition-3:1"


def test_weights_of_another_depth_that_give_no_numbers_are_rejected(small: Small) -> None:
    """Shorter than any bound: the last layer's 2e38 are finite, and what they add up to is not."""

    def huge(arrays: list[np.ndarray]) -> list[np.ndarray]:
        return [*arrays[:-2], np.full_like(arrays[-2], 2e38), arrays[-1]]

    text = f"{TINY} {ONE_BLOCK} federation.max_update=0"
    record = run(
        small(method="feddgm", rounds=1, set=text), TamperedGrid, tampers={3: with_arrays(huge)}
    )
    line = record.metrics()[1]
    assert "gives no finite numbers" in line["rejected"]["partition-3"]
    assert len(line["accepted"]) == 3


def test_an_update_is_held_against_those_of_its_own_depth(small: Small) -> None:
    """Lengths 1 and 2 of the run's depth, 60 of another: usual there, and implausible beside the first two.

    In units that are far longer than either network's own weights, below whose length no update is implausible.
    """
    config = small(method="feddgm", set=f"{TINY} {ONE_BLOCK} federation.max_update=10")
    server = FedDGM(Division(load(config)).run)
    start = Weights.of(server.run.build_model())
    sites = [Site(f"partition-{i}", i + 1, 9) for i in range(4)]
    unit = 1000 * max(weights_length(server.initial_model(start, site)[0]) for site in sites)

    def reasons(*moved: tuple[int, float]) -> list[str | None]:
        sent = [
            Upload(sites[i], changed(server, start, sites[i], by * unit), 1, {}) for i, by in moved
        ]
        return [verdict.reason for verdict in server.begin(1, start).screen._compared(sent)]

    assert reasons((0, 1.0), (1, 60.0), (0, 2.0), (2, 60.0)) == [None] * 4
    message = reasons((0, 60.0), (1, 60.0), (0, 2.0), (2, 60.0))
    assert [reason is None for reason in message] == [False, True, True, True]
    assert f"10 times the {2 * unit:.2g} that is usual" in str(message[0])


def changed(server: FedDGM, start: Weights, site: Site, length: float) -> Weights:
    """Return what a site began with, its first weight moved by so much."""
    began, _ = server.initial_model(start, site)
    tensors = {name: tensor.clone() for name, tensor in began.tensors.items()}
    next(iter(tensors.values())).view(-1)[0] += length
    return Weights(tensors)


@pytest.mark.extended
def test_side_by_side_is_one_after_the_other_but_for_the_draws(small: Small) -> None:
    """Without augmentation nothing but the latents is drawn, and those by site: equal to rounding."""
    text = f"{TINY} feddgm.dsa= feddgm.iterations=5 feddgm.latent_lr=20"
    alone = run(small(method="feddgm", rounds=1, set=f"{text} feddgm.together=1"))
    beside = run(small(method="feddgm", rounds=1, set=f"{text} feddgm.together=2"))
    one, other = (record.metrics()[1]["notes"]["matching"] for record in (alone, beside))
    assert one.keys() == other.keys()
    for site, noted in one.items():
        assert other[site]["loss"] == pytest.approx(noted["loss"], rel=1e-4)
    weights = last(alone).weights
    for name, tensor in last(beside).weights.items():
        assert torch.allclose(tensor, weights[name], atol=1e-4)


@pytest.mark.parametrize("together", [1, 3])
def test_weights_that_lead_out_of_the_numbers_cost_the_site_its_place(
    small: Small, together: int
) -> None:
    """A trajectory of absurd length is no update that a judge of lengths could compare, where two sites are asked."""

    def far(arrays: list[np.ndarray]) -> list[np.ndarray]:
        return [arrays[0], *(np.where(a == 0, a, np.float32(3e38)) for a in arrays[1:])]

    config = small(
        method="feddgm", rounds=1, set=f"{TINY} federation.max_update=0 feddgm.together={together}"
    )
    record = run(config, TamperedGrid, tampers={0: with_arrays(far)})
    assert len(record.metrics()[1]["accepted"]) == 2
    assert len(record.metrics()[1]["rejected"]) == 1


class Spy:
    """Notes what is trained on what."""

    def __init__(self) -> None:
        self.labels: list[torch.Tensor] = []

    def __call__(self, model: Any, samples: Samples, *rest: Any, **named: Any) -> None:
        self.labels.append(samples.labels)


def uploads(run_: Run, *held: list[int]) -> list[Upload]:
    """Return a site for each list of class counts, its weights a little off the start."""
    start = Weights.of(run_.build_model()).tensors
    sent = Weights({name: tensor + 0.01 for name, tensor in start.items()})
    return [
        Upload(
            Site(f"partition-{i}", i + 1, examples=sum(counts), class_counts=counts), sent, 1, {}
        )
        for i, counts in enumerate(held)
    ]


@pytest.mark.parametrize(("classes", "each"), [("all", [20, 20]), ("known", [4, 2])])
def test_the_union_has_ipc_images_of_all_classes_or_of_those_a_site_holds(
    monkeypatch: pytest.MonkeyPatch, classes: str, each: list[int]
) -> None:
    spy = Spy()
    monkeypatch.setattr(global_models, "train", spy)
    a_run = Division(
        load({"method": "feddgm", "set": f"model.width=8 {TINY} feddgm.classes={classes}"})
    ).run
    server = FedDGM(a_run)
    holds = [[5, 0, 0, 3, *[0] * 6], [*[0] * 9, 1]]
    start = Weights.of(a_run.build_model())
    server.begin(1, start)
    server.update(1, start, uploads(a_run, *holds))
    assert len(spy.labels) == 3, "two global models and the surrogate"
    assert all(len(labels) == sum(each) for labels in spy.labels)
    if classes == "known":
        assert spy.labels[0].tolist() == [0, 0, 3, 3, 9, 9]
    assert {s: len(p.labels) for s, p in server.pictures().items()} == dict(
        zip(("partition-0", "partition-1"), each, strict=True)
    )


def test_digits_are_no_generator_of_another_size() -> None:
    keys = {"method": "feddgm", "dataset": "mnist", "set": "feddgm.generator=digits"}
    with pytest.raises(ConfigError, match="makes images of 1x8x8"):
        FedDGM(Division(load(keys)).run)
