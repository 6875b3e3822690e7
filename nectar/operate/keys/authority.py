"""The federation's own authority, and the certificate that it gives the server."""

from __future__ import annotations

import datetime
import ipaddress
import re
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from nectar.operate.keys.files import (
    PRIVATE,
    PUBLIC,
    KeysError,
    make_directory,
    read,
    refuse_existing,
    write_new,
)

CA_DAYS, SERVER_DAYS = 3650, 397

#: where Flower's own SuperExec connects, so every server certificate is valid there
LOOPBACK = ("localhost", "127.0.0.1", "::1")

#: certificates count from a little before they were made: a site's clock may be slow
_BACKDATED = datetime.timedelta(hours=1)

_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST_NAME = re.compile(rf"(?=.{{1,253}}$){_LABEL}(?:\.{_LABEL})*")


def make_authority(directory: Path, days: int = CA_DAYS) -> x509.Certificate:
    """Write ``ca.key``, the operator's alone, and ``ca.crt`` for every site; KeysError if there or not writable."""
    key_file, certificate_file = directory / "ca.key", directory / "ca.crt"
    refuse_existing(key_file, certificate_file)
    make_directory(directory)
    key = ec.generate_private_key(ec.SECP384R1())
    # The number tells two authorities of one operator apart, in the sites' bundle as in an error message.
    name = _name(f"Nectar federation CA {x509.random_serial_number():040x}"[:56])
    usage = _usage(digital_signature=False, signs_certificates=True)
    certificate = (
        _builder(name, name, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA384())
    )
    write_new(
        {key_file: (_private_pem(key), PRIVATE), certificate_file: (_pem(certificate), PUBLIC)}
    )
    return certificate


def make_server(directory: Path, hosts: Sequence[str], days: int = SERVER_DAYS) -> x509.Certificate:
    """Write ``server.key`` and ``server.pem``, a certificate of the directory's authority.

    Parameters
    ----------
    directory : Path
        Where ``ca.key`` and ``ca.crt`` lie.
    hosts : sequence of str
        Host names and addresses under which sites and operators reach the server; the loopback's are added.
    days : int
        Its validity; it never outlasts the authority's.

    Raises
    ------
    KeysError
        If a host is neither name nor address, the authority is missing, expired or unreadable, or a file is there
        already.
    """
    key_file, certificate_file = directory / "server.key", directory / "server.pem"
    names = [_general_name(host) for host in dict.fromkeys([*hosts, *LOOPBACK])]
    refuse_existing(key_file, certificate_file)
    ca_key, ca = _authority(directory)
    key = ec.generate_private_key(ec.SECP384R1())
    usage = _usage(digital_signature=True, signs_certificates=False)
    issuer_key_id = ca.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    certificate = (
        _builder(_name(hosts[0] if hosts else "localhost"), ca.subject, key.public_key(), days, ca)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer_key_id),
            critical=False,
        )
        .sign(ca_key, hashes.SHA384())
    )
    write_new(
        {key_file: (_private_pem(key), PRIVATE), certificate_file: (_pem(certificate), PUBLIC)}
    )
    return certificate


def read_certificate(path: Path) -> x509.Certificate:
    """Return the (first) certificate in a PEM file; KeysError if there is none."""
    try:
        return x509.load_pem_x509_certificates(read(path))[0]
    except ValueError:
        raise KeysError(f"{path} is not a certificate in PEM form") from None


def read_private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Return a private key in PEM form; KeysError if it is none, has a passphrase or is of another kind."""
    try:
        key = serialization.load_pem_private_key(read(path), password=None)
    except (ValueError, TypeError):
        raise KeysError(f"{path} is not a private key in PEM form without a passphrase") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise KeysError(f"{path} is not a key on an elliptic curve: make one with `nectar keys`")
    return key


def _authority(directory: Path) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    for name in ("ca.key", "ca.crt"):
        if not (directory / name).is_file():
            raise KeysError(
                f"there is no {directory / name}: make the authority with `nectar keys ca {directory}`, or name the "
                "directory that has it"
            )
    key, certificate = (
        read_private_key(directory / "ca.key"),
        read_certificate(directory / "ca.crt"),
    )
    if key.public_key() != certificate.public_key():
        raise KeysError(f"{directory / 'ca.key'} and {directory / 'ca.crt'} do not belong together")
    if certificate.not_valid_after_utc <= _now():
        raise KeysError(
            f"{directory / 'ca.crt'} expired on {certificate.not_valid_after_utc:%Y-%m-%d}: make a new authority in "
            "another directory"
        )
    return key, certificate


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    days: int,
    ca: x509.Certificate | None = None,
) -> x509.CertificateBuilder:
    now = _now()
    end = now + datetime.timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(end if ca is None else min(end, ca.not_valid_after_utc))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, digital_signature: bool, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        pass
    if not _HOST_NAME.fullmatch(host):
        raise KeysError(
            f"{host[:80]!r} is neither a host name nor an address: give names as superlink.example.org, without "
            "https:// and without a port"
        )
    if re.fullmatch(r"[0-9.]+", host):
        raise KeysError(f"{host} is not an address: four numbers from 0 to 255 make one")
    return x509.DNSName(host)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC).replace(microsecond=0)
