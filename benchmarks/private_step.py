"""One step of DP-SGD against the plain step, and against Opacus' engine, which hooks into the layers.

ConvNet 3x128 (317,706 parameters) and an MLP of 200 units (159,010) on batches of 64 images of 1x28x28, 2 threads. A
private step is all from the clipped gradients to the optimiser's step, noise included: ours from the system's entropy,
Opacus' from torch's generator. Both clip to the same sum, to 2e-4 in float32. Against Opacus' engine, CPU seconds are
stated too, and both again where glibc keeps freed memory, as it does at a site. What a step adds to the peak of memory
is taken in processes of their own.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.measure import Claim, Row, compare, figure_elsewhere, peak_memory, threads
from common.draws.private_draws import KeyStream, SystemRows
from common.draws.seeding import generator
from common.learning.compute import use_threads
from common.learning.training import dp_sgd, plain_gradient
from common.models import build
from synth.descent import SGD
from synth.linear_gradients import clipped_sum, finely
from synth.private_release import Gaussian

SHAPE, CLASSES, BATCH, THREADS = (1, 28, 28), 10, 64, 2
CLIP, NOISE, LR = 1.0, 1.0, 0.01
MECHANISM = Gaussian(NOISE, CLIP, KeyStream().normal)
AGREEMENT = 2e-4
"""Largest relative difference of the two clipped sums."""
MODELS: dict[str, dict[str, int]] = {"convnet": {"depth": 3, "width": 128}, "mlp": {"width": 200}}

Step = Callable[[int], object]


def network(name: str) -> nn.Module:
    """Return the model; its ReLUs make tensors of their own, which Opacus' hooks need."""
    model = build(name, SHAPE, CLASSES, generator=generator(0, "benchmark"), **MODELS[name])  # type: ignore[arg-type]
    for layer in model.modules():
        if isinstance(layer, nn.ReLU):
            layer.inplace = False
    return model


def batch(number: int) -> tuple[Tensor, Tensor]:
    """Return the images and labels of a step; below step 0 a single image."""
    draw, size = generator(0, "batch", number + 1), BATCH if number >= 0 else 1
    images = torch.randn(size, *SHAPE, generator=draw)
    return images, torch.randint(CLASSES, (size,), generator=draw)


def mean_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the objective."""
    return F.cross_entropy(model(x), y)


def plain(name: str) -> Step:
    """Return the step without privacy."""
    model = network(name)
    optimizer = SGD(model.parameters(), LR)

    def step(number: int) -> None:
        optimizer.zero_grad()
        x, y = batch(number)
        plain_gradient(model, lambda net, a, b, _: mean_loss(net, a, b), x, y, y)
        optimizer.step()

    return step


def ours(name: str) -> Step:
    """Return the private step as the project does it."""
    model = network(name)
    optimizer = SGD(model.parameters(), LR)
    rule = dp_sgd(MECHANISM, BATCH)

    def step(number: int) -> None:
        x, y = batch(number)
        rule(model, mean_loss, x, y, rows=SystemRows(len(x), x.device))
        optimizer.step()

    return step


def engine(name: str) -> tuple[nn.Module, Any]:
    """Return Opacus' module and optimiser."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    model = GradSampleModule(network(name))
    optimizer = DPOptimizer(
        torch.optim.SGD(model.parameters(), LR),
        noise_multiplier=NOISE,
        max_grad_norm=CLIP,
        expected_batch_size=BATCH,
    )
    return model, optimizer


def opacus(name: str) -> Step:
    """Return the private step of Opacus' engine."""
    model, optimizer = engine(name)

    def step(number: int) -> None:
        optimizer.zero_grad()
        mean_loss(model, *batch(number)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def ghost(name: str) -> Step:
    """Return the private step of Opacus' ghost clipping, which has two backward passes and no example's gradient."""
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers.optimizer_fast_gradient_clipping import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    model = GradSampleModuleFastGradientClipping(network(name), max_grad_norm=CLIP)
    optimizer = DPOptimizerFastGradientClipping(
        torch.optim.SGD(model.parameters(), LR),
        noise_multiplier=NOISE,
        max_grad_norm=CLIP,
        expected_batch_size=BATCH,
    )
    loss = DPLossFastGradientClipping(model, optimizer, nn.CrossEntropyLoss())

    def step(number: int) -> None:
        optimizer.zero_grad()
        x, y = batch(number)
        loss(model(x), y).backward()
        optimizer.step()

    return step


WAYS: dict[str, Callable[[str], Step]] = {
    "plain": plain,
    "ours": ours,
    "opacus": opacus,
    "ghost": ghost,
}
PAIRS = (("plain", "ours"), ("plain", "opacus"), ("opacus", "ours"), ("ghost", "ours"))
CLOCKS = {"": time.perf_counter, ", CPU": time.process_time}


def check(name: str) -> None:
    """Raise if the two ways clip to different sums."""
    model, optimizer = engine(name)
    mean_loss(model, *batch(0)).backward()  # type: ignore[no-untyped-call]
    optimizer.clip_and_accumulate()
    theirs = torch.cat([p.summed_grad.flatten() for p in optimizer.params])
    ours = network(name)
    mechanism = finely(MECHANISM, ours, BATCH)
    sums = clipped_sum(ours, mean_loss, batch(0), mechanism)
    own = mechanism.values(torch.cat([t.flatten() for t in sums.values()]))
    difference = float((own - theirs).norm() / theirs.norm())
    if difference > AGREEMENT:
        raise AssertionError(f"{name}: the clipped sums differ by {difference:.2g}")


def rows(pairs: int) -> Iterator[Row]:
    """Measure the steps of each model, what they add to the peak of memory, and steps where freed memory is kept."""
    warnings.filterwarnings("ignore", "Full backward hook is firing")
    with threads(THREADS):
        for name in MODELS:
            check(name)
            for reference, mine in PAIRS:
                yield from _steps(name, reference, mine, pairs)
        for name in MODELS:
            yield from _memory(name)
        use_threads(THREADS)
        for name in MODELS:
            yield from _steps(name, "opacus", "ours", pairs, ", kept")


def _steps(name: str, reference: str, mine: str, pairs: int, how: str = "") -> Iterator[Row]:
    """Compare two ways by the clock, and in CPU seconds if one is Opacus' engine and the other ours."""
    works = WAYS[reference](name), WAYS[mine](name)
    clocks = CLOCKS if (reference, mine) == ("opacus", "ours") else {"": time.perf_counter}
    for clock, now in clocks.items():
        title = f"private_step {name}, {reference} then {mine}{how}{clock}"
        yield compare(title, *works, pairs=pairs, claim=Claim(), clock=now)


def _memory(name: str) -> Iterator[Row]:
    """Compare what a step adds to the peaks of processes of their own, one each: they import for seconds."""
    peaks = {way: figure_elsewhere("benchmarks.private_step", name, way) for way in WAYS}
    for reference, mine in PAIRS:
        both = peaks[reference], peaks[mine]
        title = f"peak memory {name}, {reference} then {mine}"
        yield Row(title, *both, (both[1] / both[0],), Claim(), unit="MB")


def peak_here(name: str, way: str) -> float:
    """Return by how many MB two steps raise this process's peak of memory, once all that they need is imported."""
    torch.set_num_threads(THREADS)
    work = WAYS[way](name)
    work(-1)
    before = peak_memory()
    work(1)
    work(2)
    return peak_memory() - before


if __name__ == "__main__":
    print(peak_here(*sys.argv[1:]))
