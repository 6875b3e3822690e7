"""One step of FedDGM's server distillation: its gradient by the recursion and by the released form, against the unroll.

ConvNet 3x128 on 32x32 colour images, 100 of them, 20 inner steps on all of them with augmentation, 2 threads. The
recursion's gradient must be the unroll's, to 1e-9 in float64 on a narrower network; at full size and in float32, in
which either is off by a hundredth, their distance is stated. What each form adds to the peak of memory, about 8 GB for
the unroll, is taken in processes of their own; the cosine of the released form and the gradient is stated.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.measure import Claim, Row, compare, figure_elsewhere, peak_memory, threads
from common.draws.seeding import generator
from common.models import build
from synth import augmentation
from synth.synthetic_updates import Loss, loss_of
from synth.trajectory_matching import (
    Form,
    InnerTraining,
    Segment,
    SyntheticSet,
    exact,
    released,
    unrolled,
)

SHAPE, CLASSES, IPC, STEPS, THREADS = (3, 32, 32), 10, 10, 20, 2
WIDTH = 128
STEP_SIZE, DISTANCE = 0.01, 0.003
"""eta, and the distance of each of theta_m's numbers from theta_g's: as far as the student itself comes."""
AGREEMENT = 1e-9
"""Largest relative difference of the two gradients in float64."""
NARROW, FEW = 16, 2
"""Width and images a class in float64."""
MOST_TIME, MOST_MEMORY = 1.35, 0.25
FORMS: dict[str, Form] = {"unrolled": unrolled, "exact": exact, "released": released}
TRAINING = InnerTraining(
    STEPS, transforms=augmentation.parse("color_crop_cutout_flip_scale_rotate")
)


def problem(width: int, ipc: int, dtype: torch.dtype) -> tuple[Loss, Segment, SyntheticSet]:
    """Return random images and a theta_m in a random direction: what they show costs no time."""
    draw = generator(0, "benchmark")
    model = build("convnet", SHAPE, CLASSES, width=width, generator=draw).to(dtype)
    start = {name: p.detach() for name, p in model.named_parameters()}
    end = {
        name: p + DISTANCE * torch.randn(p.shape, generator=draw).to(dtype)
        for name, p in start.items()
    }
    images = torch.randn(CLASSES * ipc, *SHAPE, generator=draw).to(dtype)
    labels = torch.arange(CLASSES).repeat_interleave(ipc)
    data = SyntheticSet(images, labels, torch.tensor(STEP_SIZE, dtype=dtype))
    return loss_of(model, F.cross_entropy), Segment(start, end), data


def step(
    form: Form, width: int = WIDTH, ipc: int = IPC, dtype: torch.dtype = torch.float32
) -> Callable[[int], Tensor]:
    """Return the gradient with respect to the images by ``form``, with a pair's own augmentations."""
    loss, segment, data = problem(width, ipc, dtype)

    def work(pair: int) -> Tensor:
        steps = TRAINING.steps(len(data.labels), generator(0, "step", pair))
        return form(loss, segment, data, steps).images

    return work


def rows(pairs: int) -> Iterator[Row]:
    """Measure both forms' time, then the peaks of memory, then the released form's direction."""
    with threads(THREADS):
        full, back, short = (step(form) for form in FORMS.values())
        _check()
        distances = (_apart(back(0), full(0)),)
        for name, ours, claim in (
            ("exact", back, Claim(at_most=MOST_TIME)),
            ("released", short, Claim()),
        ):
            yield compare(f"trajectory_step {name}", full, ours, pairs=pairs, claim=claim)
        cosines = tuple(_cosine(short(pair), back(pair)) for pair in range(pairs))
    yield Row("trajectory_step exact, distance", 0.0, distances[0], distances, Claim(), unit="")
    yield Row("trajectory_step released, cosine", 1.0, median(cosines), cosines, Claim(), unit="")
    yield from _memory(pairs)


def _check() -> None:
    found, right = (step(form, NARROW, FEW, torch.float64)(0) for form in (exact, unrolled))
    if (gap := _apart(found, right)) > AGREEMENT:
        raise AssertionError(f"the recursion's gradient differs by {gap:.2g} from the unroll's")


def _apart(found: Tensor, right: Tensor) -> float:
    return float((found - right).norm() / right.norm())


def _cosine(a: Tensor, b: Tensor) -> float:
    return float(F.cosine_similarity(a.flatten(), b.flatten(), dim=0))


def _memory(pairs: int) -> Iterator[Row]:
    """Compare what the forms add to the peaks of processes of their own: a peak never falls again."""
    peaks = {
        name: [figure_elsewhere("benchmarks.trajectory_step", name) for _ in range(pairs)]
        for name in FORMS
    }
    full = peaks.pop("unrolled")
    claim = Claim(at_most=MOST_MEMORY, of="the memory")
    for name, ours in peaks.items():
        ratios = tuple(map(claim.ratio, full, ours))
        yield Row(f"peak memory {name}", median(full), median(ours), ratios, claim, unit="MB")


def peak_here(name: str) -> float:
    """Take one step by the form of that name and return by how many MB it raised this process's peak of memory."""
    torch.set_num_threads(THREADS)
    work, before = step(FORMS[name]), peak_memory()
    work(1)
    return peak_memory() - before


if __name__ == "__main__":
    print(peak_here(sys.argv[1]))
