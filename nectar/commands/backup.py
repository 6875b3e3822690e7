"""`nectar backup`: the SuperLink's state in one file."""

from __future__ import annotations

import sys
from typing import Annotated

from common.errors import ConfigError
from nectar.arguments import argument, flag, here, option

HELP = """\
Writes FILE (mode 600, never over another) with the SuperLink's database, whole while the SuperLink runs, and all that
lies in the directory of keys but revoked.txt, the list of keys that were unregistered: keep a copy of that elsewhere
whenever it changes, since a restore unregisters again whoever is on it. `-` for FILE writes to the standard output:
give what takes it mode 600. `nectar restore` puts it back.

\b
nectar backup /backups/monday.tar --database fl/superlink.db --keys keys
"""


def main(
    file: Annotated[str, argument("FILE", "the backup; - for a pipe")],
    database: Annotated[str, option("DB", "what flower-superlink was given as --database")],
    keys: Annotated[str, option("DIR", "the directory of keys")],
    without_authority: Annotated[
        bool, flag("--without-authority", "leave ca.key out: whoever has it can pose as the server")
    ] = False,
) -> int:
    """Write the backup; return 0."""
    from nectar.operate.keys.backup import write_backup

    if file == "-" and sys.stdout.isatty():
        raise ConfigError("nectar backup - writes to a pipe or a file, not to a terminal.")
    target = sys.stdout.buffer if file == "-" else here(file)
    held = write_backup(here(database), here(keys), target, authority=not without_authority)
    print(held, file=sys.stderr)
    return 0
