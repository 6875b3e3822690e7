"""Sites trained as one stacked model: the numbers of one by one, and who is left to train alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from federation import last, resumed, run, same
from flwr.app import Context, Message
from small import Small
from torch import Tensor, nn

from client_app import ahead, app
from client_app.device import DeviceClient
from common.config.loading import load
from common.division import Division
from common.draws.seeding import generator
from common.errors import ConfigError
from common.learning.stacked import SiteTraining, cannot_stack, train_stacked
from common.learning.task import Classification, NextToken
from common.learning.training import Local, Trained, train
from common.models.convnet import ConvNet
from common.models.mlp import MLP
from common.samples.inputs import Samples
from common.settings.fedavg import FedAvgSettings
from nectar.engines.pool.grid import most_processes
from nectar.records.record import RunRecord
from server_app.record import Record

TASK, SIZES = Classification(10), [5, 23, 1, 16, 8]
PRIVATE = "privacy.noise_multiplier=1 privacy.counts=public"
MLP_SITES = "model.name=mlp model.width=9 federation.sites=7 partition.min_size=1 "


def sites(sizes: Sequence[int] = SIZES) -> list[Samples]:
    """Return made-up sites of raw bytes, some with fewer examples than a batch."""
    made = []
    for k, n in enumerate(sizes):
        draws = generator(0, "made-up", k)
        raw = torch.randint(0, 256, (n, 1, 8, 8), generator=draws, dtype=torch.uint8)
        labels = torch.randint(0, 10, (n,), generator=draws)
        scale = torch.full((1, 1, 1), 1 / 64), torch.full((1, 1, 1), -2.0)
        made.append(Samples(raw, labels, *(each.to(torch.get_default_dtype()) for each in scale)))
    return made


def alone(
    model: nn.Module, samples: Samples, settings: FedAvgSettings, k: int, course: Local
) -> tuple[dict[str, Tensor], Trained]:
    """Return what a site ends with by the loop that trains one."""
    lr, amount = settings.lr_in(3), 0.0
    own = type(model)(*ARGUMENTS[type(model)])
    own.load_state_dict(model.state_dict())
    centre = [p.detach().clone() for p in own.parameters()]

    def penalty(moved: nn.Module) -> Tensor:
        pairs = zip(moved.parameters(), centre, strict=True)
        near = mu / 2 * torch.stack([(p - c).square().sum() for p, c in pairs]).sum()
        named = dict(moved.named_parameters())
        return near - sum((slope * named[n]).sum() for n, slope in course.slope.items())

    @torch.no_grad()
    def corrected(moved: nn.Module) -> None:
        nonlocal amount
        amount = 1 + course.carried_on * amount
        for name, p in moved.named_parameters():
            if name in course.drift:
                p -= lr * amount * course.drift[name]

    mu = course.mu
    local = Local(penalty=penalty if mu else None, after_step=corrected)
    trained = train(own, samples, settings, TASK, generator(0, "x", k), local=local, server_round=3)
    return {name: p.detach() for name, p in own.named_parameters()}, trained


def course_of(model: nn.Module, made_of: dict[str, Any], k: int) -> Local:
    """Return a course whose tensors are site k's own, of all parameters or of those whose names end so."""
    draws, said = generator(0, "course", k), dict(made_of)
    for place in ("slope", "drift"):
        if which := said.get(place):
            ending = "" if which is True else which
            named = [(n, p) for n, p in model.named_parameters() if n.endswith(ending)]
            said[place] = {n: torch.randn(p.shape, generator=draws) for n, p in named}
    return Local(**said)


ARGUMENTS: dict[type, tuple[Any, ...]] = {MLP: ((1, 8, 8), 10), ConvNet: ((1, 8, 8), 10)}


@pytest.fixture
def _float64() -> Any:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.sweep
@pytest.mark.usefixtures("_float64")
@pytest.mark.parametrize(
    ("more", "course"),
    [
        ({}, {}),
        ({"momentum": 0.9, "weight_decay": 0.01, "lr_decay": 0.5}, {}),
        ({}, {"mu": 0.3}),
        ({"momentum": 0.9}, {"mu": 0.3, "slope": True}),
        ({"momentum": 0.9}, {"drift": True, "carried_on": 0.9}),
        ({}, {"drift": "bias"}),
    ],
)
@pytest.mark.parametrize("network", [MLP, ConvNet])
def test_each_site_ends_with_what_it_would_have_alone(
    network: type[nn.Module],
    more: dict[str, float],
    course: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = sites()
    as_float64 = lambda self, rows: self.raw[rows].double() * self.factor + self.offset  # noqa: E731
    monkeypatch.setattr(Samples, "inputs", as_float64)
    torch.manual_seed(0)
    model = network(*ARGUMENTS[network])
    settings = FedAvgSettings(epochs=3, batch=7, lr=0.05, **more)
    courses = [course_of(model, course, k) for k in range(len(made))]
    pupils = [SiteTraining(s, generator(0, "x", k), courses[k]) for k, s in enumerate(made)]
    together = train_stacked(model, pupils, settings, server_round=3)
    for k, (parameters, trained) in enumerate(together):
        expected, by_itself = alone(model, made[k], settings, k, courses[k])
        assert (trained.steps, trained.lr) == (by_itself.steps, by_itself.lr)
        assert trained.loss == pytest.approx(by_itself.loss, rel=1e-6)  # a float32 account of it
        ends, others = (
            torch.cat([t.flatten() for t in m.values()]) for m in (parameters, expected)
        )
        assert (ends - others).norm() < 1e-12 * others.norm(), k
        own = type(model)(*ARGUMENTS[network])
        own.load_state_dict(model.state_dict())
        draws = generator(0, "x", k)
        train(own, made[k], settings, TASK, draws, local=courses[k], server_round=3)
        by_terms = nn.utils.parameters_to_vector(own.parameters())
        assert (by_terms - others).norm() < 1e-12 * others.norm(), k


@pytest.mark.parametrize(
    ("model", "settings", "task", "why"),
    [
        (ConvNet((1, 8, 8), 10, norm="batch"), {}, TASK, "batch norm"),
        (MLP((1, 8, 8), 10), {"local_optimizer": "adam"}, TASK, "plain SGD"),
        (MLP((1, 8, 8), 10), {"clip_norm": 1.0}, TASK, "plain SGD"),
        (MLP((1, 8, 8), 10), {"augment": "flip_crop"}, TASK, "augmentation"),
        (MLP((1, 8, 8), 10), {}, NextToken(10), "texts"),
        (MLP((1, 8, 8), 10), {}, TASK, ""),
    ],
)
def test_what_is_trained_one_by_one(
    model: nn.Module, settings: dict[str, Any], task: Any, why: str
) -> None:
    found = cannot_stack(model, FedAvgSettings(**settings), task)
    assert why in found
    assert bool(why) == bool(found)


# ---- runs -------------------------------------------------------------------------------------------


def carried_out(config: dict[str, Any]) -> Record:
    return run(config, trains_together=True)


def gap(one: Record, other: Record) -> float:
    """Return how far two runs' weights are apart, as a share of their length."""
    a, b = last(one).weights, last(other).weights
    apart = sum(float((a[n].double() - b[n].double()).square().sum()) for n in a) ** 0.5
    return apart / sum(float(b[n].double().square().sum()) for n in b) ** 0.5


@pytest.mark.extended
@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("fedavg", "fedavg.momentum=0.9 "),
        ("fedprox", "fedprox.mu=0.5 "),
        ("fednova", ""),
        ("scaffold", ""),
        ("scaffold", "scaffold.option=I scaffold.momentum=0.5 "),
        ("fedpvr", ""),
        ("feddyn", "feddyn.alpha=0.1 "),
    ],
)
def test_a_run_has_the_numbers_of_one_by_one_but_for_rounding(
    small: Small, method: str, more: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        MLP_SITES
        + more
        + f"{method}.epochs=2 {method}.batch=16 evaluation.on=both data.site_holdout=0.2"
    )
    one_by_one = run(small(method=method, rounds=3, set=text))
    trained = list[int]()
    stacked = ahead.train_stacked
    monkeypatch.setattr(
        ahead,
        "train_stacked",
        lambda m, p, *a, **k: trained.append(len(p)) or stacked(m, p, *a, **k),
    )
    together = carried_out(small(method=method, rounds=3, set=f"{text} compute.batched=3"))
    assert trained == [3, 3, 1] * 3
    assert 0 < gap(together, one_by_one) < 1e-5
    ours, theirs = (record.metrics()[-1] for record in (together, one_by_one))
    assert ours["bytes"] == theirs["bytes"]
    assert ours["accepted"] == theirs["accepted"]
    for site, figures in theirs["devices"].items():
        assert ours["devices"][site]["train-loss"] == pytest.approx(figures["train-loss"], rel=1e-4)
    assert min(ours["seconds"]["by_site"].values()) > 0
    auto = carried_out(small(method=method, rounds=3, set=f"{text} compute.batched=auto"))
    assert trained[-3:] == [7] * 3
    assert gap(auto, one_by_one) < 1e-5


def test_a_run_that_is_continued_ends_alike(small: Small) -> None:
    text = MLP_SITES + "fedavg.epochs=1 fedavg.batch=16 compute.batched=auto"
    whole = carried_out(small(method="fedavg", rounds=3, set=text))
    stopped = carried_out(small(method="fedavg", rounds=2, set=text))
    with pytest.raises(ConfigError, match=r"compute\.batched=auto trains the sites of one process"):
        resumed(stopped, 3)
    more = {"resume": str(stopped.directory), "rounds": 3}
    from nectar.records.outputs import with_recorded

    assert same(last(carried_out(with_recorded(more))).weights, last(whole).weights)


def test_the_sites_of_a_wide_network_or_another_method_train_alone(
    small: Small, caplog: pytest.LogCaptureFixture
) -> None:
    for method, text, said in (
        ("fedavg", "model.name=mlp model.width=2000 compute.batched=auto", ""),
        ("fedavg", "model.name=convnet compute.batched=auto", ""),
        ("ditto", "model.name=mlp compute.batched=5", "more than plain local training"),
        (
            "fedavg",
            f"model.name=mlp compute.batched=5 {PRIVATE}",
            "private steps",
        ),
    ):
        made = Division(load(small(method=method, set=text))).run
        assert ahead.together(made) == 1
        assert said in caplog.text


def test_a_site_that_cannot_be_read_costs_no_other_its_training(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = MLP_SITES + "fedavg.epochs=1 fedavg.batch=16 federation.min_replies=2"
    expected = run(small(method="fedavg", rounds=1, set=text))

    def unread(*_: Any, **__: Any) -> None:
        raise ValueError("unread")

    monkeypatch.setattr(ahead, "train_stacked", unread)
    record = carried_out(small(method="fedavg", rounds=1, set=f"{text} compute.batched=4"))
    assert same(last(record).weights, last(expected).weights)


def test_a_sites_client_is_made_once_for_the_training_ahead_and_its_own_instruction(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, plain = list[str](), app.client_of

    def counted(message: Message, context: Context) -> DeviceClient:
        client = plain(message, context)
        made.append(client.site)
        return client

    monkeypatch.setattr(app, "client_of", counted)
    text = f"{MLP_SITES}fedavg.epochs=1 evaluation.on=none compute.batched=4"
    carried_out(small(method="fedavg", rounds=2, set=text))
    assert sorted(made) == sorted(2 * [f"partition-{k}" for k in range(7)])


def test_it_is_of_one_process_and_told_apart_from_one_by_one(small: Small) -> None:
    text = "fedavg.epochs=1 compute.batched=4 "
    assert most_processes(load(small(method="fedavg", set=text))) == 1
    with pytest.raises(ConfigError, match=r"compute\.workers=2 divides them"):
        load(small(method="fedavg", set=f"{text}compute.workers=2"))
    record = carried_out(small(method="fedavg", rounds=1, set=f"{text}model.name=mlp"))
    assert RunRecord(record.directory).config.compute.batched == "4"
