"""What of each part of a reply is believed: the bounds that a method states in ``Strategy.bounds``.

A part's form (shape, dtype, finite values, number of examples) is its spec's. Here stands how large its values may be,
by what an honest site can have, who meets them next and where they stay.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from common.errors import PayloadError
from common.learning.run import Run
from common.privacy.ledger import RECORD
from common.samples.dataset import DatasetInfo
from common.settings.sections import WireSettings
from common.sites import Site
from common.wire.bundle import Bundle, leaves
from common.wire.codec import ROUNDED, CarriesExamples, Payload, require_codec
from common.wire.tensors import VECTORS
from common.wire.weights import Weights
from strategies.exchange.judging import STATISTICS, Led, Shortening, Trials
from strategies.exchange.replies import Upload


def beside(by: str, start: Weights, part: str, reaches: str, stays: str) -> Bound:
    """Return the bound of weights that are no model of the run: their distance to ``start`` beside the others'."""

    def led(_: Weights, __: Upload, sent: Weights) -> Led:
        return Led(sent, start, part=part)

    return Bound(by, reaches, stays, beside=led)


@dataclass(frozen=True)
class Bound:
    """What is believed of one part.

    Parameters
    ----------
    by : str
        What bounds its values, in words.
    reaches : str
        Who meets them next.
    stays : str
        Where they are kept.
    require : callable, optional
        Of the round's weights, the upload and the part: raises PayloadError where the part cannot be an honest site's.
    beside : callable, optional
        Of the round's weights, the upload and the part: what is held against the same part of the round's others.
    codec : str
        What its values travel in; empty for what the run's ``wire`` settings say of payloads of its kind.
    """

    by: str
    reaches: str
    stays: str
    require: Callable[[Weights, Upload, Any], None] | None = None
    beside: Callable[[Weights, Upload, Any], Led] | None = None
    codec: str = ""


def model(
    reaches: str = "the average, and with it every site",
    stays: str = "the average",
    *,
    codec: str = "",
) -> Bound:
    """Return the bound of weights, or of an update, that ``Strategy.leads_to`` makes a model of."""
    by = "`federation.robust` and `federation.max_update`, beside the round's others; the model gives finite numbers"
    return Bound(by, reaches, stays, codec=codec)


def form(by: str, reaches: str, stays: str, *, codec: str = "") -> Bound:
    """Return the bound of a part whose spec leaves nothing to judge: ``by`` says why."""
    return Bound(by, reaches, stays, codec=codec)


def images(run: Run, reaches: str, stays: str, *, means: bool = False) -> Bound:
    """Return the bound of normalised images.

    Parameters
    ----------
    run : Run
        The run; ``federation.max_pixel=0`` allows any value.
    reaches, stays : str
        As a bound has them.
    means : bool
        Whether they are means of real images, which lie within the range of these.
    """
    factor = run.config.federation.max_pixel
    times = f"federation.max_pixel={factor:g} times " if factor and not means else ""
    factor = min(factor, 1.0) if means else factor

    def require(_: Weights, __: Upload, sent: CarriesExamples) -> None:
        _require_in_range(sent.examples, run.info, factor, times)

    by = (
        "the range of real images"
        if means
        else "`federation.max_pixel` times the range of real images"
    )
    return Bound(by, reaches, stays, require)


def _require_in_range(values: Tensor, info: DatasetInfo, factor: float, times: str) -> None:
    if not factor:
        return
    allowed, found = factor * info.largest, float(values.abs().max())
    if found > allowed * (1 + ROUNDED):
        raise PayloadError(
            f"its images hold a value of {found:.2g} where {times}the range of {info.name}, {allowed:.3g}, is allowed"
        )


def vectors(longest: float, why: str, reaches: str, stays: str) -> Bound:
    """Return the bound of latent vectors by their Euclidean length, which follows from ``why``."""

    def require(_: Weights, __: Upload, sent: Any) -> None:
        rows = sent[VECTORS]
        found = float(rows.double().norm(dim=1).max()) if len(rows) else 0.0
        if found > longest * (1 + ROUNDED):
            raise PayloadError(
                f"a vector of it is {found:.3g} long, and {why} make {longest:.3g} the most"
            )

    return Bound(f"length at most {why}", reaches, stays, require)


def unbounded(spec: Any, bounds: Mapping[str, Bound]) -> str | None:
    """Return the path of a part of which no bound says anything; None where there is none."""
    return next((path for path, _ in leaves(spec) if _bound_of(path, bounds) is None), None)


def _bound_of(path: str, bounds: Mapping[str, Bound]) -> Bound | None:
    """Return the bound of a part: its own, else that of the nearest bundle around it that has one."""
    while path and path not in bounds:
        path = path.rpartition("/")[0]
        if not path:
            return None
    return bounds.get(path)


def require_believable(
    bounds: Mapping[str, Bound], wire: WireSettings, weights: Weights, upload: Upload
) -> None:
    """Refuse an upload one of whose parts no honest site can have sent; PayloadError naming the part."""
    for path, part in leaves(upload.payload):
        bound = _bound_of(path, bounds)
        try:
            require_codec(part, wire, bound.codec if bound is not None else "")
            if bound is not None and bound.require is not None:
                bound.require(weights, upload, part)
        except PayloadError as error:
            raise PayloadError(f"its part '{path}': {error}" if path else str(error)) from None


def held_beside(bounds: Mapping[str, Bound], weights: Weights, upload: Upload) -> list[Led]:
    """Return what of an upload is held against the same parts of the others, besides the model that it leads to."""
    return [
        bound.beside(weights, upload, part)
        for path, part in leaves(upload.payload)
        if (bound := _bound_of(path, bounds)) is not None and bound.beside is not None
    ]


# ---- screening -----------------------------------------------------------------------------------
# What a strategy says of its sites' replies: what is accepted, by what it is judged, and how many are enough.

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
