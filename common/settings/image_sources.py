"""Where the images come from that sites add to their own (``fedssyn.source``), and what leaves a site with them.

A source is an entry here, one of its name in `client_app.image_sources` (how a site makes them) and one in
`strategies.image_sources` (how they are asked for, and what of them is believed); nothing else knows their names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from common.settings.disclosure import Disclosure

if TYPE_CHECKING:
    from common.settings.fedssyn import FedssynSettings
    from common.settings.sections import PrivacySettings

NONE = "none"
"""The word for no source at all."""


@dataclass(frozen=True)
class ImageSource:
    """One source.

    Parameters
    ----------
    disclosure : Disclosure
        What leaves a site; where another method makes the images, that method's section says it.
    unprotected : callable
        Of the settings and the run's ``privacy``: why its noise would not cover the images; nothing if it does.
    by_method : bool
        Whether another method makes the images, ``distilled_by``.
    noise : bool
        Whether its training has noise where ``noise_multiplier`` says so.
    as_bytes : bool
        Whether they are a byte a value, as image files hold them, and not what ``wire.images`` says.
    """

    disclosure: Disclosure
    unprotected: Callable[[FedssynSettings, PrivacySettings], str]
    by_method: bool = False
    noise: bool = False
    as_bytes: bool = True


def _by_generator(settings: FedssynSettings, privacy: PrivacySettings) -> str:
    if not settings.noise_multiplier:
        return (
            f"source={settings.source} has each site make images by a generator that was trained without noise: set "
            "{section}.noise_multiplier above 0 with source=diffusion, or source=none"
        )
    if privacy.counts != "public":
        return (
            "images are made in the proportions of the site's classes: set privacy.counts=public where these are no "
            "secret, or source=none"
        )
    return ""


_DRAWN = Disclosure("synthetic images", images=True, began_as="noise", labels=True)

SOURCES: Mapping[str, ImageSource] = {
    "diffusion": ImageSource(_DRAWN, unprotected=_by_generator, noise=True),
    "vae": ImageSource(_DRAWN, unprotected=_by_generator),
    "distilled": ImageSource(
        Disclosure("nothing", update=True),
        unprotected=lambda settings, privacy: "",
        by_method=True,
        as_bytes=False,
    ),
    "real": ImageSource(
        Disclosure(
            "real images", images=True, began_as="real examples", unchanged=True, labels=True
        ),
        unprotected=lambda settings, privacy: (
            "source=real gives real images away: set source=diffusion with a noise_multiplier, or source=none"
        ),
    ),
}
