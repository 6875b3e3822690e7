"""``nectar report``: what runs did, as one HTML file."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from common.errors import ConfigError
from nectar.records.named_record import record_at
from nectar.records.outputs import output_page
from nectar.records.record_imports import OPTION, judge_of
from nectar.report.writing import NAME, write
from nectar.words import take_options

SUMMARY = "write what runs did as one HTML file: curves, images, bytes, what was private"

USAGE = """\
Usage: nectar report RECORD... [--output FILE.html] [--allow-imports MODULES]

Reads the records of one or more runs, finished or not, and writes one HTML file that needs no
network. RECORD is the directory that the run printed, the record's id, or latest. Seeds of one configuration stand
together.

  --output FILE.html   where it goes; else report.html in the record, or for several runs
                       nectar-report.html in the current directory
  --allow-imports MODULES
                       a method, model or data set of somebody's own is imported only from modules named here

  nectar report latest
  nectar report ~/nectar/runs/20260101-120000-feddm-digits-seed0-1a2b3c
  nectar report runs/*feddm* runs/*fedavg* --output comparison.html

Where this machine has the data that the sites had shares of, it shows the real images nearest to the synthetic ones.
"""


def main(words: list[str]) -> int:
    """Write the report and print its path.

    Raises
    ------
    ConfigError
        If a word is no run's record, or the file cannot be written where it is to go.
    """
    options, named = take_options(words, values=("--output", OPTION))
    if not named:
        raise ConfigError(
            "nectar report needs a record: give the directory that the run printed, its id, or latest."
        )
    directories = [record_at(word).resolve() for word in named]
    twice = [path for path, count in Counter(directories).items() if count > 1]
    if twice:
        raise ConfigError(f"{twice[0]} is named twice: name each run once.")
    to = _output(options.get("--output"), directories)
    from nectar.records.past_run import PastRun

    judge = judge_of(options.get(OPTION, ""))
    write([PastRun.open(directory, judge) for directory in directories], to, "--output")
    print(to)
    return 0


def _output(given: str | None, directories: list[Path]) -> Path:
    """Return where the report goes, refusing a place that cannot take it before any work."""
    if given is not None:
        return output_page(given)
    return directories[0] / NAME if len(directories) == 1 else Path.cwd() / "nectar-report.html"
