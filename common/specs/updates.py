"""Which part of what a site sends is a model, and travels as its update under ``wire.weights=int8``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from common.config.resolved import Config
from common.wire.bundle import BundleSpec, leaves
from common.wire.codec import Payload, Spec
from common.wire.int8_update import Int8UpdateSpec
from common.wire.weights import Weights, WeightsSpec

#: what the part of a bundle is called that is a model; a payload that is one has no name
_MODEL = ("", "weights", "inner")


def sends_updates(config: Config) -> bool:
    """Whether sites send models as updates of a byte a number: by the run's setting, and as the method says."""
    if config.wire.weights != "int8":
        return False
    told = (settings.disclosure() for settings in config.methods.values())
    return any(one is not None and one.payload.startswith("weights") for one in told)


def is_model(path: str) -> bool:
    """Whether weights at ``path`` of a payload are a model, and no control variate, decoder or generator."""
    return path.rpartition("/")[2] in _MODEL


def model_in(sent: Payload) -> Weights | None:
    """Return the model among what a site is sent; None where there is none."""
    found = (part for path, part in leaves(sent) if is_model(path) and isinstance(part, Weights))
    return next(found, None)


def as_updates(expects: Spec, sent: Payload) -> Spec:
    """Return what a site is to send where ``expects`` names a model: its difference to the one that it is sent."""
    base = model_in(sent)
    return expects if base is None else _against(base, "", expects)


def _against(base: Weights, path: str, spec: Spec) -> Spec:
    if isinstance(spec, BundleSpec):
        parts = {name: _against(base, f"{path}/{name}", part) for name, part in spec.parts.items()}
        return replace(spec, parts=parts)
    if isinstance(spec, WeightsSpec) and is_model(path) and covers(base, spec.names):
        return Int8UpdateSpec(spec, base)
    return spec


def in_part(spec: Any) -> Any:
    """Return the form of the same where an owner may have taken images out: as few of a class as there are."""
    if isinstance(spec, BundleSpec):
        return replace(spec, parts={name: in_part(part) for name, part in spec.parts.items()})
    return replace(spec, fewest=1) if hasattr(spec, "fewest") else spec


def covers(base: Weights, names: tuple[str, ...]) -> bool:
    """Whether ``base`` has a tensor of each name."""
    given = base.read_only
    return all(name in given for name in names)
