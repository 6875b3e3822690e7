"""Checks of the connection to the server: name, port, TLS, the service that answers, the clock."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from common.errors import NectarError
from nectar.engines.flower.connection import Answer, Connection
from nectar.operate.doctor.checks import Check, Level
from nectar.operate.doctor.machine import flowers_taken, minor

_SECONDS = 10.0

PROTOBUF = "application/protobuf"
"""The content type of Flower's calls."""

#: Flower refuses what was signed 5 s or more ahead of the SuperLink's clock, or 305 s behind. A Date has whole seconds.
_AHEAD_FAILS, _BEHIND_FAILS = 3.0, 295.0
_AHEAD_WARNS, _BEHIND_WARNS = 2.0, 30.0


def link(connection: Connection, *, site: bool) -> Iterator[Check]:
    """Check the connection from the lowest layer up; steps that depend on a failed one are skipped.

    Parameters
    ----------
    site : bool
        Whether this is a site's machine, from which the Control API must be out of reach.
    """
    try:
        context = connection.tls()
        with socket.create_connection((connection.host, connection.port), _SECONDS) as plain:
            yield Check("network", "ok", f"{connection.address} takes connections")
            if context is None:
                none = "none: traffic can be read and altered in transit"
                yield Check("tls", "warn", none)
            else:
                with context.wrap_socket(plain, server_hostname=connection.host) as secure:
                    yield Check("tls", *_certificate(secure, connection))
    except ssl.SSLError as error:
        yield Check("tls", "fail", _tls_sentence(error, connection))
        return
    except OSError as error:
        yield Check(
            "network",
            "fail",
            f"{connection.address} cannot be reached ({error.strerror or error}): is the address right, is the server "
            "up, does a firewall block it?",
        )
        return
    except NectarError as error:
        yield Check("tls", "fail", str(error))
        return
    # An unsigned call is refused by a SuperLink itself, through a proxy or not.
    path, data = ("/v1/fleet/get-run", b"") if site else ("/health", None)
    first = connection.ask(path, PROTOBUF, data)
    if not first.status:
        yield Check("server", "fail", f"no answer ({first.body}): is it Flower's SuperLink?")
        return
    yield Check("server", *(_fleet(first) if site else _health(first)))
    yield Check("clock", *_clock(first))
    yield Check("flower there", *_version(connection.ask("/openapi.json")))
    yield Check("control api", *_control(connection.ask("/v1/control/list-nodes", data=b""), site))


def _certificate(secure: ssl.SSLSocket, connection: Connection) -> tuple[Level, str]:
    found = secure.getpeercert() or {}
    end = datetime.fromtimestamp(ssl.cert_time_to_seconds(str(found["notAfter"])), UTC)
    days = (end - datetime.now(UTC)).days
    text = f"{secure.version()}, a certificate for {connection.host} until {end:%Y-%m-%d}"
    if days < 30:
        return "warn", f"{text}, {days} days: the operator should make a new one before that"
    return "ok", text


def _tls_sentence(error: ssl.SSLError, connection: Connection) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = error.verify_message
        if "ostname mismatch" in reason or "IP address mismatch" in reason:
            return f"{reason}: the operator makes a certificate for {connection.host} with `nectar keys server`"
        if "expired" in reason:
            return (
                f"{reason}: the operator makes a new certificate; or is this machine's clock wrong?"
            )
        trusted = connection.root_certificates or "what this system trusts"
        return f"{reason}: the server's authority is not {trusted}: ask the operator for ca.crt"
    return f"no TLS there ({error.reason or error}): does the server run without it, or is the port another service's?"


def _health(answer: Answer) -> tuple[Level, str]:
    if answer.status == 200:
        return "ok", "the SuperLink answers"
    who = "this is the sites' proxy or not a SuperLink; the operator needs the SuperLink"
    return "fail", f"/health answers {answer.status}: {who}"


def _fleet(answer: Answer) -> tuple[Level, str]:
    if answer.status == 401:
        return "ok", "the SuperLink answers sites at this address"
    if answer.status in (502, 503, 504):
        lacks = f"a proxy answers, but cannot reach the SuperLink ({answer.status})"
        return "fail", f"{lacks}: the operator checks whether it is up"
    lacks = f"no SuperLink answers sites at this address ({answer.status})"
    return "fail", f"{lacks}: is the address that of the sites' proxy?"


def _clock(answer: Answer) -> tuple[Level, str]:
    try:
        there = parsedate_to_datetime(answer.headers["date"]).timestamp()
    except (KeyError, ValueError):
        return "warn", "the server does not report its time"
    ahead = answer.asked - there
    if -_BEHIND_WARNS <= ahead <= _AHEAD_WARNS:
        return "ok", f"within {max(1, abs(ahead)):.0f} s of the server's"
    way = "ahead of" if ahead > 0 else "behind"
    text = f"{abs(ahead):.0f} s {way} the server's: set both by NTP"
    if -_BEHIND_FAILS <= ahead <= _AHEAD_FAILS:
        return "warn", text
    return "fail", f"{text}; Flower refuses messages signed at another time"


def _version(answer: Answer) -> tuple[Level, str]:
    wanted = " or ".join(flowers_taken())  # Flower itself compares the processes of one machine
    try:
        found = str(json.loads(answer.body)["info"]["version"])
    except (ValueError, KeyError, TypeError):
        return "ok", f"unknown at this machine; it must be {wanted}"
    if minor(found) not in flowers_taken():
        return "fail", f"{found}, but every machine of a federation needs {wanted}"
    return "ok", found


def _control(answer: Answer, site: bool) -> tuple[Level, str]:
    # Flower refuses the content type with a special code; a closed proxy does not.
    reached = answer.status == 200 or '"code"' in answer.body
    if site and reached:
        return (
            "warn",
            "can be reached from this site, which could then run code at every site: the operator should publish "
            "/v1/fleet/ alone",
        )
    if site:
        return "ok", "cannot be reached from this machine, as intended"
    if reached:
        return "ok", "can be reached: this machine can submit runs"
    hint = "submit from the operator's own network"
    return "fail", f"cannot be reached from this machine ({answer.status}): {hint}"
