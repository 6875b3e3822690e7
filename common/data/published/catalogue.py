"""The data sets Nectar knows by name, described without loading anything."""

from __future__ import annotations

import string

from common.data.published.leaf import FREQUENT, TOKENS, WHOLE
from common.errors import DataError, nearest
from common.samples.dataset import DatasetInfo
from common.settings.images import ImagesSettings
from common.settings.sections import forms_in_words, kind_of

_FASHION = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
    "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
_CIFAR10 = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
_CIFAR100 = (
    "apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle", "bottle",
    "bowl", "boy", "bridge", "bus", "butterfly", "camel", "can", "castle", "caterpillar", "cattle",
    "chair", "chimpanzee", "clock", "cloud", "cockroach", "couch", "crab", "crocodile", "cup",
    "dinosaur", "dolphin", "elephant", "flatfish", "forest", "fox", "girl", "hamster", "house",
    "kangaroo", "keyboard", "lamp", "lawn_mower", "leopard", "lion", "lizard", "lobster", "man",
    "maple_tree", "motorcycle", "mountain", "mouse", "mushroom", "oak_tree", "orange", "orchid",
    "otter", "palm_tree", "pear", "pickup_truck", "pine_tree", "plain", "plate", "poppy",
    "porcupine", "possum", "rabbit", "raccoon", "ray", "road", "rocket", "rose", "sea", "seal",
    "shark", "shrew", "skunk", "skyscraper", "snail", "snake", "spider", "squirrel", "streetcar",
    "sunflower", "sweet_pepper", "table", "tank", "telephone", "television", "tiger", "tractor",
    "train", "trout", "tulip", "turtle", "wardrobe", "whale", "willow_tree", "wolf", "woman",
    "worm",
)  # fmt: skip
_NUMERALS = tuple(str(digit) for digit in range(10))
# LEAF's order: a label is the place in it.
_CHARACTERS = (*_NUMERALS, *string.ascii_uppercase, *string.ascii_lowercase)


def _text(name: str, tokens: int) -> DatasetInfo:
    ids = tuple(str(token) for token in range(tokens))
    return DatasetInfo(name, (TOKENS,), ids, (), (), 1.0, "next-token")


# The constants in common use, which are those of the published training images; digits has none in
# use, so its own are those of its 1,437 training images. FEMNIST's, dark ink on white, are those in
# use for LEAF's files; LEAF states none, and a sample of 300 writers has .9614 and .1642.
# CIFAR-10's std is the pixels' own (.2470, ...), not the mean over images of each image's std
# (.2023, ...), which many scripts copy.
_KNOWN = {
    info.name: info
    for info in (
        DatasetInfo("digits", (1, 8, 8), _NUMERALS, (0.3054,), (0.3762,), 16.0),
        DatasetInfo("mnist", (1, 28, 28), _NUMERALS, (0.1307,), (0.3081,), 255.0),
        DatasetInfo("fashionmnist", (1, 28, 28), _FASHION, (0.2860,), (0.3530,), 255.0),
        DatasetInfo(
            "cifar10",
            (3, 32, 32),
            _CIFAR10,
            (0.4914, 0.4822, 0.4465),
            (0.2470, 0.2435, 0.2616),
            255.0,
        ),
        DatasetInfo(
            "cifar100",
            (3, 32, 32),
            _CIFAR100,
            (0.5071, 0.4865, 0.4409),
            (0.2673, 0.2564, 0.2762),
            255.0,
        ),
        DatasetInfo("femnist", (1, 28, 28), _CHARACTERS, (0.9637,), (0.1592,), 255.0),
        # the constants of its 46,080 images with every other place and every fourth angle
        DatasetInfo(
            "dsprites", (1, 64, 64), ("square", "ellipse", "heart"), (0.0425,), (0.2017,), 1.0
        ),
        _text("reddit", WHOLE),
        _text("reddit2k", FREQUENT),
    )
}

NAMES: tuple[str, ...] = tuple(_KNOWN)


def describe(name: str, images: ImagesSettings | None = None) -> DatasetInfo:
    """Return the description of the data set ``name``, without touching a file.

    User data are described by reading them: ``load`` does so.
    """
    if name in _KNOWN:
        keys = [
            f"images.{key}" for key in ("folder", "classes", "sites") if getattr(images, key, "")
        ]
        if keys:
            raise DataError(
                f"dataset={name} is not a folder of images: leave {' and '.join(keys)} out, or choose dataset=images "
                "for your folders"
            )
        return _KNOWN[name]
    if kind_of(name):
        raise DataError(f"what dataset={name} holds is known only once it is read")
    if images is not None:
        return _described(name, images)
    guess = nearest(name, NAMES)
    hint = f"did you mean {guess}? " if guess else ""
    raise DataError(
        f"there is no data set {name!r}; {hint}(known: {', '.join(NAMES)}; your own: {forms_in_words()})"
    )


def _described(name: str, images: ImagesSettings) -> DatasetInfo:
    if not images.classes:
        raise DataError(
            f"dataset={name} is a folder of images and needs images.classes: the names of the classes' folders in "
            "the order of their labels, such as images.classes=cat,dog; all sites must agree on them"
        )
    return DatasetInfo(
        name,
        (images.channels, images.size, images.size),
        images.names,
        images.constants("mean"),
        images.constants("std"),
        float(2**images.bits - 1),  # the largest stored value
    )
