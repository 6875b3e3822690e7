"""The README of an exported folder, and what its images are with regard to the sites' real ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from common.config.resolved import Config
from common.samples.dataset import DatasetInfo
from common.settings.base import Settings
from common.sites import ALL_SITES
from common.wire.images import SyntheticImages
from nectar.report.facts import facts_of, unknown_method
from nectar.text import plural, share
from server_app.pictures import hard


def sent_images(
    sets: Mapping[str, SyntheticImages], server_round: int, info: DatasetInfo, config: Config
) -> dict[str, Any] | None:
    """Return what the README says of the synthetic images; None without images."""
    if not sets:
        return None
    present = {label for sent in sets.values() for label in hard(sent.labels).tolist()}
    return {
        "count": sum(len(sent.labels) for sent in sets.values()),
        "sites": 0 if ALL_SITES in sets else len(sets),
        "round": server_round,
        "missing": [name for label, name in enumerate(info.classes) if label not in present],
        "who": who_made_images(config),
        "nature": nature_of_images(config),
    }


def readme(about: Mapping[str, Any], sent: Mapping[str, Any] | None, no_pt2: str = "") -> str:
    """Return the README's text.

    Parameters
    ----------
    about : mapping
        model.json's content.
    sent : mapping, optional
        As `sent_images` returns it.
    no_pt2 : str
        Why model.pt2 is missing, if it is.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.filters |= {"share": share, "plural": plural}
    channels, side, _ = about["input"]["shape"]
    shape = ", ".join(map(str, about["input"]["shape"]))
    return environment.get_template("README.md.jinja").render(
        about, sent=sent, no_pt2=no_pt2, channels=channels, side=side, shape=shape
    )


def who_made_images(config: Config) -> str:
    """Return who made the images, in words that follow "what" or "images that"."""
    disclosed = config.settings.disclosure()
    sent = disclosed is None or disclosed.images or disclosed.began_as
    return "the sites sent" if sent else "the server made"


def _sender(config: Config) -> tuple[str, Settings]:
    """Return the method whose sites send images, the run's own or one inside it; the run's own where none does."""
    for name, settings in config.methods.items():
        sent = settings.disclosure()
        if sent is not None and sent.images:
            return config.method if name == config.section else name, settings
    return config.method, config.settings


def nature_of_images(config: Config) -> str:
    """Return in a sentence or two what the images are with regard to the sites' real ones."""
    method, settings = _sender(config)
    disclosed = settings.disclosure()
    if disclosed is None:
        return unknown_method(method)
    if disclosed.images and disclosed.unchanged:
        return (
            "THESE ARE REAL IMAGES of the sites' own data, sent unchanged: treat them as that data."
        )
    if not disclosed.images or not disclosed.began_as:
        facts = facts_of(method, disclosed, settings)
        return unknown_method(method) if facts is None else " ".join(facts.sent)
    if disclosed.began_as == "real examples":
        start = getattr(settings, "start", "real")
        what = "REAL IMAGES" if start == "real" else "MEANS OF A FEW REAL IMAGES"
        return (
            f"THEY BEGAN AS {what} of the sites' own data (start={start}) and may look like them: do not treat them "
            "as private."
        )
    start = {"class means": "means of each site's classes with noise added"}.get(
        disclosed.began_as, "noise"
    )
    return (
        f"They started from {start} and were distilled; none is a real image. They are functions of private data "
        "all the same, and nothing about them is differentially private."
    )
