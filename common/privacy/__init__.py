"""What differential privacy costs: what was released, how far one example moves it, and the epsilon of it together.

All is said of real numbers: what the last bits of floating-point noise may tell (Mironov, 2012) is outside of it.
"""

from common.privacy.accounting import Epsilon, costs_at_most, epsilon
from common.privacy.events import Adjacency, Event, parallel
from common.privacy.planning import noise_for, rounds_left
from common.privacy.sensitivity import latent_sensitivity

__all__ = [
    "Adjacency",
    "Epsilon",
    "Event",
    "costs_at_most",
    "epsilon",
    "latent_sensitivity",
    "noise_for",
    "parallel",
    "rounds_left",
]
