"""Whether the settings of an image folder hold together: its class list and its constants."""

from __future__ import annotations

from collections import Counter

from common.errors import ConfigError
from common.settings.images import ImagesSettings


def check_images(images: ImagesSettings) -> None:
    """Refuse a folder of images that could never be read; without a class list there is none.

    Raises
    ------
    ConfigError
        A class list with a name twice or a name that no folder can have, or constants that do not fit the
        channels.
    """
    if not images.classes:
        return
    _check_names(images.names)
    for name in ("mean", "std"):
        try:
            values = images.constants(name)
        except ValueError:
            values = ()
        if not values or (name == "std" and min(values) <= 0):
            above = " above 0" if name == "std" else ""
            raise ConfigError(
                f"images.{name}={getattr(images, name)} must be one number{above}, or {images.channels} with "
                f"commas between them for images.channels={images.channels}."
            )


def _check_names(names: tuple[str, ...]) -> None:
    if len(names) < 2:
        raise ConfigError(
            f"images.classes={names[0]} is one class: name two or more, with commas between them."
        )
    for name in names:
        if not name or name.startswith(".") or any(mark in name for mark in "/\\\0"):
            raise ConfigError(
                f"images.classes holds {name!r}, which cannot be a class: names of folders, with commas between "
                "them, none empty, none that begins with a dot."
            )
    twice = sorted(name for name, times in Counter(names).items() if times > 1)
    if twice:
        raise ConfigError(f"images.classes names {twice[0]} more than once: name each class once.")
