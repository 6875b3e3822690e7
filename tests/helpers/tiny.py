"""A federation whose every number can be worked out by hand: one weight, and sites that each want it to be theirs.

Site k's examples are (x, y) = (1, a_k), its loss is (w - a_k)^2 / 2, and a step of SGD is w <- w - eta (w - a_k).
The weight starts at 0. With powers of two nothing is rounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from client_app.device import DeviceClient
from client_app.state import DirectoryState
from common.code.imports import load as load_path
from common.config.loading import load
from common.config.resolved import Config
from common.division import Division
from common.learning.run import Run
from common.learning.task import Classification
from common.methods import resolve, section
from common.models import Classifier
from common.samples.inputs import Samples
from common.sites import Site
from common.wire.weights import Weights
from server_app.app import make_strategy
from strategies.base import Strategy
from strategies.exchange.replies import Upload

#: two steps at a rate of 1/2 for a site with one example
HALVES = "epochs=2 lr=0.5 batch=1"


class OneWeight(Classifier):
    """z = w x; the head is the whole model."""

    def __init__(self) -> None:
        super().__init__((1, 1, 1))
        self.head = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(self.head.weight)

    def embed(self, x: Tensor) -> Tensor:
        """Return x, flat."""
        return x.flatten(1)

    def classify(self, h: Tensor) -> Tensor:
        """Return w x."""
        out: Tensor = self.head(h)
        return out


class Distance(Classification):
    """Half the squared distance between output and label."""

    def loss(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return its mean."""
        return (outputs.flatten() - targets).square().mean() / 2


class TinyRun(Run):
    """A run of that model and loss; the rest is the configuration's."""

    @property
    def task(self) -> Distance:  # type: ignore[override]
        """The distance."""
        return Distance(2)

    def build_model(self) -> OneWeight:
        """Return the model at 0."""
        return OneWeight()


def tiny_run(config: Config, kind: type[TinyRun] = TinyRun) -> TinyRun:
    """Return a run of ``kind``."""
    return kind(config, Division(config).run.info)


class Tiny:
    """Sites with one example each unless ``examples`` says otherwise, and their server; round by round, no messages.

    Parameters
    ----------
    directory : Path
        Where the sites keep what they remember.
    wants : sequence of int
        a_k.
    method : str
        By name or import path.
    settings : str
        The method's, without its name before them.
    examples : sequence of int, optional
        How many each site has.
    """

    def __init__(
        self,
        directory: Path,
        method: str,
        settings: str = "",
        wants: Sequence[int] = (1, 3),
        examples: Sequence[int] = (),
    ) -> None:
        words = " ".join(f"{section(method)}.{word}" for word in f"{HALVES} {settings}".split())
        counts = examples or [1] * len(wants)
        clients = f"federation.sites={len(wants)} federation.max_update=0"
        self.run = tiny_run(load({"method": method, "set": f"{words} {clients}"}))
        self.sites = [Site(f"site-{i}", i, n) for i, n in enumerate(counts)]
        self._wants, self._directory = wants, directory
        self.weights = Weights.of(self.run.build_model())
        self.taken: dict[str, int] = {}
        self.strategy = self._server()

    def _server(self) -> Strategy:
        strategy = make_strategy(self.run)
        strategy.members.sites = list(self.sites)
        return strategy

    def restart(self) -> None:
        """Let a new server take over what a checkpoint of the old one's holds."""
        state = self.strategy.checkpoint()
        self.strategy = self._server()
        self.strategy.restore(state)

    def client(self, i: int) -> DeviceClient:
        """Return site i's client, a new one each time, as in a deployment."""
        site, cls = self.sites[i], load_path(resolve(self.run.config.method).client)
        x, y = torch.ones(site.examples, 1, 1, 1), torch.full((site.examples,), self._wants[i])
        state = DirectoryState(self._directory, "record", site.name)
        made: DeviceClient = cls(
            self.run, site.name, Samples.of(x, y), Samples.of(x, y), state, user_data=False
        )
        return made

    def round(self, number: int, *, absent: Sequence[int] = (), lost: Sequence[int] = ()) -> float:
        """Run a round and return the weight behind it; ``absent`` sites are not asked, ``lost`` replies not taken."""
        asked = [site for i, site in enumerate(self.sites) if i not in absent]
        plan = self.strategy.instructions(number, self.weights, asked)
        uploads = self._uploads(number, plan, lost)
        self.weights = self.strategy.advance(number, self.weights, uploads)
        return self.weight

    def _uploads(
        self, number: int, plan: Mapping[str, Any], lost: Sequence[int]
    ) -> Iterator[Upload]:
        for i, site in enumerate(self.sites):
            if site.name not in plan:
                continue
            what = plan[site.name]
            config = {
                "server-round": number,
                "phase": what.phase,
                "taken": self.taken.get(site.name, 0),
            }
            arrays, _, figures = self.client(i).fit(what.payload.encode(), config)
            if i in lost:
                continue
            payload = what.expects.decode(arrays)
            upload = Upload(site, payload, site.examples, {k: float(v) for k, v in figures.items()})
            self.taken[site.name] = number
            yield self.strategy.prepare(number, self.weights, upload)

    def remembered(self, i: int, slot: str = "") -> Tensor:
        """Return the weight that site i remembers in ``slot``, of the round of its that the server took last."""
        client = self.client(i)
        taken = self.taken[self.sites[i].name]
        client.begin({"server-round": taken + 1, "taken": taken})
        found = client.recall(slot)
        assert found is not None
        return found["head.weight"].squeeze()

    @property
    def weight(self) -> float:
        """The global weight."""
        return float(self.weights.tensors["head.weight"])
