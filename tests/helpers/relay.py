"""A network between one SuperNode and its SuperLink that a test listens on, holds up, cuts and heals.

It passes bytes on as they are. What the SuperNode asks of the SuperLink is read off the request lines, so that a fault
can be brought about at an exact step of the exchange: the request is held until the fault is there.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

_REQUEST = re.compile(rb"POST /v1/fleet/([a-z-]+) HTTP/1\.1\r\n")


class Relay:
    """Listens on ``port`` and connects on to ``target``, both of this machine.

    Parameters
    ----------
    target : int
        The SuperLink's port.
    asked : callable
        Called with the name of each request (``pull-messages``), before it is passed on.
    """

    def __init__(self, target: int, asked: Callable[[str], None]) -> None:
        self._target, self._asked = target, asked
        self._whole, self._closed = threading.Event(), threading.Event()
        self._whole.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closed.set()
        self._whole.set()
        for end in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def cut(self) -> None:
        """Let nothing through from now on; connections stay open on both sides, as with a pulled cable."""
        self._whole.clear()

    def heal(self) -> None:
        """Let through what was held up, and what comes."""
        self._whole.set()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                continue  # the SuperLink is away, or this is the end
            self._sockets += [near, far]
            threading.Thread(target=self._pump, args=(near, far, True), daemon=True).start()
            threading.Thread(target=self._pump, args=(far, near, False), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, listens: bool) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(65536):
                for name in _REQUEST.findall(piece) if listens else ():
                    self._asked(name.decode())
                self._whole.wait()
                sink.sendall(piece)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
