"""Checkpoints: the weights, what the strategy keeps, and the round, in one safetensors file. Never a pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from common.errors import FederationError
from common.files import write_atomically
from common.tensor_tree import pack, unpack

SCHEMA = 1


@dataclass(frozen=True)
class Checkpoint:
    """Where a run stands behind round ``server_round``."""

    server_round: int
    weights: Mapping[str, torch.Tensor]
    strategy: Mapping[str, Any]
    validation_accuracy: float | None = None

    def save(self, path: Path) -> None:
        """Write to ``path``, whole or not at all.

        Raises
        ------
        FederationError
            If the strategy keeps something a checkpoint cannot hold.
        """
        skeleton, state = pack(dict(self.strategy), "strategy")
        meta = {
            "schema": SCHEMA,
            "round": self.server_round,
            "validation-accuracy": self.validation_accuracy,
            "strategy": skeleton,
            "weights": list(self.weights),
        }
        tensors = {f"weights.{k}": t.detach().cpu().contiguous() for k, t in self.weights.items()}
        tensors |= {f"state.{k}": t for k, t in state.items()}
        path.parent.mkdir(parents=True, exist_ok=True)
        metadata = {"nectar": json.dumps(meta)}
        write_atomically(path, lambda to: save_file(tensors, to, metadata))

    @classmethod
    def load(cls, path: Path) -> Checkpoint:
        """Read ``path``.

        Raises
        ------
        FederationError
            If it is not there, damaged or another release's.
        """
        if not path.is_file():
            raise FederationError(
                f"{path} is not there: the run stopped before its first round was done; start it anew"
            )
        try:
            with safe_open(path, framework="pt") as file:
                meta = json.loads((file.metadata() or {})["nectar"])
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        except (SafetensorError, KeyError, ValueError, OSError) as error:
            raise FederationError(f"the checkpoint {path} cannot be read: {error}") from None
        if meta.get("schema") != SCHEMA:
            raise FederationError(
                f"the checkpoint {path} has schema {meta.get('schema')}, this release reads {SCHEMA}"
            )
        state = {k.removeprefix("state."): t for k, t in tensors.items() if k.startswith("state.")}
        return cls(
            server_round=meta["round"],
            weights={name: tensors[f"weights.{name}"] for name in meta["weights"]},
            strategy=unpack(meta["strategy"], state),
            validation_accuracy=meta["validation-accuracy"],
        )
