"""One training step of Fedssyn's 14.4M U-Net against the plain form that public code has, and its samplers.

Batches of 32 images of 3x32x32, ten classes, dropout 0.1, 2 threads. A step is all from the draw of the noise
to the moved average. Both sides have the same weights and draws to begin with and take the same steps, each
on its own; the losses of a step must agree, to 1e-4 in float32. The samplers are stated in images a second:
their steps differ in number alone, so a 25th of them is timed.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from statistics import median

import torch
from torch import Tensor, nn

from benchmarks.measure import Claim, Row, agreeing, compare, threads
from common.draws.seeding import generator
from synth.diffusion import SAMPLERS, Schedule, denoising_loss, sample
from synth.diffusion_training import CLIP, DiffusionTraining, Plan
from synth.unet import Attention, UNet

SHAPE, CLASSES, BATCH, THREADS = (3, 32, 32), 10, 32, 2
PLAN = Plan(batch=BATCH)
AGREEMENT = 1e-4
"""Largest relative difference of the two float32 losses."""
AGREEMENT_BF16 = 2e-3
"""The same with ours in bfloat16: a number has 9 bits, but the loss is a mean over 98,304 of them."""
MOST = 0.7
"""The most of the plain form's time that a step in bfloat16 may take; in float32 it is stated."""
SAMPLED, SHARE = 8, 25
"""Images of a sampler's row, and what part of its steps is timed."""


def network() -> UNet:
    """Return the U-Net with small random values for the layers that start at 0: they would end the gradients."""
    draw = generator(0, "benchmark")
    model = UNet(SHAPE, CLASSES, draw)
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.any():
                parameter.normal_(0, 0.02, generator=draw)
    return model


class PlainAttention(nn.Module):
    """`Attention` by its definition."""

    def __init__(self, layer: Attention) -> None:
        super().__init__()
        self.heads = layer.heads
        self.norm, self.qkv, self.project = layer.norm, layer.qkv, layer.project

    def forward(self, x: Tensor) -> Tensor:
        """Return x + softmax(Q K^T / sqrt(d)) V, projected."""
        n, c, height, width = x.shape
        qkv = self.qkv(self.norm(x).reshape(n, c, -1).transpose(1, 2))
        q, k, v = qkv.reshape(n, -1, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        weights = torch.softmax(q @ k.transpose(2, 3) / (c // self.heads) ** 0.5, -1)
        h = (weights @ v).transpose(1, 2).reshape(n, height * width, c)
        out: Tensor = x + self.project(h).transpose(1, 2).reshape(x.shape)
        return out


class Plain:
    """The training in the plain form: float32, memory as torch lays it out, loops over the parameters."""

    def __init__(self, model: UNet, images: Tensor, labels: Tensor) -> None:
        self.model, self.schedule = copy.deepcopy(model), Schedule.cosine()
        self.images, self.labels = images, labels
        for layer in list(self.model.modules()):
            if isinstance(getattr(layer, "attention", None), Attention):
                layer.attention = PlainAttention(layer.attention)  # type: ignore[arg-type, assignment]
        self.optimizer = torch.optim.Adam(self.model.parameters(), PLAN.lr, foreach=False)
        self.average = [p.detach().clone() for p in self.model.parameters()]

    def step(self, number: int) -> float:
        """Take the step of an epoch of one batch; return the loss."""
        of_epoch = generator(0, "epoch", number)
        order = torch.randperm(BATCH, generator=of_epoch)
        seed = int(torch.randint(1 << 62, (1,), generator=of_epoch))
        draw = torch.Generator().manual_seed(seed)
        model = partial(self.model, generator=draw)
        loss = denoising_loss(model, self.schedule, self.images[order], self.labels[order], draw)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIP, foreach=False)
        self.optimizer.step()
        decay = min(PLAN.decay, (number + 1) / (number + 10))
        with torch.no_grad():
            for mean, parameter in zip(self.average, self.model.parameters(), strict=True):
                mean.mul_(decay).add_(parameter, alpha=1 - decay)
        return loss.item()


def ours(
    model: UNet, images: Tensor, labels: Tensor, precision: torch.dtype
) -> Callable[[int], float]:
    """Return the step as the project does it."""
    training = DiffusionTraining(
        copy.deepcopy(model),
        Schedule.cosine(),
        images,
        labels,
        partial(generator, 0, "epoch"),
        replace(PLAN, precision=precision),
    )

    def step(number: int) -> float:
        return next(training.run(number + 1))

    return step


def rows(pairs: int) -> Iterator[Row]:
    """Measure the step in float32 and in bfloat16, then the samplers."""
    with threads(THREADS):
        model, draw = network(), generator(0, "images")
        images = torch.rand(BATCH, *SHAPE, generator=draw) * 2 - 1
        labels = torch.randint(CLASSES, (BATCH,), generator=draw)
        for name, precision, tolerance, claim in (
            ("float32", torch.float32, AGREEMENT, Claim()),
            ("bfloat16", torch.bfloat16, AGREEMENT_BF16, Claim(at_most=MOST)),
        ):
            losses: dict[int, float] = {}
            yield compare(
                f"diffusion_step {name}",
                agreeing(Plain(model, images, labels).step, losses, tolerance),
                agreeing(ours(model, images, labels, precision), losses, tolerance),
                pairs=pairs,
                claim=claim,
            )
        yield from _samplers(model, pairs)


def _samplers(model: UNet, pairs: int) -> Iterator[Row]:
    """Compare each sampler's images per second in bfloat16 with those of ancestral sampling."""
    model.to(memory_format=torch.channels_last)
    schedule, labels = Schedule.cosine(), torch.arange(SAMPLED)
    rates: dict[str, list[float]] = {sampler: [] for sampler in SAMPLERS}
    for number in range(pairs):
        for sampler, steps in SAMPLERS.items():
            draw, begin = generator(0, "sample", number), time.perf_counter()
            with torch.autocast("cpu", torch.bfloat16):
                sample(model, schedule, labels, SHAPE, draw, sampler=sampler, steps=steps // SHARE)
            rates[sampler].append(SAMPLED / SHARE / (time.perf_counter() - begin))
    slow = rates["ancestral"]
    for sampler, fast in rates.items():
        ratios = tuple(b / a for a, b in zip(slow, fast, strict=True))
        name = f"images a second {sampler} {SAMPLERS[sampler]}"
        yield Row(name, median(slow), median(fast), ratios, Claim(), unit="/s")
