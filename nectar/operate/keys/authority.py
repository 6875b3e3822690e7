"""The federation's certificate authority, the server's certificate, and the sites' key pairs."""

from __future__ import annotations

import base64
import datetime
import hashlib
import ipaddress
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from common.errors import NectarError
from common.sites import site_name, site_slug

CA_DAYS, SERVER_DAYS = 3650, 397

#: where Flower's own SuperExec connects, so every server certificate is valid there
LOOPBACK = ("localhost", "127.0.0.1", "::1")

#: certificates count from a little before they were made: a site's clock may be slow
_BACKDATED = datetime.timedelta(hours=1)

_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST_NAME = re.compile(rf"(?=.{{1,253}}$){_LABEL}(?:\.{_LABEL})*")


def make_authority(directory: Path, days: int = CA_DAYS) -> x509.Certificate:
    """Write ``ca.key`` for the operator and ``ca.crt`` for every site; KeysError if they exist or cannot be written."""
    key_file, certificate_file = directory / "ca.key", directory / "ca.crt"
    refuse_existing(key_file, certificate_file)
    make_directory(directory)
    key = ec.generate_private_key(ec.SECP384R1())
    # The number distinguishes two authorities of one operator, in the sites' bundle as in an error message.
    name = _name(f"Nectar federation CA {x509.random_serial_number():040x}"[:56])
    certificate = _builder(name, name, key.public_key(), days).sign(key, hashes.SHA384())
    write_new({key_file: _private(key), certificate_file: _pem(certificate)})
    return certificate


def make_server(directory: Path, hosts: Sequence[str], days: int = SERVER_DAYS) -> x509.Certificate:
    """Write ``server.key`` and ``server.pem``, a certificate of the directory's authority.

    Parameters
    ----------
    directory : Path
        Where ``ca.key`` and ``ca.crt`` are.
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
    ca_key, ca = authority(directory)
    key = ec.generate_private_key(ec.SECP384R1())
    issuer = ca.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    issuer_key = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer)
    name = _name(hosts[0] if hosts else "localhost")
    certificate = (
        _builder(name, ca.subject, key.public_key(), days, ca)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(issuer_key, critical=False)
        .sign(ca_key, hashes.SHA384())
    )
    write_new({key_file: _private(key), certificate_file: _pem(certificate)})
    return certificate


def read_certificate(path: Path) -> x509.Certificate:
    """Return the (first) certificate in a PEM file; KeysError if it holds no certificate."""
    try:
        return x509.load_pem_x509_certificates(read(path))[0]
    except ValueError:
        raise KeysError(f"{path} is not a certificate in PEM form") from None


def authority(directory: Path) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """Return a directory's authority; KeysError if it is missing, unreadable or expired."""
    for name in ("ca.key", "ca.crt"):
        if not (directory / name).is_file():
            raise KeysError(
                f"there is no {directory / name}: make the authority with `nectar keys ca {directory}`, or name the "
                "directory that has it"
            )
    key = read_private(directory / "ca.key", PEM)
    certificate = read_certificate(directory / "ca.crt")
    if key.public_key() != certificate.public_key():
        raise KeysError(f"{directory / 'ca.key'} and {directory / 'ca.crt'} do not match")
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
    """Return the common parts of the authority's certificate and, given ``ca``, the server's."""
    now, is_ca = _now(), ca is None
    end = now + datetime.timedelta(days=days)
    usage = x509.KeyUsage(
        digital_signature=not is_ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_ca,
        crl_sign=is_ca,
        encipher_only=False,
        decipher_only=False,
    )
    constraints = x509.BasicConstraints(ca=is_ca, path_length=0 if is_ca else None)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(end if ca is None else min(end, ca.not_valid_after_utc))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(constraints, critical=True)
        .add_extension(usage, critical=True)
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
        raise KeysError(f"{host} is not an address: write four numbers from 0 to 255")
    return x509.DNSName(host)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _pem(certificate: x509.Certificate) -> tuple[bytes, int]:
    return certificate.public_bytes(serialization.Encoding.PEM), PUBLIC


def _private(
    key: ec.EllipticCurvePrivateKey,
    form: serialization.PrivateFormat = serialization.PrivateFormat.PKCS8,
) -> tuple[bytes, int]:
    """Return a private key as a file holds it, with the file's mode."""
    none = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, form, none), PRIVATE


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC).replace(microsecond=0)


# ---- files ---------------------------------------------------------------------------------------
# Key files: private from their first byte, complete or not there, and never written over another.

#: modes of a directory of keys, of a private key and of what may be handed out
DIRECTORY, PRIVATE, PUBLIC = 0o700, 0o600, 0o644


class KeysError(NectarError):
    """A key or certificate that cannot be made, read or registered."""


def make_directory(directory: Path) -> None:
    """Make ``directory``, accessible only to its user, unless it exists; KeysError if it cannot be made."""
    try:
        # Whoever may write to a directory above may put another one in its place.
        for above in reversed(directory.parents):
            above.mkdir(mode=0o755, exist_ok=True)
        directory.mkdir(mode=DIRECTORY, exist_ok=True)
    except OSError as error:
        raise KeysError(
            f"the directory {directory} cannot be made ({error.strerror}): choose one that you can write to"
        ) from None


def refuse_existing(*paths: Path) -> None:
    """Raise KeysError, before any work, if a file exists, naming the first one."""
    for path in paths:
        if os.path.lexists(path):
            raise _exists(path)


def write_new(contents: Mapping[Path, tuple[bytes, int]]) -> None:
    """Write files, each with its content and mode: all of them, or none, also where Ctrl-C comes in between.

    Parameters
    ----------
    contents : mapping
        From the path to (content, mode). The mode holds from the start (less what the umask takes away), so that
        a private key is readable to others not for a moment.

    Raises
    ------
    KeysError
        If one is there already or cannot be written; what was written is taken back.
    """
    refuse_existing(*contents)
    staged = {path: path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp") for path in contents}
    try:
        for path, temporary in staged.items():
            _write(temporary, *contents[path])
        for path, temporary in staged.items():
            os.link(temporary, path)  # a link, unlike a rename, replaces nothing
    except BaseException as error:
        for written, temporary in staged.items():
            if _is_same(written, temporary):
                written.unlink()
        if isinstance(error, FileExistsError):
            raise _exists(path) from None
        if isinstance(error, OSError):
            raise KeysError(f"{path} cannot be written ({error.strerror})") from None
        raise
    finally:
        for temporary in staged.values():
            temporary.unlink(missing_ok=True)


def _write(path: Path, content: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _is_same(path: Path, temporary: Path) -> bool:
    """Return whether both names refer to one file, which is then ours."""
    try:
        return path.samefile(temporary)
    except OSError:
        return False


def read(path: Path) -> bytes:
    """Return a file's content; KeysError if it is not there or cannot be read."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise KeysError(f"there is no {path}") from None
    except OSError as error:
        raise KeysError(f"{path} cannot be read ({error.strerror})") from None


def _exists(path: Path) -> KeysError:
    return KeysError(
        f"{path} exists, and keys are never overwritten: move it away to make a new one"
    )


# ---- nodes ---------------------------------------------------------------------------------------
# The key pair of a site's SuperNode: the site keeps one half, the server registers the other.

FOLDER = "nodes"
"""The folder of a directory of keys in which the sites' keys are."""

SUFFIX = ".pub"

#: the forms of private keys, and who reads them
OPENSSH, PEM = "OpenSSH", "PEM"
_LOADERS = {
    OPENSSH: serialization.load_ssh_private_key,
    PEM: serialization.load_pem_private_key,
}

#: the ending of what releases up to 0.2 noted next to a public half
_NOTE = ".node-id"

_CURVES = ("secp256r1", "secp384r1", "secp521r1")


def make_nodes(directory: Path, sites: Sequence[str]) -> list[Path]:
    """Write each site's key pair, ``nodes/SITE`` and ``nodes/SITE.pub``, in OpenSSH format; return the public files.

    A pair takes nothing from the authority, so a site can make its own and send the public half alone.

    Raises
    ------
    FederationError
        If a site may not have such a name.
    KeysError
        If a file is there already or cannot be written.
    """
    folder = directory / FOLDER
    names = list(dict.fromkeys(_checked(site) for site in sites))
    private, public = [folder / name for name in names], [folder / (n + SUFFIX) for n in names]
    refuse_existing(*private, *public)
    make_directory(directory)
    make_directory(folder)
    contents = {}
    for key_file, public_file in zip(private, public, strict=True):
        key = ec.generate_private_key(ec.SECP384R1())
        contents[key_file] = _private(key, serialization.PrivateFormat.OpenSSH)
        line = b"%b %b\n" % (_public_line(key.public_key()), key_file.name.encode())
        contents[public_file] = line, PUBLIC
    write_new(contents)
    return public


def read_public(path: Path) -> ec.EllipticCurvePublicKey:
    """Return the public key in an OpenSSH file; KeysError if it holds anything else, such as a private key."""
    content = read(path)
    if b"PRIVATE KEY" in content:
        raise KeysError(
            f"{path} is a private key, which stays at the site: give the file that ends in {SUFFIX}"
        )
    try:
        key = serialization.load_ssh_public_key(content)
    except (ValueError, UnsupportedAlgorithm):
        raise KeysError(f"{path} is not a public key in OpenSSH format") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name not in _CURVES:
        raise KeysError(
            f"{path} has a type that Flower does not support: make the key pair with `nectar keys node`"
        )
    return key


def read_private(path: Path, form: str = OPENSSH) -> ec.EllipticCurvePrivateKey:
    """Return a private key; KeysError if it is not one of this form, or has a passphrase, which no server can ask for.

    Parameters
    ----------
    form : str
        `OPENSSH`, as a site's own half is written, or `PEM`, as the authority's and the server's are.
    """
    try:
        key = _LOADERS[form](read(path), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise KeysError(
            f"{path} is not a private key in {form} format without a passphrase"
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise KeysError(
            f"{path} has a type that Flower does not support: make one with `nectar keys`"
        )
    return key


def fingerprint(key: ec.EllipticCurvePublicKey) -> str:
    """Return a public key's fingerprint as ``ssh-keygen -l`` prints it."""
    digest = hashlib.sha256(base64.b64decode(_public_line(key).split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def pem_fingerprint(public_key: bytes | None) -> str:
    """Return the fingerprint of a public key in PEM, as Flower keeps it; empty if it is not a site's."""
    try:
        key = serialization.load_pem_public_key(public_key or b"")
    except ValueError:
        return ""
    return fingerprint(key) if isinstance(key, ec.EllipticCurvePublicKey) else ""


def public_halves(directory: Path) -> list[Path]:
    """Return the sites' public keys in a directory of keys, or in a folder of received .pub files."""
    for folder in (directory / FOLDER, directory):
        if found := sorted(folder.glob(f"*{SUFFIX}")):
            return found
    return []


def key_files(directory: Path) -> list[Path]:
    """Return the sites' key files in a directory of keys, private and public."""
    found = sorted((directory / FOLDER).glob("[A-Za-z0-9]*"))
    return [path for path in found if path.is_file() and not path.name.endswith(_NOTE)]


def _checked(site: str) -> str:
    name = site_slug(site_name({"site": site}))
    if name.endswith((SUFFIX, _NOTE)):
        raise KeysError(
            f"the site name {name!r} ends like a key file ({SUFFIX}, {_NOTE}): choose another"
        )
    return name


def _public_line(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
