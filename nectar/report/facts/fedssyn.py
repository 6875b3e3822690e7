"""What a report says of Fedssyn; what its inner method's devices send beside is that method's to say."""

from __future__ import annotations

from common.settings.disclosure import Disclosure
from nectar.report.facts import Facts, Given

_COUNTS = (
    "How many images of each class a device sent follows its class counts; the server saw both."
)
_MIXED = (
    "Other devices got the images mixed, without being told whose they were; whoever has the run's seed and knows what "
    "each device sent can undo the mixing."
)
_ORIGINALS = (
    "Real images were sent as they are and given to other devices: a study, and no privacy at all."
)


def facts(disclosed: Disclosure, given: Given) -> Facts:
    """Return the facts of a run, by what its devices disclosed and by its settings."""
    spread = () if given("inner") == "central" else (_MIXED,)
    if disclosed.unchanged:
        return Facts(
            "Fedssyn with real images", (), (_ORIGINALS,), pictures="real images that were shuffled"
        )
    if disclosed.images:
        made = {"diffusion": "a diffusion model", "vae": "a VAE"}.get(
            given("source"), "a generator"
        )
        drawn = (
            f"The images that left a device were drawn from {made}, from noise; none is a real one."
        )
        return Facts("Fedssyn", (drawn,), (_images(given), _COUNTS, *spread))
    if given("source") == "distilled" and given("shared"):
        said = f"The images that were shared are {given('distilled_by')}'s, and what is said of these holds."
        pictures = f"images of {given('distilled_by')} that were shuffled"
        return Facts("Fedssyn with distilled images", (), (said, *spread), pictures=pictures)
    return Facts("Fedssyn without sharing", (), ("No image was shared.",))


def _images(given: Given) -> str:
    if given("noise_multiplier"):
        return (
            "The images that were sent were drawn from generators whose training had noise (fedssyn.noise_multiplier="
            f"{given('noise_multiplier'):g}), which an epsilon covers."
        )
    return (
        "A generator that was trained on few images can draw some of them again: the images that were sent are "
        "functions of private data, and nothing about them is differentially private."
    )
