"""The one local loop: minibatch SGD of a model on samples, and its evaluation.

A method composes it: what is minimised is the ``objective``, what happens behind each step (a projection) is
``after_step``. The loop itself knows no method.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor, nn

from common.compute import autocast
from common.data import Samples
from common.models import couples_samples
from common.seeding import process_wide
from common.settings.training import SGDSettings
from common.task import Evaluation, Task
from synth.descent import SGD

#: (outputs, targets, positions of the batch in the samples) -> the scalar that is minimised
Objective = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Trained:
    """What a call of ``train`` did: gradient steps taken and the mean loss over the last epoch."""

    steps: int
    loss: float


def batches(
    n: int, size: int, generator: torch.Generator, device: torch.device
) -> Iterator[Tensor]:
    """Yield the positions 0..n-1 in a random order, ``size`` at a time, the rest as a smaller last batch."""
    order = torch.randperm(n, generator=generator, device=generator.device).to(device)
    yield from torch.split(order, size)


def train(
    model: nn.Module,
    samples: Samples,
    settings: SGDSettings,
    objective: Objective,
    generator: torch.Generator,
    *,
    precision: str = "float32",
    steps: int = 0,
    after_step: Callable[[], None] | None = None,
    before_step: Callable[[], None] | None = None,
) -> Trained:
    """Train ``model`` in place on ``samples`` for ``settings.epochs`` passes of SGD, or for ``steps`` steps if given.

    ``generator`` orders the batches, and its seed decides what layers such as dropout draw. ``after_step`` runs
    behind every optimiser step, ``before_step`` ahead of every batch, such as one that raises when the time is over.
    The loss that is returned is the mean over the last pass, or over what of it was run.
    """
    device = samples.labels.device
    optimiser = SGD(
        model.parameters(),
        settings.lr,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
    )
    model.train()
    a_pass = -(-len(samples) // settings.batch)
    last = steps or settings.epochs * a_pass
    done, seen, total = 0, 0, torch.zeros((), device=device)
    with process_wide(generator.initial_seed(), "layers"):
        while done < last:
            seen, total = 0, torch.zeros((), device=device)
            order = batches(len(samples), settings.batch, generator, device)
            for positions in islice(order, last - done):
                if before_step is not None:
                    before_step()
                optimiser.zero_grad()
                batch = _without_lone(model, positions)
                with autocast(device, precision):
                    outputs = model(samples.inputs(batch))
                    loss = objective(outputs, samples.labels[batch], batch)
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                if after_step is not None:
                    after_step()
                done += 1
                seen += len(positions)
                total += loss.detach() * len(positions)
    return Trained(done, float(total) / max(1, seen))


def _without_lone(model: nn.Module, positions: Tensor) -> Tensor:
    """Return a batch's positions, a single one twice where samples couple.

    Its mean loss and what batch norm makes of it are the same then, and torch takes no batch of one value a channel.
    """
    return positions.repeat(2) if len(positions) == 1 and couples_samples(model) else positions


def plain(task: Task) -> Objective:
    """Return the objective of FedAvg: the task's mean loss."""

    def objective(outputs: Tensor, targets: Tensor, positions: Tensor) -> Tensor:
        return task.loss(outputs, targets)

    return objective


def weighted(task: Task, weights: Tensor) -> Objective:
    """Return the task's loss with example i counting ``weights[i]`` times."""

    def objective(outputs: Tensor, targets: Tensor, positions: Tensor) -> Tensor:
        return task.loss(outputs, targets, weights[positions])

    return objective


@torch.no_grad()
def evaluate(
    model: nn.Module,
    samples: Samples,
    task: Task,
    batch: int,
    precision: str = "float32",
) -> Evaluation:
    """Judge ``model`` on all of ``samples``, ``batch`` at a time, in evaluation mode."""
    model.eval()
    tally = task.tally()
    device = samples.labels.device
    for start in range(0, len(samples), batch):
        part = slice(start, start + batch)
        with autocast(device, precision):
            outputs = model(samples.inputs(part))
        tally.add(outputs, samples.labels[part])
    return tally.result()
