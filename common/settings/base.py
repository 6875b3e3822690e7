"""What a method's settings are, and what they state of it; all that their class is written with is found here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from common.settings.disclosure import Disclosure
from common.settings.networks import ModelSettings
from common.settings.section import (
    AMOUNTS,
    LEAST_CLIP,
    MOST_CLIP,
    Clip,
    Noise,
    Section,
    Switch,
    setting,
)
from common.settings.sections import PrivacySettings

__all__ = ["AMOUNTS", "LEAST_CLIP", "MOST_CLIP", "Clip", "Noise", "Settings", "Switch", "setting"]


class Settings(Section):
    """The section of a method."""

    @property
    def trains_on_images(self) -> bool:
        """Whether the method's server trains on images as ``image_training`` says: else that section is not in use."""
        return False

    @property
    def trains_on_validation(self) -> bool:
        """Whether the server learns from its validation images, which then judge nothing."""
        return False

    def uses(self) -> tuple[str, ...]:
        """Name the methods inside this one: their sections are then resolved, shown, recorded and hashed too."""
        return ()

    @classmethod
    def needs(cls) -> Mapping[str, Any]:
        """Name settings of other sections without which the method is not one, such as its model, by dotted key.

        They stand over a data set's, under an experiment's and what is typed.
        """
        return {}

    def models(self, model: ModelSettings) -> Mapping[str, ModelSettings]:
        """Name the architectures that a run learns beside ``model``, the run's own."""
        return {}

    def disclosure(self) -> Disclosure | None:
        """State what leaves a device under these settings; None where they are no method's, or say nothing.

        A method that inherits another's settings and sends something else states its own.
        """
        return None

    def noises(self) -> tuple[float, ...] | None:
        """Return the noise multipliers that sites charge beside the run's ``privacy``; None where nobody else knows."""
        said = self.disclosure()
        return None if said is not None and said.differentially_private else ()

    def unprotected(self, privacy: PrivacySettings) -> str:
        """Say why the noise that ``privacy`` asks for would not cover all that a device sends; nothing if it does.

        ``{section}`` in it stands for the section that holds the settings, which is another for whoever inherits them.
        """
        return ""
