"""A SuperLink that somebody else started: where it is, what is trusted of it, and whether it answers."""

from __future__ import annotations

import http.client
import os
import ssl
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from nectar.engines.flower.client import Client
from nectar.engines.flower.job import LaunchError, scripts_directory

_PROBE_SECONDS, _FIRST_PROBE_SECONDS = 10.0, 30.0
_POLL_SECONDS = 1.0


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
            _environment(self.home),
            self.home,
            lambda: f": is the SuperLink at {self.address} reachable?",
        )

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

    def opener(self) -> urllib.request.OpenerDirector:
        """Return what asks this SuperLink by HTTP: it trusts what :meth:`tls` says, and needs no proxy on this machine.

        Raises
        ------
        LaunchError
            The certificates cannot be read.
        """
        here = self.host in ("localhost", "127.0.0.1", "::1")
        handlers: list[urllib.request.BaseHandler] = [
            urllib.request.ProxyHandler({} if here else None)
        ]
        if context := self.tls():
            handlers.append(urllib.request.HTTPSHandler(context=context))
        return urllib.request.build_opener(*handlers)

    def health(self, seconds: float = _PROBE_SECONDS) -> str:
        """Ask the SuperLink whether it is there.

        Returns
        -------
        str
            Nothing if it is, else what is wrong.
        """
        opener = self.opener()
        try:
            with opener.open(f"{self.url}/health", timeout=seconds):
                return ""
        except urllib.error.HTTPError as error:
            return f"answers {error.code} to /health"
        except urllib.error.URLError as error:
            return str(error.reason)
        except http.client.HTTPException as error:
            return f"what answers there is no HTTP ({type(error).__name__})"
        except OSError as error:
            return str(error)

    def wait(self, seconds: float) -> None:
        """Wait until the SuperLink answers; LaunchError if it does not in `seconds`, or TLS fails for good."""
        deadline = time.monotonic() + seconds
        while problem := self.health(_FIRST_PROBE_SECONDS):
            if "CERTIFICATE_VERIFY_FAILED" in problem or time.monotonic() >= deadline:
                raise LaunchError(f"The SuperLink at {self.address} cannot be reached: {problem}")
            time.sleep(_POLL_SECONDS)


def _environment(home: Path) -> dict[str, str]:
    variables = dict(os.environ)
    for name in ("NO_PROXY", "no_proxy"):
        variables[name] = ",".join(filter(None, [variables.get(name), "127.0.0.1", "localhost"]))
    return variables | {
        "FLWR_HOME": str(home),
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "PYTHONUNBUFFERED": "1",
    }
