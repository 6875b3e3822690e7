"""A row of the table as it is typed: ``[LABEL=]METHOD[:key=value,...]``."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace

from common.code.imports import is_import_path
from common.config.keys import PATH_KEYS, RUN_KEYS, SHORT, STRATEGY, near, nearest
from common.config.tables import experiment_names, is_experiment
from common.errors import ConfigError
from common.methods import METHODS, is_foreign, section
from common.settings.sections import SECTIONS
from nectar.words import key_of, refuse_repeats

_PATH = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*"
_NAMES = "|".join(map(re.escape, METHODS))
_WORD = re.compile(
    rf"(?:(?P<label>.*?)=)??(?P<method>{_NAMES}|{_PATH})(?::(?P<own>.*=.*))?", re.DOTALL
)

#: keys of the run that a row may have for itself
_OWN_TOO = ("dataset", "rounds")


@dataclass(frozen=True)
class Variant:
    """A method with its own settings: one row.

    Parameters
    ----------
    method : str
        A method's name, or the import path of a Flower strategy or of a method of the user's own.
    own : tuple of str
        Its own settings as ``section.key=value``; they win over what all rows share.
    """

    label: str
    method: str
    own: tuple[str, ...] = ()

    @property
    def section(self) -> str:
        """The section of the method's settings."""
        return section(self.method)

    def words(self) -> list[str]:
        """Return what the row adds to the words that all rows share."""
        return [f"method={self.method}", *self.own]

    def with_settings(self, settings: tuple[str, ...]) -> Variant:
        """Return the row with more settings of its own, which stand for those that it has."""
        chosen = {key_of(word) for word in settings}
        return replace(
            self, own=(*(word for word in self.own if key_of(word) not in chosen), *settings)
        )


def file_name(label: str) -> str:
    """Return a row's label as a part of a file's name."""
    return "".join(c if c.isalnum() or c in "-_.=" else "-" for c in label)[:80]


def own_sections(words: Collection[str]) -> set[str]:
    """Return the sections of the users' own methods among the rows in ``words``."""
    matches = [_WORD.fullmatch(word) for word in words if not is_setting(word)]
    methods = {match["method"] for match in matches if match and is_import_path(match["method"])}
    return {section(m) for m in methods if m.partition(":")[0] not in METHODS} - {*METHODS}


def is_setting(word: str, own: Collection[str] = ()) -> bool:
    """Tell a ``key=value`` that all rows share: its key is one of the run's, or in one of its sections.

    ``own`` are the sections of users' own methods.
    """
    key, equals, _ = word.partition("=")
    if not equals:
        return False
    place, dot, _ = key.partition(".")
    by_itself = key in (*RUN_KEYS, *SHORT) or key.replace("_", "-") in PATH_KEYS
    return by_itself or bool(dot and place in (*SECTIONS, *METHODS, STRATEGY, *own))


def read_variant(word: str, own: Collection[str] = ()) -> Variant | None:
    """Read a word as a row; None if it is a setting or an experiment's name.

    Raises
    ------
    ConfigError
        If it can only be meant as a row and is none: a method that does not exist, a setting without a value.
    """
    if is_setting(word, own):
        return None
    match = _WORD.fullmatch(word)
    # "feddmm:start=real" has the form of a label before the method "real", and is meant otherwise
    if match is None or (":" in (match["label"] or "") and " " not in match["label"]):
        _refuse_slip(word)
        return None
    method, its = match["method"], match["own"] or ""
    module = method.partition(":")[0]
    if is_import_path(method) and module in METHODS:
        raise ConfigError(
            f"{word!r}: the setting after the colon has no value, write {method}=VALUE."
        )
    label = word if match["label"] is None else match["label"].strip()
    if not label or not label.isprintable():
        raise ConfigError(f"{word!r} begins with no label that can be printed: write LABEL=METHOD.")
    if label in METHODS and label != method:
        raise ConfigError(
            f"{word!r} calls a row of {method} {label!r}, which is another method: choose another label."
        )
    settings = [setting.strip() for setting in its.split(",")] if its else []
    stated = tuple(own_setting(method, s, word) for s in settings)
    refuse_repeats(stated)
    return Variant(label, method, stated)


def own_setting(method: str, setting: str, word: str) -> str:
    """Return ``key=value`` with the key's section: the method's own where it names none.

    Raises
    ------
    ConfigError
        If it is no ``key=value``, or a key that all rows share, such as the output directory.
    """
    key, equals, _ = setting.partition("=")
    if not key or not equals:
        raise ConfigError(
            f"{setting!r} in {word!r} is not key=value: a row's settings are METHOD:key=value,key=value."
        )
    if key in _OWN_TOO:
        return setting
    if key in (*RUN_KEYS, *SHORT) or key.replace("_", "-") in PATH_KEYS:
        raise ConfigError(
            f"{key} in {word!r} is not a row's own: all rows share it, give it as a word of its own."
        )
    if "." in key:
        return setting
    return f"{STRATEGY if is_foreign(method) else section(method)}.{setting}"


def _refuse_slip(word: str) -> None:
    """Raise for a word that is no setting, no experiment and no method, with what is nearest to it."""
    head, equals, tail = word.partition("=")
    if not equals:
        if is_experiment(word):
            return
        hint = near(word.partition(":")[0], [*METHODS, *experiment_names()])
        raise ConfigError(
            f"{word!r} is neither a method nor an experiment{hint}: methods are {', '.join(METHODS)} and any Flower "
            "strategy or method of your own as package.module:NAME; `nectar config --help` lists the experiments."
        )
    for name in (head.partition(":")[0], tail.partition(":")[0]):
        guess = nearest(name, METHODS)
        if (guess and name not in METHODS) or (name == head.partition(":")[0] and ":" in head):
            hint = f", the nearest is {guess}" if guess else ""
            raise ConfigError(
                f"{name!r} in {word!r} is not a method{hint}: there are {', '.join(METHODS)}, and any Flower strategy "
                "or method of your own as package.module:NAME."
            )
