"""What travels under FedAF: weights with all sites' mean logits, and images with the site's own two sorts of means."""

from __future__ import annotations

from common.learning.run import Run
from common.wire.bundle import BundleSpec
from common.wire.codec import Spec
from common.wire.tensors import TensorsSpec, latent_means_spec
from synth.logit_distillation import LIMIT

#: parts of an instruction: the weights, and from the second round V
WEIGHTS, OTHERS = "weights", "others"

#: parts of a reply: S_k, V_k and R_k
IMAGES, LOGITS, SHARES = "images", "logits", "shares"


def means_spec(run: Run) -> TensorsSpec:
    """Return the form of one vector a class, as long as there are classes, of what logits are cut to at a site."""
    classes = len(run.info.classes)
    return latent_means_spec(classes, classes, each=1, kinds=classes, limit=LIMIT)


def sent_spec(run: Run) -> BundleSpec:
    """Return the form of what a site is sent."""
    return BundleSpec({WEIGHTS: run.spec, OTHERS: means_spec(run)}, optional=frozenset({OTHERS}))


def reply_spec(run: Run, images: Spec) -> BundleSpec:
    """Return the form of what a site sends, its images as ``images`` says."""
    each = means_spec(run)
    return BundleSpec({IMAGES: images, LOGITS: each, SHARES: each})
