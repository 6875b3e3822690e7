"""Whether a site's key is registered, asked of the SuperLink with the key's own signature."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from http.client import HTTPException
from pathlib import Path

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from common.sites import site_slug
from nectar.engines.flower.client import LaunchError
from nectar.engines.flower.connection import Connection
from nectar.operate.doctor.check import Check
from nectar.operate.keys.files import KeysError
from nectar.operate.keys.inventory import SITE_KEY
from nectar.operate.keys.nodes import FOLDER, SUFFIX, fingerprint, is_note, read_private

_SECONDS = 10.0

#: Flower's codes for an activation that it refuses: the interval between heartbeats cannot be, and the key is unknown
_NO_INTERVAL, _UNKNOWN = 2003, 2004


def registration(connection: Connection, directory: Path) -> Iterator[Check]:
    """Ask whether the sites' keys of a directory are registered; nothing changes at the SuperLink by it.

    What is asked is a SuperNode's first call, for a heartbeat every 0 seconds: Flower looks the key up, refuses the
    interval, and does nothing more, so that a SuperNode that is online with the key stays so.

    Parameters
    ----------
    connection : Connection
        The server, as sites reach it.
    directory : Path
        A directory of keys: ``key``, or pairs in ``nodes``.
    """
    for path in _private_halves(directory):
        try:
            key = read_private(path)
        except KeysError as error:
            yield Check("key", "fail", str(error))
            continue
        yield _judged(path, fingerprint(key.public_key()), *_ask(connection, key))


def borne_names(directory: Path, called: Iterable[str], whose: str) -> Iterator[Check]:
    """Warn of names of sites that no key of a directory has: the server leaves out a node that bears another name.

    Parameters
    ----------
    directory : Path
        A directory of keys; a key is registered by its file's name.
    called : iterable of str
        What the sites call themselves.
    whose : str
        Where that stands.
    """
    keys = {path.name.removesuffix(SUFFIX) for path in (directory / FOLDER).glob("[A-Za-z0-9]*")}
    keys = {name for name in keys if not is_note(Path(name))}
    odd = sorted(name for name in called if keys and not keys & {name, site_slug(name)})
    if odd:
        yield Check(
            "names",
            "warn",
            f"{whose} has the sites {', '.join(odd)}, and the keys are called {', '.join(sorted(keys))}: a node that "
            "bears another name than its key was registered with is left out; set site='NAME' in its node config to "
            "the key's name, or register a key of the site's",
        )


def is_registered(connection: Connection, key: ec.EllipticCurvePrivateKey) -> bool | None:
    """Tell whether the server knows a key; None where its answer does not tell, or nobody can be asked."""
    try:
        return _told(_ask(connection, key)[1])
    except LaunchError:
        return None


def _private_halves(directory: Path) -> list[Path]:
    pairs = (directory / FOLDER).glob("[A-Za-z0-9]*")
    names = sorted(
        p for p in pairs if p.is_file() and not is_note(p) and not p.name.endswith(SUFFIX)
    )
    own = directory / SITE_KEY
    return [own, *names] if own.exists() else names


def _judged(path: Path, public: str, status: int, body: str) -> Check:
    told = _told(body)
    if told:
        return Check("key", "ok", f"{path.name} is registered at the server ({public})")
    if told is False:
        return Check(
            "key",
            "fail",
            f"{path} ({public}) is not registered at the server, or no longer: the operator registers its public half "
            "with `nectar keys register`; one that was unregistered is never taken again, make a new pair then",
        )
    if status == 401:
        return Check(
            "key",
            "fail",
            f"the server takes no signature of {path} (401): is this machine's clock right, to some seconds?",
        )
    return Check("key", "warn", f"whether {path.name} is registered was not told ({status})")


def _told(body: str) -> bool | None:
    try:
        return {_NO_INTERVAL: True, _UNKNOWN: False}.get(int(json.loads(body)["code"]))
    except (ValueError, KeyError, TypeError):
        return None


def _ask(connection: Connection, key: ec.EllipticCurvePrivateKey) -> tuple[int, str]:
    """Return status and content of the answer; 0 and nothing if none came."""
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    now = datetime.now(UTC).isoformat()
    signature = key.sign(now.encode("ascii"), ec.ECDSA(hashes.SHA256()))
    request = urllib.request.Request(
        f"{connection.url}/v1/fleet/activate-node",
        data=_field(1, public),
        headers={
            "Content-Type": "application/protobuf",
            "flwr-public-key": base64.b64encode(public).decode("ascii"),
            "flwr-timestamp": now,
            "flwr-signature": base64.b64encode(signature).decode("ascii"),
        },
    )
    try:
        with connection.opener().open(request, timeout=_SECONDS) as response:
            return response.status, response.read(100_000).decode("utf-8", errors="replace")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read(100_000).decode("utf-8", errors="replace")
    except (OSError, HTTPException):
        return 0, ""


def _field(number: int, content: bytes) -> bytes:
    """Return a field of bytes as protocol buffers have it; the interval, left out, is 0."""
    length, size = b"", len(content)
    while size > 0x7F:
        length, size = length + bytes([size & 0x7F | 0x80]), size >> 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + content
