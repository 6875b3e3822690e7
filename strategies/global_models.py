"""Models of any architecture that a server learns from images, while the run's own travels to the sites and back."""

from __future__ import annotations

from collections.abc import Mapping

from flwr.app import ArrayRecord

from common.draws.seeding import generator
from common.errors import ConfigError
from common.learning.run import Run
from common.learning.training import Local, train
from common.models import couples_samples
from common.samples.inputs import Samples
from common.settings.global_models import GlobalModelsSettings
from common.settings.training import TrainingSettings
from common.wire.weights import Weights
from strategies.federated import GLOBAL, State

#: the name under which the model that travels is judged beside the global ones
SURROGATE = "surrogate"


class GlobalModels:
    """The global models w_g by name, each trained from its values of the last round; the first is the headline.

    Raises
    ------
    ConfigError
        If the first is of another form than the run's model, and the sites are to judge: they have that alone.
    """

    def __init__(self, run: Run, settings: GlobalModelsSettings) -> None:
        self._run, self._settings = run, settings
        self._held = {name: initial(run, name) for name in settings.learned()}
        asked, first = run.config.judged_at_sites, next(iter(self._held), "")
        if asked and run.with_model(first).spec != run.spec:
            cure = "data.validation_at" if asked.startswith("data.") else "evaluation.on"
            raise ConfigError(
                f"{asked} has the sites judge the run's own model, and method={run.config.method} learns another at "
                f"the server ({first}): set {cure}=server"
            )

    def __contains__(self, name: str) -> bool:
        return name in self._held

    def train(self, server_round: int, samples: Samples, local: Local) -> None:
        """Train each of them on the round's images."""
        epochs = self._settings.global_epochs
        for name, held in self._held.items():
            self._held[name] = self.trained(server_round, name, held, samples, epochs, local)

    def trained(
        self,
        server_round: int,
        name: str,
        start: Weights,
        samples: Samples,
        epochs: int,
        local: Local,
    ) -> Weights:
        """Return a model trained as the global ones are; ``name`` is its architecture, as `Run.with_model` takes it."""
        if not epochs:
            return start
        s, config = self._settings, self._run.config
        model = self._run.with_model(name).build_model()
        start.load_into(model)
        train(
            model,
            samples,
            TrainingSettings(
                epochs=epochs,
                lr=s.global_lr,
                batch=s.global_batch,
                momentum=s.global_momentum,
            ),
            self._run.task,
            generator(config.seed, config.method, server_round, name, device=self._run.device),
            precision=config.compute.precision,
            local=local,
            # Of 130 images in batches of 64 two are left, by whose statistics a batch norm would take every third step.
            even=couples_samples(model),
        )
        return Weights.of(model, start.codec)

    def learned(self, arrays: ArrayRecord) -> Mapping[str, ArrayRecord]:
        """Return the headline: the first of them, or what travels where there is none."""
        for name, held in self._held.items():
            return {name: _arrays(held)}
        return {GLOBAL: arrays}

    def beside(self, arrays: ArrayRecord) -> Mapping[str, ArrayRecord]:
        """Return the others, and what travels."""
        if not self._held:
            return {}
        _, *others = self._held.items()
        return {SURROGATE: arrays, **{name: _arrays(held) for name, held in others}}

    def state_dict(self) -> State:
        """Return them by name."""
        return {name: dict(held.tensors) for name, held in self._held.items()}

    def load_state_dict(self, state: State) -> None:
        """Take them back."""
        self._held = {name: Weights(dict(held)) for name, held in state.items()}


def initial(run: Run, name: str) -> Weights:
    """Return the initial weights of an architecture."""
    return Weights.of(run.with_model(name).build_model())


def _arrays(held: Weights) -> ArrayRecord:
    return ArrayRecord(dict(held.tensors))
