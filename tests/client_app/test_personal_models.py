"""Models of the sites' own: what travels, what stays, and each method's training by hand, in full batches."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from federation import run
from safetensors.torch import load_file, save_file
from small import Small
from tiny import TinyRun, tiny_run
from torch import Tensor, nn

from client_app.device import client_class
from client_app.state import DirectoryState
from common.config.consistency import _statistics
from common.config.loading import load
from common.division import Division
from common.errors import ConfigError, FederationError
from common.learning.start import starting_weights
from common.models import Classifier, build
from common.samples.inputs import Samples, samples
from common.settings.base import Disclosure
from common.settings.sections import EvaluationSettings
from common.wire.weights import Weights
from nectar.cli import main as nectar
from nectar.export.bundle import network_of
from nectar.records.record import RunRecord

LR, EPOCHS, N = 0.1, 2, 6
PERSONAL = ("fedper", "fedrep", "fedbn", "ditto", "finetune")


class Small2(Classifier):
    """Two layers with a layer norm between them."""

    def __init__(self) -> None:
        super().__init__((3, 1, 1))
        torch.manual_seed(0)
        self.body = nn.Linear(3, 4)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 1)

    def embed(self, x: Tensor) -> Tensor:
        """Return the features."""
        out: Tensor = torch.tanh(self.norm(self.body(x.flatten(1))))
        return out

    def classify(self, h: Tensor) -> Tensor:
        """Return the logits."""
        out: Tensor = self.head(h)
        return out


class Run2(TinyRun):
    def build_model(self) -> Small2:  # type: ignore[override]
        """Return the model at its start."""
        return Small2()


class Site:
    """A site that is a process of its own in each round."""

    def __init__(self, directory: Path, method: str, more: str = "") -> None:
        words = (
            f"{method}.epochs={EPOCHS} {method}.lr={LR} {method}.batch={N} {more} model.norm=group"
        )
        self.run = tiny_run(load({"method": method, "set": words}), Run2)
        draws = torch.Generator().manual_seed(3)
        self.x = torch.randn(N, 3, 1, 1, generator=draws)
        self.y = torch.tensor([0.0, 1, 1, 0, 1, 0])
        self._samples = Samples.of(self.x, self.y)
        self._state = DirectoryState(directory, "record", "site")
        self.method = method

    def client(self, number: int, taken: int) -> Any:
        """Return a client that has begun a round."""
        made = client_class(self.method)(
            self.run, "site", self._samples, self._samples, self._state
        )
        made.begin({"server-round": number, "phase": "train", "taken": taken})
        return made

    def fit(self, given: Weights, number: int) -> Weights:
        """Return what leaves in a round."""
        config = {"server-round": number, "phase": "train", "taken": number - 1}
        arrays, _, _ = self.client(number, number - 1).fit(given.encode(), config)
        return self.run.spec.decode(list(arrays))

    def judged(self, w: Weights, number: int) -> Weights:
        """Return the model that it judges behind a round."""
        return Weights.of(self.client(number, number).judged(w))

    def start(self) -> Weights:
        """Return what the server sends in round 1."""
        return Weights.of(Small2()).only(self.run.spec)


def descend(
    model: nn.Module,
    site: Site,
    names: Iterable[str],
    steps: int,
    centre: Weights | None = None,
    pull: float = 0.0,
) -> None:
    """Take plain full-batch steps with the parameters ``names``."""
    chosen = {n: p for n, p in model.named_parameters() if n in set(names)}
    for _ in range(steps):
        loss = (model(site.x).flatten() - site.y).square().mean() / 2
        if centre is not None:
            loss = loss + pull / 2 * sum(
                (p - centre.tensors[n]).square().sum() for n, p in chosen.items()
            )
        slopes = torch.autograd.grad(loss, list(chosen.values()))
        with torch.no_grad():
            for p, slope in zip(chosen.values(), slopes, strict=True):
                p -= LR * slope


def close(found: Weights, model: nn.Module, names: Iterable[str]) -> bool:
    state = model.state_dict()
    return all(torch.allclose(found.tensors[n], state[n], atol=1e-6) for n in names)


ALL = tuple(Small2().state_dict())
HEAD = ("head.weight", "head.bias")
BODY = tuple(n for n in ALL if n not in HEAD)


@pytest.mark.parametrize("method", ["fedper", "fedrep"])
def test_the_head_stays_and_goes_on_from_where_it_was(tmp_path: Path, method: str) -> None:
    site = Site(tmp_path, method, "fedrep.head_epochs=3" if method == "fedrep" else "")
    assert set(site.run.spec.names) == set(BODY)
    model, given = Small2(), site.start()
    for number in (1, 2):
        sent = site.fit(given, number)
        model.load_state_dict({**model.state_dict(), **given.tensors})
        if method == "fedper":
            descend(model, site, ALL, EPOCHS)
        else:
            descend(model, site, HEAD, 3)
            descend(model, site, BODY, EPOCHS)
        assert set(sent.tensors) == set(BODY)
        assert close(sent, model, BODY)
        # the others move the shared layers before the next round
        given = Weights({n: 0.9 * t for n, t in sent.tensors.items()})
        judged = site.judged(given, number)
        assert close(judged, model, HEAD)
        assert all(torch.equal(judged.tensors[n], given.tensors[n]) for n in BODY)


def test_fedbn_keeps_the_layers_that_normalise(tmp_path: Path) -> None:
    site = Site(tmp_path, "fedbn")
    assert set(ALL) - set(site.run.spec.names) == {"norm.weight", "norm.bias"}
    sent = site.fit(site.start(), 1)
    assert not any(name.startswith("norm") for name in sent.tensors)


@pytest.mark.parametrize(("words", "epochs"), [(" ditto.own_epochs=3", 3), ("", EPOCHS)])
def test_dittos_own_model_is_pulled_to_the_shared_one_and_never_sent(
    tmp_path: Path, words: str, epochs: int
) -> None:
    site = Site(tmp_path, "ditto", f"ditto.pull=0.7{words}")
    given, own = site.start(), Small2()
    for number in (1, 2):
        shared = Small2()
        shared.load_state_dict(given.tensors)
        descend(shared, site, ALL, EPOCHS)
        descend(own, site, ALL, epochs, given, 0.7)
        sent = site.fit(given, number)
        assert close(sent, shared, ALL)
        assert close(site.judged(given, number), own, ALL)
        given = Weights({n: 0.9 * t for n, t in sent.tensors.items()})


def test_a_server_that_does_not_say_whose_memory_it_means_gets_no_figure(tmp_path: Path) -> None:
    site = Site(tmp_path, "ditto")
    given = site.fit(site.start(), 1)
    client = site.client(1, 1)
    own = Weights.of(client.judged(given)).tensors
    assert not all(torch.equal(own[name], given.tensors[name]) for name in ALL)
    with pytest.raises(FederationError, match="judged_from_memory = True"):
        client.evaluate(given.encode(), {"server-round": 1})


def test_weights_to_start_from_are_refused_for_what_stays(tmp_path: Path) -> None:
    def start(personal: str, classes: int) -> dict[str, Tensor]:
        draws = torch.Generator().manual_seed(7)
        network = build("convnet", (1, 8, 8), classes, depth=2, width=4, generator=draws)
        save_file(network.state_dict(), tmp_path / "start.safetensors")
        words = f"model.width=4 model.depth=2 model.personal={personal} evaluation.on=none"
        words += f" model.start={tmp_path / 'start.safetensors'}"
        return starting_weights(Division(load({"method": "fedavg", "set": words})).run)

    assert start("head", 3)  # of other classes, so that it is not taken
    with pytest.raises(
        ConfigError, match=r"'head\.weight' stays at the sites \(model\.personal=head"
    ):
        start("head", 10)


def test_a_method_in_whose_words_it_is_an_update_leaves_a_part_too() -> None:
    words = {"set": "model.personal=head evaluation.on=none"}
    model, sent = load({"method": "fedavg", **words}).model, "a clipped update"

    def refused(disclosure: Disclosure) -> list[str]:
        settings = SimpleNamespace(disclosure=lambda: disclosure)
        on = EvaluationSettings(on="none")
        run: Any = SimpleNamespace(model=model, evaluation=on, method="fedavg", settings=settings)
        return list(_statistics(run))

    assert refused(Disclosure(sent, update=True)) == []
    assert "send its weights" in refused(Disclosure("images"))[0]


@pytest.mark.parametrize(("words", "epochs"), [("finetune.tuning_epochs=3", 3), ("", EPOCHS)])
def test_what_is_judged_is_tuned_first_and_fedavgs_site_sends_what_it_did(
    tmp_path: Path, words: str, epochs: int
) -> None:
    site = Site(tmp_path, "finetune", words)
    given, tuned, plain = site.start(), Small2(), Small2()
    descend(plain, site, ALL, EPOCHS)
    descend(tuned, site, ALL, epochs)
    assert close(site.fit(given, 1), plain, ALL)
    assert close(site.judged(given, 1), tuned, ALL)


@pytest.mark.sweep
@pytest.mark.parametrize("method", ["fedprox", "fednova", "scaffold", "moon", "topk"])  # fmt: skip
def test_other_methods_leave_a_part_too(method: str, small: Small) -> None:
    words = "model.personal=head evaluation.on=sites data.site_holdout=.25"
    record = run(small(method=method, rounds=2, set=words))
    whole = run(small(method=method, rounds=2, set="evaluation.on=sites data.site_holdout=.25"))
    up, up_of_all = (sum(r.metrics()[2]["bytes"]["up"].values()) for r in (record, whole))
    assert up < up_of_all
    assert len(record.metrics()[2]["accepted"]) == 3


# ---- taken home ---------------------------------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.parametrize("method", ["fedper", "ditto", "fedmd"])
def test_a_sites_own_model_is_exported_as_it_was_judged(
    method: str, small: Small, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    judged = "evaluation.on=sites data.site_holdout=.25 data.validation=0.1"
    words = f"{method}.epochs=1 {method}.lr=0.1 image_training.epochs=2 {judged}"
    record = run(small(method=method, rounds=2, set=words))
    named, site = str(record.directory), "partition-1"
    assert nectar(["export", named, "--site", site, "--output", str(tmp_path / "own")]) == 0
    line = record.metrics()[-1]
    told = line["evaluated"][site]
    assert len(line["evaluated"]) == 3
    assert method == "fedmd" or line["test"] is None
    about = json.loads((tmp_path / "own" / "model.json").read_text())
    assert about["figures"]["site"]["accuracy"] == told["accuracy"]
    assert about["run"]["round"] == 2
    past = RunRecord(record.directory)
    division = Division(past.config)
    if past.config.model.personal != "none":
        with pytest.raises(ConfigError, match=r"each site's own \(model.personal=(head|norm)\)"):
            network_of(division.run, past.checkpoint())
    split = division.dataset.train
    _, held = division.share(site, division.dataset, division.partition(3)[1])
    held_out = samples(split, division.run.info, held)
    network = division.run.build_model()
    network.load_state_dict(load_file(tmp_path / "own" / "model.safetensors"))
    found = network.eval()(held_out.inputs(slice(None))).argmax(1)
    assert float((found == held_out.labels).float().mean()) == pytest.approx(told["accuracy"])
    capsys.readouterr()
    assert nectar(["export", named, "--site", "partition-9"]) == 2
    assert "has no model of partition-9's own, but of partition-0, partition-1, partition-2" in (
        capsys.readouterr().err
    )
    # at a real site the same file lies in its state-dir, in the folder of the record
    (tmp_path / "state-dir").mkdir()
    (record.directory / "state").rename(tmp_path / "state-dir" / "record")
    there = ["site", "export", str(tmp_path / "state-dir"), "--output", str(tmp_path / "home")]
    assert nectar(there) == 0
    assert (tmp_path / "home" / "README.md").read_text().count(
        "'s own, as last evaluated there"
    ) == 1


def test_a_site_without_a_model_of_its_own_says_why(
    small: Small, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = run(small(method="fedavg", rounds=1))
    assert nectar(["export", str(record.directory), "--site", "partition-0"]) == 2
    assert "has no model of partition-0's own, but of no site" in capsys.readouterr().err
    assert nectar(["site", "export", str(tmp_path)]) == 2
    assert "holds no personal model" in capsys.readouterr().err
    kept = tmp_path / "record" / "site"
    kept.mkdir(parents=True)
    (kept / "model.safetensors").write_bytes(b"nothing")
    assert nectar(["site", "export", str(tmp_path)]) == 2
    assert "is no model that a site kept, or damaged" in capsys.readouterr().err
