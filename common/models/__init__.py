"""Classifiers with an embedding, built by name; pure PyTorch."""

from common.models.classifier import Classifier, couples_samples
from common.models.registry import MODELS, build

__all__ = ["MODELS", "Classifier", "build", "couples_samples"]
