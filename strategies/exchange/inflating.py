"""What Flower may make of a reply's bytes while it pulls them: no more than was asked for.

A message arrives as objects that name each other, and Flower puts them together before any code of an app sees them. An
Array names its chunks by number, as often as it likes: a megabyte that is sent becomes a gigabyte. Flower offers no
bound, so the public classes that it puts together check here first; outside ``allowing`` they do as they always did.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from common.errors import PayloadError

#: bytes of all that stands beside a reply's arrays together: figures, other records, a message's address
MAX_BESIDE_BYTES = 256 * 2**10

#: bytes of what says how a reply's arrays are put together: names, shapes, the numbers of chunks
MAX_DESCRIBING_BYTES = 4 * 2**20


@dataclass
class _Allowance:
    """What is left of the bytes that one reply may hold: of arrays, of what describes them, and of all else."""

    asked: int
    left: int
    describing: int = MAX_DESCRIBING_BYTES
    beside: int = MAX_BESIDE_BYTES

    def describe(self, size: int) -> None:
        self.describing -= size
        if self.describing < 0:
            raise PayloadError(
                f"what describes the reply's arrays takes {MAX_DESCRIBING_BYTES - self.describing} bytes where "
                f"{MAX_DESCRIBING_BYTES} is the most"
            )

    def lay_beside(self, size: int) -> None:
        self.beside -= size
        if self.beside < 0:
            raise too_much_beside(MAX_BESIDE_BYTES - self.beside)

    def take(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise PayloadError(
                f"the reply's arrays claim {self.asked - self.left} bytes where {self.asked} is the most that was "
                "asked for"
            )


def too_much_beside(size: int) -> PayloadError:
    """Return why a reply with ``size`` bytes beside its arrays is refused."""
    return PayloadError(
        f"what stands beside the reply's arrays takes {size} bytes where {MAX_BESIDE_BYTES} is the most"
    )


_allowance: ContextVar[_Allowance | None] = ContextVar("allowance", default=None)


@contextmanager
def allowing(max_bytes: int) -> Iterator[None]:
    """Let what is inflated in this thread hold ``max_bytes`` of arrays; PayloadError out of Flower's call otherwise."""
    token = _allowance.set(_Allowance(max_bytes, max_bytes))
    try:
        yield
    finally:
        _allowance.reset(token)


def _check(kind: type, content: bytes, children: Mapping[str, Any]) -> None:
    allowance = _allowance.get()
    if allowance is None:
        return
    if kind not in (Array, ArrayRecord):
        allowance.lay_beside(len(content))
        return
    allowance.describe(len(content))
    if kind is Array:
        allowance.take(_claimed(content, children))


def _claimed(content: bytes, children: Mapping[str, Any]) -> int:
    """Return how many bytes an Array will have: its header names chunks, its body numbers them in their order."""
    head, _, body = content.partition(b"\x00")
    names = head.decode().split(" ")[1].split(",")
    sizes = {i: len(children[name].data) for i, name in enumerate(names) if name}
    return sum(sizes[i % len(names)] for i in json.loads(body)["arraychunk_ids"])


def _guard(kind: Any) -> None:
    plain = kind.inflate.__func__

    @wraps(plain)
    def inflate(cls: type, object_content: bytes, children: Any = None) -> Any:
        _check(kind, object_content, children or {})
        return plain(cls, object_content, children)

    kind.inflate = classmethod(inflate)


for _kind in (Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict):
    _guard(_kind)
