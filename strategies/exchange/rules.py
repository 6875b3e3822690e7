"""The rules that each part of a reply must satisfy, as a method states them in ``Strategy.validation_rules``.

The spec of a part checks its form: shape, dtype, finite values, number of examples. A rule limits its values to what an
honest site can send, and says who uses them next and where they are stored.
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
from common.wire.coders import ROUNDED
from common.wire.form import CarriesExamples, Payload, require_codec
from common.wire.weights import Weights
from strategies.exchange.judging import STATISTICS, CandidateModel, Clipping, FiniteChecks
from strategies.exchange.replies import Upload


def compared_rule(reason: str, start: Weights, part: str, used_by: str, stored_in: str) -> Rule:
    """Return a rule for weights that are not a model of the run: their distance to ``start``, against the others'."""

    def led(_: Weights, __: Upload, sent: Weights) -> CandidateModel:
        return CandidateModel(sent, start, part=part)

    return Rule(reason, used_by, stored_in, candidate=led)


@dataclass(frozen=True)
class Rule:
    """What one part of a reply must satisfy.

    Parameters
    ----------
    reason : str
        What limits its values, in words.
    used_by : str
        Who uses them next.
    stored_in : str
        Where they are stored.
    require : callable, optional
        Of the round's weights, the upload and the part: raises PayloadError where the part cannot be an honest site's.
    candidate : callable, optional
        Of the round's weights, the upload and the part: what is compared with the same part of the others.
    codec : str
        What its values travel in; empty for what the run's ``wire`` settings say of payloads of its kind.
    """

    reason: str
    used_by: str
    stored_in: str
    require: Callable[[Weights, Upload, Any], None] | None = None
    candidate: Callable[[Weights, Upload, Any], CandidateModel] | None = None
    codec: str = ""


def model_rule(
    used_by: str = "the average, and with it every site",
    stored_in: str = "the average",
    *,
    codec: str = "",
) -> Rule:
    """Return the rule for weights, or for an update, that ``Strategy.resulting_model`` makes a model of."""
    reason = (
        "`federation.robust` and `federation.max_update`, beside the round's others; the model gives finite "
        "numbers"
    )
    return Rule(reason, used_by, stored_in, codec=codec)


def form_rule(reason: str, used_by: str, stored_in: str, *, codec: str = "") -> Rule:
    """Return the rule for a part that its spec checks in full: ``reason`` says why."""
    return Rule(reason, used_by, stored_in, codec=codec)


def image_rule(run: Run, used_by: str, stored_in: str, *, means: bool = False) -> Rule:
    """Return the rule for normalised images.

    Parameters
    ----------
    run : Run
        The run; ``federation.max_pixel=0`` allows any value.
    used_by, stored_in : str
        As `Rule` has them.
    means : bool
        Whether they are means of real images, which lie within those images' range.
    """
    factor = run.config.federation.max_pixel
    times = f"federation.max_pixel={factor:g} times " if factor and not means else ""
    factor = min(factor, 1.0) if means else factor

    def require(_: Weights, __: Upload, sent: CarriesExamples) -> None:
        _require_in_range(sent.examples, run.info, factor, times)

    reason = (
        "the range of real images"
        if means
        else "`federation.max_pixel` times the range of real images"
    )
    return Rule(reason, used_by, stored_in, require)


def _require_in_range(values: Tensor, info: DatasetInfo, factor: float, times: str) -> None:
    if not factor:
        return
    allowed, found = factor * info.largest, float(values.abs().max())
    if found > allowed * (1 + ROUNDED):
        raise PayloadError(
            f"its images hold a value of {found:.2g} where {times}the range of {info.name}, {allowed:.3g}, is allowed"
        )


def vector_rule(name: str, longest: float, why: str, used_by: str, stored_in: str) -> Rule:
    """Return the rule for the vectors ``name`` of a `Tensors`: their length is at most ``longest``, by ``why``."""

    def require(_: Weights, __: Upload, sent: Any) -> None:
        rows = sent[name]
        found = float(rows.double().norm(dim=1).max()) if len(rows) else 0.0
        if found > longest * (1 + ROUNDED):
            raise PayloadError(
                f"a vector of it is {found:.3g} long, and {why} make {longest:.3g} the most"
            )

    return Rule(f"length at most {why}", used_by, stored_in, require)


def part_without_rule(spec: Any, rules: Mapping[str, Rule]) -> str | None:
    """Return the path of a part without a rule; None if each has one."""
    return next((path for path, _ in leaves(spec) if _rule_of(path, rules) is None), None)


def _rule_of(path: str, rules: Mapping[str, Rule]) -> Rule | None:
    """Return the rule for a part: its own, else that of the nearest bundle around it that has one."""
    while path and path not in rules:
        path = path.rpartition("/")[0]
        if not path:
            return None
    return rules.get(path)


def require_valid(
    rules: Mapping[str, Rule], wire: WireSettings, weights: Weights, upload: Upload
) -> None:
    """Refuse an upload with a part that breaks its rule; PayloadError naming the part."""
    for path, part in leaves(upload.payload):
        rule = _rule_of(path, rules)
        try:
            require_codec(part, wire, rule.codec if rule is not None else "")
            if rule is not None and rule.require is not None:
                rule.require(weights, upload, part)
        except PayloadError as error:
            raise PayloadError(f"its part '{path}': {error}" if path else str(error)) from None


def compared_parts(
    rules: Mapping[str, Rule], weights: Weights, upload: Upload
) -> list[CandidateModel]:
    """Return the parts of an upload that are compared with the others', besides the model that it leads to."""
    return [
        rule.candidate(weights, upload, part)
        for path, part in leaves(upload.payload)
        if (rule := _rule_of(path, rules)) is not None and rule.candidate is not None
    ]


# ---- screening -----------------------------------------------------------------------------------
# What a strategy decides about replies: which it accepts, how it judges them, and how many are enough.

#: the name of the one model that most methods learn
GLOBAL = ""

#: the part of a bundle that is a model
_WEIGHTS = "weights"


class ScreeningHooks(ABC):
    """The hooks by which an open round asks its strategy about replies, with defaults that most methods keep."""

    run: Run
    trials: FiniteChecks

    #: the records that a reply may hold; None for any
    records: ClassVar[Collection[str] | None] = frozenset({"arrays", "metrics", "about", RECORD})
    #: whether an update that is longer than the others' is shortened (``federation.robust``)
    clips: ClassVar[bool] = True

    @abstractmethod
    def validation_rules(self) -> Mapping[str, Rule]:
        """Return the rule for each part that the sites send, by the part's name; the empty name if there is one part.

        A name covers all parts of a bundle of that name. A run whose sites would send a part without a rule is refused.
        """

    def prepare(self, server_round: int, weights: Weights, upload: Upload) -> Upload:
        """Return a validated upload as ``update`` gets it.

        Raises
        ------
        PayloadError
            If it cannot be used although it is well-formed; the reply is rejected for this reason.
        """
        return upload

    def resulting_model(self, weights: Weights, upload: Upload) -> Weights | None:
        """Return the model that would result from this prepared upload alone; None if it does not make a model.

        The model must give finite outputs, and its distance from the round's weights is compared with the others'
        (``federation.max_update``). A method whose sites send weights or updates overrides this.
        """
        return None

    def clipped(self, upload: Upload, clipping: Clipping) -> Upload:
        """Return a prepared upload, shortened as ``clipping`` says.

        The default serves payloads that are weights, alone or as the part ``weights`` of a bundle.

        Raises
        ------
        PayloadError
            If the payload is neither; the reply is then rejected.
        """
        payload = upload.payload
        name = _WEIGHTS if clipping.part in ("", STATISTICS) else clipping.part
        long = payload.parts.get(name) if isinstance(payload, Bundle) else payload
        if not isinstance(long, Weights):
            raise PayloadError(
                f"it is longer than federation.clip allows, and {type(self).__name__}.clipped does not shorten it"
            )
        shorter: Payload = clipping.of(long)
        if isinstance(payload, Bundle):
            shorter = Bundle({**payload.parts, name: shorter})
        return replace(upload, payload=shorter)

    def initial_model(self, weights: Weights, site: Site) -> tuple[Weights, str]:
        """Return the weights that a site's model began the round with, and its architecture for `Run.with_model`.

        Uploads are compared within one architecture.
        """
        return weights, GLOBAL

    def quorum(self, asked: int) -> int:
        """Return how many replies must be accepted, of so many sites ``asked``, or the run stops."""
        return min(self.run.config.federation.min_replies, asked)
