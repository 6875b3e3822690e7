"""The records of a directory as pages that follow them: on this machine alone, by an address with a secret, to look at.

Nothing is written, nothing but GET is answered, and a record is named by its id, which is looked up among those that
are there. A page of another site cannot read these: it does not know the secret, and a name of its own that leads to
this machine is refused by the Host that its browser sends.
"""

from __future__ import annotations

import hmac
import re
import secrets
import threading
from collections.abc import Sequence
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import socket
from typing import Any

from common.config.user_parts import ImportPolicy
from common.errors import ConfigError, NectarError
from nectar.records.record import RunRecord
from nectar.records.run_list import run_called, runs_below
from nectar.report.page import POLICY, page_of, render

LOOPBACK = "127.0.0.1"

#: seconds after which a browser asks again: for the list and for a run that goes on; for a run that is over never
_AGAIN = 10

_ID = r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}"

#: the list, with some records chosen or not; the report on one, or on several side by side
_PLACE = re.compile(
    rf"/(?P<token>[\w-]{{43}})/((?P<what>beside|run)/(?P<ids>{_ID}(\+{_ID}){{0,7}}))?", re.ASCII
)

_MOST_BESIDE = 8


class LiveView:
    """Serves the records of a directory until it is closed.

    Parameters
    ----------
    port : int
        The port; 0: any that is free.
    policy : callable
        Decides what a record may have imported.
    only : str, optional
        The id of the one record that is shown, instead of a list.

    Raises
    ------
    OSError
        If the port is not to be had.
    """

    def __init__(self, directory: Path, port: int, policy: ImportPolicy, only: str = "") -> None:
        self._directory, self._policy, self._only = directory, policy, only
        self._token = secrets.token_urlsafe(32)
        self._server = ThreadingHTTPServer((LOOPBACK, port), partial(_Handler, self))
        self._server.daemon_threads = True
        self._drawn: dict[Sequence[str], tuple[Any, str]] = {}
        self._drawing = threading.Lock()  # matplotlib draws on one thread at a time

    @property
    def port(self) -> int:
        """The port."""
        return int(self._server.server_address[1])

    @property
    def address(self) -> str:
        """The address with the secret."""
        return f"http://{LOOPBACK}:{self.port}/{self._token}/"

    @property
    def hosts(self) -> tuple[str, ...]:
        """What a browser on this machine calls it."""
        return f"{LOOPBACK}:{self.port}", f"localhost:{self.port}"

    def serve(self) -> None:
        """Answer until `close`, or an exception such as Ctrl-C."""
        self._server.serve_forever()

    def close(self) -> None:
        """Stop, and let go of the port."""
        self._server.shutdown()
        self._server.server_close()

    def page_at(self, path: str) -> tuple[str, bool] | None:
        """Return the page at a path, and whether it is to be asked for again; None if there is none."""
        found = _PLACE.fullmatch(path)
        if found is None or not hmac.compare_digest(found["token"], self._token):
            return None
        if self._only and found["what"]:
            return None
        named = found["ids"] or self._only
        ids = list(dict.fromkeys(named.split("+"))) if named else []
        runs = [run for one in ids if (run := run_called(self._directory, one)) is not None]
        if len(runs) < len(ids):
            return None
        if runs and found["what"] != "beside":
            return self._report(runs), any(run.outcome == "running" for run in runs)
        return self._list(ids), True

    def _list(self, chosen: Sequence[str]) -> str:
        """Return the list of the records; which of them are ``chosen`` is in the links alone."""
        runs = runs_below(self._directory)
        changed = {
            run.id: [one for one in chosen if one != run.id]
            if run.id in chosen
            else [*chosen, run.id]
            for run in runs
        }
        return render(
            "list.html",
            title=f"Runs in {self._directory}",
            runs=runs,
            chosen=chosen,
            changed=changed,
            most=_MOST_BESIDE,
            root=f"/{self._token}/",
        )

    def _report(self, runs: Sequence[RunRecord]) -> str:
        """Return the report on runs, drawn again only after a record of theirs has changed."""
        with self._drawing:
            state = [(run.outcome, run.done, run.size) for run in runs]
            ids = tuple(run.id for run in runs)
            known = self._drawn.get(ids)
            if known is not None and known[0] == state:
                return known[1]
            try:
                text = page_of([RunRecord.open(run.directory, self._policy) for run in runs])
            except NectarError as error:
                return render("list.html", title=", ".join(ids), failed=str(error))
            self._drawn = {ids: (state, text)}  # of what was looked at last
            return text


def show(directory: Path, port: int, policy: ImportPolicy, only: str = "") -> None:
    """Print the address of a `LiveView`, and serve it until Ctrl-C.

    Raises
    ------
    ConfigError
        If the port is not to be had.
    """
    try:
        view = LiveView(directory, port, policy, only)
    except OSError as error:
        raise ConfigError(
            f"port {port} of {LOOPBACK} is not to be had ({error.strerror}): leave out --port, or name another one."
        ) from None
    told = "whoever has this address can look, on this machine alone; Ctrl-C ends it"
    print(f"{view.address}\n({told})", flush=True)
    try:
        view.serve()
    except KeyboardInterrupt:
        print()


class _Handler(BaseHTTPRequestHandler):
    """Answers one browser's GET."""

    server_version, sys_version = "Nectar", ""
    timeout = 10

    def __init__(self, view: LiveView, request: socket, client: Any, server: Any) -> None:
        self._view = view
        super().__init__(request, client, server)

    def do_GET(self) -> None:
        """Send the page."""
        if self.headers.get_all("Host") not in [[host] for host in self._view.hosts]:
            self._send(HTTPStatus.MISDIRECTED_REQUEST, _said("This is not the host of this page."))
            return
        found = self._view.page_at(self.path)
        if found is None:
            self._send(HTTPStatus.NOT_FOUND, _said("There is nothing here."))
        else:
            self._send(HTTPStatus.OK, found[0], again=found[1])

    def _send(self, status: HTTPStatus, page: str, *, again: bool = False) -> None:
        content = page.encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Security-Policy", f"{POLICY}; frame-ancestors 'none'")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Cache-Control", "no-store")
        if again:
            self.send_header("Refresh", str(_AGAIN))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the address holds the secret."""


def _said(sentence: str) -> str:
    return render("list.html", title="Nectar", message=sentence)
