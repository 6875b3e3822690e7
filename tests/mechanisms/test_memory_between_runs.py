"""A private run reads nothing that a run by another mechanism has learnt, whichever one setting the two differ in.

The oracle is the first sum that the private run clips. In the run before every mechanism releases zeros, and one
example more is in the site's data: whatever of it moves the sum, of the same data both times, has gone around a
mechanism.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from tiers import only_these_first
from torch import Tensor

from client_app.state import DirectoryState, state_kind_of
from common.code.imports import load as load_path
from common.config.loading import load
from common.config.resolved import Config
from common.division import Division
from common.errors import FederationError, NectarError
from common.methods import resolve
from common.samples.inputs import Samples, samples
from common.settings.section import operational
from common.sites import Site
from common.wire.weights import Weights
from strategies.base import strategy_class
from synth.private_release import Gaussian
from tests.mechanisms.phases import _inserted, _recording

SITE = "partition-0"
NOISE = "privacy.noise_multiplier=10 privacy.examples=40 federation.secret_clip=1"
MLP = "model.name=mlp model.width=8"
STEP = "epochs=4 lr=1 batch=1000"

#: private runs that remember something, all but what every one has
BASES = {
    "fedavg, own head": ("fedavg", "model.personal=head"),
    "fedprox, own head": ("fedprox", "model.personal=head"),
    "fedavg, own statistics": (
        "fedavg",
        "model.name=convnet model.norm=batch model.depth=1 model.width=4 model.statistics=local model.train=head",
    ),
    "fedavg, residuals": ("fedavg", "wire.weights=int8 wire.error_feedback=on"),
    "fedper": ("fedper", ""),
    "ditto": ("ditto", ""),
    "local": ("local", ""),
    "feddyn": ("feddyn", "feddyn.alpha=1"),
    "scaffold": ("scaffold", "scaffold.option=II"),
    "moon": ("moon", "moon.mu=1 model.projection=8"),
    "lowrank": ("lowrank", ""),
    "fedmd": ("fedmd", "fedmd.mechanism=training"),
}

#: whose memory is kept as that of another one above
LONG = ("fedprox, own head", "fedper", "ditto", "local", "moon", "lowrank", "fedavg, residuals")


def words_of(name: str) -> dict[str, str]:
    """Return the settings of a base by key."""
    method, text = BASES[name]
    own = " ".join(f"{method}.{word}" for word in STEP.split())
    base = f"{MLP} {own} federation.sites=5 evaluation.on=none {text} {NOISE}"
    return dict(word.split("=", 1) for word in base.split())


def config_of(method: str, words: dict[str, str]) -> Config:
    text = " ".join(f"{key}={value}" for key, value in words.items())
    return load({"method": method, "rounds": 2, "set": text})


def others(name: str) -> Iterator[tuple[str, Config]]:
    """Yield each run that differs in one setting of how it learns: every choice there is, and a few numbers."""
    method, words = BASES[name][0], words_of(name)
    base = config_of(method, words)
    choices = [("privacy.noise_multiplier", "0"), ("privacy.clip", "2"), ("privacy.examples", "50")]
    of_data = ("data", "partition", "images", "evaluation")
    for section, values in base.sections().items():
        if section in of_data:
            continue
        fields = type(values).model_fields
        for key in fields.keys() - set(operational(type(values))):
            allowed = typing.get_args(fields[key].annotation)
            if fields[key].annotation is bool:
                allowed = ("on", "off")
            choices += [(f"{section}.{key}", str(value)) for value in allowed]
    for key, value in choices:
        try:
            yield f"{key}={value}", config_of(method, {**words, key: value})
        except NectarError:
            continue  # excluded beside the base


class NotApproved(Gaussian):
    """Releases zeros."""

    def released(self, steps: Tensor) -> Tensor:
        return torch.zeros_like(self.values(steps))


def work(config: Config, number: int, data: Samples, directory: Path, mechanism: Any) -> None:
    """Have the site do round ``number`` of a run of its own, which goes on from the one before."""
    run = Division(config).run
    strategy = strategy_class(config.method)(run, "audit")
    counts = tuple(run.task.class_counts(data.labels) or ())
    strategy.members.sites = [Site(SITE, 0, len(data), class_counts=counts)]
    torch.manual_seed(0)
    weights = Weights.of(run.build_model()).only(run.spec)
    plan = strategy.instructions(number, weights, strategy.sites)[SITE]
    state = DirectoryState(directory, "audit", SITE, number, kind=state_kind_of(config))
    client = load_path(resolve(config.method).client)(
        run, SITE, data, data.at(torch.arange(0)), state, user_data=False, mechanism=mechanism
    )
    about = {"server-round": number, "phase": plan.phase, "taken": number - 1}
    client.fit(plan.payload.encode(), about)


def moved(before: Config, after: Config, place: Path) -> float:
    """Return by how many C one example more in ``before`` moves the first sum of ``after``, which follows it."""
    run = Division(after).run
    train = samples(Division(after).dataset.train, run.info)
    own, more = train.at(torch.arange(20)), train.at(torch.tensor([40]))
    found = []
    for data, directory in ((own, place / "without"), (_inserted(own, more, 10), place / "with")):
        with suppress(FederationError, RuntimeError):  # a run that fails at the site
            work(before, 1, data, directory, NotApproved)
        sums = list[Tensor]()
        work(after, 2, own, directory, _recording(sums))
        found.append(sums[0])
    return float((found[1] - found[0]).norm()) / after.privacy.clip


@pytest.mark.extended
@pytest.mark.filterwarnings("ignore:.*performance drop")
@pytest.mark.parametrize("name", only_these_first(BASES, "fedavg, own head", long=LONG))
def test_no_example_of_an_earlier_run_moves_the_sum_but_through_a_mechanism(
    name: str, tmp_path: Path
) -> None:
    after = config_of(BASES[name][0], words_of(name))
    found = {
        change: moved(before, after, tmp_path / str(i))
        for i, (change, before) in enumerate(others(name))
    }
    assert len(found) > 20
    assert {change: clips for change, clips in found.items() if clips} == {}
