"""Checks of this machine's keys: validity, match with the server and the sites' names, registration."""

from __future__ import annotations

import base64
import ipaddress
import json
from datetime import UTC, datetime

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from common.sites import SUPERLINK, site_slug
from nectar.engines.flower.connection import Answer, Connection
from nectar.engines.flower.errors import LaunchError
from nectar.operate.doctor.checks import DoctorTarget, Found
from nectar.operate.doctor.link import PROTOBUF
from nectar.operate.keys.authority import (
    SUFFIX,
    KeysError,
    fingerprint,
    key_files,
    read_certificate,
    read_private,
)
from nectar.operate.keys.inventory import SITE_KEY, host_names, inventory

#: Flower's codes for an activation that it refuses: the interval between heartbeats cannot be, and the key is unknown
_NO_INTERVAL, _UNKNOWN = 2003, 2004


def keys(target: DoctorTarget, host: str | None = None) -> Found:
    """Check the directory of keys; the server's certificate must be valid for ``host``.

    A site needs only its own key and ``ca.crt``.
    """
    directory = target.keys
    if directory is None:
        return
    entries = inventory(directory)
    for entry in entries:
        if entry.problem:
            yield "fail" if entry.fatal else "warn", f"{entry.name}: {entry.problem}"
    if not any(entry.problem for entry in entries):
        files = [entry.name for entry in entries if not entry.name.endswith("/")]
        yield "ok", f"{', '.join(files)}: permissions, dates and key pairs are right"
    for name in ("ca.key", "server.key"):
        if target.site and (directory / name).exists():
            yield "warn", f"{directory / name} does not belong on a site's machine: delete it"
    certificate = directory / "server.pem"
    if host is None or not certificate.is_file():
        return
    hosts = host_names(read_certificate(certificate))
    if any(_same(name, host) for name in hosts):
        yield "ok", f"server.pem is valid for {host}"
    else:
        yield (
            "fail",
            f"server.pem is valid for {', '.join(hosts)}, not for {host}: make one for it with `nectar keys server`",
        )


def _same(name: str, host: str) -> bool:
    try:
        return ipaddress.ip_address(name) == ipaddress.ip_address(host)
    except ValueError:
        return name.lower() == host.lower()


def names(target: DoctorTarget) -> Found:
    """Warn of sites without a key of their name: the server leaves out a node whose name is not its key's.

    The names are the site's own or, at the operator's, those in the newest record of a federation.
    """
    if target.keys is None:
        return
    whose, called = _called(target)
    known = {path.name.removesuffix(SUFFIX) for path in key_files(target.keys)}
    odd = sorted(name for name in called if known and not known & {name, site_slug(name)})
    if odd:
        yield (
            "warn",
            f"{whose} has the sites {', '.join(odd)}, but the keys are named {', '.join(sorted(known))}: a node whose "
            "name differs from that of its registered key is left out; set site='NAME' in its node config to "
            "the key's name, or register a key with the site's name",
        )


def _called(target: DoctorTarget) -> tuple[str, list[str]]:
    if target.site:
        return "the node config", [str(target.node["site"])] if "site" in target.node else []
    for record in sorted(target.config.output_dir.glob("*/partition.json"), reverse=True):
        try:
            provenance = json.loads((record.parent / "provenance.json").read_text(encoding="utf-8"))
            sites = [*json.loads(record.read_text(encoding="utf-8"))["sites"]]
            if provenance["engine"] == SUPERLINK:
                return f"the record {record.parent.name}", sites
        except (OSError, ValueError, KeyError, TypeError):
            continue  # commands that read that record report it
    return "", []


def registration(target: DoctorTarget, connection: Connection) -> Found:
    """Check whether a site's keys, ``key`` or pairs in ``nodes``, are registered, without a change at the SuperLink.

    Sends a SuperNode's first call, for a heartbeat every 0 seconds: Flower looks the key up, refuses the
    interval, and does nothing more, so that a SuperNode that is online with the key stays so.
    """
    directory = target.keys
    if directory is None or not target.site:
        return
    private = [path for path in key_files(directory) if not path.name.endswith(SUFFIX)]
    own = directory / SITE_KEY
    for path in [own, *private] if own.exists() else private:
        try:
            key = read_private(path)
        except KeysError as error:
            yield "fail", str(error)
            continue
        answer = _ask(connection, key)
        registered, public = _known(answer.body), fingerprint(key.public_key())
        if registered:
            yield "ok", f"{path.name} is registered at the server ({public})"
        elif registered is False:
            yield (
                "fail",
                f"{path} ({public}) is not registered at the server: the operator must register its public "
                "key with `nectar keys register`; an unregistered key is never accepted again: make a new pair "
                "then",
            )
        elif answer.status == 401:
            hint = "is this machine's clock correct to within seconds?"
            yield "fail", f"the server rejects the signature of {path} (401): {hint}"
        else:
            yield (
                "warn",
                f"the server did not report whether {path.name} is registered ({answer.status})",
            )


def is_registered(connection: Connection, key: ec.EllipticCurvePrivateKey) -> bool | None:
    """Return whether the server knows a key; None if its answer does not show it, or it cannot be reached."""
    try:
        return _known(_ask(connection, key).body)
    except LaunchError:
        return None


def _known(body: str) -> bool | None:
    try:
        return {_NO_INTERVAL: True, _UNKNOWN: False}.get(int(json.loads(body)["code"]))
    except (ValueError, KeyError, TypeError):
        return None


def _ask(connection: Connection, key: ec.EllipticCurvePrivateKey) -> Answer:
    """Send a request signed as by a SuperNode."""
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    now = datetime.now(UTC).isoformat()
    signature = key.sign(now.encode("ascii"), ec.ECDSA(hashes.SHA256()))
    headers = {
        "flwr-public-key": base64.b64encode(public).decode("ascii"),
        "flwr-timestamp": now,
        "flwr-signature": base64.b64encode(signature).decode("ascii"),
    }
    return connection.ask("/v1/fleet/activate-node", PROTOBUF, _field(1, public), headers)


def _field(number: int, content: bytes) -> bytes:
    """Return a field of bytes as protocol buffers have it; the interval, left out, is 0."""
    length, size = b"", len(content)
    while size > 0x7F:
        length, size = length + bytes([size & 0x7F | 0x80]), size >> 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + content
