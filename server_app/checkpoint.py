"""Checkpoints: the weights, what the strategy keeps, and the round, in one safetensors file. Never a pickle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from common.errors import ConfigError, FederationError, one_line
from common.storage import tensor_file
from common.storage.tensor_file import TensorFileError, join_tensors, split_tensors
from strategies.exchange.rules import GLOBAL
from strategies.federated import LEARNED

SCHEMA = 1

Checksum = tuple[int, str]
"""A number of lines of metrics.jsonl, and the SHA-256 of their figures."""

#: the key under which a file's description has the SHA-256 of the strategy's large tensors, stored separately or not
_LARGE = "large"

#: what reading a description raises that has other values than were written
_ODD = (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError)


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run after round ``server_round``.

    ``line`` is the round's line of metrics.jsonl where that awaits the sites' figures; ``last_accepted_round``
    is that of each site's work. ``lines`` is the checksum of metrics.jsonl at that time, None if an earlier release
    wrote it.
    """

    server_round: int
    weights: Mapping[str, torch.Tensor]
    strategy: Mapping[str, Any]
    validation_accuracy: float | None = None
    line: Mapping[str, Any] | None = None
    last_accepted_round: Mapping[str, int] = field(default_factory=dict)
    lines: Checksum | None = None

    @property
    def models(self) -> Mapping[str, Mapping[str, torch.Tensor]]:
        """What was learned, by name: the strategy's models where it keeps several, else the weights."""
        several: Mapping[str, Mapping[str, torch.Tensor]] = self.strategy.get(LEARNED, {})
        return several or {GLOBAL: self.weights}

    def model(self, name: str = GLOBAL) -> Mapping[str, torch.Tensor]:
        """Return the tensors of the model ``name``, or of the only one; ConfigError if it is not one's name."""
        return self.models[self.named(name)]

    def named(self, name: str = GLOBAL) -> str:
        """Return the name of the model ``name``, or of the only one; ConfigError if it is not one's name."""
        if name in self.models:
            return name
        if name == GLOBAL and len(self.models) == 1:
            return next(iter(self.models))
        there = ", ".join(self.models)
        if not there:
            raise ConfigError(f"the run learned one model, and none is called '{name}': name none")
        wanted = f"none is called '{name}'" if name else "none of them is the run's"
        raise ConfigError(
            f"the run learned {len(self.models)} models, and {wanted}: name one of {there}"
        )

    def save(self, path: Path) -> None:
        """Write to ``path`` atomically.

        A large tensor of the strategy's that the file had before is stored next to it once, until it changes.

        Raises
        ------
        FederationError
            If the strategy keeps something a checkpoint cannot hold.
        """
        skeleton, state = split_tensors(dict(self.strategy), "strategy")
        meta = {
            "schema": SCHEMA,
            "round": self.server_round,
            "validation-accuracy": self.validation_accuracy,
            "strategy": skeleton,
            "weights": list(self.weights),
            "line": self.line,
            "taken": dict(self.last_accepted_round),
            "lines": self.lines,
        }
        kept = {f"state.{k}": t for k, t in state.items()}
        meta[_LARGE] = large = tensor_file.names_of_large(kept)
        before = _large_before(path)
        separate = {name: digest for name, digest in large.items() if digest in before}
        path.parent.mkdir(parents=True, exist_ok=True)
        weights = {f"weights.{k}": t for k, t in self.weights.items()}
        tensor_file.save(path, weights | kept, meta, separate=separate)
        tensor_file.collect(path.parent)

    @classmethod
    def load(cls, path: Path) -> Checkpoint:
        """Read ``path``; FederationError if it is not there, damaged or another release's."""
        if not path.is_file():
            raise FederationError(
                f"{path} is not there: the run stopped before its first round was done; start it again"
            )
        try:
            tensors, meta = tensor_file.load(path)
            if meta.get("schema") != SCHEMA:
                raise TensorFileError(
                    f"it has schema {meta.get('schema')}, this release reads {SCHEMA}"
                )
            return cls._of(tensors, meta)
        except (TensorFileError, *_ODD) as error:
            raise FederationError(
                f"the checkpoint {path} cannot be read: {one_line(str(error))[:300]}; restore a complete copy of it"
            ) from None

    @classmethod
    def _of(cls, tensors: Mapping[str, torch.Tensor], meta: Mapping[str, Any]) -> Checkpoint:
        server_round, accuracy = meta["round"], meta["validation-accuracy"]
        if type(server_round) is not int or server_round < 0:
            raise ValueError("its round is not a round's number")
        state = {k.removeprefix("state."): t for k, t in tensors.items() if k.startswith("state.")}
        return cls(
            server_round=server_round,
            weights={name: tensors[f"weights.{name}"] for name in meta["weights"]},
            strategy=dict(join_tensors(meta["strategy"], state)),
            validation_accuracy=None if accuracy is None else float(accuracy),
            line=_line(meta.get("line"), server_round),
            last_accepted_round={str(site): int(last) for site, last in meta["taken"].items()},
            lines=_checksum(meta.get("lines")),
        )


def _large_before(path: Path) -> set[str]:
    """Return the SHA-256 of the large tensors of the checkpoint that is there; of none where it cannot be read."""
    try:
        return set(tensor_file.meta_of(path).get(_LARGE, {}).values())
    except (TensorFileError, AttributeError, TypeError):
        return set()


def _checksum(found: Any) -> Checksum | None:
    if found is None:
        return None
    count, digest = found
    return int(count), str(digest)


def _line(found: Any, server_round: int) -> Mapping[str, Any] | None:
    if found is None:
        return None
    if found["round"] != server_round or not isinstance(found["rejected"], dict):
        raise ValueError("its line belongs to another round")
    return dict(found)
