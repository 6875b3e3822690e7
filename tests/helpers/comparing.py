"""What is typed after `nectar compare` as what it asks, by a parser of the standard library's."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable

from nectar.comparison.asked import Asked


def asked(words: Iterable[str]) -> Asked:
    """Return what the command would ask."""
    words = list(words)
    parser = argparse.ArgumentParser(exit_on_error=False)
    for name in ("seeds", "jobs", "tune-seeds"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--target", type=float)
    parser.add_argument("--output")
    parser.add_argument("--tune", action="append")
    for name in ("alone", "small", "search"):
        parser.add_argument(f"--{name}", action="store_true")
    options, rest = parser.parse_known_args(words)
    given = {name: value for name, value in vars(options).items() if value is not None}
    given["tune"] = tuple(given.get("tune", ()))
    return Asked(tuple(rest), **given, typed=shlex.join(["nectar", "compare", *words]))
