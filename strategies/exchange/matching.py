"""Which reply answers what: by the numbers that Flower gives messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from flwr.app import Message

from common.sites import Site, site_order

Asked = TypeVar("Asked")


def matched(
    replies: Iterable[Message], sent: Sequence[tuple[Message, Site, Asked]]
) -> Iterator[tuple[Message, Site, Asked]]:
    """Yield each reply with the site and what it was asked; a list is put into site order first.

    Flower numbers a message when it is sent, and a wave is sent when its first reply is asked for: the ids
    are read as late as that. A reply to none of ``sent`` is passed over.
    """
    if isinstance(replies, list):
        asked = _by_message_id(sent)
        known = [r for r in replies if r.metadata.reply_to_message_id in asked]
        replies = sorted(
            known, key=lambda r: site_order(asked[r.metadata.reply_to_message_id][0].name)
        )
    asked = {}
    for reply in replies:
        answers = reply.metadata.reply_to_message_id
        if answers not in asked:
            asked = _by_message_id(sent)
        held = [reply]
        del reply
        if answers in asked:
            yield (held.pop(), *asked[answers])


def _by_message_id(sent: Sequence[tuple[Message, Site, Asked]]) -> dict[str, tuple[Site, Asked]]:
    return {message.metadata.message_id: (site, what) for message, site, what in sent}
