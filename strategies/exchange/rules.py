"""The rules that each part of a reply must satisfy, as a method states them in ``Strategy.validation_rules``.

The spec of a part checks its form: shape, dtype, finite values, number of examples. A rule limits its values to what an
honest site can send, and says who uses them next and where they are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from common.errors import PayloadError
from common.learning.run import Run
from common.settings.sections import WireSettings
from common.wire.bundle import leaves
from common.wire.coders import ROUNDED
from common.wire.form import CarriesExamples, require_codec
from common.wire.weights import Weights
from strategies.exchange.replies import Upload

#: the name of the one model that most methods learn
GLOBAL = ""

#: the part of a model that is no parameter: running statistics, which are no solution of a descent
STATISTICS = "statistics"


@dataclass(frozen=True)
class CandidateModel:
    """The model that results from one upload alone.

    Attributes
    ----------
    model : Weights or None
        The model; None of an upload that is judged otherwise.
    start : Weights
        The weights that its site started from.
    architecture : str
        Theirs, as `Run.with_model` takes it; empty for the run's own.
    part : str
        The part of the payload that this is, where it is no model of the run: it is compared with the others' and not
        tried.
    """

    model: Weights | None
    start: Weights
    architecture: str = ""
    part: str = ""


@dataclass(frozen=True)
class Clipping:
    """A clipping of a part of an upload that is longer than the others'.

    Attributes
    ----------
    part : str
        The part; empty for the model that the upload leads to.
    start : Weights
        What its length is measured from.
    share : float
        What of its way from there is left, below 1.
    """

    part: str
    start: Weights
    share: float

    def of(self, ended: Weights) -> Weights:
        """Return where that share of the way ends; integers, and what ``start`` lacks, are as at its end."""
        start = self.start.read_only
        moved = {
            name: torch.lerp(start[name], end, self.share)
            if name in start and end.is_floating_point()
            else end
            for name, end in ended.read_only.items()
        }
        return Weights(moved, ended.codec)


@dataclass(frozen=True)
class Rule:
    """The rule for one part of a reply.

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
        A part that its spec checks in full needs none.
    candidate : callable, optional
        Of the round's weights, the upload and the part: what is compared with the same part of the others.
    codec : str
        The codec of its values; empty for what the run's ``wire`` settings say of payloads of its kind.
    """

    reason: str
    used_by: str
    stored_in: str
    require: Callable[[Weights, Upload, Any], None] | None = None
    candidate: Callable[[Weights, Upload, Any], CandidateModel] | None = None
    codec: str = ""

    def applied_to(self, inner: Callable[[Upload], Upload]) -> Rule:
        """Return the same rule, whose ``require`` gets the upload that ``inner`` makes of another method's."""
        require = self.require
        if require is None:
            return self
        return replace(self, require=lambda w, upload, part: require(w, inner(upload), part))


def model_rule(
    used_by: str = "the average, and with it every site",
    stored_in: str = "the average",
    *,
    codec: str = "",
) -> Rule:
    """Return the rule for weights, or for an update, that ``Strategy.resulting_model`` makes a model of."""
    reason = (
        "`federation.robust` and `federation.max_update`, relative to the round's others; the model gives finite "
        "numbers"
    )
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
        Whether they are means of real images, which are within those images' range.
    """
    factor = run.config.federation.max_pixel
    times = f"federation.max_pixel={factor:g} times " if factor and not means else ""
    factor = min(factor, 1.0) if means else factor

    def require(_: Weights, __: Upload, sent: CarriesExamples) -> None:
        if not factor:
            return
        allowed, found = factor * run.info.largest, float(sent.examples.abs().max())
        if found > allowed * (1 + ROUNDED):
            raise PayloadError(
                f"its images hold a value of {found:.2g} where {times}the range of {run.info.name}, {allowed:.3g}, is "
                "allowed"
            )

    reason = f"{'' if means else '`federation.max_pixel` times '}the range of real images"
    return Rule(reason, used_by, stored_in, require)


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


def rule_of(path: str, rules: Mapping[str, Rule]) -> Rule | None:
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
        rule = rule_of(path, rules)
        try:
            require_codec(part, wire, rule.codec if rule is not None else "")
            if rule is not None and rule.require is not None:
                rule.require(weights, upload, part)
        except PayloadError as error:
            raise PayloadError(f"its part '{path}': {error}" if path else str(error)) from None
