"""`nectar restore`: put back what `nectar backup` wrote, before the SuperLink is started."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Annotated, BinaryIO

from nectar.words import argument, here, option

HELP = """\
Puts back what `nectar backup` wrote, while no SuperLink has the database open. Whoever is on the list of revocations,
or is unregistered in the database that is replaced, is unregistered in the restored one, too. The database that is
here is kept beside it. Keys that are missing are put into DIR; none that is there is written over. `-` for FILE reads
the standard input.

\b
nectar restore /backups/monday.tar --database fl/superlink.db --keys keys
"""


def main(
    source: Annotated[str, argument("FILE", "the backup; - for a pipe")],
    to: Annotated[str, option("DB", "where the SuperLink will look for it", name="--database")],
    keys_in: Annotated[str, option("DIR", "the directory of keys", name="--keys")],
    revoked: Annotated[
        str,
        option(
            "LIST|none",
            "the list of keys that were unregistered (DIR/revoked.txt); none: nobody was, since that backup",
        ),
    ] = "",
) -> int:
    """Put the backup back; return 0."""
    from nectar.operate.keys.restore import restore, sites
    from nectar.operate.keys.revoked import LIST

    database, keys = here(to), here(keys_in)
    listed = here(revoked) if revoked else keys / LIST
    with _opened(source) as backup:
        done = restore(backup, database, keys, None if revoked == "none" else listed)
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
    path = here(word)
    try:
        file = path.open("rb")
    except OSError as error:
        raise KeysError(f"the backup {path} cannot be read ({error.strerror})") from None
    with file:
        yield file
