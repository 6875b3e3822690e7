"""Settings of a data set that is a folder of images: what every site must agree on, and where the images are."""

from __future__ import annotations

import unicodedata
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from common.settings.section import Section, setting


def class_name(text: object) -> str:
    """Return a class's name, wherever it is read or typed: blanks cut, in Unicode's form NFC."""
    return unicodedata.normalize("NFC", str(text).strip())


def _joined(value: Any) -> Any:
    """Write a list, a number or a text with spaces as one text with commas; equal lists get equal texts."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return repr(value)
    if isinstance(value, list):
        value = ",".join(str(part) for part in value)
    if isinstance(value, str):
        return ",".join(map(class_name, value.split(",")))
    return value


Listed = Annotated[str, BeforeValidator(_joined)]
"""A text of values with commas between them."""


def _paths(value: Any) -> Any:
    """Write a list of paths as one text with commas; names stay letter for letter, as the file system has them."""
    if isinstance(value, list):
        if any("," in str(part) for part in value):
            raise ValueError("a comma ends a path, so no folder's name can have one")
        value = ",".join(str(part) for part in value)
    return ",".join(part.strip() for part in value.split(",")) if isinstance(value, str) else value


Paths = Annotated[str, BeforeValidator(_paths)]
"""A text of paths with commas between them."""

_PLAIN = r"[^/*{}]*"
GROUP_PATTERN = (
    rf"^(|folder|({_PLAIN}\*)?{_PLAIN}\{{group\}}{_PLAIN}(\*{_PLAIN})?"
    rf"|{_PLAIN}\{{group\}}{_PLAIN}\*{_PLAIN}\*{_PLAIN})$"
)
"""What ``images.group`` may be: few wildcards, since a pattern is matched with the names of a site's files."""

_NUMBERS = "a number, or one a channel with commas between them"


_of_folders = partial(setting, only="folder")


class ImagesSettings(Section):
    """A data set of image files in a folder per class; mean, std and classes also of any other user-defined set."""

    folder: str = _of_folders(
        "",
        "where train/<class>/* and test/<class>/* (or val, validation) are, or <class>/* alone; a relative one is "
        "below data-dir",
        allowed="a path",
    )
    sites: Paths = _of_folders(
        "",
        "simulates sites that hold folders of their own, <class>/* in each: one site a folder, in this order",
        allowed="absolute paths with commas between them",
    )
    classes: Listed = setting(
        "",
        "the classes that all sites share, in the order of their labels: the names of their folders",
        allowed="names with commas between them",
    )
    size: int = _of_folders(
        32,
        "pixels a side: the shorter side is brought to it, then the middle cut out",
        ge=1,
        le=1024,
        amount="size",
    )
    channels: Literal[1, 3] = _of_folders(3, "1: grey, 3: colour")
    bits: Literal[8, 16] = _of_folders(
        8, "of a stored value; 16 keeps all levels of 16-bit greyscale files, at twice the space"
    )
    page: Listed = _of_folders(
        "",
        "TIFF files of several full-size pages: the one that is read, counted from 1, or the mean or the largest value "
        "over all; without it such a file is not used",
        allowed="a number from 1, mean or max",
        pattern="^(|mean|max|[1-9][0-9]{0,3})$",
    )
    white: int = _of_folders(
        0,
        "the value that is white in 16-bit greyscale files, such as 4095 where a device fills 12 of the bits; a public "
        "constant, never taken from a site's images; 0: the largest that the file's bits hold",
        ge=0,
        le=65535,
    )
    black: int = _of_folders(
        0,
        "the value that is black in 16-bit greyscale files, such as 31744 where 32768 was added to a CT's values; a "
        "public constant below white, as that is",
        ge=0,
        le=65534,
    )
    group: str = _of_folders(
        "",
        "which pictures belong together, as those of one patient: no test, validation, hold-out or partition divides "
        "them; folder: <class>/<group>/*; or a pattern of the files' names, in which * matches anything",
        allowed="folder, or a pattern with {group} once and * at most twice, such as {group}_*",
        pattern=GROUP_PATTERN,
    )
    mean: Listed = setting(
        "0.5",
        "what is subtracted from values in 0..1; a public constant, never taken from a site's images",
        allowed=_NUMBERS,
    )
    std: Listed = setting(
        "0.5", "what they are then divided by; a public constant likewise", allowed=_NUMBERS
    )
    max_bad: float = setting(
        0.1,
        "share of the files that may be unreadable, empty or misplaced before the folder is refused",
        ge=0,
        le=1,
        operational=True,
    )

    @property
    def names(self) -> tuple[str, ...]:
        """The classes' names in the order of their labels."""
        return tuple(self.classes.split(",")) if self.classes else ()

    @property
    def site_folders(self) -> tuple[Path, ...]:
        """The simulated sites' own folders; none where a data set is divided."""
        return tuple(Path(part) for part in self.sites.split(",")) if self.sites else ()

    def constants(self, name: Literal["mean", "std"]) -> tuple[float, ...]:
        """Return ``mean`` or ``std``, one value a channel; ValueError if it is not one or not finite."""
        values = tuple(float(part) for part in str(getattr(self, name)).split(","))
        if len(values) == 1:
            values *= self.channels
        if len(values) != self.channels or not all(abs(value) < float("inf") for value in values):
            raise ValueError(f"{len(values)} values for {self.channels} channels")
        return values
