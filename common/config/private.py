"""Whether the noise that a run asks for would cover all that its sites send."""

from __future__ import annotations

from common.errors import ConfigError
from common.methods import METHODS, resolve, section
from common.settings.base import Settings
from common.settings.sections import PrivacySettings


def check_privacy(privacy: PrivacySettings, method: str, settings: Settings) -> None:
    """Refuse differential privacy where something would leave the sites past its noise.

    Raises
    ------
    ConfigError
        If the method has no mechanism, or not under these settings, or if it tells private counts of classes.
    """
    sent = settings.disclosure()
    if not privacy.active:
        if resolve(method).private and sent is not None and sent.differentially_private:
            raise ConfigError(
                f"{section(method)}.mechanism promises noise, and privacy.noise_multiplier is 0: set it above 0, such "
                "as 1."
            )
        return
    asked = f"privacy.noise_multiplier={privacy.noise_multiplier:g}"
    if why := settings.unprotected(privacy):
        why = why.replace("{section}", section(method))
        raise ConfigError(f"{asked} cannot hold under method={method}: {why}.")
    if not resolve(method).private:
        named = ", ".join(name for name, known in METHODS.items() if known.private)
        raise ConfigError(
            f"{asked} asks for differential privacy, which method={method} does not have: choose one of {named}, or "
            "leave it at 0."
        )
    if sent is not None and sent.class_counts and privacy.counts != "public":
        raise ConfigError(
            f"{asked} cannot hold under method={method}, whose sites tell their number of examples of every class: "
            "set privacy.counts=public where these are no secret, or choose another method."
        )
