"""`nectar backup`: the SuperLink's state in one file."""

from __future__ import annotations

import sys
from pathlib import Path

from common.config.text import from_home
from common.errors import ConfigError
from nectar.words import take_options

SUMMARY = "write the SuperLink's database and the federation's keys into one file"

USAGE = """\
Usage: nectar backup FILE --database DB --keys DIR [--without-authority]

Writes FILE (mode 600, never over another) with the SuperLink's database, whole while the SuperLink runs, and all that
lies in the directory of keys but revoked.txt, the list of keys that were unregistered: keep a copy of that elsewhere
whenever it changes, since a restore unregisters again whoever is on it.

  --database DB         what flower-superlink was given as --database
  --keys DIR            the directory of keys
  --without-authority   leave ca.key out: whoever has it can pose as the server

`-` for FILE writes to the standard output: give what takes it mode 600. `nectar restore` puts it back.

  nectar backup /backups/monday.tar --database fl/superlink.db --keys keys
"""


def main(words: list[str]) -> int:
    """Write the backup; return the exit code."""
    from nectar.operate.keys.backup import write_backup

    flag = "--without-authority"
    options, rest = take_options(words, flags=(flag,), values=("--database", "--keys"))
    if len(rest) != 1 or "=" in rest[0]:
        raise ConfigError("nectar backup takes one file, - for the standard output.")
    database, keys = (needed(options, name) for name in ("--database", "--keys"))
    if rest[0] == "-" and sys.stdout.isatty():
        raise ConfigError("nectar backup - writes to a pipe or a file, not to a terminal.")
    target = sys.stdout.buffer if rest[0] == "-" else Path.cwd() / from_home(rest[0])
    held = write_backup(database, keys, target, authority=flag not in options)
    print(
        f"{held.registered} registered sites, {held.unregistered} unregistered, {held.keys} files of keys, "
        + ("with" if held.authority else "without")
        + " the authority's own",
        file=sys.stderr,
    )
    return 0


def needed(options: dict[str, str], name: str) -> Path:
    """Return the path that an option names, which cannot be left out."""
    if not options.get(name):
        raise ConfigError(f"{name} is missing: `nectar backup --help` says what it names.")
    return Path.cwd() / from_home(options[name])
