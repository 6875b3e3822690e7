"""`nectar keys`: the authority, the server's certificate, the sites' key pairs, and who is registered."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from common.errors import ConfigError
from nectar.arguments import CaFile, Connection, argument, here, option

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

HELP = """\
Makes a federation's keys and certificates and registers its sites. No file is ever written over. ca.key never leaves
the operator, server.key goes to the server alone, nodes/SITE stays at the site, which can make its pair itself and
send nodes/SITE.pub. Every site gets ca.crt.

\b
nectar keys ca keys
nectar keys server keys superlink.example.org 192.0.2.7
nectar keys node keys hospital-a hospital-b
nectar keys kit keys hospital-a superlink.example.org:8443
nectar keys register 127.0.0.1:8000 keys/nodes/*.pub --ca keys/ca.crt
"""

_Directory = Annotated[str, argument("DIR", "the directory of keys")]


def _days_option(of: str) -> object:
    return typer.Option(min=1, max=36500, help=f"how long the certificate is valid ({of})")


def ca(directory: _Directory, days: Annotated[int, _days_option("ten years")] = 3650) -> int:
    """Make the operator's own authority: ca.key, ca.crt."""
    from nectar.operate.keys.authority import make_authority
    from nectar.operate.keys.inventory import certificate_text

    place = here(directory)
    certificate = make_authority(place, days)
    print(f"wrote {place / 'ca.key'}: it signs server certificates; keep it, give it to nobody")
    print(f"wrote {place / 'ca.crt'}: every site and operator needs it")
    print(f"  {certificate_text(certificate)}")
    return _warn(place, certificate, days)


def server(
    directory: _Directory,
    hosts: Annotated[
        list[str] | None,
        argument("[HOST]...", "names and addresses of the server; the loopback's are added"),
    ] = None,
    days: Annotated[int, _days_option("13 months")] = 397,
) -> int:
    """Make the server's certificate: server.key, server.pem."""
    from nectar.operate.keys.authority import make_server
    from nectar.operate.keys.inventory import certificate_text

    place = here(directory)
    certificate = make_server(place, hosts or [], days)
    print(f"wrote {place / 'server.key'}: for the server alone")
    print(f"wrote {place / 'server.pem'}")
    print(f"  {certificate_text(certificate)}")
    return _warn(place, certificate, days)


def node(
    directory: _Directory, sites: Annotated[list[str], argument("SITE...", "the sites' names")]
) -> int:
    """Make sites' pairs of keys: nodes/SITE, nodes/SITE.pub."""
    from nectar.operate.keys.authority import fingerprint, make_nodes, read_public

    place = here(directory)
    for public in make_nodes(place, sites):
        print(f"wrote {public.with_suffix('')}: it stays at the site")
        print(f"wrote {public}: for the operator; {fingerprint(read_public(public))}")
    return _warn(place)


def kit(
    directory: _Directory,
    site: Annotated[str, argument("SITE", "the site's name")],
    address: Annotated[str, argument("HOST:PORT", "where sites reach the server: the proxy's")],
    output: Annotated[str | None, option("FILE", "the kit (default: SITE.kit here)")] = None,
) -> int:
    """Make the one file that a site gets; it holds no secret, and `nectar site init` reads it."""
    from common.sites import site_slug
    from nectar.operate.keys.kit import fingerprint_groups, make_kit

    place, target = here(directory), here(output or f"{site_slug(site)}.kit")
    certificate = make_kit(place, site, address, target)
    print(f"wrote {target}: send it to the site")
    print(f"read out over another way, as by telephone: {fingerprint_groups(certificate)}")
    return _warn(place, certificate)


def show(directory: _Directory) -> int:
    """Describe what is there and how long it is valid."""
    from nectar.operate.keys.inventory import inventory

    entries = inventory(here(directory))
    width = max(len(entry.name) for entry in entries)
    for entry in entries:
        print(f"{entry.name:<{width}}  {entry.text}")
        if entry.problem:
            print(f"{'':<{width}}  {'WRONG' if entry.fatal else 'note'}: {entry.problem}")
    return 1 if any(entry.fatal for entry in entries) else 0


def register(
    name: Connection,
    files: Annotated[
        list[str],
        argument(
            "SITE.pub...|DIR",
            "the sites' public halves; or a directory of keys, for all of it that were not unregistered",
        ),
    ],
    ca: CaFile = None,
    wait: Annotated[
        int, typer.Option(min=0, help="seconds to wait for the SuperLink to answer")
    ] = 60,
) -> int:
    """Let sites take part."""
    from nectar.engines.flower.connection import connect
    from nectar.operate.keys.registry import register as register_at

    paths = [here(word) for word in files]
    directory = paths[0] if paths[0].is_dir() else None
    if directory and len(paths) > 1:
        raise ConfigError("nectar keys register takes one directory of keys, or .pub files.")
    connection = connect(name, ca)
    register_at(connection, [] if directory else paths, float(wait), all_of=directory)
    return 0


def unregister(
    name: Connection,
    which: Annotated[list[str], argument("SITE.pub|NODE-ID...", "whom to let in no more")],
    ca: CaFile = None,
    keys: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            envvar="NECTAR_KEYS",
            help="whose list takes a NODE-ID that is unregistered",
        ),
    ] = None,
) -> int:
    """Let sites take part no more; DIR/revoked.txt lists them, and no older database lets them in again."""
    from nectar.engines.flower.connection import connect
    from nectar.operate.keys.registry import unregister as unregister_at

    chosen = [word if word.isdigit() else here(word) for word in which]
    unregister_at(connect(name, ca), chosen, here(keys) if keys else None)
    return 0


def enforce(
    listed: Annotated[
        str,
        argument("REVOKED.txt|none", "who was unregistered, by the list in the directory of keys"),
    ],
    database: Annotated[str, option("DB", "what flower-superlink is given as --database")],
    replaced: Annotated[
        str | None, option("DB", "the database that was there before: who left it stays out too")
    ] = None,
) -> int:
    """Keep who was unregistered out of a database that was put back, before a SuperLink opens it."""
    from nectar.operate.keys.enforce import enforce as enforce_in

    known = None if listed == "none" else here(listed)
    before = None if replaced is None else here(replaced)
    for line in enforce_in(here(database), known, before):
        print(line)
    return 0


def _warn(directory: Path, certificate: Certificate | None = None, days: int = 0) -> int:
    """Name what is to be mended, of the directory and of the certificate's end.

    Others could put keys of their own in a directory that was there already and is open to them.
    """
    from nectar.operate.keys.inventory import certificate_problem, mode_problem

    if problem := mode_problem(directory):
        print(f"note: {directory}: {problem}")
    if certificate is not None:
        end = certificate.not_valid_after_utc
        if end - certificate.not_valid_before_utc < timedelta(days=days):
            print(
                f"note: it ends with its authority, on {end:%Y-%m-%d}, sooner than in {days} days"
            )
        if problem := certificate_problem(certificate)[0]:
            print(f"note: the certificate {problem}")
    return 0


ACTIONS = {
    each.__name__: each for each in (ca, server, node, kit, show, register, unregister, enforce)
}
