"""What crosses a network interface, frame by frame, and what of it is what: headers, TLS, HTTP by path."""

from __future__ import annotations

import bisect
import contextlib
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Self

_ETHERNET, _ALL_PROTOCOLS, _OUTGOING = 14, 3, 4
_BUFFER = 256 << 20


@dataclass(frozen=True)
class Frame:
    """One frame: when it passed, which way, and its bytes."""

    time: float
    outgoing: bool
    data: bytes


@dataclass
class Segment:
    """A frame's TCP segment."""

    flow: tuple[bytes, bytes]
    sequence: int
    headers: int
    payload: bytes


class Sniffer:
    """Keeps every frame that passes ``interface`` while entered."""

    def __init__(self, interface: str) -> None:
        self.frames: list[Frame] = []
        self._interface = interface
        self._end = threading.Event()

    def __enter__(self) -> Self:
        self._socket = socket.socket(
            socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS)
        )
        so_rcvbufforce = 33  # beyond net.core.rmem_max; Python has no name for it
        self._socket.setsockopt(socket.SOL_SOCKET, so_rcvbufforce, _BUFFER)
        self._socket.bind((self._interface, 0))
        self._socket.settimeout(0.2)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        self._socket.close()

    def _listen(self) -> None:
        while not self._end.is_set():
            with contextlib.suppress(TimeoutError):
                data, address = self._socket.recvfrom(1 << 17)
                self.frames.append(Frame(time.time(), address[2] == _OUTGOING, data))


def segment_of(frame: Frame) -> Segment | None:
    """Return a frame's TCP segment over IPv4, None for anything else."""
    data = frame.data
    if data[12:14] != b"\x08\x00" or data[_ETHERNET + 9] != 6:
        return None
    ip_size = (data[_ETHERNET] & 15) * 4
    total = int.from_bytes(data[_ETHERNET + 2 : _ETHERNET + 4])
    tcp = _ETHERNET + ip_size
    headers = tcp + (data[tcp + 12] >> 4) * 4
    flow = (data[_ETHERNET + 12 : _ETHERNET + 16] + data[tcp : tcp + 2], data[tcp + 2 : tcp + 4])
    sequence = int.from_bytes(data[tcp + 4 : tcp + 8])
    return Segment(flow, sequence, headers, data[headers : _ETHERNET + total])


@dataclass
class Layers:
    """Bytes of frames by layer."""

    frames: int = 0
    interface: int = 0
    data_headers: int = 0
    acknowledgements: int = 0
    other: int = 0
    payload: int = 0


def layers_of(frames: Iterable[Frame]) -> Layers:
    """Sort one direction's frames into headers of data, bare acknowledgements and what TCP carries."""
    found = Layers()
    for frame in frames:
        found.frames += 1
        found.interface += len(frame.data)
        segment = segment_of(frame)
        if segment is None:
            found.other += len(frame.data)
        elif not segment.payload:
            found.acknowledgements += len(frame.data)
        else:
            found.data_headers += segment.headers
            found.payload += len(segment.payload)
    return found


@dataclass
class Stream:
    """One direction of a connection from its first byte on.

    ``marks`` are (bytes so far, time) frame by frame, ``repeats`` (time, bytes) of what TCP sent once more.
    """

    content: bytearray = field(default_factory=bytearray)
    marks: list[tuple[int, float]] = field(default_factory=list)
    repeats: list[tuple[float, int]] = field(default_factory=list)

    def time_of(self, position: int) -> float:
        """Return when the byte before ``position`` passed."""
        return self.marks[bisect.bisect_left(self.marks, (position, 0.0))][1]


def streams_of(frames: Iterable[Frame]) -> dict[tuple[bytes, bytes], Stream]:
    """Put the streams of one direction together; a frame sent again counts once."""
    streams: dict[tuple[bytes, bytes], Stream] = {}
    following: dict[tuple[bytes, bytes], int] = {}
    early: dict[tuple[bytes, bytes], dict[int, bytes]] = {}
    for frame in frames:
        segment = segment_of(frame)
        if segment is None or not segment.payload:
            continue
        flow = segment.flow
        stream = streams.setdefault(flow, Stream())
        expected = following.setdefault(flow, segment.sequence)
        parts = early.setdefault(flow, {})
        if (segment.sequence - expected) % (1 << 32) >= 1 << 31 or segment.sequence in parts:
            stream.repeats.append((frame.time, len(segment.payload)))
            continue
        parts[segment.sequence] = segment.payload
        while (part := parts.pop(following[flow], None)) is not None:
            stream.content += part
            stream.marks.append((len(stream.content), frame.time))
            following[flow] = (following[flow] + len(part)) % (1 << 32)
    return streams


def tls_overhead(stream: bytes | bytearray) -> tuple[int, int]:
    """Return (bytes that TLS 1.3 adds to application data, bytes of other records, the handshake's) of a stream.

    An application record has five bytes of header, sixteen of tag and one of inner type. What a handshake sends
    encrypted counts as application data.
    """
    added = handshake = at = 0
    while at + 5 <= len(stream):
        size = 5 + int.from_bytes(stream[at + 3 : at + 5])
        if stream[at] == 23:
            added += 22
        else:
            handshake += size
        at += size
    return added, handshake


@dataclass(frozen=True)
class HttpMessage:
    """A request or a response: its first line, how large its head and body are, and where it ends."""

    first_line: str
    head: int
    body: int
    end: int


def http_messages(stream: bytes | bytearray) -> Iterator[HttpMessage]:
    """Cut a stream of HTTP/1.1 into its messages; bodies have a Content-Length or come in chunks."""
    at = 0
    while (end := stream.find(b"\r\n\r\n", at)) >= 0:
        first, *fields = stream[at:end].decode("latin-1").split("\r\n")
        named = {k.lower(): v.strip() for k, _, v in (f.partition(":") for f in fields)}
        begin = end + 4
        if named.get("transfer-encoding", "").lower() == "chunked":
            finish = stream.find(b"0\r\n\r\n", begin) + 5
        else:
            finish = begin + int(named.get("content-length", 0))
        yield HttpMessage(first, begin - at, finish - begin, finish)
        at = finish
