"""How far a site's steps could take it: FedNova's ||a_k||_1, which device and server compute alike."""

from __future__ import annotations

from common.config.resolved import Config
from common.learning.steps import local_steps
from common.settings.fednova import FedNovaSettings

NORMALIZER = "normalizer"
"""The figure beside a site's weights that states its ||a_k||_1."""


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
