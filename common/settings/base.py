"""The base of a method's settings and of what they state of it, with all that such a class is written with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, get_args

from common.settings.section import (
    AMOUNTS,
    Clip,
    Noise,
    Section,
    Switch,
    of_clip,
    of_noise,
    setting,
)
from common.settings.sections import ModelSettings, PrivacySettings

__all__ = ["AMOUNTS", "Clip", "Noise", "Settings", "Switch", "of_clip", "of_noise", "setting"]


class Settings(Section):
    """The section of a method."""

    @property
    def trains_on_images(self) -> bool:
        """Whether the method's server trains on images as ``image_training`` says: else that section is not in use."""
        return False

    comment: ClassVar[str] = ""
    """What a report adds to the sentences made of ``disclosure``, where no setting decides it."""

    distils: ClassVar[bool] = False
    """Whether models are distilled on public images as ``distil`` says: else that section is not in use."""

    @property
    def trains_on_validation(self) -> bool:
        """Whether the server learns from its validation images, which then evaluate nothing."""
        return False

    def uses(self) -> tuple[str, ...]:
        """Name the methods inside this one: their sections are then resolved, shown, recorded and hashed too."""
        return ()

    needed: ClassVar[Mapping[str, Any]] = {}
    """What ``needs`` returns."""

    @classmethod
    def needs(cls) -> Mapping[str, Any]:
        """Name settings of other sections without which the method is not one, such as its model, by dotted key.

        They override a data set's, and are overridden by an experiment's and what is typed.
        """
        return cls.needed

    def shaped(self, model: ModelSettings) -> ModelSettings:
        """Return the run's model as the method makes it, where its own settings give its size; else unchanged."""
        return model

    def models(self, model: ModelSettings) -> Mapping[str, ModelSettings]:
        """Name the architectures that a run learns besides ``model``, the run's own."""
        return {}

    def own_code(self) -> tuple[str, ...]:
        """Name what of the user's own these settings import, as ``package.module:name``."""
        return ()

    def disclosure(self) -> Disclosure | None:
        """State what leaves a device under these settings; None if they are no method's, or say nothing.

        A method that inherits another's settings and sends something else states its own.
        """
        return None

    def remark(self) -> str:
        """Return the remark that a report adds to the sentences of ``disclosure``; by default the comment."""
        return self.comment

    def noises(self) -> tuple[float, ...] | None:
        """Return the noise multipliers that sites charge besides the run's ``privacy``; None if they are unknown."""
        message = self.disclosure()
        return None if message is not None and message.differentially_private else ()

    def private_steps(self, examples: int, held: float) -> tuple[float, int] | None:
        """Return the sample rate and number of a round's private steps at a site; None if settings do not say.

        Of ``examples``, of which the share ``held`` is not learned from.
        """
        return None

    def unprotected(self, privacy: PrivacySettings) -> str:
        """Return why the noise that ``privacy`` asks for would not cover all that a device sends; nothing if it does.

        ``{section}`` in it is the section that holds the settings, which differs in subclasses.
        """
        return ""


# ---- disclosure ----------------------------------------------------------------------------------
# What leaves a device in a run, as data: the record keeps it, and a report words it.

Origin = Literal["", "noise", "real examples", "class means"]


@dataclass(frozen=True)
class Disclosure:
    """A statement of what a method's devices send, which a settings class returns as ``disclosure()``.

    Parameters
    ----------
    payload : str
        What is sent, in the words of a sentence such as "sites send synthetic images".
    images : bool
        Whether images are among it, or what looks like one.
    numbers : bool
        Whether examples are sent as numbers in no picture's range, such as latents, so that ``wire.images`` cannot be
        a picture's.
    began_as : Origin
        What it was made from: noise, the device's real examples or the means of its classes; empty if it was
        trained or computed, and did not start as any of these.
    unchanged : bool
        Whether real examples are sent as they are.
    labels : bool
        Whether the classes that a device holds can be read from what it sends.
    class_counts : bool
        Whether a device reports its number of examples of every class.
    update : bool
        Whether the payload is the device's update, or the part of it that is sent, or reveals it to a party with the
        round's weights.
    differentially_private : bool
        Whether anything that is sent is.
    """

    payload: str
    images: bool = False
    numbers: bool = False
    began_as: Origin = ""
    unchanged: bool = False
    labels: bool = False
    class_counts: bool = False
    update: bool = False
    differentially_private: bool = False

    @property
    def examples(self) -> bool:
        """Whether what is sent represents examples of the device's classes, and not for its update alone."""
        return self.labels or not self.update

    @classmethod
    def read(cls, recorded: Any) -> Disclosure | None:
        """Return the disclosure in a record, or None if this release cannot read it."""
        known = {f.name for f in fields(cls)}
        if (
            not isinstance(recorded, Mapping)
            or not {"payload", "began_as"} <= set(recorded) <= known
        ):
            return None
        switches = {k: v for k, v in recorded.items() if k not in ("payload", "began_as")}
        understood = (
            isinstance(recorded["payload"], str)
            and recorded["began_as"] in get_args(Origin)
            and all(isinstance(value, bool) for value in switches.values())
        )
        return cls(**recorded) if understood else None
