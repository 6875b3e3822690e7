"""What of a payload is a model's update or a figure, by the names that both sides must agree on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from common.config.resolved import Config
from common.errors import FederationError
from common.wire.bundle import BundleSpec, leaves
from common.wire.form import Payload, Spec
from common.wire.int8_update import Int8UpdateSpec
from common.wire.weights import Weights, WeightsSpec

#: what the part of a bundle is called that is a model; a payload that is one has no name
_MODEL = ("", "weights", "inner")

#: how an exception at a site is reported to a server that does not get its text
EXCEPTION = "site failed:"


def sends_updates(config: Config) -> bool:
    """Return whether sites send models as updates of a byte a number: by the run's setting, and as the method says."""
    if not config.wire.updates:
        return False
    disclosures = (settings.disclosure() for settings in config.methods.values())
    return any(one is not None and one.payload.startswith("weights") for one in disclosures)


def is_model(path: str) -> bool:
    """Return whether weights at ``path`` of a payload are a model, and no control variate, decoder or generator."""
    return path.rpartition("/")[2] in _MODEL


def model_in(sent: Payload) -> Weights | None:
    """Return the model among what a site is sent; None if it is sent no model."""
    found = (part for path, part in leaves(sent) if is_model(path) and isinstance(part, Weights))
    return next(found, None)


def as_updates(expects: Spec, sent: Payload) -> Spec:
    """Return the form of what a site sends: for a model in ``expects``, its difference to the one that it was sent."""
    base = model_in(sent)
    return expects if base is None else _against(base, "", expects)


def _against(base: Weights, path: str, spec: Spec) -> Spec:
    if isinstance(spec, BundleSpec):
        parts = {name: _against(base, f"{path}/{name}", part) for name, part in spec.parts.items()}
        return replace(spec, parts=parts)
    if isinstance(spec, WeightsSpec) and is_model(path) and covers(base, spec.names):
        return Int8UpdateSpec(spec, base)
    return spec


def covers(base: Weights, names: tuple[str, ...]) -> bool:
    """Return whether ``base`` has a tensor of each name."""
    given = base.read_only
    return all(name in given for name in names)


# ---- names ---------------------------------------------------------------------------------------
# The names of what accompanies the arrays of an instruction or a reply, which both sides must agree on.
#
# An instruction to train can also request an evaluation: the site evaluates the weights that it is sent, those of
# the round before, and then begins its phase.

TAKEN = "taken"
"""In an instruction: the round of this site's work that the server last took; 0 for none."""

MEMORY_LOST = "memory-lost"
"""A figure sent with a reply: the site has lost all that it remembered, and started afresh."""

OTHER_ROUNDS = "this site remembers round "
"""How a refusal begins of a site that has other versions than the one that the server names."""

VERSIONS_KEPT = 3
"""Versions of what it remembers that a site keeps: the one that a resumed round needs, and two behind it."""

DATA = "data"
"""In an instruction: the first 16 digits of the checksum of the data of which the sites have parts."""

OTHER_DATA = "the data are not those that the run began with"
"""The beginning of a refusal by a reader of data with another checksum."""

WENT_BACK = "memory-went-back"
"""A figure sent with a reply: the last round accepted before, if the server resumes from an earlier one."""

#: the record of an instruction in which the evaluation is requested, and of a reply in which its figures, or the
#: reason why they are missing, are stored
EVALUATION = "evaluation"

#: a site's figure: places above 0 of its held-out examples counted by true and predicted class, row by row, each with
#: its count after it
COUNTS = "counts"

#: the record of a reply in whose place the phase would have left something, with the reason why it has not
TRAINING_FAILED = "training-failed"

#: the key of the reason in such a record
REASON = "reason"

#: the seconds that are left of a round when its instruction goes out
SECONDS_LEFT = "seconds-left"


# ---- foreign -------------------------------------------------------------------------------------
# What a Flower strategy may ask of its devices in addition to plain local training, by the names that Flower gives it.

PROXIMAL_MU = "proximal-mu"
"""FedProx's: the strength of the pull to the round's weights."""

CLIPPING_NORM = "clipping_norm"
"""That of the wrappers whose clients clip: the length that the full update is cut to."""

NORM_BIT = "norm-bit"
"""The figure sent with a clipped update: 1 if it was longer than that, else 0. Flower writes it ``norm_bit``."""


@dataclass(frozen=True)
class Demands:
    """The demands of an instruction."""

    mu: float = 0.0
    norm: float | None = None

    @classmethod
    def of(cls, config: Mapping[str, object]) -> Demands:
        """Read an instruction's configuration, at the server before it leaves and at the device."""
        mu, norm = _checked(config, PROXIMAL_MU), _checked(config, CLIPPING_NORM)
        return cls(mu or 0.0, norm)

    def fields(self) -> dict[str, float]:
        """Return the fields of the instruction; empty if nothing is demanded."""
        clipping = {} if self.norm is None else {CLIPPING_NORM: self.norm}
        return {**({PROXIMAL_MU: self.mu} if self.mu else {}), **clipping}


def _checked(config: Mapping[str, object], key: str) -> float | None:
    value = config.get(key)
    if value is None:
        return None
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value < math.inf:  # type: ignore[operator]
        raise FederationError(
            f"the strategy asks its devices for {key}={value!r:.40} where a finite number of 0 or more is allowed: "
            "correct its arguments"
        )
    return float(value)  # type: ignore[arg-type]
