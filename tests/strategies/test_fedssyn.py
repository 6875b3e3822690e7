"""Fedssyn in rounds: what travels when, what equals the inner method, what becomes of lost replies and late sites."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from federation import MissingGrid, TamperedGrid, last, losses, run, same
from small import Small
from tampering import with_arrays

import client_app.synthesis
from common.config.loading import load
from common.division import Division
from common.draws.seeding import generator
from common.errors import ConfigError, FederationError
from common.learning.training import train
from common.samples.inputs import Samples, samples
from common.settings.fedavg import CentralSettings
from common.specs.fedssyn import DONE, WITHOUT_SHARE
from common.storage import tensor_file
from common.wire.images import Pixels
from server_app.app import make_strategy
from server_app.checkpoint import Checkpoint
from server_app.record import Record

pytestmark = pytest.mark.promise(
    "A fault at any step",
    "FedGEN, DENSE and FedDM have the numbers of one process; a site killed while it trains a "
    "generator makes the same images",
)

#: a generator that is trained in a moment and draws nothing that anybody would know
TINY = (
    "data.images=200 fedssyn.width=2 fedssyn.multipliers=1 fedssyn.blocks=1 fedssyn.attention= fedssyn.epochs=2 "
    "fedssyn.batch=32 fedssyn.diffusion_steps=8 fedssyn.sampling_steps=2 fedssyn.sampler=second-order"
)
#: images that another method makes in a moment
DISTILLED = "feddm.iterations=2 feddm.ipc=3 image_training.epochs=2"


UP, DOWN = "up", "down"


def bytes_of(record: Record, way: str, server_round: int) -> dict[str, int]:
    found: dict[str, int] = record.metrics()[server_round]["bytes"][way]
    return found


def held(record: Record) -> dict[str, int]:
    sites = json.loads((record.directory / "partition.json").read_text())["sites"]
    return {name: site["examples"] for name, site in sites.items()}


# ---- what equals the inner method -------------------------------------------------------------------------


def test_shares_change_what_is_learned_from_the_round_after_the_images(small: Small) -> None:
    record = run(small(method="fedssyn", rounds=3, set=TINY))
    curve = losses(record)
    assert curve[0] == curve[1], "while images are made the weights stay"
    assert len(set(curve[1:])) == 3
    assert [line["floats_up"] for line in record.metrics()][1] == 3 * (180 // 3) * 64


def test_a_round_learns_once_all_images_are_made(small: Small) -> None:
    """``evaluation.patience`` counts no round before."""
    strategy: Any = make_strategy(Division(load(small(method="fedssyn", set=TINY))).run)
    assert not strategy.is_learning
    strategy._ready = set("abc")
    strategy._close()
    assert strategy.is_learning


# ---- what travels -----------------------------------------------------------------------------------------


@pytest.mark.extended
def test_images_travel_once_up_and_once_down_a_byte_a_value(small: Small) -> None:
    """2 M_s + 2 R M_c: n_tilde = N / K images of 64 bytes and a label each way, in rounds 1 and 2."""
    record = run(small(method="fedssyn", rounds=4, set=TINY))
    plain = run(small(method="fedavg", rounds=4, set="data.images=200"))
    total = sum(held(record).values())
    each = total // 3 * (64 + 1)
    for sent in bytes_of(record, UP, 1).values():
        assert each < sent < each + 2_000
    for site in held(record):
        more = bytes_of(record, DOWN, 2)[site] - bytes_of(record, DOWN, 3)[site]
        assert each <= more < each + 1_000
        wrapped = bytes_of(record, DOWN, 3)[site] - bytes_of(plain, DOWN, 3)[site]
        assert 0 <= wrapped < 1_000
    assert sum(bytes_of(record, DOWN, 1).values()) < 3 * 3_000


def test_shares_are_equal_and_together_what_was_sent(small: Small) -> None:
    record = run(small(method="fedssyn", rounds=2, set=f"{TINY} fedssyn.size=31"))
    versions = sorted((record.directory / "state").rglob("000002.safetensors"))
    shares = [tensor_file.load(path)[0] for path in versions]
    kept = [share["share/images"] for share in shares]
    assert [len(images) for images in kept] == [31, 31, 31]
    assert all(images.dtype == torch.uint8 for images in kept)
    pool = Checkpoint.load(record.last).strategy["pool"]["images"][""]
    assert torch.equal(torch.cat(kept), pool)


@pytest.mark.extended
def test_a_site_draws_labels_by_its_own_class_frequencies(small: Small) -> None:
    """A site with one class sends that class alone; every site sends as many images."""
    text = f"{TINY} partition.kind=by_class partition.classes_per_client=1 federation.sites=10 fedssyn.rho=1"
    record = run(small(method="fedssyn", rounds=1, set=text))
    sent = record.directory / "synthetic"
    found = next(iter(sorted(sent.rglob("*.safetensors"))))
    tensors = tensor_file.load(found)[0]
    labels = [tensors[f"{i}.labels"] for i in range(10)]
    assert all(len(each.unique()) == 1 for each in labels)
    assert len(torch.cat(labels).unique()) == 10


@pytest.mark.extended
def test_the_sites_own_synthetic_images_never_leave_it(small: Small) -> None:
    record = run(small(method="fedssyn", rounds=3, set=f"{TINY} fedssyn.shared=off"))
    plain = run(small(method="fedavg", rounds=2, set="data.images=200"))
    assert max(bytes_of(record, UP, 1).values()) < 3_000
    assert record.metrics()[1]["floats_up"] == 0
    assert losses(record)[2] != losses(plain)[1]
    kept = tensor_file.load(next((record.directory / "state").rglob("000003.safetensors")))[0]
    assert len(kept["share/images"]) == sum(held(record).values()) // 3


def test_an_epoch_is_as_many_steps_as_without_unless_set_otherwise(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    import common.learning.training

    passes: list[tuple[int, int]] = []
    real = common.learning.training.batches

    def counted(n: int, *rest: Any, **named: Any) -> Any:
        passes.append((n, rest[-1]))
        return real(n, *rest, **named)

    monkeypatch.setattr(common.learning.training, "batches", counted)
    for scaled in ("on", "off"):
        passes.clear()
        text = f"{TINY} fedssyn.scaled={scaled}"
        sizes = list(held(run(small(method="fedssyn", rounds=2, set=text))).values())
        share = sum(sizes) // 3
        assert passes == [(n + share, n if scaled == "on" else n + share) for n in sizes]


def test_real_images_are_exchanged_and_every_site_keeps_its_size(small: Small) -> None:
    text = "data.images=200 fedssyn.source=real fedssyn.mixed=0.5"
    record = run(small(method="fedssyn", rounds=2, set=text))
    sizes = held(record)
    away = {name: round(0.5 * n) for name, n in sizes.items()}
    pool = Checkpoint.load(record.last).strategy["pool"]["labels"][""]
    assert len(pool) == sum(away.values())
    for site, sent in bytes_of(record, UP, 1).items():
        assert 65 * away[site] < sent < 65 * away[site] + 2_000


@pytest.mark.extended
def test_the_record_says_how_far_the_gradients_lie_apart(small: Small) -> None:
    """zeta^2 and sigma^2 of round 1, at the start, worked out beside by one backward pass for each image."""
    text = "data.images=60 fedssyn.source=none fedssyn.diagnostics=on"
    config = small(method="fedssyn", rounds=1, set=text)
    told = run(config).metrics()[1]["notes"]["gradients"]
    division = Division(load(config))
    here, train = division.run, division.dataset.train
    model, means, noises = here.build_model().eval(), [], []
    for i, part in enumerate(division.partition(3)):
        kept, _ = division.share(f"partition-{i}", division.dataset, part)
        own = samples(train, here.info, kept)
        each = []
        for j in range(len(own)):
            loss = here.task.loss(model(own.inputs(slice(j, j + 1))), own.labels[j : j + 1])
            found = torch.autograd.grad(loss, list(model.parameters()))
            each.append(torch.cat([g.flatten() for g in found]).double())
        gradients = torch.stack(each)
        means.append(gradients.mean(0))
        noises.append((gradients - gradients.mean(0)).square().sum(1).mean())
    apart = torch.stack(means)
    zeta2 = (apart - apart.mean(0)).square().sum(1).mean()
    assert told["zeta2"] == pytest.approx(float(zeta2), rel=1e-4)
    assert told["sigma2"] == pytest.approx(float(torch.stack(noises).mean()), rel=1e-4)
    assert set(told) == {"zeta2", "sigma2"}


@pytest.mark.extended
def test_shares_bring_the_sites_gradients_together(small: Small) -> None:
    text = "data.images=200 fedssyn.source=real fedssyn.mixed=0.5 fedssyn.diagnostics=on partition.alpha=0.1"
    told = run(small(method="fedssyn", rounds=2, set=text)).metrics()[2]["notes"]["gradients"]
    assert set(told) == {"zeta2", "sigma2", "delta2"}, "no site has more images than before"
    text = f"{TINY} fedssyn.diagnostics=on partition.alpha=0.1"
    told = run(small(method="fedssyn", rounds=2, set=text)).metrics()[2]["notes"]["gradients"]
    assert told["zeta2-mixed"] < told["zeta2"]
    assert told["delta2"] > 0


@pytest.mark.extended
def test_a_beta_vae_makes_the_images_where_it_is_chosen(small: Small) -> None:
    text = f"{TINY} fedssyn.source=vae fedssyn.latent=3 fedssyn.lr=0.001"
    records = [
        run(small(method="fedssyn", rounds=2, set=text) | {"output-dir": str(where)})
        for where in _two_places(small)
    ]
    pools = [Checkpoint.load(r.last).strategy["pool"]["images"][""] for r in records]
    assert torch.equal(*pools)
    assert losses(records[0])[2] != losses(records[0])[1]


def _two_places(small: Small) -> list[Path]:
    root = Path(small()["output-dir"])
    return [root / "one", root / "other"]


@pytest.mark.extended
def test_the_central_bound_trains_on_all_synthetic_images_and_asks_nobody(small: Small) -> None:
    text = (
        f"{TINY} fedssyn.source=diffusion fedssyn.inner=central central.epochs=1 central.batch=64"
    )
    config = small(method="fedssyn", rounds=2, set=text)
    record = run(config)
    assert bytes_of(record, DOWN, 2) == {}
    here = Division(load(config)).run.of("central")
    pool = Checkpoint.load(record.last).strategy["pool"]
    info = here.info
    images = Pixels(pool["images"][""], pool["labels"][""], tuple(info.mean), tuple(info.std))
    model = here.build_model()
    steps = sum(-(-n // 64) for n in held(record).values())
    draws = generator(here.config.seed, "central", 2)
    everything = Samples.of(images.examples, images.labels)
    settings = here.config.settings
    assert isinstance(settings, CentralSettings)
    train(model, everything, settings, here.task, draws, server_round=2, steps=steps)
    assert same(last(record).weights, model.state_dict())


# ---- a generator is trained once --------------------------------------------------------------------------


@pytest.mark.extended
def test_rows_of_one_table_train_their_generators_once(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run(small(method="fedssyn", rounds=2, set=TINY))

    def never(*_: Any) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(client_app.synthesis.DiffusionTraining, "run", never)
    again = run(small(method="fedssyn", rounds=2, set=f"{TINY} fedssyn.inner=scaffold"))
    pools = [Checkpoint.load(r.last).strategy["pool"]["images"][""] for r in (first, again)]
    assert torch.equal(*pools)


@pytest.mark.extended
@pytest.mark.parametrize("change", ["fedssyn.epochs=3", "fedssyn.rho=0.5", "fedssyn.size=40"])
def test_other_settings_make_other_images(small: Small, change: str) -> None:
    records = [
        run(small(method="fedssyn", rounds=1, set=f"{TINY} {more}")) for more in ("", change)
    ]
    pools = [Checkpoint.load(r.last).strategy["pool"]["images"][""] for r in records]
    assert pools[0].shape != pools[1].shape or not torch.equal(*pools)


class _Killed(Exception):
    """A process that dies."""


@pytest.mark.extended
@pytest.mark.parametrize("dies_after", [1, 3])
def test_a_training_that_is_killed_goes_on_to_the_bit(
    small: Small, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, dies_after: int
) -> None:
    """Every step is kept; the process dies behind some; the next one takes the others, and draws the same images."""
    monkeypatch.setattr(client_app.synthesis, "_SAVED_EVERY", 0.0)
    whole = run(small(method="fedssyn", rounds=1, set=TINY))
    real, steps = client_app.synthesis.DiffusionTraining._take_step, [0]

    def dying(self: Any, *rest: Any) -> None:
        steps[0] += 1
        if steps[0] == dies_after + 1:
            raise _Killed
        real(self, *rest)

    monkeypatch.setattr(client_app.synthesis.DiffusionTraining, "_take_step", dying)
    other = small(method="fedssyn", rounds=2, set=TINY) | {"output-dir": str(tmp_path / "other")}
    broken = run(other)
    assert "_Killed" in broken.metrics()[1]["rejected"]["partition-0"]
    assert list(bytes_of(broken, UP, 2)) == ["partition-0"]
    pools = [Checkpoint.load(r.last).strategy["pool"]["images"][""] for r in (whole, broken)]
    assert torch.equal(*pools)
    assert steps[0] > dies_after + 1


@pytest.mark.extended
def test_a_damaged_copy_of_a_training_is_begun_again(small: Small, tmp_path: Path) -> None:
    first = run(small(method="fedssyn", rounds=1, set=TINY))
    artifact_cache = next(
        path for path in first.directory.parent.iterdir() if path.name == ".nectar-made"
    )
    for path in artifact_cache.glob("*.images"):
        path.write_bytes(path.read_bytes()[:-5])
    again = run(small(method="fedssyn", rounds=1, set=TINY))
    pools = [Checkpoint.load(r.last).strategy["pool"]["images"][""] for r in (first, again)]
    assert torch.equal(*pools)


# ---- lost and spoilt replies, absent sites, killed servers ------------------------------------------------


@pytest.mark.extended
def test_a_site_is_asked_again_until_its_images_are_there(small: Small) -> None:
    """Site 1's first images are spoilt, site 2 is away twice: round 4 is the first of the inner method."""
    spoiled = with_arrays(lambda a: [a[0], *(x[:1] for x in a[1:])])

    def once(message: Any, reply: Any) -> Any:
        return spoiled(message, reply) if message.metadata.group_id == "1" else reply

    record = run(small(method="fedssyn", rounds=3, set=TINY), TamperedGrid, tampers={1: once})
    assert list(record.metrics()[1]["rejected"]) == ["partition-1"]
    assert list(bytes_of(record, UP, 2)) == ["partition-1"]
    assert len(bytes_of(record, UP, 3)) == 3
    away = {("partition-2", 1), ("partition-2", 2)}
    late = run(small(method="fedssyn", rounds=4, set=TINY), MissingGrid, absent=away, lost=set())
    assert [sorted(bytes_of(late, DOWN, r)) for r in (2, 3)] == [["partition-2"]] * 2
    curve = losses(late)
    assert len(set(curve[:4])) == 1
    assert curve[4] != curve[3]
    pools = [Checkpoint.load(r.last).strategy["pool"]["images"][""] for r in (record, late)]
    assert torch.equal(*pools), "the same images, the same shares, whoever came when"


@pytest.mark.extended
def test_a_site_that_never_sends_is_given_up_and_gets_a_share_all_the_same(small: Small) -> None:
    away = {("partition-2", r) for r in range(1, 4)}
    text = f"{TINY} fedssyn.tries=3"
    record = run(small(method="fedssyn", rounds=5, set=text), MissingGrid, absent=away, lost=set())
    sizes = held(record)
    pool = Checkpoint.load(record.last).strategy["pool"]["labels"][""]
    assert len(pool) == 2 * (sum(sizes.values()) // 3)
    (path,) = (record.directory / "state" / "partition-2").rglob("000005.safetensors")
    kept = tensor_file.load(path)[0]
    assert len(kept["share/labels"]) in (len(pool) // 3, len(pool) // 3 + 1)


def test_a_run_to_which_nobody_sends_images_ends_with_the_reason(small: Small) -> None:
    away = {(f"partition-{i}", r) for i in range(3) for r in (1, 2)}
    text = f"{TINY} fedssyn.tries=2"
    with pytest.raises(FederationError, match=r"no site made images within .*fedssyn\.tries=2"):
        run(small(method="fedssyn", rounds=3, set=text), MissingGrid, absent=away, lost=set())


def test_a_run_of_which_no_site_ever_sent_anything_has_failed(small: Small) -> None:
    """Two rounds are fewer than the five in which a site is asked in vain: nobody is given up, nothing learned."""
    away = {(f"partition-{i}", r) for i in range(3) for r in (1, 2)}
    settings = small(method="fedssyn", rounds=2, set=TINY)
    with pytest.raises(
        FederationError,
        match=r"none of 2 rounds had a reply that could be used.*partition-0 and 2 more: ",
    ):
        run(settings, MissingGrid, absent=away, lost=set())
    (record,) = Path(settings["output-dir"]).iterdir()
    outcome = json.loads((record / "provenance.json").read_text())["outcome"]
    assert outcome.startswith("failed: none of 2 rounds")


@pytest.mark.sweep
@pytest.mark.parametrize(
    "images",
    [
        "source=none",
        "shared=off",
        "source=diffusion",
        "source=real",
        f"source=distilled {DISTILLED}",
    ],
)
def test_fednova_learns_from_the_larger_set(small: Small, images: str) -> None:
    """Its normalizer is of the steps that a site took, on its own images and its share; and once without a share."""
    words = f"{TINY} fedssyn.inner=fednova fedssyn.scaled=off fedssyn.{images} fednova.batch=16"
    record = run(small(method="fedssyn", rounds=3, set=f"{words} fednova.epochs=1"))
    assert [line["rejected"] for line in record.metrics()[1:]] == [{}] * 3
    figures = record.metrics()[-1]["devices"]
    steps = {name: round(site["normalizer"]) for name, site in figures.items()}
    plain = {name: -(-n // 16) for name, n in held(record).items()}
    assert (steps == plain) == (images in ("source=none", "source=real"))


def test_a_site_that_is_always_a_little_further_is_given_up(small: Small) -> None:
    """It was asked again until fedssyn.deadline, a week, and nobody learned meanwhile."""

    def creeps(message: Any, reply: Any) -> Any:
        figures = next(iter(reply.content.metric_records.values()))
        figures[DONE] = 0.001 * int(message.metadata.group_id)
        return reply

    text = f"{TINY} fedssyn.tries=2"
    grid = {"tampers": {1: creeps}}
    curve = losses(run(small(method="fedssyn", rounds=4, set=text), TamperedGrid, **grid))
    assert curve[0] == curve[1] == curve[2]
    assert curve[3] != curve[2]


def test_a_share_is_sent_again_to_a_site_that_lost_its_own(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real site loses what it remembers after round 2: it learns without a share in 3, and has it again in 4."""
    monkeypatch.setattr("strategies.exchange.membership.Members.check_memory", lambda *_: None)

    def loses(message: Any, reply: Any) -> Any:
        if message.metadata.group_id == "2":
            for path in Path(output).rglob("state/partition-0/*/*/*.safetensors"):
                path.unlink()
        return reply

    config = small(method="fedssyn", rounds=4, set=TINY)
    output = config["output-dir"]
    record = run(config, TamperedGrid, tampers={0: loses})
    figures = [line.get("devices", {}).get("partition-0", {}) for line in record.metrics()]
    assert figures[3][WITHOUT_SHARE] == 1
    assert not any(WITHOUT_SHARE in figures[r] for r in (2, 4))
    sent = [bytes_of(record, DOWN, r)["partition-0"] for r in (2, 3, 4)]
    assert sent[0] == pytest.approx(sent[2], abs=64)
    assert sent[1] < sent[0] - 3_000


@pytest.mark.extended
def test_partial_participation_asks_everybody_for_images(small: Small) -> None:
    text = f"{TINY} federation.sites=5 federation.participation=0.4"
    record = run(small(method="fedssyn", rounds=3, set=text))
    assert [len(bytes_of(record, DOWN, r)) for r in (1, 2, 3)] == [5, 2, 2]


def test_a_share_out_of_range_of_progress_is_refused(small: Small) -> None:
    def claims(message: Any, reply: Any) -> Any:
        if message.metadata.group_id == "1":
            next(iter(reply.content.metric_records.values()))[DONE] = 7.0
        return reply

    record = run(small(method="fedssyn", rounds=2, set=TINY), TamperedGrid, tampers={1: claims})
    assert "where 0 to 1 was expected" in record.metrics()[1]["rejected"]["partition-1"]


# ---- settings ---------------------------------------------------------------------------------------------


def test_the_inner_methods_settings_are_resolved_shown_and_hashed(small: Small) -> None:
    config = load(small(method="fedssyn", set="fedssyn.inner=scaffold scaffold.lr=0.05"))
    assert config.of("scaffold").settings.lr == 0.05  # type: ignore[attr-defined]
    assert "scaffold:" in config.dump_yaml()
    other = load(small(method="fedssyn", set="fedssyn.inner=scaffold scaffold.lr=0.06"))
    assert config.digest() != other.digest()
    again = load(config.to_run_config())
    assert again.digest() == config.digest()
    assert again.of("scaffold") == config.of("scaffold")


def test_a_method_that_is_not_in_use_decides_nothing(small: Small) -> None:
    one, other = (
        load(small(method="fedssyn", set=f"fedssyn.inner=scaffold feddyn.alpha={alpha}"))
        for alpha in (0.1, 0.2)
    )
    assert one.digest() == other.digest()
    with pytest.raises(ConfigError, match="does not use feddyn"):
        one.of("feddyn")


@pytest.mark.extended
def test_no_count_of_copies_goes_with_images_that_noise_covers(small: Small) -> None:
    """A count of how many lie near a real one is one more release, of which no epsilon tells."""
    text = f"{TINY} fedssyn.sampling_steps=1 fedssyn.multiplicity=1"
    plain, noisy = (
        run(small(method="fedssyn", set=f"{text} {noise}")).metrics()[1]
        for noise in ("", "fedssyn.noise_multiplier=1")
    )
    assert plain["copies"]["images"] > 0
    assert noisy["copies"] is None
    assert noisy["notes"]["spent"]
