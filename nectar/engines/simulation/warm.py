"""A program of Flower's that imports what it needs while others start, and begins when its words are known."""

import os
import sys
import time
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

_POLL_SECONDS = 0.02


def main() -> None:
    """Run a console script with the words that a file will hold, NUL-terminated.

    The process's arguments are the number of the process that started it, the script, that file, a log, and two lists
    of modules with commas between them. The first modules are imported at once; when something is in the log, the
    script and the other modules are. If the process that started this one ends before the words are there, so does
    this one.
    """
    number, name, words, log, first, then = sys.argv[1:]
    starter = int(number)
    _import(first)
    _wait(starter, lambda: Path(log).stat().st_size > 0)
    (script,) = entry_points(group="console_scripts", name=Path(name).name)
    run = script.load()
    _import(then)
    _wait(starter, Path(words).exists)
    # The program's own path: Ray lets its workers search the folder in which a driver's program lies.
    sys.argv = [name, *os.fsdecode(Path(words).read_bytes()).split("\0")[:-1]]
    sys.exit(run())


def _import(modules: str) -> None:
    for module in filter(None, modules.split(",")):
        import_module(module)


def _wait(starter: int, over: Callable[[], bool]) -> None:
    while not over():
        if os.getppid() != starter:
            sys.exit(1)
        time.sleep(_POLL_SECONDS)


if __name__ == "__main__":
    main()
