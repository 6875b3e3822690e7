"""The connection to a SuperLink: its address, the trusted certificates, and whether it answers."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import ssl
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.config.text import from_home
from common.errors import nearest
from common.methods import METHODS
from nectar.engines.flower.errors import LaunchError

if TYPE_CHECKING:
    from nectar.engines.flower.superlink import SuperLink

_PROBE_SECONDS, _FIRST_PROBE_SECONDS = 10.0, 30.0
_POLL_SECONDS = 1.0


@dataclass(frozen=True)
class Answer:
    """An HTTP answer; status 0 if there was none, with the reason in ``body``."""

    status: int
    headers: Mapping[str, str]
    body: str
    asked: float  #: seconds since the epoch by this machine's clock


@dataclass(frozen=True)
class Connection:
    """A SuperLink elsewhere.

    Attributes
    ----------
    address : str
        ``HOST:PORT``.
    root_certificates : Path or None
        The authority whose server certificates are trusted; None for the system's, or without TLS.
    """

    address: str
    root_certificates: Path | None
    insecure: bool = False

    @property
    def host(self) -> str:
        """The host's name or address, without brackets."""
        return self.address.rpartition(":")[0].strip("[]")

    @property
    def is_local(self) -> bool:
        """Whether the host is this machine by its loopback name or address."""
        return self.host in ("localhost", "127.0.0.1", "::1")

    @property
    def port(self) -> int:
        """The port."""
        return int(self.address.rpartition(":")[2])

    @property
    def url(self) -> str:
        """The address as a URL."""
        return f"{'http' if self.insecure else 'https'}://{self.address}"

    def superlink(self) -> contextlib.AbstractContextManager[SuperLink]:
        """Return one connection for many questions to the Control API."""
        from nectar.engines.flower.superlink import superlink  # seconds of imports

        return superlink(self)

    def tls(self) -> ssl.SSLContext | None:
        """Return what this connection trusts, None without TLS; LaunchError if the certificates cannot be read."""
        if self.insecure:
            return None
        try:
            return ssl.create_default_context(cafile=self.root_certificates)
        except (OSError, ssl.SSLError) as error:
            raise LaunchError(
                f"The certificates {self.root_certificates} cannot be used ({error}): give the authority's ca.crt"
            ) from None

    def ask(
        self,
        path: str,
        content: str = "application/x-nectar-doctor",
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        seconds: float = _PROBE_SECONDS,
    ) -> Answer:
        """Ask for ``path`` by GET, or with ``data`` by POST; a status of 0 if nothing comes.

        What :meth:`tls` says is trusted, and no proxy is needed on this machine.

        Raises
        ------
        LaunchError
            The certificates cannot be read.
        """
        proxies = urllib.request.ProxyHandler({} if self.is_local else None)
        context = self.tls()
        secure = [urllib.request.HTTPSHandler(context=context)] if context else []
        opener = urllib.request.build_opener(proxies, *secure)
        sent = {"Content-Type": content, **(headers or {})}
        asked = time.time()
        try:
            try:
                response = opener.open(
                    urllib.request.Request(self.url + path, data, sent), timeout=seconds
                )
            except urllib.error.HTTPError as error:
                response = error
            with response:
                found = {name.lower(): value for name, value in response.headers.items()}
                body = response.read(10_000_000).decode("utf-8", errors="replace")
                return Answer(response.status, found, body, asked)
        except http.client.HTTPException as error:
            return Answer(0, {}, f"it does not speak HTTP, {type(error).__name__}", asked)
        except OSError as error:
            return Answer(0, {}, str(getattr(error, "reason", error)), asked)

    def health(self, seconds: float = _PROBE_SECONDS) -> str:
        """Ask the SuperLink whether it is there: return nothing if it is, else what is wrong."""
        answer = self.ask("/health", seconds=seconds)
        if answer.status == http.HTTPStatus.OK:
            return ""
        return f"answers {answer.status} to /health" if answer.status else answer.body

    def wait(self, seconds: float) -> None:
        """Wait until the SuperLink answers; LaunchError if it does not in `seconds`, or TLS fails for good."""
        deadline = time.monotonic() + seconds
        while problem := self.health(_FIRST_PROBE_SECONDS):
            if "CERTIFICATE_VERIFY_FAILED" in problem or time.monotonic() >= deadline:
                raise LaunchError(f"The SuperLink at {self.address} cannot be reached: {problem}")
            time.sleep(_POLL_SECONDS)


# ---- connecting ----------------------------------------------------------------------------------
# How one finds a SuperLink: by a name in Flower's configuration, or by HOST:PORT and a CA.

_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(?P<port>[0-9]{1,5})")


def connect(word: str, ca: str | None = None, *, insecure: bool = False) -> Connection:
    """Find the connection that ``word`` names.

    Parameters
    ----------
    word : str
        A name of Flower's configuration, or HOST:PORT.
    ca : str, optional
        The authority's certificates, for HOST:PORT.
    insecure : bool
        Whether a connection without TLS is meant.

    Raises
    ------
    LaunchError
        There is no such connection, it is Flower's local simulation, or it has no TLS where that is not meant.
    """
    if is_address(word):
        return _unnamed(word, ca, insecure)
    if ":" in word:
        raise LaunchError(
            f"{word} is not HOST:PORT: write the host without https://, and a port from 1 to 65535."
        )
    if ca is not None:
        raise LaunchError(
            f"--ca is for HOST:PORT; the connection {word!r} states its own root-certificates."
        )
    return _named(word, insecure)


def is_address(text: str) -> bool:
    """Return whether a text is HOST:PORT."""
    match = _ADDRESS.fullmatch(text)
    return match is not None and int(match["port"]) < 2**16


def _unnamed(address: str, ca: str | None, insecure: bool) -> Connection:
    if ca is not None and insecure:
        raise LaunchError("--ca and --insecure exclude each other.")
    if ca is None and not insecure:
        raise LaunchError(
            f"{address} needs the authority's certificate: --ca ca.crt (or --insecure on a private network)."
        )
    certificates = None if ca is None else Path.cwd() / from_home(ca)
    if certificates is not None and not certificates.is_file():
        raise LaunchError(f"There is no certificate {certificates}: give the authority's ca.crt.")
    return Connection(address, certificates, insecure)


def _named(name: str, insecure: bool) -> Connection:
    home = Path(os.environ.get("FLWR_HOME") or "~/.flwr")  # as Flower finds it
    file = home.expanduser().absolute() / "config.toml"
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8")).get("superlink", {})
    except FileNotFoundError:
        content = {}
    except (OSError, ValueError) as error:
        raise LaunchError(f"Flower's configuration {file} cannot be read: {error}") from None
    known = [key for key, value in content.items() if isinstance(value, dict)]
    if name not in known and name in METHODS:
        raise LaunchError(f"{name!r} is a method: the connection is named before it.")
    if name not in known:
        guess = nearest(name, known)
        hint = f"did you mean {guess}? " if guess else ""
        raise LaunchError(
            f"There is no connection {name!r} in {file}: {hint}Add [superlink.{name}] with address and "
            "root-certificates there, or give HOST:PORT --ca ca.crt."
        )
    return _read(name, file, content[name], insecure)


def _read(name: str, file: Path, entry: dict[str, Any], insecure: bool) -> Connection:
    """Return the connection that an entry of Flower's configuration describes; LaunchError if it is not usable."""
    address = str(entry.get("address", ""))
    if not is_address(address):
        raise LaunchError(
            f"The connection {name!r} in {file} has no SuperLink's address (address {address!r}): it needs "
            'address = "HOST:PORT"; `nectar simulate` is the simulation.'
        )
    certificates = entry.get("root-certificates")
    path = None if certificates is None else Path(str(certificates))
    is_insecure = entry.get("insecure") is True
    if is_insecure and not insecure:
        raise LaunchError(
            f"The connection {name!r} in {file} has no TLS (insecure = true), and it carries code for every "
            "site: give it root-certificates, or add --insecure if that is intended."
        )
    if insecure and not is_insecure:
        raise LaunchError(f"The connection {name!r} in {file} has TLS: leave --insecure out.")
    if path is not None and not path.is_file():
        raise LaunchError(f"The connection {name!r} in {file} names {path}, which is not there.")
    return Connection(address, path, is_insecure)
