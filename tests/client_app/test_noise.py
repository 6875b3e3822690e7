"""Where a site's noise comes from: the run's seed at most where nobody's own data are, and never without saying so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from data_files import forget_loaded
from flwr.app import Context, RecordDict
from image_folders import CLASSES, paint
from real_site import Site
from small import Small
from tiny import tiny_run

from client_app.device import DeviceClient, phase
from client_app.draws import is_seeded
from client_app.site import site_samples
from client_app.state import DirectoryState
from common.config.loading import load
from common.division import Division
from common.errors import FederationError
from common.privacy.events import Event
from common.samples.inputs import Samples
from common.wire.weights import Weights

SEEDED = "privacy.noise=seeded"
IMAGES = f"images.classes={CLASSES} images.size=8 model.depth=2"


class Noisy(DeviceClient):
    """Sends a number of noise, or none."""

    @phase("train")
    def train(self, weights: Weights) -> Weights:
        """Return the noise in the weight's place."""
        self.draws.charge(Event("noise", 1.0))
        noise = self.draws.gaussian("weight", 1.0, 1.0).released(torch.zeros(1, 1).long())
        return Weights({"head.weight": noise.float()})

    @phase("sample")
    def sampled(self, weights: Weights) -> Weights:
        """Return how many of 10,000 examples were drawn at a rate of one half, and their sum."""
        self.draws.charge(Event("sample", 1.0, 0.5))
        many = Samples.of(torch.ones(10_000, 1, 1, 1), torch.zeros(10_000))
        drawn = self.draws.sample("weight", 0.5, many)
        return Weights({"head.weight": (drawn.sum() / 1e4).reshape(1, 1)})

    @phase("uncharged")
    def uncharged(self, weights: Weights) -> Weights:
        """Draw a sample that nothing was charged for."""
        return Weights({"head.weight": self.draws.sample("weight", 0.5).sum().reshape(1, 1)})

    @phase("rest")
    def rest(self, weights: Weights) -> Weights:
        """Return the weights."""
        return weights


class Noises:
    """A site's noise and figures, drawn by a new client each time."""

    def __init__(self, directory: Path, **keys: Any) -> None:
        self._run = tiny_run(load({"method": "fedavg", **keys}))
        self._state = DirectoryState(directory, "record", "site")

    def fit(
        self, server_round: int = 1, asked: str = "train", *, site: str = "a", own: bool = False
    ) -> tuple[float, dict[str, Any]]:
        x = Samples.of(torch.ones(1, 1, 1, 1), torch.ones(1))
        client = Noisy(self._run, site, x, x, self._state, user_data=own)
        weights = Weights.of(self._run.build_model()).encode()
        arrays, _, figures = client.fit(weights, {"server-round": server_round, "phase": asked})
        return float(self._run.spec.decode(arrays).tensors["head.weight"]), figures


def test_seeded_noise_is_of_seed_site_and_round(tmp_path: Path) -> None:
    one, other = Noises(tmp_path), Noises(tmp_path, seed=1)
    noise = one.fit()[0]
    assert noise == Noises(tmp_path, set=SEEDED).fit()[0] == one.fit()[0]
    drawn = {noise, one.fit(2)[0], one.fit(site="b")[0], other.fit()[0]}
    assert len(drawn) == 4


def test_a_seeded_sample_is_of_seed_round_and_site_and_the_systems_of_nothing(
    tmp_path: Path,
) -> None:
    seeded, system = Noises(tmp_path), Noises(tmp_path, set="privacy.noise=system")
    one, figures = seeded.fit(asked="sample")
    assert figures["seeded-noise"] == 1
    assert one == seeded.fit(asked="sample")[0] != seeded.fit(2, "sample")[0]
    drawn = [system.fit(asked="sample") for _ in range(2)]
    assert drawn[0][0] != drawn[1][0]
    assert all("seeded-noise" not in each for _, each in drawn)


def test_a_client_inside_another_charges_the_same_account(tmp_path: Path) -> None:
    """It draws for what its host charged, and its own charge goes along with the host's reply."""
    run = tiny_run(load({"method": "fedssyn", "set": "fedssyn.inner=fedavg"}))
    x = Samples.of(torch.ones(1, 1, 1, 1), torch.ones(1))
    host = Noisy(run, "a", x, x, DirectoryState(tmp_path, "record", "site"), user_data=False)
    inside = host.client_of("fedavg", x)
    with pytest.raises(FederationError, match="nothing was charged"):
        inside.draws.gaussian("weight", 1.0, 1.0).released(torch.zeros(1).long())
    host.draws.charge(Event("of the host", 1.0))
    inside.draws.charge(Event("of the one inside", 2.0))
    inside.draws.gaussian("weight", 1.0, 1.0).released(torch.zeros(1).long())
    assert host.round.charged is not None
    assert [event.mechanism for event in host.round.charged.events] == [
        "of the host",
        "of the one inside",
    ]
    assert inside.round.charged is host.round.charged


def test_a_sample_that_nothing_was_charged_for_is_not_drawn(tmp_path: Path) -> None:
    """Nor is it where the phase before it was charged."""
    noises = Noises(tmp_path)
    noises.fit()
    with pytest.raises(FederationError, match="nothing was charged"):
        noises.fit(asked="uncharged")


def test_it_is_said_beside_the_result_that_has_it_and_no_other(tmp_path: Path) -> None:
    noises = Noises(tmp_path)
    assert noises.fit()[1]["seeded-noise"] == 1
    assert "seeded-noise" not in noises.fit(2, "rest")[1]


@pytest.mark.parametrize(
    ("text", "own"), [("privacy.noise=system", False), ("", True), ("privacy.noise=system", True)]
)
def test_the_systems_noise_is_never_the_same(tmp_path: Path, text: str, own: bool) -> None:
    noises = Noises(tmp_path, set=text)
    (one, figures), (other, _) = noises.fit(own=own), noises.fit(own=own)
    assert one != other
    assert "seeded-noise" not in figures


def test_a_client_with_data_of_its_own_draws_none_from_a_seed(tmp_path: Path) -> None:
    with pytest.raises(FederationError, match=re.escape(SEEDED)):
        Noises(tmp_path, set=SEEDED).fit(own=True)


@pytest.mark.parametrize(
    ("keys", "seeded"),
    [
        ({"dataset": "mnist"}, True),
        ({"dataset": "torchvision:SVHN"}, False),
        ({"set": "data.file=/patients.npz"}, False),
        ({"set": f"data.file=/patients.npz {SEEDED}"}, True),
        ({"dataset": "mnist", "set": "privacy.noise=system"}, False),
    ],
)
def test_a_partition_of_a_set_that_may_be_somebodys_own_is_seeded_only_on_demand(
    keys: dict[str, Any], seeded: bool
) -> None:
    assert is_seeded(load(keys), user_data=False) is seeded


# ---- at a site ----------------------------------------------------------------------------------------


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    forget_loaded(monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("NECTAR_DATA", str(tmp_path / "data"))
    paint(tmp_path / "own", "red", 5)
    return tmp_path


def test_a_site_with_a_folder_refuses_seeded_noise_before_it_looks_there(
    small: Small, machine: Path
) -> None:
    run = small(method="fedavg", dataset="images", set=f"{IMAGES} {SEEDED}")
    site = Site(run, site="north", data=str(machine / "not-there"))
    assert "has its own data" in site.refusal()
    assert SEEDED in str(site.train("train").error.reason)
    assert not Site(small(method="fedavg", set=SEEDED)).roll_call().has_error()


def test_so_does_a_simulated_one(machine: Path) -> None:
    text = f"{IMAGES} federation.sites=2 images.sites={machine}/own,{machine}/other {SEEDED}"
    run = Division(load({"dataset": "images", "set": text})).run
    node = {"partition-id": 0, "num-partitions": 2, "simulated": True}
    with pytest.raises(FederationError, match=re.escape(SEEDED)):
        site_samples(Division(run.config), "own", Context(1, 1, node, RecordDict(), {}))


def test_a_client_is_told_whether_the_data_are_the_sites_own(
    small: Small, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[bool] = []
    monkeypatch.setattr(
        "client_app.fedavg.trained_weights",
        lambda client, *_: told.append(client.user_data) or 1 / 0,
    )
    folder = small(method="fedavg", dataset="images", set=IMAGES)
    Site(folder, site="north", data=str(machine / "own")).train("train")
    Site(small(method="fedavg")).train("train")
    assert told == [True, False]
