"""What a report says of Fedssyn; what its inner method's devices send beside is that method's to say."""

from __future__ import annotations

from common.settings.disclosure import Disclosure
from nectar.report.facts import Facts, Given


def facts(disclosed: Disclosure, given: Given) -> Facts:
    """Return the facts of a run, by what its devices disclosed and by its settings."""
    if given("images") == "real-shuffled":
        return Facts(
            "Fedssyn with real images",
            (),
            (
                "Real images were sent as they are and given to other devices: a study, and no privacy at all.",
            ),
            pictures="real images that were shuffled",
        )
    if given("images") not in ("shuffled", "central"):
        return Facts("Fedssyn without sharing", ("No image left a device, real or synthetic.",), ())
    return Facts(
        "Fedssyn",
        (
            "The images that left a device were drawn from a diffusion model, from noise; none is a real one.",
        ),
        (
            _images(given),
            "How many images of each class a device sent follows its class counts; the server saw both.",
            "Other devices got the images mixed, without being told whose they were; whoever has the run's seed and "
            "knows what each device sent can undo the mixing.",
        ),
    )


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
