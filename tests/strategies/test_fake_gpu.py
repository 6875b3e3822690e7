"""Every method's whole rounds on a device that refuses what a GPU refuses: tensors of two kinds, and generators."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from fake_gpu_rounds import PLANTED, figures_of, rounds_of
from federation import run
from places import ROOT
from small import Small

from common.methods import METHODS

VAE = "model.name=vae model.depth=1 model.embedding=6 fedvae.preliminary_rounds=1"
OTHERS = {
    "fedavg": "model.norm=batch evaluation.on=both data.site_holdout=0.2 fedavg.augment=flip_crop",
    "fedvae": VAE,
    "feddgm": "feddgm.epochs=1 feddgm.ipc=1 feddgm.iterations=2 feddgm.inner_epochs=2 feddgm.global_epochs=2 "
    "feddgm.surrogate_epochs=2",
    "fedssyn": "fedssyn.width=2 fedssyn.multipliers=1 fedssyn.blocks=1 fedssyn.attention= fedssyn.epochs=2 "
    "fedssyn.batch=32 fedssyn.diffusion_steps=8 fedssyn.sampling_steps=2 fedssyn.sampler=second-order",
    "dense": "dense.server_iterations=2 dense.generator_steps=2 dense.generator_batch=32",
    "scaffold": "scaffold.option=I",
    "fedprox": "privacy.noise_multiplier=1 privacy.counts=public",
    "feddm": "privacy.noise_multiplier=1 privacy.counts=public feddm.mechanism=gradient",
}
"""What else a method's run has here: what makes it short, and what else a device is to see (privacy, augmentation)."""


ROUNDS = (*OTHERS, "fedgen", "fedmd", "fedsynth", "lowrank", "ridge")
"""Methods that run here: one of each kind of computation at a device."""

LOOSELY = {"feddm": 2e-2, "fedaf": 2e-2, "fedsynth": 5e-2, "fedssyn": 1e-3, "fedrep": 1e-3}
"""How far figures may lie apart where a last bit of a step is carried on by all that follow; else 1e-4."""


def words_of(method: str) -> str:
    return f"data.images=200 {OTHERS.get(method.removeprefix(PLANTED), '')}"


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What became of each method on the pretended device, all in one fresh process."""
    program = ROOT / "tests" / "helpers" / "fake_gpu_rounds.py"
    names = [*ROUNDS, f"{PLANTED}fedavg"]
    places = [str(ROOT), str(ROOT / "tests" / "helpers"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path_factory.mktemp("rounds"))]
        + [f"{name}={words_of(name)}" for name in names],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, places))},
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {line.pop("name"): line for line in lines}


@pytest.mark.extended
@pytest.mark.parametrize("method", ROUNDS)
def test_its_rounds_are_those_of_the_cpu(
    told: dict[str, dict[str, Any]], small: Small, method: str
) -> None:
    """The generators draw as the CPU's, so that the figures are the same but for pieces cut otherwise."""
    there = told[method]
    assert "error" not in there, there
    assert there["rejected"] == {}
    assert there["losses"]
    here = figures_of(run(small(method=method, rounds=rounds_of(method), set=words_of(method))))
    assert there["losses"] == pytest.approx(here["losses"], rel=LOOSELY.get(method, 1e-4))


@pytest.mark.extended
def test_a_model_that_is_left_on_the_cpu_is_found(told: dict[str, dict[str, Any]]) -> None:
    assert "site failed: Mixed" in told[f"{PLANTED}fedavg"]["error"]


@pytest.mark.gpu
@pytest.mark.parametrize("method", METHODS)
def test_a_real_gpu_carries_its_rounds_out(small: Small, method: str) -> None:
    """It draws other numbers than the CPU: nobody is rejected, and what is learned is finite."""
    words = f"{words_of(method)} compute.device=cuda"
    there = figures_of(run(small(method=method, rounds=rounds_of(method), set=words)))
    assert there["rejected"] == {}
    assert all(torch.isfinite(torch.tensor(loss)) for loss in there["losses"])
