"""Typed payloads: what travels between server and devices, encoded to NumPy arrays and checked on arrival."""

from common.wire.bundle import Bundle, BundleSpec
from common.wire.class_list import ClassList, ClassListSpec
from common.wire.codec import VERSION, CarriesExamples, Payload, Spec
from common.wire.latent_means import LatentMeans, LatentMeansSpec
from common.wire.masked_update import MaskedUpdate, MaskedUpdateSpec
from common.wire.numbers import Numbers, NumbersSpec
from common.wire.pixels import Pixels, PixelsSpec
from common.wire.synthetic_batches import SyntheticBatches, SyntheticBatchesSpec
from common.wire.synthetic_images import SyntheticImages, SyntheticImagesSpec
from common.wire.top_k_update import TopKUpdate, TopKUpdateSpec
from common.wire.weights import Weights, WeightsSpec

__all__ = [
    "VERSION",
    "Bundle",
    "BundleSpec",
    "CarriesExamples",
    "ClassList",
    "ClassListSpec",
    "LatentMeans",
    "LatentMeansSpec",
    "MaskedUpdate",
    "MaskedUpdateSpec",
    "Numbers",
    "NumbersSpec",
    "Payload",
    "Pixels",
    "PixelsSpec",
    "Spec",
    "SyntheticBatches",
    "SyntheticBatchesSpec",
    "SyntheticImages",
    "SyntheticImagesSpec",
    "TopKUpdate",
    "TopKUpdateSpec",
    "Weights",
    "WeightsSpec",
]
