"""What a record has imported here: Flower's, what the command line names, what the user's own runs have imported."""

from __future__ import annotations

import re

from common.code.fingerprint import PACKAGES
from common.config.own_parts import PART, Judge
from common.errors import ConfigError
from nectar.records.trusted_parts import is_trusted

OPTION = "--allow-imports"
"""The option with modules that a record's method, model or data set may be in."""


class NotNamed(ConfigError):
    """A record names a module that the command line does not."""


#: of Nectar's own, what a record may name by import path, by the key that names it
_OWN = {"model.name": ("common.models",), PART: (*PACKAGES, "nectar")}


def judge_of(named: str, option: str = f"{OPTION} ") -> Judge:
    """Return what a record is read with, where ``named`` are the modules that the command line allows.

    Parameters
    ----------
    named : str
        Modules and packages, with spaces or commas between them; a package stands for all that is in it.
    option : str
        What the sentence has the reader write before the module's name.
    """
    allowed = tuple(word for word in re.split(r"[\s,]+", named) if word)

    def judge(key: str, path: str) -> None:
        module = path.partition(":")[0]
        known = any(_within(module, one) for one in ("flwr", *_OWN.get(key, ()), *allowed))
        if not known and not is_trusted(path):
            raise NotNamed(
                f"the record names {path!r:.100} as {key}, and a record can come from anywhere, so nothing of it was "
                f"imported: if you trust that module, add {option}{module:.98}"
            )

    return judge


def _within(module: str, package: str) -> bool:
    return f"{module}.".startswith(f"{package}.")
