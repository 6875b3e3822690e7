"""The generator that FedDGM's settings name, ready to make images like the run's."""

from __future__ import annotations

from common.errors import ConfigError
from common.learning.run import Run
from common.specs.feddgm import settings_of
from strategies.generator_file import own_prior
from strategies.stylegan_file import stylegan_xl
from synth.generators.feature_space import FeatureSpace
from synth.generators.latents import ImageGenerator
from synth.generators.pixels import Pixels
from synth.generators.style_weights import digits_prior


def image_generator(run: Run) -> ImageGenerator:
    """Return the generator of the run's settings.

    Raises
    ------
    ConfigError
        If it makes other images or classes than the run's, has not the space that is asked for, or cannot be had.
    """
    settings, shape, classes = settings_of(run), run.image_shape, len(run.info.classes)
    if settings.generator == "pixels":
        return Pixels(shape, settings.latent_lr)
    if settings.generator == "stylegan-xl":
        return stylegan_xl(settings, shape, classes, run.device)
    if settings.generator == "digits":
        network = digits_prior()
    else:
        network = own_prior(settings.generator, settings.generator_sha256)
    form = network.form
    if form.shape != shape or form.classes != classes:
        raise ConfigError(
            f"feddgm.generator={settings.generator} makes images of {'x'.join(map(str, form.shape))} of {form.classes} "
            f"classes, and {run.info.name} has images of {'x'.join(map(str, shape))} of {classes} classes: set "
            "feddgm.generator=pixels, or train one with examples/train_prior.py"
        )
    try:
        return FeatureSpace(
            network.to(run.device), settings.space, settings.latent_lr, settings.feature_lr
        )
    except ValueError as error:
        raise ConfigError(f"feddgm.space={settings.space} is not there: {error}.") from None
