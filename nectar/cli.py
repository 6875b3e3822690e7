"""The command ``nectar``: one file a command in ``nectar/commands``, imported when called."""

from __future__ import annotations

import atexit
import errno
import gc
import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path

from nectar.own_packages import hidden

_REFUSED, _INTERRUPTED, _READER_GONE = 2, 130, 141
#: errors of any command that writes: the disk is full or read-only
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
#: Objects after which the garbage collector looks among them. Python's 700 take a tenth of the imports' time.
_NEW_OBJECTS = 50_000


# Of Nectar only `hidden` is imported at first: it checks that packages with these names are Nectar's.


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``nectar`` with the given words (default: those of the process).

    Returns
    -------
    int
        The command's exit code; 2 if it refuses the input or a run stops with an error, with one line on stderr; 130
        after Ctrl-C; 141 if its output is no longer read.
    """
    if argv is None:
        _use_utf8()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # what its encoding lacks is escaped
            stream.reconfigure(errors="backslashreplace")
    words = list(sys.argv[1:] if argv is None else argv)
    if argv is None:
        gc.set_threshold(_NEW_OBJECTS)
        atexit.register(_freeze_objects)
    if sentence := hidden():
        print(f"nectar: {sentence}", file=sys.stderr)
        return _REFUSED
    from click import ClickException
    from click.exceptions import NoArgsIsHelpError

    from common.code.imports import append_to_path
    from common.errors import NectarError
    from nectar.command_line import COMMANDS, Interrupted, ReaderGone, error_text

    if argv is None:
        append_to_path(str(Path.cwd()))  # for the user's own models and methods
    try:
        code = COMMANDS.main(words or ["--help"], "nectar", standalone_mode=False, obj=words)
        sys.stdout.flush()  # raises while a closed pipe can still be handled
        return int(code or 0)
    except NectarError as error:
        return _refuse(str(error))
    except NoArgsIsHelpError as error:
        print(error.format_message(), file=sys.stderr)
        return _REFUSED
    except ClickException as error:
        return _refuse(error_text(error))
    except Interrupted:
        print("nectar: interrupted.", file=sys.stderr)
        return _INTERRUPTED
    except (ReaderGone, BrokenPipeError):  # Python would say so
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _READER_GONE
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        place = f"{error.filename}" if error.filename else "a file"
        return _refuse(f"{place} cannot be written ({error.strerror}): free some space.")


def _freeze_objects() -> None:
    """Spare the interpreter its last collections, half a second; but triton would report its objects as leaked."""
    if "triton" not in sys.modules:  # torch imports it with torch.func.grad, for private steps
        gc.freeze()


def _use_utf8() -> None:
    """Start this process again in Python's UTF-8 mode where names of files would be ASCII: no record can hold them."""
    if sys.getfilesystemencoding() == "ascii" and os.environ.get("PYTHONUTF8") != "1":
        os.environ["PYTHONUTF8"] = "1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _refuse(sentences: str) -> int:
    for sentence in sentences.splitlines():
        print(f"nectar: {sentence}", file=sys.stderr)
    return _REFUSED


if __name__ == "__main__":
    sys.exit(main())
