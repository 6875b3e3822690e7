"""What a strategy says of its sites' replies: what is accepted, by what it is judged, and how many are enough."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import ClassVar

from common.errors import PayloadError
from common.learning.run import Run
from common.privacy.ledger import RECORD
from common.sites import Site
from common.wire.bundle import Bundle
from common.wire.codec import Payload
from common.wire.weights import Weights
from strategies.exchange.judging import STATISTICS, Shortening, Trials
from strategies.exchange.replies import Upload
from strategies.exchange.rules import Bound

#: the name of the one model that most methods learn
GLOBAL = ""

#: the part of a bundle that is a model
_WEIGHTS = "weights"


class Screening(ABC):
    """The hooks by which an open round asks its strategy about replies. What is written here holds for most methods."""

    run: Run
    trials: Trials

    #: the records that a reply may hold; None for any
    records: ClassVar[Collection[str] | None] = frozenset({"arrays", "metrics", "about", RECORD})
    #: whether an update that is longer than the others' is shortened (``federation.robust``)
    clips: ClassVar[bool] = True

    @abstractmethod
    def bounds(self) -> Mapping[str, Bound]:
        """Return what is believed of each part that the sites send, by the part's name; empty for one that is alone.

        A name covers the parts of a bundle of that name. A run whose sites are to send another part is refused.
        """

    def prepare(self, server_round: int, weights: Weights, upload: Upload) -> Upload:
        """Return a validated upload as ``update`` is to get it.

        Raises
        ------
        PayloadError
            If it cannot be used although it is well-formed; the reply is rejected for this reason.
        """
        return upload

    def leads_to(self, weights: Weights, upload: Upload) -> Weights | None:
        """Return the model that a prepared upload alone would lead to, by which it is judged; None where there is none.

        What is returned is held against the other uploads' lengths (``federation.max_update``) and must give finite
        outputs. A method whose sites send weights, or updates, says here what they come to.
        """
        return None

    def shortened(self, upload: Upload, shortening: Shortening) -> Upload:
        """Return a prepared upload that leads as far as ``shortening`` lets it.

        As it is written here it serves payloads that are weights, alone or as the part ``weights`` of a bundle.

        Raises
        ------
        PayloadError
            If it is none of these; then it is rejected.
        """
        payload = upload.payload
        name = _WEIGHTS if shortening.part in ("", STATISTICS) else shortening.part
        long = payload.parts.get(name) if isinstance(payload, Bundle) else payload
        if not isinstance(long, Weights):
            raise PayloadError(
                f"it is longer than federation.clip allows, and {type(self).__name__}.shortened does not shorten it"
            )
        shorter: Payload = shortening.of(long)
        if isinstance(payload, Bundle):
            shorter = Bundle({**payload.parts, name: shorter})
        return replace(upload, payload=shorter)

    def start_of(self, weights: Weights, site: Site) -> tuple[Weights, str]:
        """Return what a site's model began the round with, and its architecture as `Run.with_model` takes it.

        Uploads are compared with those of the same architecture.
        """
        return weights, GLOBAL

    def quorum(self, asked: int) -> int:
        """Return how many of so many sites that were asked have to be accepted, or the run stops."""
        return min(self.run.config.federation.min_replies, asked)
