"""The configuration of a run: ``load`` merges and validates it, ``Config`` is the frozen result."""

from common.config.loading import load
from common.config.own_parts import Judge
from common.config.resolved import Config

__all__ = ["Config", "Judge", "load"]
