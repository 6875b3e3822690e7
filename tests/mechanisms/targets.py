"""What can be audited: a mechanism by name, at a noise at which 10^5 releases can show half of what is claimed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.mechanisms.attack import Releases
from tests.mechanisms.gradients import GradientReleases
from tests.mechanisms.latents import LatentReleases
from tests.mechanisms.matching import MatchingReleases
from tests.mechanisms.published import PublishedReleases


@dataclass(frozen=True)
class Target:
    """A mechanism under audit.

    Attributes
    ----------
    releases : callable
        noise multiplier -> its releases.
    ours : bool
        Whether the claim is Nectar's. Another's may turn out not to hold.
    """

    what: str
    releases: Callable[[float], Releases]
    ours: bool = True


TARGETS: Mapping[str, Target] = {
    "dp-sgd": Target("a step of DP-SGD on all of a site's examples", GradientReleases),
    "dp-sgd-sampled": Target(
        "the same on a Poisson sample of half of them",
        lambda sigma: GradientReleases(sigma, 0.5),
    ),
    "feddm-feature": Target(
        "an iteration of feddm.mechanism=feature on a whole class",
        lambda sigma: MatchingReleases("feature", sigma),
    ),
    "feddm-feature-sampled": Target(
        "the same on a Poisson sample of half of it",
        lambda sigma: MatchingReleases("feature", sigma, 0.5),
    ),
    "feddm-gradient": Target(
        "an iteration of feddm.mechanism=gradient on a whole class",
        lambda sigma: MatchingReleases("gradient", sigma),
    ),
    "feddm-gradient-sampled": Target(
        "the same on a Poisson sample of half of it",
        lambda sigma: MatchingReleases("gradient", sigma, 0.5),
    ),
    "feddpms-means": Target(
        "FedDPMS' noisy mean of a class, given the encoder's weights", LatentReleases
    ),
    "feddm-published": Target(
        "an iteration as FedDM's paper prints it, and accounts for it",
        PublishedReleases,
        ours=False,
    ),
}
