"""FedMD, DS-FL and FedDF: the answers by hand, both sides in full batches, what travels and what is refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federation import TamperedGrid, run, same_end
from image_folders import CLASSES, paint_split
from small import Small
from tampering import times, with_part
from torch import Tensor

from client_app.device import client_class
from client_app.state import DirectoryState
from common.config.loading import load
from common.division import Division
from common.errors import ConfigError, DataError, FederationError, PayloadError
from common.learning.run import Run
from common.models import Classifier
from common.samples.inputs import samples
from common.sites import Site
from common.specs.logits import (
    ANSWER,
    IMAGES,
    LOGITS,
    SHARES,
    answer_of_all,
    answers,
    logits,
    logits_spec,
    public_samples,
)
from common.wire.bundle import Bundle
from common.wire.tensors import Tensors
from common.wire.weights import Weights
from nectar.audit.images.at_record import audit_record
from server_app.app import make_strategy
from strategies.exchange.replies import Outcome, Upload
from strategies.public_images import public_images
from synth.logit_distillation import LIMIT, centred, consensus, noisy
from synth.private_release import Gaussian

pytestmark = pytest.mark.promise(
    "Absurd figures, and the roll call",
    "No length of one site's logits owns the answer of all",
)

#: three steps of the server on all images at once, without what is not in the sums below
SERVER = (
    "image_training.epochs=3 image_training.batch=1000 image_training.lr=0.1 image_training.momentum=0 "
    "image_training.ball=0 distil.count=12"
)
SITE = "epochs=2 batch=1000 lr=0.2"


# ---- the mathematics ----------------------------------------------------------------------------------


def softmax(z: Any) -> Any:
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_the_answer_of_all_is_the_formula() -> None:
    z = torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(0)) * 3
    mean = softmax(z.double().numpy().mean(0))
    assert np.allclose(consensus(z, "mean", 0.1), mean, atol=1e-6)
    shares = softmax(z.double().numpy()).mean(0)
    assert np.allclose(consensus(z, "entropy", 0.1), softmax(shares / 0.1), atol=1e-6)


def test_entropy_reduction_is_sharper_than_the_mean_of_the_shares() -> None:
    z = torch.randn(1, 50, 10, generator=torch.Generator().manual_seed(1)) * 4  # all agree
    shares = z.softmax(2).mean(0)
    entropy = lambda p: -(p * p.log()).sum(1)  # noqa: E731
    assert bool((entropy(consensus(z, "entropy", 0.1)) < entropy(shares)).all())


def test_centred_logits_answer_the_same_and_have_an_end() -> None:
    z = torch.randn(6, 10, generator=torch.Generator().manual_seed(2)) + 7
    assert torch.allclose(centred(z).softmax(1), z.softmax(1), atol=1e-6)
    assert torch.allclose(centred(z).mean(1), torch.zeros(6), atol=1e-5)
    assert float(centred(z * 1e4).abs().max()) == LIMIT


def test_the_slope_of_the_distillation_is_that_of_finite_differences(small: Small) -> None:
    task = Division(load(small(method="fedmd"))).run.task
    draws = torch.Generator().manual_seed(3)
    z = torch.randn(5, 10, generator=draws, dtype=torch.float64, requires_grad=True)
    shares = consensus(torch.randn(3, 5, 10, generator=draws, dtype=torch.float64), "entropy", 0.1)
    (slope,) = torch.autograd.grad(task.loss(z, shares), z)
    assert torch.allclose(slope, (z.softmax(1) - shares) / 5, atol=1e-12)
    h = 1e-6
    for i, j in ((0, 0), (2, 7), (4, 9)):
        moved = torch.zeros_like(z)
        moved[i, j] = h
        found = (task.loss(z + moved, shares) - task.loss(z - moved, shares)) / (2 * h)
        assert float(found) == pytest.approx(float(slope[i, j]), abs=1e-8)


def test_noise_is_of_twice_the_clip_and_what_it_covers_lies_in_a_ball() -> None:
    draws = torch.Generator().manual_seed(4)
    exact = Gaussian(0.0, 6.0, torch.zeros)
    long, short = torch.randn(50, 10, generator=draws) * 9, torch.full((50, 10), 1e-3)
    assert float(noisy(long, 3.0, exact).norm()) == pytest.approx(3.0, rel=1e-6)
    assert torch.equal(noisy(short, 3.0, exact), short)
    assert float((noisy(long, 3.0, exact) - noisy(-long, 3.0, exact)).norm()) == pytest.approx(6.0)
    normal = lambda shape: torch.randn(tuple(shape), generator=draws)  # noqa: E731
    large = noisy(torch.zeros(400, 100), 3.0, Gaussian(0.5, 6.0, normal))
    assert float(large.std()) == pytest.approx(3.0, rel=0.02)
    spoilt = noisy(torch.full((2, 2), math.inf), 3.0, exact)
    assert torch.equal(spoilt, torch.zeros(2, 2))


# ---- both sides by hand -------------------------------------------------------------------------------


def descend(model: Classifier, x: Tensor, shares: Tensor, steps: int, lr: float) -> None:
    """Take full-batch steps along the slope of -sum q log p, by hand."""
    model.train()
    for _ in range(steps):
        loss = -(shares * model(x).log_softmax(1)).sum(1).mean()
        slopes = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for p, slope in zip(model.parameters(), slopes, strict=True):
                p -= lr * slope


def hard(labels: Tensor) -> Tensor:
    return torch.nn.functional.one_hot(labels, 10).float()


def made(small: Small, method: str, words: str = "") -> Run:
    own = " ".join(f"{method}.{word}" for word in SITE.split())
    return Division(load(small(method=method, set=f"{own} {SERVER} {words}"))).run


class OneSite:
    """A site of forty digits, a process of its own in each round."""

    def __init__(self, run: Run, directory: Path) -> None:
        train = samples(Division(run.config).dataset.train, run.info)
        self.run, self.samples = run, train.at(torch.arange(40))
        self._state = DirectoryState(directory, "record", "site")

    def client(self, number: int, taken: int) -> Any:
        """Return a client that has begun a round."""
        own, none = self.samples, self.samples.at(torch.arange(0))
        made = client_class("fedmd")(self.run, "site", own, none, self._state, user_data=False)
        made.begin({"server-round": number, "phase": "answer", "taken": taken})
        return made

    def answers(self, given: Bundle, number: int) -> Tensor:
        """Return the logits that leave in a round."""
        config = {"server-round": number, "phase": "answer", "taken": number - 1}
        arrays, _, _ = self.client(number, number - 1).fit(given.encode(), config)
        return logits_spec(self.run, 12).decode(list(arrays))[LOGITS]


def test_a_site_digests_then_revisits_then_answers(small: Small, tmp_path: Path) -> None:
    run = made(small, "fedmd", "fedmd.digest_epochs=3")
    site, images = OneSite(run, tmp_path), public_images(run)
    x = public_samples(run, images, torch.zeros(12)).inputs(slice(None))
    own, labels = site.samples.inputs(slice(None)), hard(site.samples.labels)
    shares = torch.rand(12, 10, generator=torch.Generator().manual_seed(5)).softmax(1)
    model = run.build_model()
    descend(model, own, labels, 2, 0.2)
    sent = site.answers(Bundle({IMAGES: Tensors({IMAGES: images})}), 1)
    assert torch.allclose(sent, answers(run, model, images), atol=1e-5)
    descend(model, x, shares, 3, 0.2)
    descend(model, own, labels, 2, 0.2)
    sent = site.answers(Bundle({ANSWER: Tensors({SHARES: shares})}), 2)  # the images are remembered
    assert torch.allclose(sent, answers(run, model, images), atol=1e-4)
    judged = site.client(2, 2).judged(Weights.of(run.build_model()))
    assert torch.allclose(answers(run, judged, images), sent, atol=1e-6)


def test_a_site_without_the_images_says_so(small: Small, tmp_path: Path) -> None:
    site = OneSite(made(small, "fedmd"), tmp_path)
    shares = Tensors({SHARES: torch.full((12, 10), 0.1)})
    with pytest.raises(FederationError, match="no longer has the public images"):
        site.answers(Bundle({ANSWER: shares}), 2)


def test_the_server_of_fedmd_learns_the_answer(small: Small) -> None:
    run = made(small, "fedmd", "distil.aggregation=entropy distil.temperature=0.2")
    strategy, images = make_strategy(run), public_images(run)
    z = torch.randn(2, 12, 10, generator=torch.Generator().manual_seed(6))
    uploads = [
        Upload(Site(n, i, 5), logits(z[i], "float32"), 5, {}) for i, n in enumerate(("a", "b"))
    ]
    start = Weights.of(run.build_model())
    strategy.members.outcome = Outcome()
    found = strategy.update(1, start, uploads)
    model = run.build_model()
    x = public_samples(run, images, torch.zeros(12)).inputs(slice(None))
    descend(model, x, torch.tensor(softmax(softmax(z.numpy()).mean(0) / 0.2)), 3, 0.1)
    assert all(torch.allclose(found.tensors[n], t, atol=1e-5) for n, t in model.state_dict().items())  # fmt: skip


@pytest.mark.parametrize("method", ["fedmd", "feddf"])
def test_no_length_of_logits_owns_the_answer_where_nothing_has_noise(
    small: Small, method: str
) -> None:
    """Nine of ten models agree on each image; the tenth says anything else, as long as it likes."""
    truth = torch.arange(12) % 10
    sure = 3.0 * torch.eye(10)[truth]
    honest = [
        centred(sure + torch.randn(12, 10, generator=torch.Generator().manual_seed(i)))
        for i in range(9)
    ]
    for factor in (-1.0, -6.0, -1e6, 1e30):
        each = [*honest, (factor * honest[0].roll(1, 0)).clamp(-LIMIT, LIMIT)]
        assert torch.equal(answer_of_all(made(small, method), each).argmax(1), truth)
    stacked = torch.stack(honest)
    noised = made(small, method, "privacy.noise_multiplier=1 privacy.counts=public")
    assert torch.equal(answer_of_all(noised, honest), consensus(stacked, "mean", 0.1))
    papers = made(small, method, "distil.aggregation=mean")
    assert torch.equal(answer_of_all(papers, honest), consensus(stacked, "mean", 0.1))


def test_the_server_of_feddf_distils_the_models_into_their_average(small: Small) -> None:
    run = made(small, "feddf", "distil.aggregation=mean")
    strategy, images = make_strategy(run), public_images(run)
    models = [run.build_model("site", i) for i in range(2)]
    uploads = [
        Upload(Site(str(i), i, n), Weights.of(m), n, {})
        for i, (m, n) in enumerate(zip(models, (10, 30), strict=True))
    ]
    found = strategy.update(1, Weights.of(run.build_model()), uploads)
    student = run.build_model()
    one, two = (m.state_dict() for m in models)
    student.load_state_dict({n: 0.25 * one[n] + 0.75 * two[n] for n in one})
    x = public_samples(run, images, torch.zeros(12)).inputs(slice(None))
    with torch.no_grad():
        teacher = torch.stack([m.eval()(x) for m in models]).mean(0).softmax(1)
    descend(student, x, teacher, 3, 0.1)
    state = student.state_dict()
    assert all(torch.allclose(found.tensors[n], t, atol=1e-5) for n, t in state.items())


# ---- what travels -------------------------------------------------------------------------------------


def test_the_images_go_once_and_again_to_whom_they_were_lost(small: Small) -> None:
    strategy = make_strategy(made(small, "fedmd"))
    sites = [Site("a", 1, 5), Site("b", 2, 5)]
    start = Weights.of(strategy.run.build_model())

    def has_images(number: int) -> list[bool]:
        plan = strategy.instructions(number, start, sites)
        return [IMAGES in plan[site.name].payload.parts for site in sites]  # type: ignore[attr-defined]

    def ended(accepted: dict[str, Any], rejected: dict[str, str]) -> None:
        strategy.members.outcome = Outcome(accepted=accepted, rejected=rejected)
        taken = [s for s in sites if s.name in accepted]
        each = logits(torch.zeros(12, 10), "float32")
        strategy.update(1, start, [Upload(s, each, 5, {}) for s in taken])

    assert has_images(1) == [True, True]
    ended({"a": {}}, {"b": "late"})
    assert has_images(2) == [False, True]
    ended({"b": {}}, {"a": "it no longer has them"})
    assert has_images(3) == [True, False]


@pytest.mark.extended
def test_a_round_costs_kilobytes(small: Small) -> None:
    text = f"{SERVER} fedmd.epochs=1"

    def up_in(codec: str) -> int:
        record = run(small(method="fedmd", rounds=2, set=f"{text} wire.latents={codec}"))
        return sum(record.metrics()[2]["bytes"]["up"].values())

    up = {codec: up_in(codec) for codec in ("float32", "float16")}
    assert 3 * 12 * 10 * 4 < up["float32"] < 3 * (12 * 10 * 4 + 700)
    assert up["float32"] - up["float16"] == pytest.approx(3 * 12 * 10 * 2, abs=60)


@pytest.mark.parametrize(
    ("spoilt", "reason"),
    [
        (torch.zeros(11, 10), r"11, 10.* where float32 of shape \(12, 10\)"),
        (torch.full((12, 10), 51.0), "51 where -50 to 50 is allowed"),
        (torch.zeros(12, 9), r"\(12, 9\)"),
    ],
)
def test_what_no_site_sends_is_refused(small: Small, spoilt: Tensor, reason: str) -> None:
    run = made(small, "fedmd")
    with pytest.raises(PayloadError, match=reason):
        logits_spec(run, 12).decode(logits(spoilt, "float32").encode())


def test_one_site_of_absurd_certainty_does_not_answer_for_all(small: Small) -> None:
    """Its logits are at the limit for a wrong class; those of nine times the usual length are cut to that."""

    def certain(sent: np.ndarray, base: object, draw: object) -> np.ndarray:
        wrong = np.full_like(sent, -LIMIT / 9)
        wrong[:, 3] = LIMIT
        return wrong

    words = f"{SERVER} federation.sites=5 fedmd.epochs=1 fedmd.lr=0.02 partition.kind=iid"
    config = small(method="fedmd", rounds=1, set=words)
    record = run(config, TamperedGrid, tampers={1: with_part("", certain)})
    line = record.metrics()[1]
    assert "more than federation.max_update=10 times" in line["rejected"]["partition-1"]
    tampers = {1: with_part("", times(9))}
    line = run(config, TamperedGrid, tampers=tampers).metrics()[1]
    assert line["shortened"]["partition-1"] < 0.5


# ---- the images ---------------------------------------------------------------------------------------


def test_the_servers_own_images_come_without_labels(small: Small) -> None:
    run = made(small, "fedmd", "distil.count=1000")
    division = Division(run.config)
    found = public_images(run)
    held = samples(division.dataset.train, run.info, division.validation).inputs(slice(None))
    shown = public_samples(run, found, torch.zeros(len(found))).inputs(slice(None))
    assert found.dtype == torch.uint8
    assert len(found) == len(held)
    apart = torch.cdist(shown.flatten(1), held.flatten(1)).amin(1)
    assert float(apart.max()) < 0.2  # a byte's rounding
    assert torch.equal(found, public_images(run))


def test_noise_other_sets_and_exports(small: Small, tmp_path: Path) -> None:
    noise = public_images(made(small, "fedmd", "distil.images=noise"))
    assert noise.shape == (12, 1, 8, 8)
    path = tmp_path / "synthetic.npz"
    np.savez(path, images=np.random.default_rng(0).normal(size=(20, 1, 8, 8)).astype(np.float32))
    assert public_images(made(small, "fedmd", f"distil.images={path}")).shape == (12, 1, 8, 8)
    same = public_images(made(small, "fedmd", "distil.images=digits"))
    assert len(same) == 12


@pytest.mark.sweep
@pytest.mark.parametrize("method", ["feddf", "fedmd"])
@pytest.mark.parametrize("places", ["folder", "sites", "elsewhere"])
def test_a_named_set_is_public_to_folders_of_pictures(
    small: Small, tmp_path: Path, method: str, places: str
) -> None:
    """One that is divided, each simulated site's own, and real sites', of which a run's settings name the classes."""
    folder = paint_split(tmp_path / "pictures")
    named = {
        "folder": f"images.folder={folder}",
        "sites": f"images.sites={folder},{paint_split(tmp_path / 'more')} federation.sites=2 "
        "evaluation.on=none",
        "elsewhere": "evaluation.on=none",
    }
    words = f"images.classes={CLASSES} images.size=8 images.channels=1 distil.images=digits"
    config = small(
        method=method, rounds=1, dataset="images", set=f"{words} {named[places]} distil.count=30"
    )
    other = public_images(made(small, method, "distil.images=digits distil.count=30"))
    assert torch.equal(public_images(Division(load(config)).run), other)
    if places == "folder":
        assert run(config).metrics()[1]["test"]["accuracy"] >= 0
    with pytest.raises(
        ConfigError, match=r"distil.images=digits .* \(images.channels=1 images.size=8\)"
    ):
        public_images(Division(load({**config, "set": f"{config['set']} images.size=12"})).run)


@pytest.mark.parametrize(
    ("words", "error", "reason"),
    [
        ("data.validation=0", ConfigError, "distil.images=validation gives 0 images"),
        ("distil.images=/nowhere/synthetic.npz", ConfigError, "cannot be read .*No such file"),
        ("distil.images=dijits", DataError, "dijits"),
        ("model.start=/a/b.pth", ConfigError, "is read by the server alone"),
    ],
)
def test_what_cannot_be_is_refused(
    small: Small, words: str, error: type[Exception], reason: str
) -> None:
    with pytest.raises(error, match=reason):
        make_strategy(made(small, "fedmd", words))


def test_images_of_another_shape_are_refused(small: Small, tmp_path: Path) -> None:
    path = tmp_path / "synthetic.npz"
    np.savez(path, images=np.zeros((3, 1, 4, 4), dtype=np.float32))
    with pytest.raises(ConfigError, match=r"3 images of shape \(1, 4, 4\) where some of \(1, 8, 8\)"):  # fmt: skip
        make_strategy(made(small, "feddf", f"distil.images={path}"))
    np.savez(path, images=np.array([{"a": 1}]), allow_pickle=True)
    with pytest.raises(ConfigError, match="cannot be read"):
        make_strategy(made(small, "feddf", f"distil.images={path}"))


# ---- runs ---------------------------------------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.parametrize("method", ["fedmd", "feddf"])
def test_a_run_is_the_same_twice_and_learns(small: Small, method: str) -> None:
    words = f"{method}.epochs=5 {method}.lr=0.1 {method}.batch=32 image_training.epochs=60"
    one, two = (run(small(method=method, rounds=3, set=words)) for _ in range(2))
    assert same_end(one, two)
    accuracies = [line["test"]["accuracy"] for line in one.metrics()]
    assert accuracies[-1] > accuracies[0] + 0.3


@pytest.mark.extended
def test_a_site_that_turns_its_logits_round_does_not_end_the_learning(small: Small) -> None:
    """Six times the other way, which is shorter than what `federation.clip` shortens, in every round."""
    words = (
        "federation.sites=5 partition.alpha=0.5 model.width=16 fedmd.epochs=5 fedmd.batch=32 fedmd.lr=0.05 "
        "image_training.epochs=50"
    )
    turned = with_part("", "x-6")
    asked = small(method="fedmd", rounds=3, set=words)
    reached = [
        run(asked, TamperedGrid, tampers=tampers).metrics()[-1]["test"]["accuracy"]
        for tampers in ({}, {1: turned})
    ]
    assert reached[1] > reached[0] - 0.1


@pytest.mark.extended
@pytest.mark.parametrize("mechanism", ["logits", "training"])
def test_a_private_run_is_charged_once_a_round_or_by_its_steps(
    small: Small, mechanism: str
) -> None:
    private = f"privacy.noise_multiplier=1 privacy.counts=public fedmd.mechanism={mechanism}"
    record = run(small(method="fedmd", rounds=2, set=f"{private} {SERVER} fedmd.batch=64"))
    line = record.metrics()[2]
    (event,) = line["notes"]["spent"]["partition-0"]["events"]
    if mechanism == "logits":
        assert (event["mechanism"], event["sample_rate"], event["steps"]) == ("logits", 1.0, 2)
    else:
        assert event["mechanism"] == "dp-sgd"
        assert event["sample_rate"] < 1
    assert all(set(figures) == {"seeded-noise"} for figures in line["devices"].values())


def test_the_audit_looks_at_each_sites_logits(small: Small) -> None:
    text = f"{SERVER} distil.count=100 distil.keep=sites fedmd.epochs=2"
    found = audit_record(run(small(method="fedmd", rounds=1, set=text)).directory)
    by_site = found["sites"]["partition-0"]["attacks"]
    assert "loss, copied model" in by_site
    assert "loss, copied model" in found["all"]["attacks"]
