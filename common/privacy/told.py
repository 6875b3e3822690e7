"""What a site tells the server of its charges, beside a reply: events, where they are public, and its ledger's head.

The server sends the last head that it saw back: with the roll call all of them, each under a digest of the site's name,
since it does not know yet who is asked; with an instruction the site's own.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from common.privacy.events import Event
from common.privacy.head import Head

RECORD = "privacy"
"""The name of the record in a reply."""

HEADS, HEAD = "ledger-heads", "ledger-head"
"""In the roll call's question, and in an instruction."""

MOST_EVENTS = 64
"""Different events that one run of a site can have: their epsilon is computed every round."""

_STEPS = 10**9
"""Steps of each in one reply."""


@dataclass(frozen=True)
class Told:
    """What stands in the record.

    Parameters
    ----------
    events : tuple of Event
        What was charged; empty where the events would say how many examples the site has.
    whole : bool
        Whether they are all that the site was charged in this run, by its ledger; else those of this reply alone.
    seeded : bool
        Whether the noise was the run's seed's, so that the events guarantee nothing.
    head : Head, optional
        The ledger's; None in a simulation, which keeps none.
    """

    events: tuple[Event, ...] = ()
    whole: bool = False
    seeded: bool = False
    head: Head | None = None

    def to_config(self) -> dict[str, str | bool]:
        """Return it as the fields of a Flower ConfigRecord."""
        head = {} if self.head is None else {HEAD: written(self.head)}
        events = json.dumps([event.to_dict() for event in merged(self.events)])
        return {"events": events, "whole": self.whole, "seeded": self.seeded, **head}

    @classmethod
    def read(cls, fields: Mapping[str, object]) -> Told:
        """Return what ``to_config`` gave; ValueError if it is none."""
        if not set(fields) - {HEAD} == {"events", "whole", "seeded"}:
            raise ValueError("what it says of its privacy lacks a field, or has another")
        if not isinstance(fields["whole"], bool) or not isinstance(fields["seeded"], bool):
            raise ValueError("what it says of its privacy is not true or false")
        events = json.loads(str(fields["events"]))
        if not isinstance(events, list) or len(events) > MOST_EVENTS:
            raise ValueError(f"it has more than {MOST_EVENTS} events")
        head = read_head(str(fields[HEAD])) if HEAD in fields else None
        read = tuple(map(Event.read, events))
        if any(event.steps > _STEPS for event in read):
            raise ValueError(f"an event of it has more than {_STEPS} steps")
        if not all(math.isfinite(event.noise_multiplier) for event in read):
            raise ValueError("an event of it has noise without end")
        return cls(read, fields["whole"], fields["seeded"], head)


def merged(events: tuple[Event, ...]) -> tuple[Event, ...]:
    """Return the same events, each kind once with the steps of all."""
    steps: dict[Event, int] = {}
    for event in events:
        kind = _with_steps(event, 0)
        steps[kind] = steps.get(kind, 0) + event.steps
    return tuple(_with_steps(kind, count) for kind, count in steps.items())


def _with_steps(event: Event, steps: int) -> Event:
    return Event(event.mechanism, event.noise_multiplier, event.sample_rate, steps, event.adjacency)


def written(head: Head) -> str:
    """Return a head as text."""
    return json.dumps(asdict(head))


def read_head(text: str) -> Head:
    """Return what ``written`` gave; ValueError if it is none."""
    return Head.read(json.loads(text))


def all_written(heads: Mapping[str, Head]) -> str:
    """Return the sites' heads as text that names no site."""
    return json.dumps({_digest(site): asdict(head) for site, head in heads.items()})


def own_of(text: str, site: str) -> Head | None:
    """Return the site's own of what ``all_written`` gave; ValueError if it is none of it."""
    found = json.loads(text)
    if not isinstance(found, Mapping):
        raise ValueError("these are not heads of ledgers")
    return Head.read(found[_digest(site)]) if _digest(site) in found else None


def _digest(site: str) -> str:
    return hashlib.sha256(site.encode()).hexdigest()
