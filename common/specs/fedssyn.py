"""What travels under Fedssyn beside the inner method's payloads: how many images are asked for, images, a share."""

from __future__ import annotations

from common.errors import FederationError
from common.learning.run import Run
from common.settings.fedssyn import FedssynSettings
from common.wire.bundle import Bundle, BundleSpec
from common.wire.codec import Payload, Spec
from common.wire.numbers import NumbersSpec
from common.wire.pixels import PixelsSpec
from common.wire.weights import Weights

#: the phase in which a site makes images; all others are the inner method's
SYNTHESIZE = "make-images"

#: parts of the reply to it, and of an instruction for the inner method
IMAGES, INNER, SHARE = "images", "inner", "share"

#: parts of a reply under ``diagnostics``: mean gradients over D_k, and over D_k and the share
OWN, MIXED = "own", "mixed"

#: figures beside them: the mean squared distance of single images' gradients
OWN_NOISE, MIXED_NOISE = "gradient-noise", "gradient-noise-mixed"

#: what a site is asked for: n_tilde
SIZE = "size"

#: figures of a reply: how much of a generator's training is done, from 0 to 1; and whether a share is missing
DONE, WITHOUT_SHARE = "synthesis-done", "without-share"


def settings_of(run: Run) -> FedssynSettings:
    """Return the method's settings."""
    return run.settings(FedssynSettings)


def given_away(settings: FedssynSettings, images: int) -> int:
    """Return how many of its real ``images`` a site gives away with ``images=real-shuffled``: p n_k, at least one."""
    return max(1, round(settings.mixed * images))


def pixels_spec(run: Run, most: int) -> PixelsSpec:
    """Return the form of at most ``most`` images.

    Raises
    ------
    ConfigError
        If the data set is text.
    """
    info = run.info
    return PixelsSpec(run.image_shape, len(info.classes), most, tuple(info.mean), tuple(info.std))


def asked_spec(run: Run) -> NumbersSpec:
    """Return the form of what a site is asked for."""
    return NumbersSpec({SIZE: (1, run.config.federation.max_examples)})


def made_spec(run: Run, size: int) -> BundleSpec:
    """Return the form of the reply: the images, or nothing while they are still being made."""
    return BundleSpec({IMAGES: pixels_spec(run, size)}, optional=frozenset({IMAGES}))


def replied_spec(run: Run, expects: Spec) -> Spec:
    """Return the form of a reply to the inner method: its own, and under ``diagnostics`` gradients beside it."""
    if not settings_of(run).diagnostics:
        return expects
    gradient = run.spec.only(run.spec.trained)
    return BundleSpec({INNER: expects, OWN: gradient, MIXED: gradient}, optional=frozenset({MIXED}))


def sent_spec(run: Run, takes: Spec) -> BundleSpec:
    """Return the form of an instruction for the inner method, with the site's share where it does not have it.

    Parameters
    ----------
    run : Run
        The run.
    takes : Spec
        What the inner method's phase takes.
    """
    most = run.config.federation.max_examples
    return BundleSpec({INNER: takes, SHARE: pixels_spec(run, most)}, optional=frozenset({SHARE}))


def weights_of(payload: Payload) -> Weights:
    """Return the weights in what the inner method sends.

    Raises
    ------
    FederationError
        If there are none.
    """
    found = payload.parts.get("weights") if isinstance(payload, Bundle) else payload
    if not isinstance(found, Weights):
        raise FederationError(
            "fedssyn.diagnostics measures gradients at the round's weights, which the inner method does not send: "
            "leave it out"
        )
    return found
