"""Running statistics that are a site's own: they never travel, and follow what the server took.

Site k's images are pixels of one mean; a step with the whole site moves a running mean by a tenth of the way to it:
from 0 to 0.1 mean in the first round, to 0.19 mean in the second. The weights are held by a rate of next to nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from federation import run
from small import Small
from tiny import TinyRun, tiny_run
from torch import Tensor, nn

import client_app.device
from client_app.fedavg import FedAvgClient
from client_app.scaffold import ScaffoldClient
from client_app.state import DirectoryState
from common.config.loading import load
from common.division import Division
from common.errors import ConfigError
from common.learning.task import Evaluation
from common.models import Classifier
from common.samples.inputs import Samples
from common.specs.averaging import CONTROL, WEIGHTS, bundle_spec, control_spec
from common.wire.bundle import Bundle
from common.wire.weights import Weights
from nectar.export.bundle import network_of
from nectar.records.record import RunRecord

OWN = {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
AT_SITES = "model.statistics=local evaluation.on=sites data.site_holdout=0.2"


class Normed(Classifier):
    """z = w x, x normalised by the batch and, judged, by the running statistics."""

    def __init__(self) -> None:
        super().__init__((1, 1, 1))
        self.norm = nn.BatchNorm2d(1)
        self.head = nn.Linear(1, 1, bias=False)
        nn.init.ones_(self.head.weight)

    def embed(self, x: Tensor) -> Tensor:
        """Return the normalised pixel."""
        normalised: Tensor = self.norm(x)
        return normalised.flatten(1)

    def classify(self, h: Tensor) -> Tensor:
        """Return w h."""
        out: Tensor = self.head(h)
        return out


class NormedRun(TinyRun):
    def build_model(self) -> Normed:  # type: ignore[override]
        """Return the model at its start."""
        return Normed()


def settings(method: str) -> NormedRun:
    words = f"{method}.epochs=1 {method}.lr=1e-12 {method}.batch=2"
    fixed = f"{words} evaluation.on=none model.statistics=local"
    run = tiny_run(load({"method": method, "set": fixed}), NormedRun)
    assert isinstance(run, NormedRun)
    return run


class One:
    """A site whose two images are ``mean`` - 1 and ``mean`` + 1, a new client each time."""

    def __init__(self, directory: Path, mean: float, method: str = "fedavg") -> None:
        self.run = settings(method)
        self._cls = {"fedavg": FedAvgClient, "scaffold": ScaffoldClient}[method]
        x = torch.tensor([mean - 1, mean + 1]).reshape(2, 1, 1, 1)
        self._samples = Samples.of(x, torch.zeros(2))
        self._state = DirectoryState(directory, "record", f"site{mean:g}")

    def client(self) -> Any:
        """Return a client as a process of its own would have it."""
        return self._cls(self.run, "site", self._samples, self._samples, self._state)

    def fit(self, given: Any, number: int, taken: int) -> list[Any]:
        """Return what leaves in a round."""
        config = {"server-round": number, "phase": "train", "taken": taken}
        arrays, _, _ = self.client().fit(given.encode(), config)
        return list(arrays)

    def statistics(self, number: int) -> Mapping[str, Tensor]:
        """Return what the site remembers as of a round."""
        client = self.client()
        client.begin({"server-round": number + 1, "taken": number})
        return dict(client.recall("statistics"))


def sent_to(site: One) -> Weights:
    return Weights.of(Normed()).only(site.run.spec)


def test_each_site_goes_on_from_its_own_and_sends_the_others_only(tmp_path: Path) -> None:
    for mean in (4.0, -2.0):
        site = One(tmp_path, mean)
        assert not OWN & set(site.run.spec.names)
        for number, part in ((1, 0.1), (2, 0.19)):
            arrays = site.fit(sent_to(site), number, number - 1)
            reply = site.run.spec.decode(arrays)
            assert set(reply.tensors) == {"norm.weight", "norm.bias", "head.weight"}
            kept = site.statistics(number)
            assert set(kept) == OWN
            assert float(kept["norm.running_mean"]) == pytest.approx(part * mean, abs=1e-6)
            # unbiased, two images one from their mean have a variance of 2; it begins at 1
            assert float(kept["norm.running_var"]) == pytest.approx(1 + part, abs=1e-6)
            assert int(kept["norm.num_batches_tracked"]) == number


def test_a_reply_that_was_not_taken_leaves_no_trace_in_them(tmp_path: Path) -> None:
    site = One(tmp_path, 4.0)
    site.fit(sent_to(site), 1, 0)
    site.fit(sent_to(site), 2, 1)
    site.fit(sent_to(site), 3, 1)  # the server took no reply of round 2
    assert float(site.statistics(3)["norm.running_mean"]) == pytest.approx(0.19 * 4, abs=1e-6)


def test_a_bundle_leaves_without_them_and_they_are_kept_beside_the_methods_own(
    tmp_path: Path,
) -> None:
    site = One(tmp_path, 4.0, "scaffold")
    control = control_spec(site.run).zeros()
    arrays = site.fit(Bundle({WEIGHTS: sent_to(site), CONTROL: control}), 1, 0)
    reply = bundle_spec(site.run).decode(arrays)
    assert not OWN & set(reply.part(WEIGHTS, Weights).tensors)
    assert set(site.statistics(1)) == OWN
    client = site.client()
    client.begin({"server-round": 2, "taken": 1})
    assert set(client.recall()) == set(control.tensors)


def test_a_site_judges_the_weights_with_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of the round that the server took last, in whatever round it asks."""
    site = One(tmp_path, 4.0)
    site.fit(sent_to(site), 1, 0)
    site.fit(sent_to(site), 2, 1)
    judged: list[float] = []

    def measure(run: Any, model: Any, *rest: Any) -> Evaluation:
        judged.append(float(model.norm.running_mean))
        return Evaluation(0.0, 0.0, (), 2)

    monkeypatch.setattr(client_app.device, "measure", measure)
    for taken in (0, 1, 2):
        site.client().evaluate(sent_to(site).encode(), {"server-round": 2, "taken": taken})
    assert judged == pytest.approx([0, 0.4, 0.76], abs=1e-6)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "method",
    ["fedavg", "fedprox", "fednova", "scaffold", "fedpvr", "feddyn", "moon", "topk", "masking"],
)
def test_every_method_whose_sites_train_has_it(small: Small, method: str) -> None:
    words = f"{AT_SITES} model.norm=batch model.depth=1 model.width=4 {method}.epochs=1"
    record = run(small(method=method, rounds=2, set=words))
    lines = record.metrics()
    assert all(not line["rejected"] and len(line["evaluated"]) == 3 for line in lines[1:])
    weights = RunRecord.open(record.directory).checkpoint().weights
    assert weights
    assert not any("running" in name or "tracked" in name for name in weights)


@pytest.mark.extended
def test_one_site_alone_has_the_same_numbers_either_way(small: Small) -> None:
    """What is averaged over one site is that site's: every figure of its evaluation is the same."""
    words = f"{AT_SITES} model.norm=batch model.depth=1 model.width=4 federation.sites=1"
    one, other = (
        run(small(method="fedavg", rounds=3, set=f"{words} model.statistics={how}")).metrics()
        for how in ("averaged", "local")
    )
    for averaged, local in zip(one, other, strict=True):
        assert averaged["sites"] == local["sites"]
        assert averaged.get("devices") == local.get("devices")
    assert 0.5 < one[-1]["sites"]["accuracy"] < 1
    assert one[-1]["floats_up"] == other[-1]["floats_up"] + 2 * 4


def test_there_is_no_whole_model_to_export(small: Small) -> None:
    words = f"{AT_SITES} model.norm=batch model.depth=1 model.width=4"
    past = RunRecord.open(run(small(method="fedavg", rounds=1, set=words)).directory)
    with pytest.raises(ConfigError, match=r"each site's own .model.statistics=local."):
        network_of(Division(past.config).run, past.checkpoint())
