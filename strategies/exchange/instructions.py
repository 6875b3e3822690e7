"""What a round sends: an instruction for a site, and its payload as Flower's arrays, serialised once a round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat

from flwr.app import Array, ArrayRecord

from common.learning.run import Run
from common.specs.updates import MEMORY_LOST
from common.wire import npy
from common.wire.bundle import Bundle
from common.wire.coders import view_of
from common.wire.form import Payload, Spec
from common.wire.npy import array_of, record_of
from common.wire.weights import CopyOnWriteTensors, Weights
from strategies.exchange.replies import Outcome


@dataclass(frozen=True)
class Instruction:
    """What one site is to do: a phase of its client, the payload it gets, and what it must send back."""

    phase: str
    payload: Payload
    expects: Spec


class Serialiser:
    """Serialises a round's payloads, and keeps what a payload or a part of a bundle has become for the next site.

    Payloads are compared by identity: what it is given must live as long as it does, and must not change.

    Parameters
    ----------
    known : sequence of Array
        What the round begins with: weights with the same encoding share theirs.
    """

    def __init__(self, known: Sequence[Array] = ()) -> None:
        self._known = known
        self._kept: dict[int, list[Array]] = {}
        self._records: dict[int, ArrayRecord] = {}

    def record(self, payload: Payload) -> ArrayRecord:
        """Return what is sent for ``payload``, the same object each time: it must not be changed."""
        if id(payload) not in self._records:
            self._records[id(payload)] = self._put_together(payload)
        return self._records[id(payload)]

    def _put_together(self, payload: Payload) -> ArrayRecord:
        parts = payload.parts if isinstance(payload, Bundle) else {"": payload}
        arrays: list[Array] = []
        counts: dict[str, int] = {}
        for name, part in parts.items():
            kept = self._once(part)
            arrays += kept
            counts[name] = len(kept)
        if isinstance(payload, Bundle):
            arrays.insert(0, array_of(Bundle.head(counts)))
        return record_of(arrays)

    def _once(self, part: Payload) -> list[Array]:
        if id(part) not in self._kept:
            encoded = part.encode()
            places = [None, *self._known] if len(encoded) == 1 + len(self._known) else repeat(None)
            self._kept[id(part)] = [
                _shared(array_of(ndarray), known)
                for ndarray, known in zip(encoded, places, strict=False)
            ]
        return self._kept[id(part)]


def _shared(array: Array, known: Array | None) -> Array:
    return known if known is not None and known.data == array.data else array


def weights_from(run: Run, arrays: ArrayRecord) -> Weights:
    """Return Flower's arrays as Weights in the model's dtypes: views of their bytes, copied on request."""
    spec = run.spec
    views = {
        name: view_of(npy.read(arrays[name].data)).to(dtype)
        for name, dtype in zip(spec.names, spec.dtypes, strict=True)
    }
    return Weights(CopyOnWriteTensors(views), run.config.wire.whole_weights)


def arrays_from(weights: Weights) -> ArrayRecord:
    """Return Weights as Flower's arrays, one a tensor under its own name."""
    return ArrayRecord(dict(weights.read_only))


# ---- what a site gets once -----------------------------------------------------------------------


class OneTimePayloads:
    """Keeps the edition that each site has, by the replies that were taken.

    A site that says that it lost its memory is sent the parcel again.

    Attributes
    ----------
    held : mapping of str to int
        The edition by site, which a checkpoint holds.
    """

    def __init__(self, held: Mapping[str, int] | None = None) -> None:
        self.held = dict(held or {})
        self._out: dict[str, int] = {}

    def pending(self, site: str, edition: int) -> bool:
        """Return whether ``site`` is to be sent ``edition`` with this round's instruction, and note that it is."""
        if self.held.get(site) == edition:
            return False
        self._out[site] = edition
        return True

    def confirm(self, outcome: Outcome) -> None:
        """Note what the sites whose replies were taken now have."""
        for site, figures in outcome.accepted.items():
            if site in self._out:
                self.held[site] = self._out[site]
            elif MEMORY_LOST in figures:
                self.held.pop(site, None)
        self._out.clear()
