"""What the words after ``nectar compare`` ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common.config.text import scalar
from common.errors import ConfigError
from common.methods import METHODS
from nectar.comparison.asked import TUNE_SEEDS, Asked
from nectar.comparison.variants import Variant, is_setting, own_sections, read_variant
from nectar.words import key_of, refuse_repeats

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
    target : float or None
        The accuracy up to which rounds and bytes are counted; None: chosen from the results.
    jobs : int
        Runs at a time; 0: as many as the cores allow.
    output : Path or None
        Where the files go; None: below the output directory.
    alone : bool
        Whether only runs count whose seconds are their own.
    ray : str
        The Ray cluster whose nodes carry out the runs; empty: this machine does.
    typed : str
        The words that asked for it, as a shell takes them.
    """

    variants: tuple[Variant, ...]
    shared: tuple[str, ...]
    seeds: range
    tune: tuple[str, ...] = ()
    tune_seeds: range = range(TUNE_SEED, TUNE_SEED + TUNE_SEEDS)
    target: float | None = None
    jobs: int = 0
    output: Path | None = None
    alone: bool = False
    ray: str = ""
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


def parse(asked: Asked) -> Request:
    """Read what is asked.

    Raises
    ------
    ConfigError
        If a row or a setting is none, a row is named twice, or the seeds of the search are reported ones.
    """
    if asked.small or asked.search:
        raise ConfigError("--small and --search are of a paper's table: name one, as table=NAME.")
    variants, shared, first = _sort(asked.all_words)
    if not variants:
        raise ConfigError(
            "nothing to compare: name methods, such as `nectar compare feddm fedavg --seeds 3`."
        )
    for i, variant in enumerate(variants):
        if variant.label in [other.label for other in variants[:i]]:
            raise ConfigError(
                f"two rows are called {variant.label!r}: give them labels, such as 'mine={variant.method}'."
            )
    seeds = range(first, first + asked.seeds)
    tune_seeds = range(TUNE_SEED, TUNE_SEED + asked.tune_seeds)
    if asked.tune and set(seeds) & set(tune_seeds):
        raise ConfigError(
            f"the seeds {seeds[0]} to {seeds[-1]} overlap those of the search, {tune_seeds[0]} to {tune_seeds[-1]}: "
            "choose another seed."
        )
    return Request(
        variants=tuple(variants),
        shared=tuple(shared),
        seeds=seeds,
        tune=asked.tune,
        tune_seeds=tune_seeds,
        target=asked.target,
        jobs=1 if asked.alone else asked.jobs,
        output=asked.folder,
        alone=asked.alone,
        ray=asked.ray,
        typed=asked.typed,
    )


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


def _whole(name: str, text: str, *, at_least: int) -> int:
    value = scalar(text)
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise ConfigError(f"{name}={text!r} must be a whole number, at least {at_least}.")
    return value
