"""Replies that go through Flower's own objects, as over a SuperLink, and what a hostile site makes of these."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from flwr.app import Message
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from nectar.engines.local_grid import LocalGrid

#: a reply's objects by id, as they are stored; an edit changes them in place
Objects = dict[str, bytes]
Edit = Callable[[Objects], None]


def deflated(message: Message) -> tuple[str, Objects]:
    """Return a message's id and its objects."""
    nested = get_all_nested_objects(message)
    return message.object_id, {name: item.deflate() for name, item in nested.items()}


def inflated(message_id: str, objects: Objects) -> Message:
    """Put a message together as Flower's grid does, once it has pulled all objects."""
    message = inflate_object_from_contents(message_id, dict(objects))
    message.metadata.__dict__["_message_id"] = message_id
    assert isinstance(message, Message)
    return message


class ObjectGrid(LocalGrid):
    """A federation whose replies are pulled as objects; ``edits`` are what hostile devices make of theirs.

    As at a SuperLink, a pull hands out all that is asked for: what it could not put together is gone with the rest.

    Parameters
    ----------
    edits : mapping of int to callable
        By the device's number.
    kind : str
        The type of the messages whose replies are edited.
    """

    def __init__(
        self, *args: Any, edits: Mapping[int, Edit], kind: str = "train", **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        nodes = self.get_node_ids()
        self._edits = {nodes[i]: edit for i, edit in edits.items()}
        self._kind = kind

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Deflate, edit, inflate."""
        return [self._carried(reply) for reply in super().pull_messages(message_ids)]

    def _carried(self, reply: Message) -> Message:
        message_id, objects = deflated(reply)
        edit = self._edits.get(reply.metadata.src_node_id)
        if edit is not None and reply.metadata.message_type.startswith(self._kind):
            edit(objects)
        return inflated(message_id, objects)


# ---- edits --------------------------------------------------------------------------------------------


def content(kind: str, body: bytes, children: Iterable[str] = ()) -> bytes:
    """Return an object as it is stored."""
    return f"{kind} {','.join(children)} {len(body)}".encode() + b"\x00" + body


def of_kind(objects: Objects, kind: str) -> list[str]:
    """Return the ids of the objects of a kind."""
    return [name for name, stored in objects.items() if stored.startswith(f"{kind} ".encode())]


def parts(stored: bytes) -> tuple[str, list[str], bytes]:
    """Return an object's kind, the ids of its children and its body."""
    head, _, body = stored.partition(b"\x00")
    kind, children, _ = head.decode().split(" ")
    return kind, [child for child in children.split(",") if child], body


def rewritten(kind: str, change: Callable[[bytes], bytes]) -> Edit:
    """Return an edit of the bodies of all objects of a kind."""

    def edit(objects: Objects) -> None:
        for name in of_kind(objects, kind):
            _, children, body = parts(objects[name])
            objects[name] = content(kind, change(body), children)

    return edit


def npz(_: bytes = b"") -> bytes:
    """Return an archive of arrays."""
    buffer = io.BytesIO()
    np.savez(buffer, np.zeros(3))
    return buffer.getvalue()


def repeated(times: int) -> Edit:
    """Return an edit by which an Array names each of its chunks ``times`` times."""

    def change(body: bytes) -> bytes:
        described = json.loads(body)
        described["arraychunk_ids"] = described["arraychunk_ids"] * times
        return json.dumps(described).encode()

    return rewritten("Array", change)


def dropped(kind: str) -> Edit:
    """Return an edit that keeps back the objects of a kind, though others name them."""

    def edit(objects: Objects) -> None:
        for name in of_kind(objects, kind):
            del objects[name]

    return edit


def retyped(kind: str, other: str) -> Edit:
    """Return an edit that gives objects of a kind out as others."""

    def edit(objects: Objects) -> None:
        for name in of_kind(objects, kind):
            _, children, body = parts(objects[name])
            objects[name] = content(other, body, children)

    return edit
