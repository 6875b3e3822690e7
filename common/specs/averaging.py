"""What is sent with weights that are averaged: under SCAFFOLD and FedPVR, FedNova, and FedMix."""

from __future__ import annotations

from common.config.resolved import Config
from common.errors import ConfigError
from common.learning.run import Run
from common.learning.steps import local_steps
from common.settings.fedavg import FedMixSettings, FedNovaSettings, ScaffoldSettings
from common.specs.images import images_spec
from common.wire.bundle import BundleSpec
from common.wire.images import SyntheticImagesSpec
from common.wire.weights import WeightsSpec

WEIGHTS, CONTROL = "weights", "control"


def control_spec(run: Run) -> WeightsSpec:
    """Return a control variate's names and shapes; ConfigError if the settings name a layer that the model lacks."""
    settings = run.settings(ScaffoldSettings)
    try:
        return run.spec.only(settings.corrected(run.spec.trained))
    except ValueError as error:
        raise ConfigError(f"{error}.") from None


def bundle_spec(run: Run) -> BundleSpec:
    """Return the form of both ways: w_r and c to a site; w_k and what its c_k changed by to the server."""
    return BundleSpec({WEIGHTS: run.spec, CONTROL: control_spec(run)})


NORMALIZER = "normalizer"
"""The figure sent with a site's weights that states its ||a_k||_1."""


def normalizer(steps: int, momentum: float, pull: float) -> float:
    """Return ||a||_1, the weights' displacement after ``steps`` steps along gradients of 1, over the learning rate.

    The local solver is linear in its gradients, so that the sum of their coefficients is what gradients of 1 give
    (Wang et al., 2020, section 4): tau for plain SGD, (tau - rho (1 - rho^tau) / (1 - rho)) / (1 - rho) with momentum,
    (1 - (1 - eta mu)^tau) / (eta mu) with the proximal term, and with both what their joint recursion gives.

    Parameters
    ----------
    steps : int
        tau, at least 1.
    momentum : float
        rho.
    pull : float
        eta mu.
    """
    velocity = displacement = 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1.0 - pull * displacement
        displacement += velocity
    return displacement


def normalizer_of(
    config: Config, settings: FedNovaSettings, server_round: int, examples: int
) -> float:
    """Return ||a_k||_1 of a site with ``examples`` examples."""
    steps = local_steps(config, settings, examples)
    return normalizer(steps, settings.momentum, settings.lr_in(server_round) * settings.mu)


WEIGHTS, MEANS = "weights", "means"

#: the phase in which a site sends its means with its weights, and the one of all other rounds
INTRODUCE, TRAIN = "introduce", "train"


def means_spec(run: Run, sites: int) -> SyntheticImagesSpec:
    """Return the form of the means of so many sites: images with soft labels."""
    each = -(-run.settings(FedMixSettings).means * sites // len(run.info.classes))
    return images_spec(run, each, soft=True)


def sent_spec(run: Run) -> BundleSpec:
    """Return the form of what a site is sent: the weights, and all sites' means where it is not known to have them."""
    every = means_spec(run, run.config.federation.sites)
    return BundleSpec({WEIGHTS: run.spec, MEANS: every}, optional=frozenset({MEANS}))


def reply_spec(run: Run) -> BundleSpec:
    """Return the form of what a site sends: its weights, and its own means when they are requested and it has any."""
    return BundleSpec({WEIGHTS: run.spec, MEANS: means_spec(run, 1)}, optional=frozenset({MEANS}))
