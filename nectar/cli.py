"""The command ``nectar``: one file a command in ``nectar/commands``, imported when called."""

from __future__ import annotations

import ast
import errno
import importlib
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Protocol, cast

from nectar.own_packages import hidden

_COMMANDS = Path(__file__).parent / "commands"
_REFUSED, _INTERRUPTED, _READER_GONE = 2, 130, 141
#: what any command can meet that writes: a disk that is full, or can only be read
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)

# Of Nectar nothing is imported here but what asks whether the packages of these names are Nectar's.


class Command(Protocol):
    """A module of ``nectar/commands``.

    ``SUMMARY`` is one line, written as a plain literal, so that the list of commands needs no
    import. A module may have ``show_help(words) -> int`` for more help than its ``USAGE``.
    """

    SUMMARY: str
    USAGE: str

    def main(self, words: list[str]) -> int:
        """Run the command with the words typed after its name; return the exit code."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``nectar`` with the given words (default: those of the process); return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if sentence := hidden():
        print(f"nectar: {sentence}", file=sys.stderr)
        return _REFUSED
    from common.code.imports import search
    from common.errors import NectarError

    if argv is None:
        search(str(Path.cwd()))  # for the user's own models and methods
    try:
        return _dispatch(words)
    except NectarError as error:
        for sentence in str(error).splitlines():
            print(f"nectar: {sentence}", file=sys.stderr)
        return _REFUSED
    except KeyboardInterrupt:
        print("nectar: interrupted.", file=sys.stderr)
        return _INTERRUPTED
    except (
        BrokenPipeError
    ):  # as in `nectar config | head`: nobody reads on, and Python would say so
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _READER_GONE
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        place = (
            f"{error.filename} cannot be written" if error.filename else "a file cannot be written"
        )
        print(f"nectar: {place} ({error.strerror}): make room for it.", file=sys.stderr)
        return _REFUSED


def _dispatch(words: list[str]) -> int:
    name, *rest = words or ["--help"]
    if name in ("--help", "-h", "help") and not rest:
        print(overview())
        return 0
    if name == "--version":
        print(f"nectar {version('nectar-fl')}")
        return 0
    if name == "help":
        name, rest = rest[0], ["--help", *rest[1:]]
    known = commands()
    if name not in known:
        from common.config.problems import nearest
        from common.errors import NectarError

        guess = nearest(name, known)
        hint = f"did you mean `nectar {guess}`?" if guess else "`nectar --help` lists all."
        raise NectarError(f"there is no command {name!r}: {hint}")
    command = cast(Command, importlib.import_module(f"nectar.commands.{name}"))
    if "--help" in rest or "-h" in rest:
        return _show_help(command, [word for word in rest if word not in ("--help", "-h")])
    code = command.main(rest)
    sys.stdout.flush()  # here a reader that has gone is still noticed in order
    return code


def commands() -> list[str]:
    """List the commands: the modules of ``nectar/commands``."""
    return sorted(path.stem for path in _COMMANDS.glob("[!_]*.py"))


def overview() -> str:
    """Return what ``nectar --help`` prints."""
    names = commands()
    width = max(map(len, names), default=0)
    return "\n".join(
        [
            "Usage: nectar COMMAND [EXPERIMENT] [key=value ...]",
            "",
            *(f"  {name:<{width}}  {_summary(name)}" for name in names),
            "",
            "`nectar COMMAND --help` says more; `nectar config --help` lists methods, data sets.",
            "Settings stand after the command: method=fedavg dataset=mnist partition.alpha=0.01",
        ]
    )


def _show_help(command: Command, words: list[str]) -> int:
    show = getattr(command, "show_help", None)
    if show is not None:
        return int(show(words))
    print(command.USAGE.strip())
    return 0


def _summary(name: str) -> str:
    """Read a command's ``SUMMARY`` without importing it, and with it torch or Ray."""
    tree = ast.parse((_COMMANDS / f"{name}.py").read_text(encoding="utf-8"))
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id="SUMMARY")], value=value):
                return str(ast.literal_eval(value))
            case ast.AnnAssign(target=ast.Name(id="SUMMARY"), value=ast.expr() as value):
                return str(ast.literal_eval(value))
    return ""


if __name__ == "__main__":
    sys.exit(main())
