"""`nectar restore`: put back what `nectar backup` wrote, before the SuperLink is started."""

from __future__ import annotations

import sys
from typing import Annotated

from nectar.arguments import argument, here, option

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
    from nectar.operate.keys.authority import KeysError
    from nectar.operate.keys.backup import restore
    from nectar.operate.keys.registry import LIST

    database, keys = here(to), here(keys_in)
    listed = None if revoked == "none" else here(revoked) if revoked else keys / LIST
    try:
        file = sys.stdin.buffer if source == "-" else here(source).open("rb")
    except OSError as error:
        raise KeysError(f"the backup {here(source)} cannot be read ({error.strerror})") from None
    with file:
        print(*restore(file, database, keys, listed), sep="\n")
    return 0
