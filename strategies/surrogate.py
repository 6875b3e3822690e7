"""The server that learns from small image sets: FedDM's, and REAL's with real images in their place."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import Any

import torch
from flwr.app import ArrayRecord
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from common.draws.seeding import derive, generator
from common.errors import ConfigError
from common.learning.run import Run
from common.learning.training import Local, Objective, train, weighted
from common.models import couples_samples
from common.samples.inputs import Samples
from common.settings.fedavg import TrainingSettings
from common.settings.surrogate import GlobalModelsSettings, SurrogateServerSettings
from common.sites import Site
from common.specs.images import images_spec
from common.wire.form import Spec
from common.wire.images import SyntheticImages
from common.wire.weights import Weights
from strategies.base import GLOBAL, LEARNED, State, Strategy
from strategies.exchange.instructions import arrays_from
from strategies.exchange.replies import Upload
from strategies.exchange.rules import Rule, image_rule
from synth import augmentation
from synth.row_draws import RowDraws
from synth.starts import project_ball


class SurrogateServer(Strategy):
    """Train the global model on the union of the received sets, as ``image_training`` says.

    Subclasses say which phase their devices run, and may say what else is sent either way (``sends``, ``expects``,
    ``images_of``) and what is minimised (``objective``). FedDM, Algorithm 1, server part: SGD with eta_s on
    sum_k f^_{r,k} (Eq. 5), and after every step a projection into B_rho(w_r) (Eq. 3), image_training's ball.
    """

    soft = False
    """Whether labels are shares of the classes, float32 [n, classes], instead of classes."""

    @property
    def fewest(self) -> int:
        """The least number of images of a class that a site sends any of."""
        return 1

    @property
    def half(self) -> bool:
        """Whether sites send images half as high and wide as the run's."""
        return False

    def __init__(self, run: Run, record_id: str = "run") -> None:
        super().__init__(run, record_id)
        self.settings = settings = run.settings(SurrogateServerSettings)
        self.expects()  # so that a form that cannot be shows early
        self._models = GlobalModels(run, settings)
        self.needs_class_counts = settings.image_weighting == "counts"
        self._last: dict[str, SyntheticImages] = {}
        self._kept: list[tuple[Tensor, Tensor, Tensor]] = []

    def expects(self) -> Spec:
        """Return the form of a reply: at most ipc images a class."""
        return images_spec(
            self.run, self.settings.ipc, soft=self.soft, fewest=self.fewest, half=self.half
        )

    def validation_rules(self) -> Mapping[str, Rule]:
        """Believe images in range: a single one of implausible values decides what the server learns."""
        stays = "the rounds that `keep` holds, and their checkpoint"
        return {"": image_rule(self.run, "the server's training", stays)}

    def update(self, server_round: int, weights: Weights, uploads: Iterable[Upload]) -> Weights:
        """Train from w_r on this round's union, and on that of the last ``keep`` - 1 rounds."""
        received = [(upload.site, self.images_of(upload)) for upload in uploads]
        self._last = {site.name: images for site, images in received}
        self._kept.append(self._union(received))
        if self.settings.keep:
            del self._kept[: -self.settings.keep]
        images, labels, each = (torch.cat(parts) for parts in zip(*self._kept, strict=True))
        samples = Samples.of(images.to(self.run.device), labels.to(self.run.device))
        objective = self.objective(each.to(self.run.device))
        self._models.train(server_round, samples, Local(objective=objective))
        return learned_from(self.run, server_round, weights, samples, objective)

    def images_of(self, upload: Upload) -> SyntheticImages:
        """Return the images that a site sent."""
        return upload.payload_as(SyntheticImages)

    def objective(self, each: Tensor) -> Objective:
        """Return the loss to minimise: the mean cross-entropy, where image i counts ``each[i]`` times."""
        return weighted(self.run.task, each)

    def _union(
        self, received: Sequence[tuple[Site, SyntheticImages]]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return images, labels and each image's weight, scaled to a mean of one over the round."""
        images = torch.cat([sent.images for _, sent in received])
        labels = torch.cat([sent.labels for _, sent in received])
        if self.settings.image_weighting == "uniform":
            return images, labels, torch.ones(len(labels))
        each = torch.cat([self._by_counts(site, sent.labels) for site, sent in received])
        return images, labels, each / each.mean().clamp_min(torch.finfo(each.dtype).tiny)

    def _by_counts(self, site: Site, labels: Tensor) -> Tensor:
        """Return n_{k,c} over the images of class c sent, for each of these: a class counts what it is at the site.

        An image with a soft label is of each class by its probability.
        """
        counts = torch.tensor(site.class_counts, dtype=torch.float32)
        if labels.is_floating_point():
            # In double: the count over a share as small as float32 has any is no float32 any more.
            shares = labels.double()
            sent = shares.sum(0)
            return (shares @ torch.where(sent > 0, counts.double() / sent, 0.0)).float()
        held = torch.bincount(labels, minlength=len(counts))
        return counts[labels] / held[labels]

    def pictures(self) -> Mapping[str, SyntheticImages]:
        """Return the last round's sets by site."""
        return self._last

    def notes(self) -> Mapping[str, Any]:
        """Return the classes of which no site sent an image in this round."""
        if not self._last:
            return {}
        each = (s.labels for s in self._last.values())
        sent = {c for ls in each for c in (ls.argmax(1) if ls.is_floating_point() else ls).tolist()}
        names = [name for one, name in enumerate(self.run.info.classes) if one not in sent]
        return {"not_sent": names} if names else {}

    def global_models(self, arrays: ArrayRecord) -> Mapping[str, ArrayRecord]:
        """Return the first of the global models, or the model that is sent if there is no other."""
        return self._models.global_models(arrays)

    def extra_models(self, arrays: ArrayRecord) -> Mapping[str, ArrayRecord]:
        """Return the other global models, then the model that sites get."""
        return self._models.extra_models(arrays)

    def state_dict(self) -> State:
        """Return the kept rounds' sets, which the next round trains on, none with ``keep`` = 1; and global models."""
        older = [] if self.settings.keep == 1 else self._kept
        kept = {"kept": [list(parts) for parts in older]}
        models = self._models.state_dict()
        return {**kept, LEARNED: models} if models else kept

    def load_state_dict(self, state: State) -> None:
        """Restore the state."""
        self._models.load_state_dict(state.get(LEARNED, {}))
        kept: list[list[Any]] = list(state["kept"])
        self._kept = [(images, labels, each) for images, labels, each in kept]


# ---- image training ------------------------------------------------------------------------------
# The server's training on images, as ``image_training`` says: what fills the places of the one training loop.

DECAY, DECAYED_AT = 0.3, (6, 8)
"""The schedule ``steps``: what the rate is multiplied by, and after which tenths of the steps."""


def learned_from(
    run: Run, server_round: int, weights: Weights, samples: Samples, objective: Objective
) -> Weights:
    """Return the run's model, trained from ``weights`` on the images that the server received in a round."""
    if not run.config.image_training.steps_on(len(samples)):
        return weights
    model = run.model_with(weights)
    draws = generator(run.config.seed, "surrogate-server", server_round, device=run.device)
    train_on_images(run, model, samples, objective, draws)
    return Weights.of(model, weights.codec).only(run.spec)


def train_on_images(
    run: Run, model: nn.Module, samples: Samples, objective: Objective, draws: torch.Generator
) -> None:
    """Train ``model`` in place on the images that the server received.

    ``draws`` orders the batches; augmentation has a separate generator, derived from its seed.
    """
    s = run.config.image_training
    steps = s.steps_on(len(samples))
    after_step, mean = after_steps(model, steps, s.ball, s.average)
    train(
        model,
        samples,
        TrainingSettings(
            lr=s.lr,
            batch=s.batch,
            momentum=s.momentum,
            weight_decay=s.weight_decay,
            augment="flip_crop" if s.augment == "flip_crop" else "none",
        ),
        run.task,
        draws,
        precision=run.config.compute.precision,
        steps=steps,
        local=Local(
            objective=objective,
            rate=rate(s.schedule, steps),
            augment=siamese(steps, draws) if s.augment == "dsa" else None,
            after_step=after_step,
        ),
    )
    if mean is not None:
        with torch.no_grad():
            torch._foreach_copy_(list(model.parameters()), list(mean.parameters()))


def rate(schedule: str, steps: int) -> Callable[[int], float] | None:
    """Return the factor of the learning rate by the number of steps taken before; None for no change."""
    if schedule == "cosine":
        return lambda done: (1 + math.cos(math.pi * done / steps)) / 2
    if schedule == "steps":
        return lambda done: DECAY ** sum(10 * done >= tenths * steps for tenths in DECAYED_AT)
    return None


def siamese(steps: int, generator: torch.Generator) -> Callable[[Tensor, RowDraws | None], Tensor]:
    """Return the DSA augmentation: one of six transforms a batch, drawn for all steps before the first."""
    numbers = torch.Generator().manual_seed(derive(generator.initial_seed(), "augmentation"))
    drawn = iter(augmentation.draws(tuple(augmentation.TRANSFORMS), steps, numbers))
    return lambda images, rows: augmentation.apply(images, next(drawn))


def after_steps(
    model: nn.Module, steps: int, radius: float, share: float
) -> tuple[Callable[[nn.Module], None] | None, AveragedModel | None]:
    """Return the hook after each of ``steps`` steps of ``model``, and the mean of the last ones; None if not set.

    Parameters
    ----------
    radius : float
        Of the ball around the weights of now into which each step's weights are projected; 0: of none.
    share : float
        The share of the steps whose parameters are averaged, the last ones, at least one; 0: none. Running statistics
        stay as the last step left them: they are of the images, and few steps old.
    """
    centre = [p.detach().clone() for p in model.parameters()] if radius else []
    averaged = max(1, round(share * steps)) if share else 0
    mean, taken = AveragedModel(model, multi_avg_fn=_take_in) if averaged else None, count(1)

    def after(moved: nn.Module) -> None:
        if centre:
            project_ball(moved.parameters(), centre, radius)
        if mean is not None and next(taken) > steps - averaged:
            mean.update_parameters(moved)

    return (after if centre or mean is not None else None), mean


@torch.no_grad()
def _take_in(mean: Any, latest: Any, averaged: Tensor | int) -> None:
    """Add one model to the mean, by 1 / n in float64: torch's own function has it in float32."""
    torch._foreach_lerp_(mean, latest, 1 / (int(averaged) + 1))


# ---- global models -------------------------------------------------------------------------------
# Models of any architecture that a server learns from images, while the run's own is exchanged with the sites.

#: the name under which the model that is sent is evaluated with the global ones
SURROGATE = "surrogate"


class GlobalModels:
    """The global models w_g by name, each trained from its values of the last round; the first is the headline.

    Raises
    ------
    ConfigError
        If the first is of another form than the run's model, and the sites are to evaluate: they only have the run's.
    """

    def __init__(self, run: Run, settings: GlobalModelsSettings) -> None:
        self._run, self._settings = run, settings
        self._held = {name: initial(run, name) for name in settings.model_names()}
        asked, first = run.config.judged_at_sites, next(iter(self._held), "")
        if asked and run.with_model(first).spec != run.spec:
            cure = "data.validation_at" if asked.startswith("data.") else "evaluation.on"
            raise ConfigError(
                f"{asked} evaluates the run's own model at the sites, but method={run.config.method} learns another at "
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
        model = self._run.with_model(name).model_with(start)
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

    def global_models(self, arrays: ArrayRecord) -> Mapping[str, ArrayRecord]:
        """Return the headline: the first of them, or what is sent if there is no other."""
        for name, held in self._held.items():
            return {name: arrays_from(held)}
        return {GLOBAL: arrays}

    def extra_models(self, arrays: ArrayRecord) -> Mapping[str, ArrayRecord]:
        """Return the others, and the model that is sent."""
        if not self._held:
            return {}
        _, *others = self._held.items()
        return {SURROGATE: arrays, **{name: arrays_from(held) for name, held in others}}

    def state_dict(self) -> State:
        """Return the global models by name."""
        return {name: dict(held.tensors) for name, held in self._held.items()}

    def load_state_dict(self, state: State) -> None:
        """Restore the state."""
        self._held = {name: Weights(dict(held)) for name, held in state.items()}


def initial(run: Run, name: str) -> Weights:
    """Return the initial weights of an architecture."""
    return Weights.of(run.with_model(name).build_model())
