"""The content of a directory of keys: fingerprints, validity, and permissions that are too open."""

from __future__ import annotations

import datetime
import stat
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import NameOID

from common.sites import site_order
from nectar.operate.keys.authority import (
    FOLDER,
    OPENSSH,
    PEM,
    SUFFIX,
    KeysError,
    fingerprint,
    key_files,
    read_certificate,
    read_private,
    read_public,
)

SITE_KEY = "key"
"""The private half in a site's volume of the compose file."""

#: certificates that end sooner are named
SOON = datetime.timedelta(days=30)


@dataclass(frozen=True)
class Entry:
    """A file of a directory of keys.

    Attributes
    ----------
    problem : str
        What is wrong with it and how it is mended; empty if nothing is.
    fatal : bool
        Whether the federation fails by it, or soon will or might.
    days : int or None
        That a certificate has left, below 0 once it has ended.
    """

    name: str
    text: str
    problem: str = ""
    fatal: bool = False
    days: int | None = None


def inventory(directory: Path) -> list[Entry]:
    """Return what is in ``directory``: authority, server's certificate and others, sites' pairs; in this order.

    Raises
    ------
    KeysError
        If there is no such directory, or nothing of that kind in it.
    """
    if not directory.is_dir():
        raise KeysError(
            f"{directory} is not a directory: `nectar keys --help` explains how to make one"
        )
    folder = directory / FOLDER
    ca = directory / "ca.crt"
    entries = [
        Entry(f"{d.name}/", "directory", mode_problem(d)) for d in (directory, folder) if d.is_dir()
    ]

    def add(path: Path, text: str, check: Callable[[Path], Entry]) -> None:
        if path.exists():
            name = path.relative_to(directory).as_posix()
            try:
                entries.append(replace(check(path), name=name))
            except KeysError as error:
                entries.append(Entry(name, text, str(error), True))

    for key, certificate in (("ca.key", "ca.crt"), ("server.key", "server.pem")):
        add(directory / key, "private key", partial(_private, directory / certificate))
        add(directory / certificate, "certificate", partial(_certificate, ca))
    for path in sorted([*directory.glob("*.crt"), *directory.glob("*.pem")]):
        if path.name not in ("ca.crt", "server.pem"):
            add(path, "certificate", partial(_certificate, ca))
    sites = {path.name.removesuffix(SUFFIX) for path in key_files(directory)}
    for private in (
        directory / SITE_KEY,
        *(folder / site for site in sorted(sites, key=site_order)),
    ):
        public = private.with_name(private.name + SUFFIX)
        add(private, "private key", partial(_private, public))
        add(public, "public half", _public)
    if all(entry.name.endswith("/") for entry in entries):
        raise KeysError(
            f"{directory} contains no keys: `nectar keys --help` explains how to make them"
        )
    return entries


def certificates(directory: Path) -> tuple[list[str], dict[str, int]]:
    """Return the certificates in a directory of keys that have expired or soon will, and the days left of each.

    Returns
    -------
    list of str, dict of str to int
        A sentence on each; by file, below 0 once it has ended.
    """
    try:
        found = [e for e in inventory(directory) if e.name.endswith((".crt", ".pem"))]
    except KeysError:
        return [], {}
    problems = [f"{entry.name}: {entry.problem}" for entry in found if entry.problem]
    return problems, {entry.name: entry.days for entry in found if entry.days is not None}


def certificate_problem(certificate: x509.Certificate) -> tuple[str, bool]:
    """Return what is wrong with a certificate's dates (empty if nothing), and whether it is refused already."""
    now, end = datetime.datetime.now(datetime.UTC), certificate.not_valid_after_utc
    if certificate.not_valid_before_utc > now:
        return (
            f"valid only from {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC: is the clock correct?",
            True,
        )
    if end <= now:
        return f"expired on {end:%Y-%m-%d}: make a new one", True
    if end - now < SOON:
        return (
            f"expires on {end:%Y-%m-%d}, in {(end - now).days} days: make a new one before",
            False,
        )
    return "", False


def host_names(certificate: x509.Certificate) -> list[str]:
    """Return the names and addresses that a server's certificate is valid for."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [
        *found.get_values_for_type(x509.DNSName),
        *map(str, found.get_values_for_type(x509.IPAddress)),
    ]


def certificate_text(certificate: x509.Certificate) -> str:
    """Return a certificate's hosts, dates and fingerprint as text."""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    name = str(names[0].value) if names else "unnamed"
    hosts = host_names(certificate)
    valid = f"valid for {', '.join(hosts)}" if hosts else f"authority '{name}'"
    dates = (
        f"{certificate.not_valid_before_utc:%Y-%m-%d} to {certificate.not_valid_after_utc:%Y-%m-%d}"
    )
    digest = certificate.fingerprint(hashes.SHA256()).hex(":").upper()
    return f"{valid}; {dates}; SHA-256 {digest}"


def mode_problem(path: Path) -> str:
    """Return what is wrong with the mode of a private file or a directory of keys; empty if nothing."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if not mode & 0o077:
        return ""
    right = "700" if path.is_dir() else "600"
    return f"other users have access to it (mode {mode:o}): chmod {right} {path}"


def _private(other: Path, path: Path) -> Entry:
    """Check a private key against ``other``, the site's public key or the certificate."""
    is_site = other.suffix == SUFFIX
    key, text = read_private(path, OPENSSH if is_site else PEM), "private key"
    if other.exists():
        public = read_public(other) if is_site else read_certificate(other).public_key()
        if key.public_key() != public:
            return Entry("", text, f"does not match {other.name}", True)
        text += f" of {other.name}"
    return Entry("", text, mode_problem(path))


def _public(path: Path) -> Entry:
    return Entry("", f"public half; {fingerprint(read_public(path))}")


def _certificate(ca: Path, path: Path) -> Entry:
    certificate = read_certificate(path)
    problem, fatal = certificate_problem(certificate)
    if path != ca and ca.is_file() and not problem:
        problem = _issuer_problem(certificate, ca)
        fatal = bool(problem)
    days = (certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)).days
    return Entry("", certificate_text(certificate), problem, fatal, days)


def _issuer_problem(certificate: x509.Certificate, ca: Path) -> str:
    try:
        certificate.verify_directly_issued_by(read_certificate(ca))
    except KeysError:
        return ""  # named where the authority itself is
    except Exception:  # cryptography names three kinds, and InvalidSignature has no text
        return f"not signed by this directory's {ca.name}: sites that trust {ca.name} refuse it"
    return ""
