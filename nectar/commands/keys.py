"""`nectar keys`: the authority, the server's certificate, the sites' key pairs, and who is registered."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from common.errors import ConfigError
from nectar.arguments import local_path
from nectar.command_line import group
from nectar.options import ca_option, connection

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

HELP = """\
Makes a federation's keys and certificates and registers its sites. Existing files are never overwritten. ca.key stays
with the operator, server.key goes only to the server, and nodes/SITE stays at the site, which can make its own key pair
and send nodes/SITE.pub. Every site gets ca.crt.

\b
nectar keys ca keys
nectar keys server keys superlink.example.org 192.0.2.7
nectar keys node keys hospital-a hospital-b
nectar keys kit keys hospital-a superlink.example.org:8443
nectar keys register 127.0.0.1:8000 keys/nodes/*.pub --ca keys/ca.crt
"""

main = group(HELP)

_directory = click.argument("directory", metavar="DIR", help="the directory of keys")


def _days(default: int, of: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    return click.option(
        "--days",
        type=click.IntRange(min=1, max=36500),
        default=default,
        help=f"how long the certificate is valid ({of})",
    )


@main.command()
@_directory
@_days(3650, "ten years")
def ca(directory: str, days: int) -> int:
    """Make the operator's certificate authority: ca.key, ca.crt."""
    from nectar.operate.keys.authority import make_authority
    from nectar.operate.keys.inventory import certificate_text

    place = local_path(directory)
    certificate = make_authority(place, days)
    print(f"wrote {place / 'ca.key'}: it signs server certificates; keep it secret")
    print(f"wrote {place / 'ca.crt'}: every site and operator needs it")
    print(f"  {certificate_text(certificate)}")
    return _warn(place, certificate, days)


@main.command()
@_directory
@click.argument(
    "hosts",
    metavar="[HOST]...",
    help="host names and addresses of the server; localhost is added",
    nargs=-1,
)
@_days(397, "13 months")
def server(directory: str, hosts: tuple[str, ...], days: int) -> int:
    """Make the server's certificate: server.key, server.pem."""
    from nectar.operate.keys.authority import make_server
    from nectar.operate.keys.inventory import certificate_text

    place = local_path(directory)
    certificate = make_server(place, hosts or [], days)
    print(f"wrote {place / 'server.key'}: only for the server")
    print(f"wrote {place / 'server.pem'}")
    print(f"  {certificate_text(certificate)}")
    return _warn(place, certificate, days)


@main.command()
@_directory
@click.argument("sites", metavar="SITE...", help="the sites' names", nargs=-1, required=True)
def node(directory: str, sites: tuple[str, ...]) -> int:
    """Make key pairs for sites: nodes/SITE, nodes/SITE.pub."""
    from nectar.operate.keys.authority import fingerprint, make_nodes, read_public

    place = local_path(directory)
    for public in make_nodes(place, sites):
        print(f"wrote {public.with_suffix('')}: it stays at the site")
        print(f"wrote {public}: for the operator; {fingerprint(read_public(public))}")
    return _warn(place)


@main.command()
@_directory
@click.argument("site", metavar="SITE", help="the site's name")
@click.argument("address", metavar="HOST:PORT", help="where sites reach the server (the proxy)")
@click.option("--output", metavar="FILE", help="the kit's file (default: ./SITE.kit)")
def kit(directory: str, site: str, address: str, output: str | None) -> int:
    """Make a site's kit, one file without secrets that `nectar site init` reads."""
    from common.sites import site_slug
    from nectar.operate.keys.kit import fingerprint_groups, make_kit

    place, target = local_path(directory), local_path(output or f"{site_slug(site)}.kit")
    certificate = make_kit(place, site, address, target)
    print(f"wrote {target}: send it to the site")
    print(f"read out by telephone or another channel: {fingerprint_groups(certificate)}")
    return _warn(place, certificate)


@main.command()
@_directory
def show(directory: str) -> int:
    """List keys and certificates, with the dates on which they expire."""
    from nectar.operate.keys.inventory import inventory

    entries = inventory(local_path(directory))
    width = max(len(entry.name) for entry in entries)
    for entry in entries:
        print(f"{entry.name:<{width}}  {entry.text}")
        if entry.problem:
            print(f"{'':<{width}}  {'WRONG' if entry.fatal else 'note'}: {entry.problem}")
    return 1 if any(entry.fatal for entry in entries) else 0


@main.command()
@connection
@click.argument(
    "files",
    metavar="SITE.pub...|DIR",
    help="public keys of sites, or a directory of keys: all of its sites except unregistered ones",
    nargs=-1,
    required=True,
)
@ca_option
@click.option(
    "--wait",
    type=click.IntRange(min=0),
    default=60,
    show_default=True,
    help="seconds to wait for the SuperLink to answer",
)
def register(name: str, files: tuple[str, ...], ca: str | None, wait: int) -> int:
    """Register sites, so that they can take part."""
    from nectar.engines.flower.connection import connect
    from nectar.operate.keys.registry import register as register_at

    paths = [local_path(word) for word in files]
    directory = paths[0] if paths[0].is_dir() else None
    if directory and len(paths) > 1:
        raise ConfigError("nectar keys register takes one directory of keys, or .pub files.")
    connection = connect(name, ca)
    register_at(connection, [] if directory else paths, float(wait), all_of=directory)
    return 0


@main.command()
@connection
@click.argument(
    "which", metavar="SITE.pub|NODE-ID...", help="the sites to unregister", nargs=-1, required=True
)
@ca_option
@click.option(
    "--keys",
    metavar="DIR",
    envvar="NECTAR_KEYS",
    help="the directory of keys whose revoked.txt lists an unregistered NODE-ID",
)
def unregister(name: str, which: tuple[str, ...], ca: str | None, keys: str | None) -> int:
    """Unregister sites. DIR/revoked.txt lists them, so that `enforce` can remove them from a restored database."""
    from nectar.engines.flower.connection import connect
    from nectar.operate.keys.registry import unregister as unregister_at

    chosen = [word if word.isdigit() else local_path(word) for word in which]
    unregister_at(connect(name, ca), chosen, local_path(keys) if keys else None)
    return 0


@main.command()
@click.argument(
    "listed",
    metavar="REVOKED.txt|none",
    help="the list of unregistered sites in the directory of keys",
)
@click.option("--database", required=True, metavar="DB", help="the --database of flower-superlink")
@click.option(
    "--replaced", metavar="DB", help="the previous database: sites unregistered in it stay out too"
)
def enforce(listed: str, database: str, replaced: str | None) -> int:
    """Unregister revoked sites in a restored database, before a SuperLink opens it."""
    from nectar.operate.keys.enforce import enforce as enforce_in

    known = None if listed == "none" else local_path(listed)
    before = None if replaced is None else local_path(replaced)
    for line in enforce_in(local_path(database), known, before):
        print(line)
    return 0


def _warn(directory: Path, certificate: Certificate | None = None, days: int = 0) -> int:
    """Warn of a directory that others can write to, and of a certificate that expires soon."""
    from nectar.operate.keys.inventory import certificate_problem, mode_problem

    if problem := mode_problem(directory):
        print(f"note: {directory}: {problem}")
    if certificate is not None:
        end = certificate.not_valid_after_utc
        if end - certificate.not_valid_before_utc < timedelta(days=days):
            print(
                f"note: it expires with its authority on {end:%Y-%m-%d}, in less than {days} days"
            )
        if problem := certificate_problem(certificate)[0]:
            print(f"note: the certificate {problem}")
    return 0
