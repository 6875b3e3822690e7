"""A SuperLink that somebody else started: where it is, what is trusted of it, and whether it answers."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import ssl
import tempfile
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.config.text import from_home
from common.errors import nearest
from common.methods import METHODS
from nectar.engines.flower.client import Client, LaunchError, scripts_directory

if TYPE_CHECKING:
    from nectar.engines.flower.superlink import SuperLink

_PROBE_SECONDS, _FIRST_PROBE_SECONDS = 10.0, 30.0
_POLL_SECONDS = 1.0


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


@dataclass(frozen=True)
class Connection:
    """A SuperLink that somebody else started.

    Attributes
    ----------
    name : str
        Its name in Flower's configuration.
    address : str
        ``HOST:PORT``.
    root_certificates : Path or None
        The authority whose server certificates are trusted; None for the system's, or without TLS.
    home : Path
        Flower's home, in which the configuration lies.
    """

    name: str
    address: str
    root_certificates: Path | None
    insecure: bool
    home: Path

    @property
    def host(self) -> str:
        """The host's name or address, without brackets."""
        return self.address.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """The port."""
        return int(self.address.rpartition(":")[2])

    @property
    def url(self) -> str:
        """The address as a URL."""
        return f"{'http' if self.insecure else 'https'}://{self.address}"

    def client(self) -> Client:
        """Return Flower's client for this SuperLink."""
        return Client(
            scripts_directory() / "flwr",
            self.name,
            environment(self.home),
            self.home,
            lambda: f": is the SuperLink at {self.address} reachable?",
        )

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
        here = self.host in ("localhost", "127.0.0.1", "::1")
        proxies, context = urllib.request.ProxyHandler({} if here else None), self.tls()
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
                told = {name.lower(): value for name, value in response.headers.items()}
                body = response.read(10_000_000).decode("utf-8", errors="replace")
                return Answer(response.status, told, body, asked)
        except http.client.HTTPException as error:
            return Answer(0, {}, f"it speaks no HTTP, {type(error).__name__}", asked)
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


def environment(home: Path) -> dict[str, str]:
    """Return the variables for Flower's client: its home, and no proxy on the way to this machine itself."""
    variables = dict(os.environ)
    for name in ("NO_PROXY", "no_proxy"):
        variables[name] = ",".join(filter(None, [variables.get(name), "127.0.0.1", "localhost"]))
    return variables | {
        "FLWR_HOME": str(home),
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "PYTHONUNBUFFERED": "1",
    }


# ---- connecting ----------------------------------------------------------------------------------
# How one finds a SuperLink: by a name in Flower's configuration, or by HOST:PORT and a CA.

_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(?P<port>[0-9]{1,5})")

#: a name of our own, for connections that have none
_UNNAMED = "nectar"


@contextlib.contextmanager
def connect(word: str, ca: str | None = None, *, insecure: bool = False) -> Iterator[Connection]:
    """Find the connection that ``word`` names.

    Parameters
    ----------
    word : str
        A name of Flower's configuration, or HOST:PORT.
    ca : str, optional
        The authority's certificates, for HOST:PORT. A Flower home for the time of the call is made then.
    insecure : bool
        Whether a connection without TLS is meant.

    Raises
    ------
    LaunchError
        There is no such connection, it is Flower's local simulation, or it has no TLS where that is not meant.
    """
    if is_address(word):
        with tempfile.TemporaryDirectory(prefix="nectar-connection-") as home:
            yield _unnamed(word, ca, insecure, Path(home))
        return
    if ":" in word:
        raise LaunchError(
            f"{word} is not HOST:PORT: no https:// stands before the host, and a port is a number from 1 to 65535."
        )
    if ca is not None:
        raise LaunchError(
            f"--ca goes with HOST:PORT; the connection {word!r} states its own root-certificates."
        )
    yield _named(word, insecure)


def flower_home() -> Path:
    """Return Flower's home, as Flower finds it."""
    return Path(os.environ.get("FLWR_HOME") or "~/.flwr").expanduser().absolute()


def is_address(text: str) -> bool:
    """Return whether a text is HOST:PORT."""
    match = _ADDRESS.fullmatch(text)
    return match is not None and int(match["port"]) < 2**16


def _unnamed(address: str, ca: str | None, insecure: bool, home: Path) -> Connection:
    if ca is not None and insecure:
        raise LaunchError("--ca and --insecure exclude each other.")
    if ca is None and not insecure:
        raise LaunchError(
            f"{address} needs the authority's certificate: --ca ca.crt (or, where nobody else can listen, --insecure)."
        )
    certificates = None if ca is None else Path.cwd() / from_home(ca)
    if certificates is not None and not certificates.is_file():
        raise LaunchError(f"There is no certificate {certificates}: give the authority's ca.crt.")
    trust = (
        "insecure = true" if certificates is None else f"root-certificates = {_toml(certificates)}"
    )
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "{_UNNAMED}"\n\n[superlink.{_UNNAMED}]\naddress = "{address}"\n{trust}\n',
        encoding="utf-8",
    )
    return Connection(_UNNAMED, address, certificates, insecure, home)


def _named(name: str, insecure: bool) -> Connection:
    home = flower_home()
    file = home / "config.toml"
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
    return _checked(Connection(name, *_facts(name, file, content[name]), home), file, insecure)


def _facts(name: str, file: Path, entry: dict[str, Any]) -> tuple[str, Path | None, bool]:
    address = str(entry.get("address", ""))
    if not is_address(address):
        raise LaunchError(
            f"The connection {name!r} in {file} is to no SuperLink of its own (address {address!r}): it needs "
            'address = "HOST:PORT"; `nectar simulate` is the simulation.'
        )
    certificates = entry.get("root-certificates")
    path = None if certificates is None else Path(str(certificates))
    return address, path, entry.get("insecure") is True


def _checked(connection: Connection, file: Path, insecure: bool) -> Connection:
    if connection.insecure and not insecure:
        raise LaunchError(
            f"The connection {connection.name!r} in {file} has no TLS (insecure = true), and it carries code for every "
            "site: give it root-certificates, or say --insecure if that is meant."
        )
    if insecure and not connection.insecure:
        raise LaunchError(
            f"The connection {connection.name!r} in {file} has TLS: leave --insecure out."
        )
    if connection.root_certificates is not None and not connection.root_certificates.is_file():
        raise LaunchError(
            f"The connection {connection.name!r} in {file} names {connection.root_certificates}, which is not there."
        )
    return connection


def _toml(path: Path) -> str:
    return '"' + str(path).replace("\\", "\\\\").replace('"', '\\"') + '"'
