"""What travels under FedMix: weights, and once the means of the sites' images."""

from __future__ import annotations

from common.learning.run import Run
from common.settings.fedmix import FedMixSettings
from common.specs.images import images_spec
from common.wire.bundle import BundleSpec
from common.wire.synthetic_images import SyntheticImagesSpec

WEIGHTS, MEANS = "weights", "means"

#: the phase in which a site sends its means beside its weights, and the one of all other rounds
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
    """Return the form of what a site sends: its weights, and its own means when it is asked for them and has any."""
    return BundleSpec({WEIGHTS: run.spec, MEANS: means_spec(run, 1)}, optional=frozenset({MEANS}))
