"""The forms of ``dataset`` beside a name of ``conf/dataset``: a set of one's own, told by how it is reached.

And which sets are public: of any other one it is taken that the pictures are somebody's own.

Nothing is imported or read here: a configuration is resolved without the data.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

FOLDERS = "images"
"""A folder of images of one's own, whose file in ``conf/dataset`` has the defaults of all that is one's own."""

FILE, TORCHVISION, HUB, FUNCTION = "file", "torchvision", "hf", "function"


TABLE_ENDING = ".csv"
"""What the name of a file ends with that holds a table as text."""


@dataclass(frozen=True)
class Form:
    """One way to name a set of one's own: how it is written, which texts it covers, and what it is."""

    written: str
    pattern: re.Pattern[str]
    meaning: str


_WORD = r"[A-Za-z_]\w*"

# The first that matches counts, so that torchvision's and the hub's names are no modules of the user's.
FORMS: dict[str, Form] = {
    FILE: Form(
        "data.file=x.npz",
        re.compile("file"),
        "arrays in a NumPy file, or a table in a .csv file (dataset=file, understood)",
    ),
    TORCHVISION: Form(
        "torchvision:NAME",
        re.compile(rf"torchvision:{_WORD}(:\w+)?"),
        "any of torchvision's image sets, such as torchvision:SVHN; torchvision:EMNIST:letters",
    ),
    HUB: Form(
        "hf:NAME",
        re.compile(r"hf:[\w.-]+(/[\w.-]+)?"),
        "an image set of the Hugging Face Hub, through flwr-datasets",
    ),
    FUNCTION: Form(
        "package.module:callable",
        re.compile(rf"(?!(torchvision|hf):){_WORD}(\.{_WORD})*:{_WORD}"),
        "a function of your own that returns the images and labels",
    ),
}
"""Every form by what kind of set it names."""


PUBLIC = (
    "digits", "mnist", "fashionmnist", "cifar10", "cifar100", "dsprites", "femnist", "reddit", "reddit2k",
)  # fmt: skip
"""The sets known by name and published for anybody: what is sent of them gives nobody away."""


def is_somebodys_own(dataset: str) -> bool:
    """Whether a set has to be taken for somebody's own pictures: a folder, a file, a function, any other name."""
    return dataset not in PUBLIC


def kind_of(dataset: str) -> str | None:
    """Return the kind of a set of one's own, a key of ``FORMS``; None for a name, known or not."""
    return next((kind for kind, form in FORMS.items() if form.pattern.fullmatch(dataset)), None)


def module_of(dataset: str) -> str:
    """Return the module that reading the data set imports, empty where it is none of the user's own."""
    return dataset.partition(":")[0] if kind_of(dataset) == FUNCTION else ""


def forms_in_words() -> str:
    """Return the forms as they are typed, for a sentence."""
    return ", ".join(form.written for form in FORMS.values())


def as_file_name(dataset: str) -> str:
    """Return the data set as a part of a file's name."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", dataset)
