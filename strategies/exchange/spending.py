"""What a run's sites have been charged, and the heads of their ledgers that were seen: the server's side of both."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field

from flwr.app import Message

from common.errors import PayloadError
from common.privacy.events import Event
from common.privacy.head import Head
from common.privacy.told import MOST_EVENTS, RECORD, Told, merged


@dataclass
class Spending:
    """Kept with a checkpoint, told with a round's line.

    Attributes
    ----------
    events : dict of str to tuple of Event
        By site, those of this run. A site with a ledger tells all of them each time, so that one whose reply was lost
        is counted with the next; of a simulated one they are those of the replies that came.
    seeded : dict of str to bool
        Whether the noise was the run's seed's.
    heads : dict of str to Head
        The newest head that was seen of each site's ledger, in this run or in one before it.
    """

    events: dict[str, tuple[Event, ...]] = field(default_factory=dict)
    seeded: dict[str, bool] = field(default_factory=dict)
    heads: dict[str, Head] = field(default_factory=dict)

    def take_from(self, reply: Message, site: str, noises: Collection[float] | None) -> None:
        """Note a reply's charges, of ``noises`` alone if given; PayloadError if unreadable or of other noise."""
        told = told_with(reply)
        if told is None:
            return
        if noises is not None and (
            not noises or any(event.noise_multiplier not in noises for event in told.events)
        ):
            raise PayloadError("it says that it was charged for noise that the run does not have")
        self.take(site, told)

    def take(self, site: str, told: Told) -> None:
        """Note what came beside a reply, accepted or not, as it left; PayloadError of more kinds than a run has."""
        before = () if told.whole else self.events.get(site, ())
        events = merged((*before, *told.events))
        if len(events) > MOST_EVENTS:
            raise PayloadError(
                f"it says that it was charged for {len(events)} kinds of events in this run where {MOST_EVENTS} is the "
                "most"
            )
        self.events[site] = events
        self.seeded[site] = told.seeded or self.seeded.get(site, False)
        self.see(site, told.head)

    def see(self, site: str, head: Head | None) -> None:
        """Keep the longer of a head and the one that is known."""
        if head is not None and head.length > self.heads.get(site, Head()).length:
            self.heads[site] = head

    def state(self) -> dict[str, str]:
        """Return it as a checkpoint holds it; nothing where nothing was charged or seen."""
        if not self.events and not self.heads:
            return {}
        events = {site: [e.to_dict() for e in each] for site, each in self.events.items()}
        heads = {site: asdict(head) for site, head in self.heads.items()}
        return {"said": json.dumps({"events": events, "seeded": self.seeded, "heads": heads})}

    def put_back(self, state: Mapping[str, str]) -> None:
        """Take back what ``state`` returned; a head that was seen since stays."""
        said = json.loads(state["said"])
        self.events = {site: tuple(map(Event.read, each)) for site, each in said["events"].items()}
        self.seeded = said["seeded"]
        for site, head in said["heads"].items():
            self.see(site, Head.read(head))


def told_with(reply: Message) -> Told | None:
    """Return what a reply says of its site's charges, if anything; PayloadError if that is something else."""
    if not reply.has_content() or RECORD not in reply.content:
        return None
    try:
        return Told.read(dict(reply.content.config_records[RECORD]))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise PayloadError(f"what it says of its privacy cannot be read ({error})") from None
