"""`nectar run`: a whole federation in this process, for quick work, notebooks, tests and one GPU."""

from __future__ import annotations

import sys
from logging import getLogger
from pathlib import Path

from common.config import load
from common.files import write_text
from nectar.class_list import with_class_list
from nectar.resume import with_recorded
from nectar.words import next_step, parse_words, take_options, typed, with_file_as_word

SUMMARY = "run a federation inside this process"

USAGE = """\
Usage: nectar run [EXPERIMENT] [key=value ...] [--config FILE] [--note-record FILE]

Runs the apps and the messages of a federation without its processes, and gives the same numbers. Where the devices of
a run are much work, several of them work side by side (compute.workers).

  --config FILE        a YAML file of settings: written as an experiment is (base: NAME departs from one), or what
                       `nectar config` printed, or a record's config.yaml; words stand over it
  --note-record FILE   write the record's directory into FILE as soon as there is one, for a script

  nectar run                                  the default: FedDM on digits, 10 clients
  nectar run method=fedavg partition.alpha=0.01 seed=3
  nectar run compute.workers=4                four devices at a time; 1: one, all in this process
  nectar run resume=DIRECTORY                 continue a run behind its last checkpoint
  nectar run resume=DIRECTORY round=best      begin again behind its best one
"""

_NOTE = "--note-record"


def main(words: list[str]) -> int:
    """Run what ``words`` say; return the exit code."""
    options, settings = take_options(with_file_as_word(words), values=(_NOTE,))
    run_config = with_class_list(with_recorded(typed("run", words) | parse_words(settings)))
    load(run_config)  # refused, if it is, before torch is there
    from nectar.local_run import run_here

    progress = _show_progress if sys.stderr.isatty() else None
    if progress is None:
        _log_without_colours()
    note = Path(options[_NOTE]) if _NOTE in options else None
    record = run_here(run_config, progress, lambda record: _note(record.directory, note))
    print(next_step(record.directory), flush=True)
    return 0


def _note(directory: Path, to: Path | None) -> None:
    if to is not None:
        write_text(to, f"{directory}\n")


def _log_without_colours() -> None:
    """Keep Flower's colour codes out of a log file."""
    for handler in getLogger("flwr").handlers:
        if hasattr(handler, "colored"):
            handler.colored = False


def _show_progress(done: int, of: int) -> None:
    """Keep one line on the terminal up to date; it is wiped before the round's own line is logged."""
    end = "\r\033[K" if done == of else ""
    print(f"\r{done} of {of} devices{end}", end="", file=sys.stderr, flush=True)
