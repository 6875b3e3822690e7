"""Fedssyn with images that another method makes: round one is that method's, and any other learns from there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from federation import TamperedGrid, last, losses, run, same, same_end
from small import Small
from tampering import with_arrays
from tiers import FEDAVG_VARIANTS, only_these_first

from client_app.fedssyn import FedssynClient
from client_app.state import DirectoryState
from common.config.loading import load
from common.division import Division
from common.errors import FederationError
from common.methods import METHODS
from common.samples.inputs import Samples
from common.settings.fedavg import OWN_MODELS
from common.settings.fedssyn import SOURCES
from common.storage import tensor_file
from common.wire.weights import Weights
from nectar.export.readme import nature_of_images
from nectar.report.facts import facts_of
from server_app.checkpoint import Checkpoint
from server_app.record import Record
from strategies.image_sources import SOURCES as AT_SERVER

DISTILLED = "data.images=200 fedssyn.source=distilled"
STARTED = f"{DISTILLED} fedssyn.start_from_images=on"

#: methods whose runs are of a moment, or need a network of their own
BRIEF = {
    "fedvae": "model.name=vae model.depth=1 model.embedding=6 fedvae.preliminary_rounds=1",
    "feddpms": "model.name=vae model.depth=1 model.embedding=6 fedvae.preliminary_rounds=1 feddpms.smallest=1",
    "feddgm": "feddgm.epochs=1 feddgm.ipc=1 feddgm.iterations=2 feddgm.inner_epochs=2 feddgm.global_epochs=2 "
    "feddgm.surrogate_epochs=2",
    "dense": "dense.epochs=1",
    "fedsynth": "fedsynth.iterations=2",
}


def pool_of(record: Record) -> tuple[torch.Tensor, torch.Tensor]:
    pool = Checkpoint.load(record.last).strategy["pool"]
    return pool["images"][""], pool["labels"][""]


def test_a_source_is_told_of_at_the_server_and_in_the_settings() -> None:
    assert list(SOURCES) == list(AT_SERVER)


# ---- round one --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("maker", "words"), [("feddm", ""), ("real", "wire.images=uint8")])
def test_round_one_is_the_other_methods_to_the_bit(small: Small, maker: str, words: str) -> None:
    """The same images in the same bytes, and the model that the server trains on them."""
    alone = run(small(method=maker, rounds=1, set=f"data.images=200 {words}"))
    record = run(
        small(method="fedssyn", rounds=1, set=f"{STARTED} fedssyn.distilled_by={maker} {words}")
    )
    one, other = alone.metrics()[1], record.metrics()[1]
    assert (one["test"], one["floats_up"]) == (other["test"], other["floats_up"])
    assert same(last(alone).weights, last(record).weights)
    assert losses(record)[1] != losses(record)[0]


def test_without_the_start_round_one_leaves_the_weights_as_they_are(small: Small) -> None:
    curve = losses(run(small(method="fedssyn", rounds=2, set=DISTILLED)))
    assert curve[0] == curve[1] != curve[2]


@pytest.mark.parametrize("source", ["vae", "real"])
def test_any_source_gives_a_start(small: Small, source: str) -> None:
    text = f"data.images=200 fedssyn.source={source} fedssyn.start_from_images=on fedssyn.epochs=1"
    curve = losses(run(small(method="fedssyn", rounds=1, set=text)))
    assert curve[1] != curve[0]


# ---- the rounds after it ----------------------------------------------------------------------------------


def test_shares_are_equal_and_together_what_was_sent(small: Small) -> None:
    record = run(small(method="fedssyn", rounds=2, set=DISTILLED))
    images, labels = pool_of(record)
    assert images.dtype == torch.float32
    paths = sorted((record.directory / "state").rglob("000002.safetensors"))
    kept = [tensor_file.load(path)[0] for path in paths]
    assert torch.equal(torch.cat([share["share/images"] for share in kept]), images)
    assert torch.equal(torch.cat([share["share/labels"] for share in kept]), labels)
    sizes = [len(share["share/labels"]) for share in kept]
    assert max(sizes) - min(sizes) <= 1


def test_an_epoch_counts_the_steps_of_the_sites_own_images(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    import common.learning.training

    passes: list[tuple[int, int]] = []
    real = common.learning.training.batches

    def counted(n: int, *rest: Any, **named: Any) -> Any:
        passes.append((n, rest[-1]))
        return real(n, *rest, **named)

    monkeypatch.setattr(common.learning.training, "batches", counted)
    record = run(small(method="fedssyn", rounds=2, set=f"{DISTILLED} fedssyn.inner=feddyn"))
    share, sites = len(pool_of(record)[1]) // 3, 3
    assert [drawn for _, drawn in passes] == [
        n - s for (n, _), s in zip(passes, _cut(record), strict=True)
    ]
    assert len(passes) == sites
    assert all(n - drawn >= share for n, drawn in passes)


def _cut(record: Record) -> list[int]:
    """Return how many images of the pool each site got."""
    paths = sorted((record.directory / "state").rglob("000002.safetensors"))
    return [len(tensor_file.load(path)[0]["share/labels"]) for path in paths]


@pytest.mark.extended
@pytest.mark.parametrize(
    "inner",
    only_these_first(
        (
            name
            for name in METHODS
            if name not in ("fedssyn", "central", "server", "ridge", *OWN_MODELS)
        ),
        "feddyn",
        "scaffold",
        long=("feddpms", "fedvae", *(name for name in FEDAVG_VARIANTS if name != "feddyn")),
    ),
)
def test_any_method_learns_from_the_start_and_the_shares(small: Small, inner: str) -> None:
    text = f"{STARTED} fedssyn.inner={inner} {BRIEF.get(inner, '')}"
    record = run(small(method="fedssyn", rounds=3, set=text))
    assert [line["rejected"] for line in record.metrics()[1:]] == [{}] * 3
    assert [len(line["bytes"]["up"]) for line in record.metrics()[1:]] == [3] * 3
    off = run(small(method="fedssyn", rounds=3, set=text.replace("images=on", "images=off")))
    assert not same_end(record, off)


def test_the_server_alone_learns_from_all_images_where_the_inner_method_is_central(
    small: Small,
) -> None:
    text = f"{DISTILLED} fedssyn.inner=central central.epochs=1"
    record = run(small(method="fedssyn", rounds=2, set=text))
    assert record.metrics()[2]["bytes"]["down"] == {}
    assert losses(record)[2] != losses(record)[1]


def test_each_site_keeps_its_own_where_they_are_not_shared(small: Small) -> None:
    record = run(small(method="fedssyn", rounds=3, set=f"{DISTILLED} fedssyn.shared=off"))
    assert record.metrics()[1]["floats_up"] == 0
    path = next((record.directory / "state").rglob("000003.safetensors"))
    assert 0 < len(tensor_file.load(path)[0]["share/labels"]) <= 2 * 10


@pytest.mark.extended
def test_a_maker_may_send_more_than_images_and_they_alone_are_shared(small: Small) -> None:
    """FedAF's mean outputs and soft labels come beside them; the site counts copies among the images inside."""
    record = run(small(method="fedssyn", rounds=2, set=f"{STARTED} fedssyn.distilled_by=fedaf"))
    assert [line["rejected"] for line in record.metrics()[1:]] == [{}, {}]
    images, labels = pool_of(record)
    assert images.shape == (len(labels), 1, 8, 8)
    assert record.metrics()[1]["copies"]["images"] == len(labels)
    off = "fedssyn.shared=off fedssyn.distilled_by=fedaf"
    kept = run(small(method="fedssyn", rounds=3, set=f"{DISTILLED} {off}"))
    assert kept.metrics()[1]["floats_up"] == 0
    assert losses(kept)[3] != losses(kept)[1]


# ---- controls ---------------------------------------------------------------------------------------------


def test_noise_is_the_control_of_images_that_no_step_has_changed(small: Small) -> None:
    """T = 0 from noise: standard normal values, whatever the site holds."""
    record = run(small(method="fedssyn", set=f"{DISTILLED} feddm.iterations=0 feddm.ipc=20"))
    values = pool_of(record)[0]
    assert abs(float(values.mean())) < 0.02
    assert float(values.std()) == pytest.approx(1, abs=0.02)


def test_real_images_are_taken_whatever_size_says_of_generators(small: Small) -> None:
    """fedssyn.size below what sites give away rejected every reply."""
    text = "data.images=200 fedssyn.source=real fedssyn.mixed=0.5 fedssyn.size=3"
    record = run(small(method="fedssyn", rounds=2, set=text))
    assert [line["rejected"] for line in record.metrics()[1:]] == [{}, {}]
    assert len(pool_of(record)[1]) > 3 * 20


# ---- what is believed, and what may not leave -------------------------------------------------------------


def test_a_value_beyond_what_images_have_is_refused_with_the_makers_reason(small: Small) -> None:
    def bright(arrays: list[Any]) -> list[Any]:
        return [*arrays[:2], arrays[2] * 0 + 1e4, *arrays[3:]]

    def once(message: Any, reply: Any) -> Any:
        return with_arrays(bright)(message, reply) if message.metadata.group_id == "1" else reply

    record = run(small(method="fedssyn", rounds=3, set=STARTED), TamperedGrid, tampers={1: once})
    (site,) = record.metrics()[1]["rejected"]
    assert site == "partition-1"
    message = record.metrics()[1]["rejected"][site]
    assert "its part 'images': its images hold a value of" in message
    assert list(record.metrics()[2]["bytes"]["up"]) == ["partition-1"], "it is asked again"
    assert losses(record)[1] == losses(record)[0], "the start waits for all images"
    assert losses(record)[2] != losses(record)[1]


@pytest.mark.extended
def test_a_private_makers_round_and_the_inner_methods_are_charged_together(small: Small) -> None:
    private = "privacy.noise_multiplier=1 privacy.counts=public feddm.mechanism=feature"
    text = f"{STARTED} {private} feddm.start=noise"
    record = run(small(method="fedssyn", rounds=2, set=text))
    first, second = (line["notes"]["spent"] for line in record.metrics()[1:])
    assert [line["rejected"] for line in record.metrics()[1:]] == [{}, {}]
    assert first != second


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("feddm.start=real", "started from real examples"),
        ("feddm.start=mix:4", "mean of 4 real images"),
        ("fedssyn.distilled_by=real", "Real images were sent unchanged"),
    ],
)
def test_report_and_export_say_what_the_maker_discloses(words: str, said: str) -> None:
    config = load({"method": "fedssyn", "set": f"fedssyn.source=distilled {words}"})
    told = []
    for name, settings in config.methods.items():
        disclosed = settings.disclosure()
        assert disclosed is not None
        facts = facts_of(name, disclosed, settings)
        assert facts is not None
        told += facts.sent
    assert any(said in sentence for sentence in told)
    assert any("Other sites received the images mixed" in sentence for sentence in told)
    assert "REAL IMAGES" in nature_of_images(config)


def test_real_images_as_they_are_reach_no_other_site_of_a_federation(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strategies.fedssyn.engine_of", lambda sites: "superlink")
    monkeypatch.setattr("strategies.fedssyn.SUPERLINK", "superlink")
    text = f"{DISTILLED} feddm.start=real feddm.iterations=0"
    with pytest.raises(FederationError, match="gives real images away as they are"):
        run(small(method="fedssyn", set=text))


@pytest.mark.parametrize(
    ("words", "phase"),
    [
        ("fedssyn.source=real", "make-images"),
        ("fedssyn.source=distilled fedssyn.distilled_by=real", "make-images/draw"),
        ("fedssyn.source=distilled feddm.start=real feddm.iterations=0", "make-images/synthesize"),
    ],
)
def test_nor_does_a_site_with_data_of_its_own_send_them(
    small: Small, tmp_path: Path, words: str, phase: str
) -> None:
    here = Division(load(small(method="fedssyn", set=words))).run
    own = Samples.of(torch.zeros(4, 1, 8, 8), torch.arange(4) % 2)
    state = DirectoryState(tmp_path, "record", "site")
    client = FedssynClient(here, "a", own, own, state, user_data=True)
    work, _ = client.phase_named(phase)
    with pytest.raises(FederationError, match="this site's are its own, and stay"):
        work(Weights.of(here.build_model()))
