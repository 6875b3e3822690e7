"""What a report says of a method: its name as people write it, and what was private in a run and what was not.

What leaves a device is data, stated by the method's settings and kept by the record; here it is put in words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from common.errors import ConfigError, NectarError
from common.methods import FOREIGN_CLIENT, METHODS, is_import_path, load, resolve
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
        What travels up in place of images; empty if images do.
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
        None for a method that this release does not know. One that names no facts has its strategy's name and its
        settings' own words of what is sent.

    Raises
    ------
    ConfigError
        If a user's own method names facts that cannot be imported, or are none.
    """
    if method not in METHODS and not is_import_path(method):
        return None
    try:
        parts = resolve(method)
    except NectarError:
        return None
    stated = FACTS.get(FOREIGN_CLIENT if parts.strategy == method else method)
    if stated is not None:
        return stated if isinstance(stated, Facts) else stated(disclosed, given)
    if not parts.facts:
        sent = f"Sites sent {disclosed.payload}, a function of private data: the method states no more of it."
        carries = "" if disclosed.images else disclosed.payload
        return Facts(parts.strategy.rpartition(":")[2], (), (sent,), carries, "images")
    found = load(parts.facts)(disclosed, given)
    if not isinstance(found, Facts):
        raise ConfigError(f"{parts.facts} must return nectar.report.facts.Facts, not {found!r}.")
    return found


def unknown_method(method: str) -> str:
    """Say that nothing is known of a method."""
    return f"The report knows no facts about {method}: what its devices send is a function of private data."


def _sending(spoken: str, *more: str, what: str = "weights", pictures: str = "") -> Facts:
    """Return the facts of a method whose devices send ``what``: by default their weights."""
    kept = f"No training example left a device: {what} travelled."
    own = {"weights": (_SENT,), _VARIATES: (f"{_SENT} So is what its control variate changed by.",)}
    return Facts(spoken, (kept,), (*own.get(what, ()), *more), what, pictures or Facts.pictures)


_SENT = "The trained weights of every device were sent, and are functions of private data."
_VARIATES = "weights and control variates"
_OWN_LAYERS = "The layers that are each device's own (model.personal) never left it, and only it can judge them."
_OWN_MODELS = (
    "The model that each device trained for itself never left it, and only the device judged it."
)


def _labels(disclosed: Disclosure) -> tuple[str, ...]:
    """Return what the labels of the sets that were sent give away."""
    message = "Which classes a device held is visible from the labels it sent."
    if not disclosed.class_counts:
        return (message,)
    return (
        message,
        "With weighting=counts each device also told its number of images of every class.",
    )


def _feddm(disclosed: Disclosure, given: Given) -> Facts:
    start = str(given("start"))
    sent = [_images_of_feddm(disclosed, given), *_labels(disclosed)]
    if given("small_class") == "leave_out" and start.startswith("mix"):
        sent.append(
            f"Of classes with fewer images than {start} takes, devices sent none (small_class=leave_out): a label that "
            "was sent says that there are as many."
        )
    protected = (
        "No real image left a device: the images sent started from noise, and were changed until the model embedded "
        "them as it embeds the real ones."
    )
    return Facts("FedDM", (protected,) if disclosed.began_as == "noise" else (), tuple(sent))


def _images_of_feddm(disclosed: Disclosure, given: Given) -> str:
    """Return what is to be known of the images, by what they began as."""
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


def _fedaf(disclosed: Disclosure, given: Given) -> Facts:
    images = _images_of_feddm(disclosed, given)
    means = (
        "Beside the images every site sent the mean outputs of two models on its real images of each class, as they "
        "are: of a class of one image those are that image's."
    )
    kept = _feddm(disclosed, given).protected
    return Facts("FedAF", kept, (images, means, *_labels(disclosed)))


def _real(disclosed: Disclosure, given: Given) -> Facts:
    message = "Real images were sent, as they are: the method gives data away, to be measured."
    return Facts("REAL", (), (message, *_labels(disclosed)), pictures="real images of the sites")


def _feddgm(disclosed: Disclosure, given: Given) -> Facts:
    made = "The server made images of each device's weights, which show what can be read from them."
    told = ["Every device told how many examples of each class it has."] * disclosed.class_counts
    pictures = "what the server distilled from a device's weights"
    return _sending("FedDGM", made, *told, pictures=pictures)


def _feddpms(disclosed: Disclosure, given: Given) -> Facts:
    noise = f"normal noise of standard deviation {given('sigma')}"
    how = f"each once, with {noise}"
    copies = (
        "The device that received a mean drew the copies: nothing more of the images is in them."
    )
    if given("mechanism") == "paper":
        how = f"up to {given('copies')} copies of each, every one with {noise} of its own"
        copies = (
            "Which copies were kept was decided by weights that the device had just trained on its images: no epsilon "
            "covers that choice."
        )
    sent = [
        "The trained weights of every device's encoder, classifier and (once) decoder were sent, and are functions of "
        "private data.",
        copies,
        "Which classes a device has most and fewest of was told to the server; their order is not protected.",
    ]
    if given("latents") == "trained":
        sent.append(
            "The codes were those of an encoder that the device had just trained on the very images: what an image "
            "changes in the encoder, the noise on the means does not cover."
        )
    kept = (
        "No training example left a device: weights travelled, and means of latent codes with noise on them.",
        f"The means of a device's largest classes were sent {how}.",
    )
    pictures = "what the decoder makes of the noisy latent means that were sent"
    return Facts("FedDPMS", kept, tuple(sent), "weights and noisy latent means", pictures)


def _fedmix(disclosed: Disclosure, given: Given) -> Facts:
    means = f"means of {given('mean_of')} images"
    kept = f"No single training example left a device: weights travelled, and {means}."
    shared = (
        f"Every device sent {means}, with their mean labels, and every other device received them: a mean of a few "
        "images shows what they have in common, and nothing hides it."
    )
    return Facts("FedMix", (kept,), (shared, _SENT), pictures=means)


def _fedssyn(disclosed: Disclosure, given: Given) -> Facts:
    spread: tuple[str, ...] = (
        "Other devices got the images mixed, without being told whose they were; whoever has the run's seed and knows "
        "what each device sent can undo the mixing.",
    )
    if given("inner") == "central":
        spread = ()
    if disclosed.unchanged:
        message = "Real images were sent as they are and given to other devices: a study, and no privacy at all."
        pictures = "real images that were shuffled"
        return Facts("Fedssyn with real images", (), (message,), pictures=pictures)
    if disclosed.images:
        makers = {"diffusion": "a diffusion model", "vae": "a VAE"}
        maker = makers.get(given("source"), "a generator")
        drawn = f"The images that left a device were drawn from {maker}, from noise; none is a real one."
        learned = (
            "A generator that was trained on few images can draw some of them again: the images that were sent are "
            "functions of private data, and nothing about them is differentially private."
        )
        if given("noise_multiplier"):
            learned = (
                "The images that were sent were drawn from generators whose training had noise "
                f"(fedssyn.noise_multiplier={given('noise_multiplier'):g}), which an epsilon covers."
            )
        counts = "How many images of each class a device sent follows its class counts; the server saw both."
        return Facts("Fedssyn", (drawn,), (learned, counts, *spread))
    if given("source") == "distilled" and given("shared"):
        message = f"The images that were shared are {given('distilled_by')}'s, and what is said of these holds."
        pictures = f"images of {given('distilled_by')} that were shuffled"
        return Facts("Fedssyn with distilled images", (), (message, *spread), pictures=pictures)
    return Facts("Fedssyn without sharing", (), ("No image was shared.",))


def _fedsynth(disclosed: Disclosure, given: Given) -> Facts:
    began, labels = "They started from noise.", "Their labels were drawn for all devices alike."
    if disclosed.began_as == "class means":
        began = "They started from the mean of each of the device's classes (start=statistics), which is private data."
    if disclosed.labels and given("labels") == "fixed":
        labels = (
            "Their labels were drawn by the device's own class frequencies, which can be read off them; of text they "
            "are words that it holds."
        )
    elif disclosed.labels:
        labels = "Each was sent with a trained label, from which the device's classes can be read."
    kept = "No training example and no weights left a device: synthetic batches travelled."
    update = (
        "The synthetic batches are functions of private data, and stand for an update: whoever has them and the "
        "round's weights has the update. The nearer it comes to the device's own, the more of its data they show."
    )
    return Facts("FedSynth", (kept,), (update, began, labels))


FACTS: Mapping[str, Facts | Callable[[Disclosure, Given], Facts]] = {
    "central": Facts(
        "central training",
        (
            "This is not federated learning: the server trained on the union of the partitions, the bound that "
            "federations are measured against.",
        ),
        ("The data lay in one place.",),
        "nothing",
    ),
    "ditto": _sending("Ditto", _OWN_MODELS),
    "finetune": _sending("FedAvg with fine-tuning", _OWN_MODELS),
    "dense": _sending(
        "DENSE",
        "The server made up images that these models take for each class; the record has some of them, which show "
        "what can be read from the weights.",
        pictures="images that the server made up for all the devices' models together",
    ),
    "fedaf": _fedaf,
    "fedavg": _sending("FedAvg"),
    "feddf": _sending(
        "FedDF",
        "The server distilled these models into one, on images without labels that are no device's.",
    ),
    "feddgm": _feddgm,
    "feddm": _feddm,
    "feddpms": _feddpms,
    "feddyn": _sending("FedDyn"),
    "fedgen": _sending(
        "FedGEN",
        "Each device told its number of images of every class. From these and the last layers of the weights the "
        "server learned a generator of latents of each class, which every device received.",
    ),
    "fedbn": _sending("FedBN", _OWN_LAYERS),
    "fedmd": _sending(
        "distillation by logits",
        "No weights left a device: its own model's answers to public images were sent, each round. They are functions "
        "of private data, and who has them can train a model that answers alike.",
        what="logits on public images",
    ),
    "fedmix": _fedmix,
    "fednova": _sending("FedNova"),
    "fedper": _sending("FedPer", _OWN_LAYERS),
    "fedprox": _sending("FedProx"),
    "fedpvr": _sending("FedPVR", what=_VARIATES),
    "fedrep": _sending("FedRep", _OWN_LAYERS),
    "fedssyn": _fedssyn,
    "fedsynth": _fedsynth,
    "fedvae": _sending(
        "FedVAE", "No decoder was sent: the weights are those of encoders and classifiers."
    ),
    "local": _sending(
        "local training",
        "The server judged each device's weights and passed them on to no other device; a figure is the mean over the "
        "devices' own models.",
    ),
    "lowrank": _sending(
        "low-rank updates",
        "Two factors of each matrix of the update of every device were sent, and its vectors as they are: functions "
        "of private data.",
        what="factors of an update",
    ),
    "masking": _sending(
        "random masking",
        "A random part of the update of every device was sent, value by value, and is a function of private data.",
        what="a part of the update",
    ),
    "moon": _sending("MOON"),
    "real": _real,
    "ridge": _sending(
        "ridge regression from sums of features",
        "Sums of features over a site's examples were sent, by class. Without noise they are functions of private "
        "data: they tell how many examples of each class a site has, and of a candidate whether it is among them.",
        what="sums of features",
    ),
    "scaffold": _sending("SCAFFOLD", what=_VARIATES),
    "server": Facts(
        "training on the server's own images",
        (
            "This is not federated learning: the server trained on its own labelled images, those of the validation "
            "split, and asked no site for anything.",
        ),
        ("Nothing left a site.",),
        "nothing",
    ),
    "topk": _sending(
        "top-k",
        "The largest values of the update of every device were sent, with their places, and are functions of private "
        "data.",
        what="a part of the update",
    ),
}
"""What is said of each method; a function where it depends on the settings."""
