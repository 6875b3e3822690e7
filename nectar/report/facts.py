"""What a report says of a method: its name as people write it, and what was private in a run and what was not.

What leaves a device is data, stated by the method's settings and kept by the record; here it is put in words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from common.errors import ConfigError, NectarError
from common.methods import FOREIGN_CLIENT, METHODS, Method, is_import_path, load, resolve
from common.settings.base import Disclosure

#: gives one of the method's settings by name, None where a run of another release has none
Given = Callable[[str], Any]


@dataclass(frozen=True)
class Facts:
    """A method's facts in words; a method of the user's own states them as a function ``facts(disclosed, given)``.

    Parameters
    ----------
    protected : tuple of str
        What did not leave the devices, or was not given away, in a sentence each.
    sent : tuple of str
        What left, and what may be learned from it, in a sentence each.
    carries : str
        What travels up in place of images; empty where images do.
    pictures : str
        What the images are, where images do.
    """

    spoken: str
    protected: tuple[str, ...] = ()
    sent: tuple[str, ...] = ()
    carries: str = ""
    pictures: str = "synthetic images"

    def around(self, inner: Sequence[Facts]) -> Facts:
        """Return these facts of a method with those of the methods inside it."""
        if not inner:
            return self
        return replace(
            self,
            spoken=f"{self.spoken} ({', '.join(one.spoken for one in inner)})",
            protected=tuple(chain(self.protected, *(one.protected for one in inner))),
            sent=tuple(chain(self.sent, *(one.sent for one in inner))),
        )


def facts_of(method: str, disclosed: Disclosure, given: Given) -> Facts | None:
    """Return what is known of a method, given what its devices sent.

    Parameters
    ----------
    method : str
        A name, or the import path of a Flower strategy (whose devices are FedAvg's) or of a method of the user's
        own, which may name its facts.

    Returns
    -------
    Facts or None
        None for a method that this release does not know, or that names no facts.

    Raises
    ------
    ConfigError
        If a user's own method names facts that cannot be imported, or are none.
    """
    parts = _parts(method)
    if parts is None:
        return None
    name = FOREIGN_CLIENT if parts.strategy == method else method
    if name in PLAIN:
        return PLAIN[name]
    if name in BY_SETTINGS:
        return BY_SETTINGS[name](disclosed, given)
    if not parts.facts:
        return None
    found = load(parts.facts)(disclosed, given)
    if not isinstance(found, Facts):
        raise ConfigError(f"{parts.facts} must return nectar.report.facts.Facts, not {found!r}.")
    return found


def unknown(method: str) -> str:
    """Say that nothing is known of a method."""
    return f"The report knows no facts about {method}: what its devices send is a function of private data."


def _parts(method: str) -> Method | None:
    """Return a method's parts, or None for one that is not to be found here."""
    if method not in METHODS and not is_import_path(method):
        return None
    try:
        return resolve(method)
    except NectarError:
        return None


_WEIGHTS = "No training example left a device: weights travelled."
_SENT = "The trained weights of every device were sent, and are functions of private data."

#: by the method's name
PLAIN: dict[str, Facts] = {
    "central": Facts(
        "central training",
        (
            "This is not federated learning: the server trained on the union of the partitions, the bound that "
            "federations are measured against.",
        ),
        ("The data lay in one place.",),
        carries="nothing",
    ),
    "dense": Facts(
        "DENSE",
        (_WEIGHTS,),
        (
            _SENT,
            "The server made up images that these models take for each class; the record has some of them, which show "
            "what can be read from the weights.",
        ),
        carries="weights",
        pictures="images that the server made up for all the devices' models together",
    ),
    "fedavg": Facts(
        "FedAvg",
        (_WEIGHTS,),
        (_SENT,),
        carries="weights",
    ),
    "feddyn": Facts(
        "FedDyn",
        (_WEIGHTS,),
        (_SENT,),
        carries="weights",
    ),
    "fedgen": Facts(
        "FedGEN",
        (_WEIGHTS,),
        (
            _SENT,
            "Each device told its number of images of every class. From these and the last layers of the weights the "
            "server learned a generator of latents of each class, which every device received.",
        ),
        carries="weights",
    ),
    "fednova": Facts(
        "FedNova",
        (_WEIGHTS,),
        (_SENT,),
        carries="weights",
    ),
    "fedprox": Facts(
        "FedProx",
        (_WEIGHTS,),
        (_SENT,),
        carries="weights",
    ),
    "fedpvr": Facts(
        "FedPVR",
        ("No training example left a device: weights and control variates travelled.",),
        (
            "The trained weights of every device were sent, and what its control variate changed by: functions of "
            "private data.",
        ),
        carries="weights and control variates",
    ),
    "fedvae": Facts(
        "FedVAE",
        (
            "No training example left a device, and no decoder: weights of encoders and classifiers travelled.",
        ),
        (_SENT,),
        carries="weights",
    ),
    "local": Facts(
        "local training",
        (
            "No training example left a device: each device's weights travelled to the server, to be judged, and to no "
            "other device.",
            "A figure is the mean over the devices' own models.",
        ),
        (_SENT,),
        carries="weights",
    ),
    "lowrank": Facts(
        "low-rank updates",
        ("No training example left a device: factors of an update travelled.",),
        (
            "Two factors of each matrix of the update of every device were sent, and its vectors as they are: "
            "functions of private data.",
        ),
        carries="factors of an update",
    ),
    "masking": Facts(
        "random masking",
        ("No training example left a device: a part of an update travelled.",),
        (
            "A random part of the update of every device was sent, value by value, and is a function of private data.",
        ),
        carries="a part of the update",
    ),
    "moon": Facts(
        "MOON",
        (_WEIGHTS,),
        (_SENT,),
        carries="weights",
    ),
    "scaffold": Facts(
        "SCAFFOLD",
        ("No training example left a device: weights and control variates travelled.",),
        (
            "The trained weights of every device were sent, and what its control variate changed by: functions of "
            "private data.",
        ),
        carries="weights and control variates",
    ),
    "server": Facts(
        "training on the server's own images",
        (
            "This is not federated learning: the server trained on its own labelled images, those of the validation "
            "split, and asked no site for anything.",
        ),
        ("Nothing left a site.",),
        carries="nothing",
    ),
    "topk": Facts(
        "top-k",
        ("No training example left a device: a part of an update travelled.",),
        (
            "The largest values of the update of every device were sent, with their places, and are functions of "
            "private data.",
        ),
        carries="a part of the update",
    ),
}


def _labels_sent(disclosed: Disclosure) -> tuple[str, ...]:
    """Return what the labels of the sets that were sent give away."""
    said = ("Which classes a device held is visible from the labels it sent.",)
    if not disclosed.class_counts:
        return said
    return (
        *said,
        "With weighting=counts each device also told its number of images of every class.",
    )


def _feddm(disclosed: Disclosure, given: Given) -> Facts:
    """Return what is to be said of feddm."""
    return Facts(
        "FedDM",
        _protected(disclosed),
        (_images_of_feddm(disclosed, given), *_labels_sent(disclosed), *_left_out(given)),
    )


def _protected(disclosed: Disclosure) -> tuple[str, ...]:
    """Return what images protected."""
    if disclosed.began_as != "noise":
        return ()
    return (
        "No real image left a device: the images sent started from noise, and were changed until the model "
        "embedded them as it embeds the real ones.",
    )


def _images_of_feddm(disclosed: Disclosure, given: Given) -> str:
    """Return what is to be known of the images."""
    if disclosed.differentially_private:
        return (
            f"The synthetic images are made of sums with noise (feddm.mechanism={given('mechanism')}), to which each "
            "real image gave no more than the clip: the epsilon of all rounds together is theirs."
        )
    if disclosed.unchanged:
        return "Real images were sent as they are: start=real with iterations=0 changes nothing in them."
    if disclosed.began_as == "class means":
        return (
            "The images sent began as the mean of each of the device's classes (start=mean) with noise upon it, which "
            "is private data: of a class with few images it shows what these look like."
        )
    if str(given("start")).startswith("mix"):
        return (
            f"Each image sent began as the mean of a few real ones (start={given('start')}): it shows what these have "
            "in common, and real images can be told from it. Do not call that private."
        )
    if disclosed.began_as == "real examples":
        return "The images sent began as real ones (start=real), and look like them: do not call that private."
    return "The synthetic images are functions of private data."


def _left_out(given: Given) -> tuple[str, ...]:
    if given("small_class") != "leave_out" or not str(given("start")).startswith("mix"):
        return ()
    return (
        f"Of classes with fewer images than {given('start')} takes, devices sent none (small_class=leave_out): a label "
        "that was sent says that there are as many.",
    )


def _fedaf(disclosed: Disclosure, given: Given) -> Facts:
    """Return what FedDM's images disclose, and the means that are sent beside them."""
    return Facts(
        "FedAF",
        _protected(disclosed),
        (
            _images_of_feddm(disclosed, given),
            "Beside the images every site sent the mean outputs of two models on its real images of each class, as "
            "they are: of a class of one image those are that image's.",
            *_labels_sent(disclosed),
        ),
    )


def _real(disclosed: Disclosure, given: Given) -> Facts:
    """Return what is to be said of real."""
    return Facts(
        "REAL",
        (),
        (
            "Real images were sent, as they are: the method gives data away, to be measured.",
            *_labels_sent(disclosed),
        ),
        pictures="real images of the sites",
    )


def _feddgm(disclosed: Disclosure, given: Given) -> Facts:
    """Return what is to be said of feddgm."""
    return Facts(
        "FedDGM",
        ("No training example left a device: weights travelled.",),
        (
            "The trained weights of every device were sent, and are functions of private data: the server made images "
            "of each device's weights, which show what can be read from them.",
            *_class_counts_told(disclosed),
        ),
        carries="weights",
        pictures="what the server distilled from a device's weights",
    )


def _class_counts_told(disclosed: Disclosure) -> tuple[str, ...]:
    if not disclosed.class_counts:
        return ()
    return ("Every device told how many examples of each class it has.",)


def _feddpms(disclosed: Disclosure, given: Given) -> Facts:
    """Return what is to be said of feddpms."""
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


def _fedmix(disclosed: Disclosure, given: Given) -> Facts:
    """Return what is to be said of fedmix."""
    size = given("mean_of")
    return Facts(
        "FedMix",
        (
            f"No single training example left a device: weights travelled, and means of {size} images.",
        ),
        (
            f"Every device sent means of {size} of its images each, with their mean labels, and every other device "
            "received them: a mean of a few images shows what they have in common, and nothing hides it.",
            "The trained weights of every device were sent, and are functions of private data.",
        ),
        pictures=f"means of {size} images",
    )


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


def _fedssyn(disclosed: Disclosure, given: Given) -> Facts:
    """Return what is to be said of fedssyn."""
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
        return Facts("Fedssyn", (drawn,), (_drawn_images(given), _COUNTS, *spread))
    if given("source") == "distilled" and given("shared"):
        said = f"The images that were shared are {given('distilled_by')}'s, and what is said of these holds."
        pictures = f"images of {given('distilled_by')} that were shuffled"
        return Facts("Fedssyn with distilled images", (), (said, *spread), pictures=pictures)
    return Facts("Fedssyn without sharing", (), ("No image was shared.",))


def _drawn_images(given: Given) -> str:
    if given("noise_multiplier"):
        return (
            "The images that were sent were drawn from generators whose training had noise (fedssyn.noise_multiplier="
            f"{given('noise_multiplier'):g}), which an epsilon covers."
        )
    return (
        "A generator that was trained on few images can draw some of them again: the images that were sent are "
        "functions of private data, and nothing about them is differentially private."
    )


def _fedsynth(disclosed: Disclosure, given: Given) -> Facts:
    """Return what is to be said of fedsynth."""
    return Facts(
        "FedSynth",
        ("No training example and no weights left a device: synthetic batches travelled.",),
        (
            "The synthetic batches are functions of private data, and stand for an update: whoever has them and the "
            "round's weights has the update. The nearer it comes to the device's own, the more of its data they show.",
            _batches_began(disclosed),
            _batch_labels(disclosed, given),
        ),
    )


def _batches_began(disclosed: Disclosure) -> str:
    if disclosed.began_as == "class means":
        return "They started from the mean of each of the device's classes (start=statistics), which is private data."
    return "They started from noise."


def _batch_labels(disclosed: Disclosure, given: Given) -> str:
    if not disclosed.labels:
        return "Their labels were drawn for all devices alike."
    if given("labels") == "fixed":
        return (
            "Their labels were drawn by the device's own class frequencies, which can be read off them; of text they "
            "are words that it holds."
        )
    return "Each was sent with a trained label, from which the device's classes can be read."


BY_SETTINGS: Mapping[str, Callable[[Disclosure, Given], Facts]] = {
    "feddm": _feddm,
    "fedaf": _fedaf,
    "real": _real,
    "feddgm": _feddgm,
    "feddpms": _feddpms,
    "fedmix": _fedmix,
    "fedssyn": _fedssyn,
    "fedsynth": _fedsynth,
}
"""What is said of the methods of which it depends on their settings, by name."""
