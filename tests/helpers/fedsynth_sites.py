"""Sites of FedSynth without a federation around them: a device, what it sends, and what the server makes of it."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from flwr.app import RecordDict
from small import Small
from torch import Tensor

from client_app.fedsynth import FedSynthClient
from client_app.state import ContextState
from common.config.loading import load
from common.division import Division
from common.learning.run import Run
from common.samples.inputs import Samples, samples
from common.settings.fedsynth import FedSynthSettings
from common.sites import Site
from common.specs.fedsynth import SyntheticBatches, spec_of
from common.wire.weights import Weights
from strategies.exchange.replies import Upload
from strategies.fedsynth import FedSynth

#: 3,760 parameters, of which a 16th is 3 examples of 64 pixels and 10 logits
QUICK = (
    "model.name=mlp model.width=50 fedsynth.rate=16 fedsynth.iterations=3 fedsynth.epochs=1 "
    "fedsynth.real_batch=32 fedsynth.batch=32 fedsynth.lr=0.1"
)


def made(small: Small, words: str = "") -> Run:
    return Division(load(small(method="fedsynth", set=f"{QUICK} {words}"))).run


def digits(run_: Run, few: int = 96, classes: tuple[int, ...] = ()) -> Samples:
    """Return the first training images, or those among them of ``classes``."""
    labels = Division(run_.config).dataset.train.labels
    of = np.flatnonzero(np.isin(labels, classes)) if classes else np.arange(len(labels))
    return samples(Division(run_.config).dataset.train, run_.info, of[:few])


def client(
    run_: Run, site: str = "a", server_round: int = 1, data: Samples | None = None
) -> FedSynthClient:
    data = digits(run_) if data is None else data
    made_ = FedSynthClient(run_, site, data, data, ContextState(RecordDict()))
    made_.begin({"server-round": server_round})
    return made_


def upload(run_: Run, sent: SyntheticBatches, site: str = "a", examples: int = 96) -> Upload:
    """Return what the server reads of a set that was sent."""
    arrived = spec_of(run_).decode(sent.encode())
    return Upload(Site(site, 1, examples), arrived, examples, {})


def by_torch(run_: Run, start: Weights, sent: SyntheticBatches) -> dict[str, Tensor]:
    """Return the model behind ``sent``, by torch's own optimiser in float64."""
    model = run_.build_model().double()
    model.load_state_dict({name: value.double() for name, value in start.tensors.items()})
    settings = run_.config.settings
    assert isinstance(settings, FedSynthSettings)
    lr = settings.step_size if sent.step_size is None else float(sent.step_size)
    optimiser = torch.optim.SGD(model.parameters(), lr=lr)
    for x, y in zip(sent.inputs.double(), sent.labels, strict=True):
        optimiser.zero_grad()
        soft = y.double() if settings.labels == "raw" else y.double().softmax(-1)
        F.cross_entropy(model(x), soft if sent.trained else y).backward()
        optimiser.step()
    return {name: p.detach() for name, p in model.named_parameters()}


def prepared(run_: Run, weights: Weights, arrived: Upload) -> dict[str, Tensor]:
    ready = FedSynth(run_).prepare(1, weights, arrived).payload
    assert isinstance(ready, Weights)
    return dict(ready.tensors)
