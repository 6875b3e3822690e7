"""FedDM with global models of other architectures: sites distil on the run's model, the server learns others."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from federation import last, run
from small import Small
from torch import nn

from common.config.loading import load
from common.division import Division
from common.errors import ConfigError
from common.learning.training import Local
from common.samples.inputs import Samples
from common.settings.surrogate import GlobalModelsSettings
from common.sites import Site
from common.wire.images import SyntheticImages
from common.wire.weights import Weights
from strategies.exchange.replies import Upload
from strategies.feddm import FedDM
from strategies.surrogate import SURROGATE, GlobalModels

TWO = "feddm.global_models=mlp,convnet feddm.global_epochs=3"


@pytest.mark.extended
@pytest.mark.parametrize("method", ["feddm", "real"])
def test_the_first_gives_the_figures_and_what_travels_is_what_it_would_be_without(
    small: Small, method: str
) -> None:
    record = run(small(method=method, set=TWO.replace("feddm", method)))
    alone = run(small(method=method))
    for line, without in zip(record.metrics()[1:], alone.metrics()[1:], strict=True):
        assert set(line["models"]) == {"mlp", "convnet", SURROGATE}
        own, of_surrogate = dict(line["test"]), dict(without["test"])
        assert own.pop("confusion")  # of the run's own model alone
        assert of_surrogate.pop("confusion")
        assert own == line["models"]["mlp"]
        assert line["models"][SURROGATE] == of_surrogate
        assert line["bytes"] == without["bytes"]
    assert set(last(record).models) == {"mlp", "convnet"}
    weights = last(alone).weights
    assert all(torch.equal(t, weights[name]) for name, t in last(record).weights.items())


def test_its_step_is_of_the_loss_by_the_real_images_that_each_stands_for() -> None:
    """Of two sites with 9 and 1 images of a class, who sent one each: w - eta grad of (1.8 l_1 + 0.2 l_2) / 2."""
    words = (
        "model.width=8 feddm.global_models=mlp feddm.global_epochs=1 feddm.global_lr=0.5 "
        "feddm.global_momentum=0 feddm.image_weighting=counts image_training.epochs=0"
    )
    a_run = Division(load({"set": words})).run
    server = FedDM(a_run)
    images = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    sent = [
        Upload(
            Site(f"partition-{i}", i + 1, examples=n, class_counts=[0, n, *[0] * 8]),
            SyntheticImages(images[i : i + 1], torch.tensor([1])),
            1,
            {},
        )
        for i, n in enumerate((9, 1))
    ]
    model = a_run.with_model("mlp").build_model()
    losses = F.cross_entropy(model(images), torch.tensor([1, 1]), reduction="none")
    ((1.8 * losses[0] + 0.2 * losses[1]) / 2).backward()  # type: ignore[no-untyped-call]
    expected = {n: p.detach() - 0.5 * p.grad for n, p in model.named_parameters()}  # type: ignore[operator]
    weights = Weights.of(a_run.build_model())
    assert server.update(1, weights, sent) is weights
    held = server.state_dict()["learned"]["mlp"]
    for name, tensor in expected.items():
        assert torch.allclose(held[name], tensor, atol=1e-6)


@pytest.mark.long
@pytest.mark.extended
def test_their_normalisation_may_be_their_own(small: Small) -> None:
    """A ResNet of 8x8 digits cannot have the instance norm that the sites' ConvNet has."""
    words = "feddm.global_models=resnet18 feddm.global_epochs=1 feddm.global_norm="
    with pytest.raises(ConfigError, match=r"use model\.norm=group or batch"):
        run(small(rounds=1, set=f"{words}instance"))
    for norm, statistics in (("group", 0), ("batch", 20)):
        models = last(run(small(rounds=1, set=f"{words}{norm}"))).models["resnet18"]
        assert sum("running_mean" in name for name in models) == statistics


@pytest.mark.parametrize(
    ("norm", "sizes"), [("batch", [4, 3, 3, 4, 3, 3]), ("group", [4, 4, 2, 4, 4, 2])]
)
def test_no_batch_norm_goes_by_a_rest_of_few_images(norm: str, sizes: list[int]) -> None:
    """Ten images in batches of 4, twice: a rest of 2 where samples do not see each other, and none where they do."""
    words = (
        "model.width=8 feddm.global_models=convnet feddm.global_epochs=2 feddm.global_batch=4 "
        f"feddm.global_norm={norm}"
    )
    a_run = Division(load({"set": words})).run
    settings = a_run.config.settings
    assert isinstance(settings, GlobalModelsSettings)
    draws = torch.Generator().manual_seed(1)
    samples = Samples.of(torch.randn(10, 1, 8, 8, generator=draws), torch.arange(10))
    seen: list[torch.Tensor] = []

    def noted(model: nn.Module, x: torch.Tensor, y: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        seen.append(at)
        return F.cross_entropy(model(x), y)

    GlobalModels(a_run, settings).train(1, samples, Local(objective=noted))
    assert [len(at) for at in seen] == sizes
    for a_pass in (seen[:3], seen[3:]):
        assert torch.cat(a_pass).sort().values.tolist() == list(range(10))
