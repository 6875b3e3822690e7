"""Models named by import path: made, looked at, wrapped, trained; and a sentence for each that cannot be used."""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federation import numbers, run
from flwr.app import Message
from small import Small
from torch import Tensor, nn
from torch.func import functional_call, vmap

from common.config.loading import load
from common.division import Division
from common.errors import ConfigError
from common.models import Classifier
from common.models.user_model import adopt, make
from nectar.engines.local_grid import LocalGrid
from server_app.checkpoint import Checkpoint

MODULE = """
import numpy as np
import torch
from torch import nn

def net(shape, classes):
    net = nn.Sequential(
        nn.Conv2d(shape[0], 6, 3), nn.BatchNorm2d(6), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Dropout(0.2), nn.Linear(6, classes),
    )
    nn.init.constant_(net[0].bias, float(np.random.rand()))
    return net

def plain(shape, classes):
    size = shape[0] * shape[1] * shape[2]
    return nn.Sequential(nn.Flatten(), nn.Linear(size, 12), nn.Tanh(), nn.Linear(12, classes))

class Texts(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.embed = nn.Embedding(classes, 8)
        self.head = nn.Linear(8, classes)
    def forward(self, tokens):
        return self.head(self.embed(tokens).cumsum(1))

class Counts(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.layer = nn.Linear(shape[0] * shape[1] * shape[2], classes)
        self.register_buffer("calls", torch.zeros(()))
    def forward(self, x):
        self.calls += 1
        return self.layer(x.flatten(1))
"""

CONV = "model.name=a_users_models:net"


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_users_models.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "a_users_models", raising=False)


def build(text: str, seed: int = 0) -> Classifier:
    return Division(load({"seed": seed, "set": text})).run.build_model()


class Embedding(nn.Module):
    """A network with an ``embed`` of its own."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.lower, self.upper = nn.Linear(4, 3), nn.Linear(3, classes)

    def embed(self, x: Tensor) -> Tensor:
        h: Tensor = self.lower(x.flatten(1))
        return h

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.upper(self.embed(x))
        return logits


class Scaled(Embedding):
    """One whose last layer does not end it; ``classify`` says so."""

    def classify(self, h: Tensor) -> Tensor:
        return 2 * self.upper(h)

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(self.embed(x))


def test_its_weights_follow_from_the_seed_and_the_process_is_left_alone() -> None:
    states = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()  # type: ignore[index]  # noqa: NPY002
    one, other = build(CONV), build(CONV, seed=1)
    torch.rand(3), np.random.rand(3)  # noqa: NPY002
    again = build(CONV)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), again.parameters(), strict=True))
    assert not torch.equal(one.state_dict()["0.bias"], other.state_dict()["0.bias"])
    torch.set_rng_state(states[2])
    np.random.seed(0)  # noqa: NPY002
    before = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()  # type: ignore[index]  # noqa: NPY002
    build(CONV)
    assert random.getstate() == before[0] == states[0]
    assert (np.random.get_state()[1] == before[1]).all()  # type: ignore[index]  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), before[2])


def test_it_is_a_classifier_under_its_own_names() -> None:
    model = build(CONV)
    names = ["0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var"]
    assert list(model.state_dict()) == [*names, "1.num_batches_tracked", "6.weight", "6.bias"]
    assert not model.state_dict()["1.running_mean"].any()  # what looking at it moved is put back
    assert model.training
    assert model.couples_samples
    model.eval()
    x = torch.randn(3, 1, 8, 8)
    assert model.embed(x).shape == (3, 6)
    torch.testing.assert_close(model.classify(model.embed(x)), model(x))
    fresh = sys.modules["a_users_models"].net((1, 8, 8), 10).eval()
    fresh.load_state_dict(model.state_dict())
    torch.testing.assert_close(fresh(x), model(x), rtol=0, atol=0)


class Started(LocalGrid):
    """Notes in ``begun`` the weights that each device starts from, by round, as they are when it begins."""

    def __init__(self, *args: Any, begun: dict[str, list[Any]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._begun = begun

    def _call(self, message: Message) -> Message:
        if message.metadata.message_type == "train":
            arrays = message.content.array_records["arrays"].values()
            copies = [bytearray(array.data) for array in arrays]  # bytes would be the same object
            self._begun.setdefault(message.metadata.group_id, []).append(copies)
        return super()._call(message)


def test_one_that_writes_to_its_state_when_called_is_tried_on_copies(small: Small) -> None:
    """The server's weights lie in the bytes that the devices still to come are sent."""
    begun: dict[str, list[Any]] = {}
    words = "model.name=a_users_models:Counts federation.wave=1"
    config = small(method="fedavg", rounds=2, set=words)
    run(config, Started, begun=begun)
    assert list(begun) == ["1", "2"]
    for of_round in begun.values():
        assert len(of_round) == 3
        assert all(arrays == of_round[0] for arrays in of_round)


def test_a_copy_is_a_network_of_its_own() -> None:
    model = build("model.name=a_users_models:plain")
    twin, x = copy.deepcopy(model), torch.randn(2, 1, 8, 8)
    before = model(x)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert not twin(x).any()
    assert not twin.embed(x).any()
    assert torch.equal(model(x), before)


def test_it_runs_under_vmap_with_parameters_put_in_and_is_differentiated_twice() -> None:
    model = build("model.name=a_users_models:plain")
    stacked = {k: torch.stack([p, 2 * p]).detach() for k, p in model.named_parameters()}
    x = torch.randn(2, 3, 1, 8, 8, requires_grad=True)
    out = vmap(lambda p, x: functional_call(model, p, (x,)))(stacked, x)
    torch.testing.assert_close(out[0], model(x[0]))
    (slope,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
    (again,) = torch.autograd.grad(slope.square().sum(), x)
    assert again.isfinite().all()
    assert again.any()


@pytest.mark.parametrize("cls", [Embedding, Scaled])
def test_its_own_embed_is_the_embedding(cls: type[Embedding]) -> None:
    plain = cls((1, 2, 2), 5)
    model, x = adopt(plain, "x:y", (1, 2, 2), 5), torch.randn(3, 1, 2, 2)
    torch.testing.assert_close(model.embed(x), plain.embed(x))
    torch.testing.assert_close(model.classify(model.embed(x)), plain(x))


def test_a_resnet_of_torchvision_s_is_built_for_small_colour_images() -> None:
    model = build("model.name=torchvision.models:resnet18 dataset=cifar10").eval()
    x = torch.randn(2, 3, 32, 32)
    assert model.embed(x).shape == (2, 512)
    assert model(x).shape == (2, 10)
    assert next(iter(model.state_dict())) == "conv1.weight"


@pytest.mark.sweep
@pytest.mark.parametrize("method", ["feddm", "fedavg", "real", "topk"])
def test_methods_learn_with_it_and_give_the_same_numbers_again(small: Small, method: str) -> None:
    """It has batch norm and dropout; a share of the batches and of the classes is of one image."""
    words = f"{CONV} feddm.ipc=1 feddm.start=noise fedavg.batch=31 data.images=200 topk.rate=4"
    one, two = (run(small(method=method, rounds=1, set=words)) for _ in range(2))
    assert numbers(one) == numbers(two)
    weights = Checkpoint.load(one.last).weights
    start = Division(load(small(method=method, set=words))).run.build_model().state_dict()
    assert not torch.equal(weights["0.weight"], start["0.weight"])
    assert "1.running_var" in weights


def test_fedsynth_replays_it(small: Small) -> None:
    words = "model.name=a_users_models:plain fedsynth.rate=2 fedsynth.iterations=2 fedsynth.steps=2"
    assert len(run(small(method="fedsynth", rounds=1, set=words)).metrics()) == 2


@pytest.mark.parametrize(
    ("method", "sentence"),
    [("masking", "running variances could become negative"), ("fedsynth", "running statistics")],
)
def test_methods_that_need_no_running_variances_say_so(
    small: Small, method: str, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=f"{sentence}.*your own model without batch norm"):
        run(small(method=method, set=f"{CONV} masking.rate=2"))


def test_it_learns_texts_whose_modules_may_have_any_name(reddit_config: Small) -> None:
    """A submodule called embed is not taken for the method of that name."""
    config = reddit_config("model.name=a_users_models:Texts") | {"rounds": 1}
    record = run(config)
    assert "embed.weight" in Checkpoint.load(record.last).weights
    with pytest.raises(ConfigError, match="does not show: choose lstm"):
        run(config | {"method": "fedsynth"})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("model.name=torchvision.models:resnet18", "does not take inputs of 1x8x8 .*cifar10"),
        ("model.name=torch.nn:ReLU", "has the parameters .*it must take .shape, classes., or num"),
    ],
)
def test_what_cannot_be_a_model_is_told(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as told:
        build(text)
    assert "\n" not in str(told.value)


class TwoOutputs(nn.Module):
    """In training it returns more than the logits."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Any:
        logits = self.out(x.flatten(1))
        return (logits, x) if self.training else logits


class Hidden(Embedding):
    """Its embed is not what its last layer takes, and it has no classify."""

    def embed(self, x: Tensor) -> Tensor:
        return x.flatten(1)[:, :3]

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.upper(self.lower(x.flatten(1)))
        return logits


def _made(*layers: nn.Module) -> Callable[..., object]:
    return lambda shape, classes: nn.Sequential(nn.Flatten(), *layers)


@pytest.mark.parametrize(
    ("maker", "sentence"),
    [
        (_made(nn.Linear(4, 3), nn.LogSoftmax(1)), "does not end with a linear layer .*embed"),
        (_made(nn.Linear(4, 2)), r"gives shape \(2, 2\) in evaluation .*of shape \(2, 3\)"),
        (lambda shape, classes: TwoOutputs(), "gives tuple in training"),
        (Hidden, r"give it a method classify\(h\)"),
        (
            _made(nn.Linear(4, 3).double()),
            r"has 1\.weight as float64: .*return the network as \.float",
        ),
        (_made(nn.Linear(4, 3).requires_grad_(False)), "no parameter that can be learned"),
        (lambda shape, classes: 1 / 0, "x:y raised ZeroDivisionError: division by zero"),
        (lambda shape, classes: 3, "x:y made a int, and must make a torch.nn.Module"),
        (lambda a, b, c: None, r"has the parameters \(a, b, c\)"),
        (nn.Linear(4, 3), "is a Linear and cannot be called"),
    ],
)
def test_a_network_that_cannot_be_used_is_told(maker: Callable[..., object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        adopt(make(maker, "x:y", (1, 2, 2), 3), "x:y", (1, 2, 2), 3)
