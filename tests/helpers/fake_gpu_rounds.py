"""Whole runs of methods on a pretended device, in a process of their own: a line of JSON for each, with its figures.

    python tests/helpers/fake_gpu_rounds.py FOLDER NAME=WORDS ...

NAME is a method; ``planted-`` before it leaves the models of its sites on the CPU, as a bug would.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import fake_gpu
import torch
from federation import run
from small import SMALL

from client_app.device import DeviceClient
from server_app.record import Record

PLANTED = "planted-"


def rounds_of(method: str) -> int:
    """Return how many rounds a method's run has: two, or all that there are."""
    return 1 if method == "ridge" else 2


def figures_of(record: Record) -> dict[str, Any]:
    """Return the losses by round, at the sites where the server judges nothing, and who was rejected for what."""
    lines = record.metrics()
    rejected: dict[str, str] = {}
    for line in lines:
        rejected |= line["rejected"]
    judged = [line["test"] or line["sites"] for line in lines]
    losses = [each["loss"] for each in judged if each]
    return {"losses": losses, "rejected": rejected}


@contextmanager
def planted(name: str) -> Iterator[None]:
    """While entered, the clients' models stay on the CPU, if that is asked."""
    model = DeviceClient.model
    forgetful = patch.object(DeviceClient, "model", lambda self, w: model(self, w).cpu())
    with forgetful if name.startswith(PLANTED) else patch.object(DeviceClient, "model", model):
        yield


def main(folder: str, words: list[str]) -> None:
    """Run each, and print what came of it."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    fake_gpu.register()
    with (
        patch("common.learning.run.torch_device", lambda _: fake_gpu.DEVICE),
        patch("server_app.record.torch_device", str),
        patch("torch.inference_mode", torch.no_grad),  # wrappers have none
    ):
        for word in words:
            name, _, settings = word.partition("=")
            config = {
                "output-dir": str(Path(folder) / name),
                "method": name.removeprefix(PLANTED),
                "rounds": rounds_of(name.removeprefix(PLANTED)),
                "set": f"{SMALL} {settings}",
            }
            try:
                with planted(name), fake_gpu.OwnGenerators():
                    told = figures_of(run(config))
            except Exception as error:
                told = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps({"name": name, **told}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
