"""What the words after ``nectar compare`` ask for."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from common.config.keys import CONFIG
from common.config.problems import nearest
from common.config.text import scalar
from common.errors import ConfigError
from common.methods import METHODS
from nectar.comparison.variants import Variant, is_setting, own_sections, read_variant
from nectar.records.outputs import output_folder
from nectar.words import key_of, refuse_repeats

_VALUES = ("--seeds", "--target", "--jobs", "--output", "--tune-seeds")
_FLAGS = ("--alone",)
_TUNE = "--tune"
_SEEDS, _TUNE_SEEDS = 3, 2

#: the first seed of the search: far from those that are reported
TUNE_SEED = 1000


@dataclass(frozen=True)
class Request:
    """A comparison as it was asked for.

    Parameters
    ----------
    variants : tuple of Variant
        The rows, in order.
    shared : tuple of str
        ``[EXPERIMENT] [key=value ...]`` that all rows share, without the seed.
    seeds : range
        The seeds that are reported.
    tune : tuple of str
        The searches, as typed.
    tune_seeds : range
        The seeds of the searches.
    target : float or None
        The accuracy up to which rounds and bytes are counted; None: chosen from the results.
    jobs : int
        Runs at a time; 0: as many as the cores allow.
    output : Path or None
        Where the files go; None: below the output directory.
    alone : bool
        Whether only runs count whose seconds are their own.
    typed : str
        The words that asked for it, as a shell takes them.
    """

    variants: tuple[Variant, ...]
    shared: tuple[str, ...]
    seeds: range
    tune: tuple[str, ...] = ()
    tune_seeds: range = range(TUNE_SEED, TUNE_SEED + _TUNE_SEEDS)
    target: float | None = None
    jobs: int = 0
    output: Path | None = None
    alone: bool = False
    typed: str = ""

    def words(self, variant: Variant, seed: int) -> list[str]:
        """Return the words of one run, as for ``nectar run``; a row's own settings stand for the shared ones.

        Settings of another row's own method are left out: only that row's runs know the section.
        """
        own = [*variant.words(), f"seed={seed}"]
        stated = {key_of(word) for word in own}
        others = {v.section for v in self.variants} - {variant.section, *METHODS}
        shared = [word for word in self.shared if word.partition(".")[0] not in others]
        return [*(word for word in shared if key_of(word) not in stated), *own]


def parse(words: Sequence[str]) -> Request:
    """Read the words after ``nectar compare``.

    Raises
    ------
    ConfigError
        If an option, a row or a setting is none, a row is named twice, or the seeds of the search are reported ones.
    """
    tune, options, rest = take_all_options(words)
    variants, shared, first = _sort(rest)
    if not variants:
        raise ConfigError(
            "nothing to compare: name methods, such as `nectar compare feddm fedavg --seeds 3`."
        )
    for i, variant in enumerate(variants):
        if variant.label in [other.label for other in variants[:i]]:
            raise ConfigError(
                f"two rows are called {variant.label!r}: give them labels, such as 'mine={variant.method}'."
            )
    seeds = range(first, first + _count(options, "--seeds", _SEEDS))
    tune_seeds = range(TUNE_SEED, TUNE_SEED + _count(options, "--tune-seeds", _TUNE_SEEDS))
    if tune and set(seeds) & set(tune_seeds):
        raise ConfigError(
            f"the seeds {seeds[0]} to {seeds[-1]} overlap those of the search, {tune_seeds[0]} to {tune_seeds[-1]}: "
            "choose another seed."
        )
    alone = "--alone" in options
    if alone and _count(options, "--jobs", 1) != 1:
        raise ConfigError("--alone runs one at a time: leave out --jobs.")
    return Request(
        variants=tuple(variants),
        shared=tuple(shared),
        seeds=seeds,
        tune=tuple(tune),
        tune_seeds=tune_seeds,
        target=_target(options),
        jobs=1 if alone else _count(options, "--jobs", 0),
        output=output_folder(options["--output"]) if "--output" in options else None,
        alone=alone,
        typed=shlex.join(["nectar", "compare", *words]),
    )


def take_all_options(
    words: Sequence[str], flags: Sequence[str] = ()
) -> tuple[list[str], dict[str, str], list[str]]:
    """Take off the options, and ``flags`` beside them: the searches, the others with their values, and the rest."""
    tune, rest = _take_tune(with_file_as_word(words))
    options, rest = take_options(rest, flags=(*_FLAGS, *flags), values=(*_VALUES, _TUNE))
    return tune, options, rest


def _take_tune(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Take off every ``--tune``, which may be given more than once."""
    tune: list[str] = []
    rest: list[str] = []
    queue = list(words)
    while queue:
        word = queue.pop(0)
        if word == _TUNE:
            if not queue:
                raise ConfigError(f"{_TUNE} needs a value, such as {_TUNE} fedavg.lr=0.03,0.1,0.3.")
            tune.append(queue.pop(0))
        elif word.startswith(f"{_TUNE}="):
            tune.append(word.removeprefix(f"{_TUNE}="))
        else:
            rest.append(word)
    return tune, rest


def _sort(words: Sequence[str]) -> tuple[list[Variant], list[str], int]:
    """Tell rows from what all share, and take out the first seed."""
    variants: list[Variant] = []
    experiments: list[str] = []
    settings: list[str] = []
    seed = 0
    own = own_sections(words)
    refuse_repeats(word for word in words if is_setting(word, own))
    for word in words:
        variant = read_variant(word, own)
        key, equals, value = word.partition("=")
        if variant is not None:
            variants.append(variant)
        elif key in ("method", "resume") and is_setting(word):
            raise ConfigError(
                f"{word!r}: a comparison names its methods as words of their own, and finds its records itself."
            )
        elif key == "seed":
            seed = _whole("seed", value, at_least=0)
        elif equals:
            settings.append(word)
        else:
            experiments.append(word)
    if len(experiments) > 1:
        raise ConfigError(f"two experiments, {experiments[0]} and {experiments[1]}: name one.")
    return variants, [*experiments, *settings], seed


def _count(options: dict[str, str], name: str, default: int) -> int:
    return _whole(name, options[name], at_least=1) if name in options else default


def _whole(name: str, text: str, *, at_least: int) -> int:
    value = scalar(text)
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise ConfigError(f"{name}={text!r} must be a whole number, at least {at_least}.")
    return value


def _target(options: dict[str, str]) -> float | None:
    if "--target" not in options:
        return None
    value = scalar(options["--target"])
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= 1:
        raise ConfigError(
            f"--target={options['--target']!r} must be an accuracy, above 0, at most 1."
        )
    return float(value)


def take_options(
    words: Iterable[str], *, flags: Collection[str] = (), values: Collection[str] = ()
) -> tuple[dict[str, str], list[str]]:
    """Take a command's options off its words.

    Parameters
    ----------
    words : iterable of str
        What was typed after the command.
    flags : collection of str
        Options without a value, such as ``"--quiet"``.
    values : collection of str
        Options with one, as ``--seeds 3`` or ``--seeds=3``.

    Returns
    -------
    options : dict of str to str
        The options given, with their values; a flag's is empty.
    rest : list of str
        The other words, in order.

    Raises
    ------
    ConfigError
        If an option is none of these, is given twice or lacks its value, or a flag has one.
    """
    options: dict[str, str] = {}
    rest: list[str] = []
    queue = list(words)
    while queue:
        word = queue.pop(0)
        if not word.startswith("--"):
            rest.append(word)
            continue
        name, equals, value = word.partition("=")
        if name in values:
            if not equals and not queue:
                raise ConfigError(f"{name} needs a value.")
            value = value if equals else queue.pop(0)
        elif name not in flags or equals:
            raise _unknown_option(word, [*flags, *values])
        if name in options:
            raise ConfigError(f"{name} is given twice: give it once.")
        options[name] = value
    return options, rest


def with_file_as_word(words: Iterable[str]) -> list[str]:
    """Return the words with ``--config FILE`` as the last one, ``config=FILE``; the grammar is then one.

    Raises
    ------
    ConfigError
        If the file is missing, or there are two.
    """
    option, rest, queue = f"--{CONFIG}", list[str](), list(words)
    files = []
    while queue:
        word = queue.pop(0)
        name, equals, value = word.partition("=")
        if name != option:
            rest.append(word)
        elif not value and (equals or not queue):
            raise ConfigError(f"{option} needs a value: a YAML file of settings.")
        else:
            files.append(value if equals else queue.pop(0))
    if len(files) > 1:
        raise ConfigError(f"two files of settings, {files[0]} and {files[1]}: name one.")
    return [*rest, *(f"{CONFIG}={file}" for file in files)]


def _unknown_option(word: str, known: list[str]) -> ConfigError:
    name = word.partition("=")[0]
    if name in known:
        return ConfigError(f"option {name} takes no value.")
    guess = nearest(name, known)
    if guess:
        return ConfigError(f"option {name} is unknown: did you mean {guess}?")
    if not known:
        return ConfigError(f"option {name} is unknown: settings are given as key=value.")
    return ConfigError(f"option {name} is unknown: there are {', '.join(known)}.")
