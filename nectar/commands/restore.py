"""`nectar restore`: put back what `nectar backup` wrote, before the SuperLink is started."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from common.config.text import from_home
from common.errors import ConfigError
from nectar.words import take_options

SUMMARY = "put a backup of the SuperLink back; who was unregistered stays out"

USAGE = """\
Usage: nectar restore FILE --database DB --keys DIR [--revoked LIST|none]

Puts back what `nectar backup` wrote, while no SuperLink has the database open. Whoever is on the list of revocations,
or is unregistered in the database that is replaced, is unregistered in the restored one, too. The database that is
here is kept beside it. Keys that are missing are put into DIR; none that is there is written over.

  --database DB   where the SuperLink will look for it
  --keys DIR      the directory of keys
  --revoked LIST  the list of keys that were unregistered (DIR/revoked.txt); none: nobody was, since that backup

`-` for FILE reads the standard input.

  nectar restore /backups/monday.tar --database fl/superlink.db --keys keys
"""


def main(words: list[str]) -> int:
    """Put the backup back; return the exit code."""
    from nectar.commands.backup import needed
    from nectar.operate.keys.restore import restore, sites
    from nectar.operate.keys.revoked import LIST

    options, rest = take_options(words, values=("--database", "--keys", "--revoked"))
    if len(rest) != 1 or "=" in rest[0]:
        raise ConfigError("nectar restore takes one file, - for the standard input.")
    database, keys = (needed(options, name) for name in ("--database", "--keys"))
    named = options.get("--revoked", "")
    listed = Path.cwd() / from_home(named) if named else keys / LIST
    with _opened(rest[0]) as source:
        done = restore(source, database, keys, None if named == "none" else listed)
    print(f"{database} is as it was on {done.made}: {done.registered} registered sites")
    if done.again:
        print(f"unregistered again: {sites(done.again)}")
    for name, files in (("new", done.new), ("kept as it is here", done.kept)):
        for file in files:
            print(f"{name}: {file}")
    if done.aside:
        print(f"what was here: {done.aside}")
    return 0


@contextlib.contextmanager
def _opened(word: str) -> Iterator[BinaryIO]:
    from nectar.operate.keys.files import KeysError

    if word == "-":
        yield sys.stdin.buffer
        return
    path = Path.cwd() / from_home(word)
    try:
        file = path.open("rb")
    except OSError as error:
        raise KeysError(f"the backup {path} cannot be read ({error.strerror})") from None
    with file:
        yield file
