"""`nectar keys`: the authority, the server's certificate, the sites' key pairs, and who is registered."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from common.config.problems import nearest
from common.config.text import from_home
from common.errors import ConfigError
from nectar.words import take_options

SUMMARY = "make a federation's keys and certificates, register its sites"

USAGE = """\
Usage: nectar keys ca DIR [--days N]                    the operator's own authority: ca.key, ca.crt
       nectar keys server DIR HOST ... [--days N]       the server's: server.key, server.pem
       nectar keys node DIR SITE ...                    a site's: nodes/SITE, nodes/SITE.pub
       nectar keys show DIR                             what is there, how long it is valid
       nectar keys register CONNECTION SITE.pub ...     let these sites take part
       nectar keys register CONNECTION DIR              all of DIR that were not unregistered
       nectar keys unregister CONNECTION SITE.pub|NODE-ID ...

No file is ever written over. ca.key never leaves the operator, server.key goes to the server alone,
nodes/SITE stays at the site, which can make its pair itself and send nodes/SITE.pub. Every site gets ca.crt.
unregister lists the key in DIR/revoked.txt: it is never registered again, by an older database neither.

A CONNECTION is a name in Flower's config.toml, or HOST:PORT with --ca FILE:

  --days N             how long the certificate is valid: 3650 for an authority, 397 for a server
  --ca FILE            the authority's certificate, for a connection given as HOST:PORT
  --keys DIR           whose list takes a NODE-ID that is unregistered (else the variable NECTAR_KEYS)
  --wait SECONDS       how long register waits for the SuperLink to answer (60)

  nectar keys ca keys && nectar keys server keys superlink.example.org 192.0.2.7
  nectar keys node keys hospital-a hospital-b
  nectar keys register 127.0.0.1:8000 keys/nodes/*.pub --ca keys/ca.crt
"""

_MAX_DAYS = 36500


def main(words: list[str]) -> int:
    """Do what ``words`` say; return the exit code."""
    options, rest = take_options(words, values=("--days", "--ca", "--wait", "--keys"))
    action, *arguments = rest or [""]
    if action not in _ACTIONS:
        guess = nearest(action, list(_ACTIONS))
        hint = f"did you mean {guess}?" if guess else f"there are {', '.join(_ACTIONS)}."
        raise ConfigError(
            f"nectar keys {action}: {hint}" if action else f"nectar keys what? {hint}"
        )
    run, allowed = _ACTIONS[action]
    for option in options:
        if option not in allowed:
            raise ConfigError(f"nectar keys {action} takes no {option}.")
    if not arguments:
        raise ConfigError(f"nectar keys {action} needs more: `nectar keys --help` shows what.")
    return run(arguments, options)


def _ca(words: Sequence[str], options: dict[str, str]) -> int:
    from nectar.operate.keys.authority import CA_DAYS, make_authority
    from nectar.operate.keys.inventory import certificate_text

    (directory,) = _exactly_one(words, "ca")
    certificate = make_authority(directory, _days(options, CA_DAYS))
    print(f"wrote {directory / 'ca.key'}: it signs server certificates; keep it, give it to nobody")
    print(f"wrote {directory / 'ca.crt'}: every site and operator needs it")
    print(f"  {certificate_text(certificate)}")
    _warn(directory)
    return 0


def _server(words: Sequence[str], options: dict[str, str]) -> int:
    from nectar.operate.keys.authority import SERVER_DAYS, make_server
    from nectar.operate.keys.inventory import certificate_text

    directory, hosts = _path(words[0]), words[1:]
    certificate = make_server(directory, hosts, _days(options, SERVER_DAYS))
    print(f"wrote {directory / 'server.key'}: for the server alone")
    print(f"wrote {directory / 'server.pem'}")
    print(f"  {certificate_text(certificate)}")
    _warn(directory)
    return 0


def _node(words: Sequence[str], options: dict[str, str]) -> int:
    from nectar.operate.keys.nodes import fingerprint, make_nodes, read_public

    if len(words) < 2:
        raise ConfigError("nectar keys node needs a directory and the names of sites.")
    directory = _path(words[0])
    for public in make_nodes(directory, words[1:]):
        print(f"wrote {public.with_suffix('')}: it stays at the site")
        print(f"wrote {public}: for the operator; {fingerprint(read_public(public))}")
    _warn(directory)
    return 0


def _show(words: Sequence[str], options: dict[str, str]) -> int:
    from nectar.operate.keys.inventory import inventory

    (directory,) = _exactly_one(words, "show")
    entries = inventory(directory)
    width = max(len(entry.name) for entry in entries)
    for entry in entries:
        print(f"{entry.name:<{width}}  {entry.text}")
        if entry.problem:
            print(f"{'':<{width}}  {'WRONG' if entry.fatal else 'note'}: {entry.problem}")
    return 1 if any(entry.fatal for entry in entries) else 0


def _register(words: Sequence[str], options: dict[str, str]) -> int:
    from nectar.engines.flower.connecting import connect
    from nectar.operate.keys.registry import register

    if len(words) < 2:
        raise ConfigError("nectar keys register needs a connection and the sites' .pub files.")
    paths = [_path(word) for word in words[1:]]
    directory = paths[0] if paths[0].is_dir() else None
    if directory and len(paths) > 1:
        raise ConfigError("nectar keys register takes one directory of keys, or .pub files.")
    with connect(words[0], options.get("--ca")) as connection:
        register(connection, [] if directory else paths, _seconds(options), all_of=directory)
    return 0


def _unregister(words: Sequence[str], options: dict[str, str]) -> int:
    from nectar.engines.flower.connecting import connect
    from nectar.operate.keys.registry import unregister

    if len(words) < 2:
        raise ConfigError("nectar keys unregister needs a connection and .pub files or node ids.")
    which = [word if word.isdigit() else _path(word) for word in words[1:]]
    named = options.get("--keys") or os.environ.get("NECTAR_KEYS", "")
    with connect(words[0], options.get("--ca")) as connection:
        unregister(connection, which, _path(named) if named else None)
    return 0


def _warn(directory: Path) -> None:
    """Name a directory that was there already and is open to others: they could put keys of their own in it."""
    from nectar.operate.keys.inventory import mode_problem

    if problem := mode_problem(directory):
        print(f"note: {directory}: {problem}")


_Action = Callable[[Sequence[str], dict[str, str]], int]

_ACTIONS: dict[str, tuple[_Action, tuple[str, ...]]] = {
    "ca": (_ca, ("--days",)),
    "server": (_server, ("--days",)),
    "node": (_node, ()),
    "show": (_show, ()),
    "register": (_register, ("--ca", "--wait")),
    "unregister": (_unregister, ("--ca", "--keys")),
}


def _exactly_one(words: Sequence[str], action: str) -> list[Path]:
    if len(words) != 1:
        raise ConfigError(f"nectar keys {action} takes one directory, not {' '.join(words)}.")
    return [_path(words[0])]


def _path(word: str) -> Path:
    if "=" in word:
        raise ConfigError(f"{word!r} is a setting: nectar keys takes files and names.")
    return Path.cwd() / from_home(word)


def _days(options: dict[str, str], default: int) -> int:
    text = options.get("--days", str(default))
    if not text.isdecimal() or not 1 <= int(text) <= _MAX_DAYS:
        raise ConfigError(f"--days={text} must be a whole number from 1 to {_MAX_DAYS}.")
    return int(text)


def _seconds(options: dict[str, str]) -> float:
    text = options.get("--wait", "60")
    if not text.isdecimal():
        raise ConfigError(f"--wait={text} must be a whole number of seconds.")
    return float(text)
