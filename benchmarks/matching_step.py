"""One FedDM matching step against the plain form that public code has.

ConvNet 3x128 on 32x32 colour images, ten classes, ipc 10, a real batch of 256 a class, 2 threads.
Both sides do the complete step, from the draw of the weights to the moved images, on equal draws; the
losses must agree to 1e-5.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from benchmarks.measure import Claim, Row, agreeing, compare, threads
from common.draws.seeding import generator
from common.models import Classifier, build
from synth.distribution_matching import Matching, distil
from synth.starts import ClassBatches, sample_ball

CLASSES, IPC, REAL_BATCH, RHO, THREADS = 10, 10, 256, 5.0, 2
AGREEMENT = 1e-5
"""Largest relative difference of the two float32 losses."""
AGREEMENT_BF16 = 2e-2
"""The same with the real batch in bfloat16, whose numbers have 8 bits."""


@dataclass(frozen=True)
class Problem:
    """A device's data, the round's model and the images to move."""

    model: Classifier
    images: Tensor
    labels: Tensor
    start: Tensor
    start_labels: Tensor

    def inputs(self, indices: Tensor) -> Tensor:
        """Return the images of ``indices``."""
        return self.images[indices]


def problem() -> Problem:
    """Return 5,000 random images of ten classes: what they show costs no time."""
    draw = generator(0, "benchmark")
    labels = torch.arange(CLASSES).repeat(500)
    return Problem(
        model=build("convnet", (3, 32, 32), CLASSES, generator=draw),
        images=torch.randn(len(labels), 3, 32, 32, generator=draw),
        labels=labels,
        start=torch.randn(CLASSES * IPC, 3, 32, 32, generator=draw),
        start_labels=torch.arange(CLASSES).repeat_interleave(IPC),
    )


def ours(task: Problem, step: int, precision: torch.dtype = torch.float32) -> float:
    """Take one step as the project does it; return the loss."""
    moved = distil(
        task.model,
        task.inputs,
        task.labels,
        task.start,
        task.start_labels,
        Matching(1, image_lr=1.0, image_momentum=0.5, rho=RHO, real_precision=precision),
        REAL_BATCH,
        generator(0, "step", step),
    )
    return float(moved.losses[0])


def plain(task: Problem, step: int) -> float:
    """Take the same step in the plain form; return the loss.

    Classes in a loop, embedding and logits from two forward passes each, parameters that ask for
    gradients, so that the real batch is recorded before it is detached.
    """
    draw = generator(0, "step", step)
    model = copy.deepcopy(task.model)
    centre = parameters_to_vector(model.parameters()).detach()
    vector_to_parameters(sample_ball(centre, RHO, draw), model.parameters())
    batch = ClassBatches.plan(task.labels, REAL_BATCH).draw(draw)
    synthetic = task.start.clone().requires_grad_()
    optimizer = torch.optim.SGD([synthetic], lr=1.0, momentum=0.5)
    loss = torch.zeros(())
    for c in range(CLASSES):
        real = task.images[batch[c * REAL_BATCH : (c + 1) * REAL_BATCH]]
        syn = synthetic[c * IPC : (c + 1) * IPC]
        for network in (model.embed, model):
            gap = network(real).detach().mean(0) - network(syn).mean(0)
            loss = loss + gap.square().sum()
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss.item()


def rows(pairs: int) -> Iterator[Row]:
    """Measure the step in float32 and with the real batch in bfloat16."""
    with threads(THREADS):
        task = problem()
        for name, precision, tolerance, factor in (
            ("matching_step float32", torch.float32, AGREEMENT, 2.0),
            ("matching_step real batch bfloat16", torch.bfloat16, AGREEMENT_BF16, 2.0),
        ):
            losses: dict[int, float] = {}
            yield compare(
                name,
                agreeing(partial(plain, task), losses, tolerance),
                agreeing(partial(ours, task, precision=precision), losses, tolerance),
                pairs=pairs,
                claim=Claim(at_least=factor),
            )
