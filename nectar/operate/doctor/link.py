"""The way to the server: name, port, TLS, what answers, the clock."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from common.errors import NectarError
from nectar.engines.flower.connection import Connection
from nectar.operate.doctor.check import Check

_SECONDS = 10.0

#: Flower refuses what was signed 5 s or more ahead of the SuperLink's clock, or 305 s behind. A Date has whole seconds.
_AHEAD_FAILS, _BEHIND_FAILS = 3.0, 295.0
_AHEAD_WARNS, _BEHIND_WARNS = 2.0, 30.0


@dataclass(frozen=True)
class Answer:
    """What came back.

    Attributes
    ----------
    status : int
        HTTP's; 0 if nothing came, and ``body`` says why.
    body : str
        The content.
    asked : float
        When it was asked, in seconds since the epoch by this machine's clock.
    """

    status: int
    headers: Mapping[str, str]
    body: str
    asked: float


def link(connection: Connection, flower: str, *, site: bool) -> Iterator[Check]:
    """Look at the connection, from the wire up; what depends on a step that failed is not looked at.

    Parameters
    ----------
    flower : str
        The major.minor of Flower that it must run.
    site : bool
        Whether this is a site's machine, from which the Control API must be out of reach.
    """
    try:
        context = connection.tls()
        with socket.create_connection((connection.host, connection.port), _SECONDS) as plain:
            yield Check("network", "ok", f"{connection.address} takes connections")
            if context is None:
                yield Check(
                    "tls", "warn", "none: whoever is on the way reads and changes all of it"
                )
            else:
                with context.wrap_socket(plain, server_hostname=connection.host) as secure:
                    yield _certificate(secure, connection)
    except ssl.SSLError as error:
        yield Check("tls", "fail", _tls_sentence(error, connection))
        return
    except OSError as error:
        yield Check(
            "network",
            "fail",
            f"{connection.address} cannot be reached ({error.strerror or error}): is the address right, is the server "
            "up, does a firewall stand between?",
        )
        return
    except NectarError as error:
        yield Check("tls", "fail", str(error))
        return
    if site:
        first = _ask(connection, "POST", "/v1/fleet/get-run", "application/protobuf")
        yield _fleet(first)
    else:
        first = _ask(connection, "GET", "/health")
        yield _health(first)
    if first.status:
        yield _clock(first)
        yield _version(_ask(connection, "GET", "/openapi.json"), flower)
        yield _control(_ask(connection, "POST", "/v1/control/list-nodes"), site)


def _certificate(secure: ssl.SSLSocket, connection: Connection) -> Check:
    found = secure.getpeercert() or {}
    end = datetime.fromtimestamp(ssl.cert_time_to_seconds(str(found["notAfter"])), UTC)
    days = (end - datetime.now(UTC)).days
    text = f"{secure.version()}, a certificate for {connection.host} until {end:%Y-%m-%d}"
    if days < 30:
        return Check("tls", "warn", f"{text}, {days} days: the operator makes a new one before")
    return Check("tls", "ok", text)


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
    return f"no TLS there ({error.reason or error}): does the server run without it, or is the port another's?"


def _ask(
    connection: Connection, method: str, path: str, content: str = "application/x-nectar-doctor"
) -> Answer:
    request = urllib.request.Request(
        connection.url + path,
        data=b"" if method == "POST" else None,
        headers={"Content-Type": content},
        method=method,
    )
    asked = time.time()
    try:
        try:
            response = connection.opener().open(request, timeout=_SECONDS)
        except urllib.error.HTTPError as error:
            response = error
        with response:
            headers = {name.lower(): value for name, value in response.headers.items()}
            body = response.read(10_000_000).decode("utf-8", errors="replace")
            return Answer(response.status, headers, body, asked)
    except http.client.HTTPException as error:
        return Answer(0, {}, f"it speaks no HTTP, {type(error).__name__}", asked)
    except OSError as error:
        return Answer(0, {}, str(getattr(error, "reason", error)), asked)


def _health(answer: Answer) -> Check:
    if answer.status == 200:
        return Check("server", "ok", "the SuperLink answers")
    if not answer.status:
        return _silent(answer)
    return Check(
        "server",
        "fail",
        f"/health answers {answer.status}: this is the sites' proxy or no SuperLink; the operator needs the SuperLink",
    )


def _fleet(answer: Answer) -> Check:
    """Judge the answer to an unsigned call, which a SuperLink itself refuses, through a proxy or not."""
    if not answer.status:
        return _silent(answer)
    if answer.status == 401:
        return Check("server", "ok", "the SuperLink answers sites here")
    if answer.status in (502, 503, 504):
        return Check(
            "server",
            "fail",
            f"a proxy answers, but cannot reach the SuperLink ({answer.status}): the operator looks whether it is up",
        )
    return Check(
        "server",
        "fail",
        f"no SuperLink answers sites here ({answer.status}): is the address that of the sites' proxy?",
    )


def _silent(answer: Answer) -> Check:
    return Check("server", "fail", f"no answer ({answer.body}): is it Flower's SuperLink?")


def _clock(answer: Answer) -> Check:
    try:
        there = parsedate_to_datetime(answer.headers["date"]).timestamp()
    except (KeyError, ValueError):
        return Check("clock", "warn", "the server does not say what time it has")
    ahead = answer.asked - there
    if -_BEHIND_WARNS <= ahead <= _AHEAD_WARNS:
        return Check("clock", "ok", f"within {max(1, abs(ahead)):.0f} s of the server's")
    way = "ahead of" if ahead > 0 else "behind"
    text = f"{abs(ahead):.0f} s {way} the server's: set both by NTP"
    if -_BEHIND_FAILS <= ahead <= _AHEAD_FAILS:
        return Check("clock", "warn", text)
    return Check("clock", "fail", f"{text}; Flower refuses what is signed at another time")


def _version(answer: Answer, flower: str) -> Check:
    try:
        found = str(json.loads(answer.body)["info"]["version"])
    except (ValueError, KeyError, TypeError):
        return Check("flower there", "ok", f"not told from here; it has to be {flower}.x")
    if ".".join(found.split(".")[:2]) != flower:
        return Check(
            "flower there", "fail", f"{found}, the app needs {flower}.x: update the server"
        )
    return Check("flower there", "ok", found)


def _control(answer: Answer, site: bool) -> Check:
    # Flower refuses the content type with a code of its own; a proxy that is shut knows none.
    reached = answer.status == 200 or '"code"' in answer.body
    if site and reached:
        return Check(
            "control api",
            "warn",
            "can be reached from this site: whoever can may run code at every site; the operator should publish "
            "/v1/fleet/ alone",
        )
    if site:
        return Check("control api", "ok", "cannot be reached from here, as it should be")
    if reached:
        return Check("control api", "ok", "can be reached: runs can be submitted from here")
    return Check(
        "control api",
        "fail",
        f"cannot be reached from here ({answer.status}): submit from the operator's own network",
    )
