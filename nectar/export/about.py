"""model.json: what an exported model is, what it takes, how good it was and where it comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from common.learning.run import Run
from nectar.export.formats import FORMATS
from nectar.export.plain import MODEL_SCHEMA
from nectar.export.source import COPY, Source
from nectar.export.split import split_settings
from nectar.records.record import RunRecord
from server_app.checkpoint import Checkpoint


def about_model(
    past: RunRecord, run: Run, checkpoint: Checkpoint, source: Source, formats: Sequence[str]
) -> dict[str, Any]:
    """Return the content of model.json for ``checkpoint``, written in ``formats``."""
    config, info, origin = run.config, run.info, past.provenance
    return {
        "schema": MODEL_SCHEMA,
        "model": config.model.architecture(),
        "code": _code(source),
        "formats": {name: FORMATS[name].to_dict() for name in formats},
        "input": {
            "shape": list(info.shape),
            "mean": list(info.mean),
            "std": list(info.std),
            "scale": info.scale,
            "page": config.images.page,
            "white": config.images.white,
            "pixels": "raw / scale, from 0 to 1",
            "normalised": "(raw / scale - mean) / std",
        },
        "classes": list(info.classes),
        "figures": _figures(past, checkpoint.server_round),
        "run": {
            "id": past.id,
            "method": config.method,
            "dataset": config.dataset,
            "seed": config.seed,
            "round": checkpoint.server_round,
            "rounds": config.rounds,
            "outcome": origin.get("outcome", ""),
            "configuration": origin.get("configuration", ""),
            "code": origin.get("code", ""),
            "data": dict(origin.get("data", {})).get("sha256", ""),
            "split": split_settings(config),
        },
    }


def _code(source: Source) -> dict[str, Any]:
    """Return where the network's code is, and what it needs beside torch and safetensors."""
    return {
        "from": source.kind,
        "file": COPY if source.kind == "file" else None,
        "packages": list(source.packages),
    }


def _figures(past: RunRecord, server_round: int) -> dict[str, Any]:
    """Return accuracy and loss on test and validation after ``server_round``.

    They are null where nobody evaluated, and one that was not finite is.
    """
    line: Mapping[str, Any] = next((x for x in past.rounds if x["round"] == server_round), {})
    return {
        name: {key: line[name].get(key) for key in ("accuracy", "loss")} if line.get(name) else None
        for name in ("test", "validation")
    }
