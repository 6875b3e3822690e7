"""What a report says of FedDPMS."""

from __future__ import annotations

from common.settings.disclosure import Disclosure
from nectar.report.facts import Facts, Given


def facts(disclosed: Disclosure, given: Given) -> Facts:
    """Return the facts of a run, by what its devices disclosed and by its settings."""
    noise = f"normal noise of standard deviation {given('sigma')}"
    if given("mechanism") == "paper":
        how = f"up to {given('copies')} copies of each, every one with {noise} of its own"
        unprotected = (
            "Which copies were kept was decided by weights that the device had just trained on its images: no epsilon "
            "covers that choice."
        )
    else:
        how = f"each once, with {noise}"
        unprotected = "The device that received a mean drew the copies: nothing more of the images is in them."
    told = "Which classes a device has most and fewest of was told to the server; their order is not protected."
    return Facts(
        "FedDPMS",
        (
            "No training example left a device: weights travelled, and means of latent codes with noise on them.",
            f"The means of a device's largest classes were sent {how}.",
        ),
        (
            "The trained weights of every device's encoder, classifier and (once) decoder were sent, and are functions "
            "of private data.",
            unprotected,
            told,
            *_of_the_encoder(given),
        ),
        carries="weights and noisy latent means",
        pictures="what the decoder makes of the noisy latent means that were sent",
    )


def _of_the_encoder(given: Given) -> tuple[str, ...]:
    if given("latents") != "trained":
        return ()
    return (
        "The codes were those of an encoder that the device had just trained on the very images: what an image changes "
        "in the encoder, the noise on the means does not cover.",
    )
