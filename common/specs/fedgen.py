"""What FedGEN sends: weights, and with them, once it has learned, the generator of latents."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from common.draws.seeding import generator
from common.errors import ConfigError
from common.learning.run import Run
from common.settings.fedgen import FedGENSettings
from common.wire.bundle import BundleSpec
from common.wire.form import Spec
from common.wire.tensors import class_list_spec
from common.wire.weights import Weights, WeightsSpec
from synth.feature_generator import FeatureGenerator, start

#: parts of an instruction: the last one names the classes that the generator has learned to draw
WEIGHTS, GENERATOR, CLASSES = "weights", "generator", "classes"


def settings_of(run: Run) -> FedGENSettings:
    """Return the method's settings."""
    return run.settings(FedGENSettings)


@dataclass(frozen=True)
class Head:
    """A model's linear last layer: the names of its parameters in the model's state, and the size of what enters it."""

    weight: str
    bias: str | None
    latent: int

    def of(self, weights: Weights) -> tuple[Tensor, Tensor]:
        """Return the layer's weight [C, d] and bias [C], zeros where it has none."""
        matrix = weights.tensors[self.weight]
        bias = matrix.new_zeros(len(matrix)) if self.bias is None else weights.tensors[self.bias]
        return matrix, bias


@lru_cache(maxsize=4)
def head_of(run: Run) -> Head:
    """Find the linear last layer of the run's model, or raise ConfigError."""
    model, classes = run.build_model().eval(), len(run.info.classes)
    with torch.no_grad():
        latent = model.embed(torch.zeros(1, *run.image_shape, device=run.device)).shape[1]
        own = {n: p for n, p in model.named_parameters() if model.is_of_head(n)}
        shapes = {tuple(p.shape): name for name, p in own.items()}
        weight, bias = shapes.get((classes, latent)), shapes.get((classes,))
        if weight is not None and len(own) == 1 + (bias is not None):
            h = torch.randn(2, latent, generator=generator(run.config.seed, "head")).to(run.device)
            expected = torch.nn.functional.linear(h, own[weight], own[bias] if bias else None)
            if torch.allclose(model.classify(h), expected, rtol=1e-3, atol=1e-5):
                return Head(weight, bias, latent)
    raise ConfigError(
        f"method={run.config.method} needs a linear last layer, which model.name={run.config.model.name} "
        "does not have: choose another model"
    )


def new_generator(run: Run) -> FeatureGenerator:
    """Return G as it begins, the same in every process, on this process's device."""
    settings, draws = settings_of(run), generator(run.config.seed, "fedgen", device=run.device)
    latent, classes = head_of(run).latent, len(run.info.classes)
    return start(draws, classes, latent, settings.hidden, settings.noise)


@lru_cache(maxsize=4)
def generator_spec(run: Run) -> WeightsSpec:
    """Return the form of G's weights and running statistics."""
    return WeightsSpec.of(new_generator(run))


def sent_spec(run: Run) -> BundleSpec:
    """Return the form of what a site is sent: the weights, and G with its classes from when it has learned."""
    classes = len(run.info.classes)
    parts: dict[str, Spec] = {
        WEIGHTS: run.spec,
        GENERATOR: generator_spec(run),
        CLASSES: class_list_spec(classes, classes),
    }
    return BundleSpec(parts, optional=frozenset({GENERATOR, CLASSES}))
