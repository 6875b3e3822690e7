"""What is asked of a comparison, as the command line and Python ask it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from common.config.keys import CONFIG
from common.errors import ConfigError
from nectar.records.outputs import output_folder

SEEDS, TUNE_SEEDS = 3, 2


@dataclass(frozen=True)
class Asked:
    """The words after ``nectar compare``, and its options by their names.

    Raises
    ------
    ConfigError
        If a number is out of range, or options do not go together.
    """

    words: tuple[str, ...]
    file: str | None = None
    seeds: int = SEEDS
    target: float | None = None
    jobs: int = 0
    alone: bool = False
    output: str | Path | None = None
    ray: str = ""
    tune: tuple[str, ...] = ()
    tune_seeds: int = TUNE_SEEDS
    grid: tuple[str, ...] = ()
    small: bool = False
    search: bool = False
    typed: str = ""

    def __post_init__(self) -> None:
        """Refuse what no comparison can be."""
        for name, value, least in (
            ("--seeds", self.seeds, 1),
            ("--tune-seeds", self.tune_seeds, 1),
            ("--jobs", self.jobs, 0),
        ):
            if type(value) is not int or value < least:
                raise ConfigError(f"{name}={value!r} must be a whole number, at least {least}.")
        target = self.target
        if target is not None and not (
            isinstance(target, int | float) and type(target) is not bool and 0 < target <= 1
        ):
            raise ConfigError(f"--target={target!r} must be an accuracy, above 0, at most 1.")
        if self.alone and self.jobs > 1:
            raise ConfigError("--alone runs one at a time: leave out --jobs.")
        if self.ray and self.alone:
            raise ConfigError("--alone is of one machine, whose runs are seen: leave out --ray.")

    @property
    def all_words(self) -> list[str]:
        """The words, a file of settings among them."""
        return [*self.words, *([] if self.file is None else [f"{CONFIG}={self.file}"])]

    @property
    def folder(self) -> Path | None:
        """Where the files go, refused before any work where it cannot be; None: below the output directory."""
        return None if self.output is None else output_folder(str(self.output))
