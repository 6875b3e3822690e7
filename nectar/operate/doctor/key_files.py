"""The keys on this machine, as `nectar keys show` sees them, and whether they fit the connection."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from pathlib import Path

from nectar.operate.doctor.check import Check
from nectar.operate.keys.authority import read_certificate
from nectar.operate.keys.files import KeysError
from nectar.operate.keys.inventory import host_names, inventory


def keys(directory: Path, host: str | None, *, site: bool) -> Iterator[Check]:
    """Look at a directory of keys.

    Parameters
    ----------
    directory : Path
        As `nectar keys` fills it.
    host : str or None
        The server's name or address, which its certificate must be valid for.
    site : bool
        Whether this is a site's machine, where only its own key and ``ca.crt`` have any business.
    """
    try:
        entries = inventory(directory)
    except KeysError as error:
        yield Check("keys", "fail", str(error))
        return
    for entry in entries:
        if entry.problem:
            yield Check("keys", "fail" if entry.fatal else "warn", f"{entry.name}: {entry.problem}")
    if not any(entry.problem for entry in entries):
        files = [entry.name for entry in entries if not entry.name.endswith("/")]
        yield Check("keys", "ok", f"{', '.join(files)}: modes, dates and pairs are right")
    if site:
        for name in ("ca.key", "server.key"):
            if (directory / name).exists():
                yield Check(
                    "keys", "warn", f"{directory / name} does not belong at a site: delete it here"
                )
    certificate = directory / "server.pem"
    if host is not None and certificate.is_file():
        yield _valid_for(certificate, host)


def _valid_for(path: Path, host: str) -> Check:
    try:
        names = host_names(read_certificate(path))
    except KeysError as error:
        return Check("keys", "fail", str(error))
    if any(_same(name, host) for name in names):
        return Check("keys", "ok", f"{path.name} is valid for {host}")
    return Check(
        "keys",
        "fail",
        f"{path.name} is valid for {', '.join(names)}, not for {host}: make one for it with `nectar keys server`",
    )


def _same(name: str, host: str) -> bool:
    try:
        return ipaddress.ip_address(name) == ipaddress.ip_address(host)
    except ValueError:
        return name.lower() == host.lower()
