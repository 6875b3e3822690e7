"""Gradient descent: torch's own numbers, without what torch's optimisers bring into a process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from places import ROOT
from torch import nn

from synth.descent import SGD, Adam


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 3))


@pytest.mark.extended
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_the_steps_are_torchs_to_the_bit(momentum: float, weight_decay: float) -> None:
    ours, theirs = network(), network()
    idle = nn.Parameter(torch.ones(2))
    a = SGD([*ours.parameters(), idle], 0.1, momentum=momentum, weight_decay=weight_decay)
    b = torch.optim.SGD(theirs.parameters(), 0.1, momentum=momentum, weight_decay=weight_decay)
    x = torch.randn(6, 5, 7, generator=torch.Generator().manual_seed(1))
    for step, batch in enumerate(x):
        for model, optimiser in ((ours, a), (theirs, b)):
            optimiser.zero_grad()
            # The first layer has no gradient at first: its momentum begins later.
            outputs = model(batch) if step > 1 else model[2](model[1](model[0](batch)).detach())
            outputs.square().sum().backward()
            optimiser.step()
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(p, q)
    assert torch.equal(idle, torch.ones(2))


def test_a_constant_gradient_under_momentum_by_hand() -> None:
    """v_1 = 2, v_2 = .5 v_1 + 2 = 3: 1 - .1 * 2 - .1 * 3 = .5."""
    p = nn.Parameter(torch.tensor([1.0], dtype=torch.float64))
    descent = SGD([p], 0.1, momentum=0.5)
    for _ in range(2):
        p.grad = torch.tensor([2.0], dtype=torch.float64)
        descent.step()
    assert p.item() == pytest.approx(0.5, abs=1e-15)


@pytest.mark.extended
def test_a_process_that_lives_for_a_round_imports_neither_the_compiler_nor_what_it_does_not_use(
    tmp_path: Path,
) -> None:
    code = f"""
import sys
from nectar.cli import main
words = "rounds=1 method=feddm federation.sites=2 data.images=60 feddm.iterations=2 image_training.epochs=1"
assert main(["run", *words.split(), "fedavg.epochs=1", {f"output-dir={tmp_path}"!r}]) == 0
from common.models import build
build("lstm", (10,), 20)  # a language model's process has no more of it
heavy = "torch._dynamo sympy scipy sklearn pandas matplotlib torchvision opacus ray sqlalchemy fastapi".split()
print([name for name in heavy if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.5, 0.999)])
def test_adams_steps_are_torchs_to_the_bit(betas: tuple[float, float]) -> None:
    ours, theirs = network(), network()
    a = Adam(ours.parameters(), 0.1, betas=betas)
    b = torch.optim.Adam(theirs.parameters(), 0.1, betas=betas)
    for x in torch.randn(6, 5, 7, generator=torch.Generator().manual_seed(1)):
        for model, optimiser in ((ours, a), (theirs, b)):
            model.zero_grad()
            model(x).square().sum().backward()
            optimiser.step()
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(p, q)


def test_the_fused_adam_takes_torchs_fused_steps_and_goes_on_from_its_state() -> None:
    ours, theirs = network(), network()
    a = Adam(ours.parameters(), 0.1, fused=True)
    b = torch.optim.Adam(theirs.parameters(), 0.1, fused=True)
    for step, x in enumerate(torch.randn(6, 5, 7, generator=torch.Generator().manual_seed(1))):
        if step == 3:
            state = a.state()
            a = Adam(ours.parameters(), 0.1, fused=True)
            a.load(state)
        for model, optimiser in ((ours, a), (theirs, b)):
            model.zero_grad()
            model(x).square().sum().backward()
            optimiser.step()
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(p, q)
