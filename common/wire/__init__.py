"""Typed payloads: what travels between server and devices, encoded to NumPy arrays and checked on arrival."""

from common.wire.codec import VERSION, Payload, Spec
from common.wire.synthetic_images import SyntheticImages, SyntheticImagesSpec
from common.wire.weights import Weights, WeightsSpec

__all__ = [
    "VERSION",
    "Payload",
    "Spec",
    "SyntheticImages",
    "SyntheticImagesSpec",
    "Weights",
    "WeightsSpec",
]
