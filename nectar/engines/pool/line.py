"""The line between this process and a worker: frames of JSON with file descriptors. Nothing is unpickled."""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

_PREFIX = struct.Struct("!Q")

#: the most descriptors that Linux takes along at once
_MOST = 253

#: seconds that a worker has for ending in order when the line has ended
GRACE = 5.0

Head = dict[str, Any]


class Line:
    """One end of a pair of connected Unix sockets.

    Parameters
    ----------
    end : socket
        The end, which is this object's from now on.
    """

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._sending = threading.Lock()

    def send(self, head: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send a frame; the descriptors stay the caller's.

        Raises
        ------
        OSError
            If the other end is gone.
        """
        text = json.dumps(head).encode()
        with self._sending:
            socket.send_fds(self._end, [_PREFIX.pack(len(text))], descriptors)
            self._end.sendall(text)

    def receive(self) -> tuple[Head, list[int]] | None:
        """Wait for a frame and return it with its descriptors, which are the caller's to close; None at the end."""
        try:
            prefix, descriptors, _, _ = socket.recv_fds(self._end, _PREFIX.size, _MOST)
            try:
                prefix += self._exactly(_PREFIX.size - len(prefix))
                (length,) = _PREFIX.unpack(prefix)
                head: Head = json.loads(self._exactly(length))
            except BaseException:
                for descriptor in descriptors:
                    os.close(descriptor)
                raise
        except (OSError, EOFError):
            return None
        return head, descriptors

    def end(self) -> None:
        """Let both ends, and whoever waits at them, know that nothing more comes."""
        with suppress(OSError):  # the other end was first
            self._end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of this end."""
        self._end.close()

    def _exactly(self, length: int) -> bytes:
        content = bytearray(length)
        view = memoryview(content)
        while view:
            count = self._end.recv_into(view)
            if not count:
                raise EOFError
            view = view[count:]
        return bytes(content)
