"""One instruction at a site: of which round it is, until when, what the site remembers and says beside its reply."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor

from client_app.deadline import Deadline
from client_app.memory import Memory
from client_app.owner.ledger import Account
from client_app.state import Tensors
from common.draws.entropy import KeyStream
from common.privacy.told import Told


@dataclass
class Charged:
    """What a site was charged in a round: one for the client that the server asked and those inside it.

    Attributes
    ----------
    account : Account or None
        A real site's ledger and budget; None in a simulation.
    told : Told or None
        What the server is told of the phase's charges; None while there are none.
    steps : int
        How many steps the phase takes, as far as is known before the first.
    estimate : callable, optional
        Returns how long the phase would take, in seconds.
    """

    account: Account | None = None
    told: Told | None = None
    steps: int = 0
    estimate: Callable[[], float] | None = None


@dataclass(frozen=True)
class SiteRound:
    """What a client knows of the instruction that it works on, and the clients inside it too.

    Attributes
    ----------
    memory : Memory
        What the site remembers, as of its round that the server last took.
    private : bool
        Whether what is computed from private data stays, unless it went through a mechanism.
    number : int
        The round; 0 before any instruction.
    figures : dict of str to float
        What goes along with the reply.
    stream : KeyStream
        Where the round's noise comes from, unless it is the seed's.
    after_review : list of callable
        Each is told the positions of those images that the site's owner lets leave.
    slots : str
        What the names of this client's slots of memory begin with; empty for the method that the server asked.
    """

    memory: Memory
    charged: Charged
    private: bool
    number: int = 0
    phase: str = ""
    deadline: Deadline = field(default_factory=Deadline)
    figures: dict[str, float] = field(default_factory=dict)
    stream: KeyStream = field(default_factory=KeyStream)
    after_review: list[Callable[[Tensor], None]] = field(default_factory=list)
    slots: str = ""

    def within(self, method: str) -> SiteRound:
        """Return the round as the client of a method inside sees it: the same, with slots of its own."""
        return replace(self, slots=f"{self.slots}{method}.")

    def recall(self, slot: str) -> Tensors | None:
        """Return what stands in a slot; see `DeviceClient.recall`."""
        return self.memory.read(self.slots + slot)

    def remember(self, tensors: Tensors, slot: str) -> None:
        """Keep ``tensors`` in a slot; see `DeviceClient.remember`."""
        self.memory.write(self.slots + slot, tensors)

    def sent(self, made: Tensor, shown: Tensor, kept: Tensor) -> None:
        """Let what is remembered of images that were made be what leaves of them."""
        self.memory.replace(made, shown, kept)
        for told in self.after_review if len(kept) < len(made) else ():
            told(kept)

    def end(self) -> None:
        """Write what is remembered, and let what the memory says of itself go along with the reply."""
        self.memory.save(self.number)
        self.figures.update(self.memory.figures)

    def tell(self, figures: Mapping[str, float]) -> None:
        """Send figures along; underscores become dashes."""
        self.figures.update({key.replace("_", "-"): float(v) for key, v in figures.items()})
