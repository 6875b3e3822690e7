"""What a GPU makes of the work that costs most, in seconds and in what is counted: kernels, copies, waits.

Nobody who built this had one at hand. On a machine with a GPU this takes about five minutes, and its output is
welcome in an issue; without one it runs on the CPU, where a kernel is an operator of torch's:

    python -m benchmarks gpu
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import nn
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmarks.measure import Claim, Row, compare
from common.draws.private_draws import KeyStream
from common.draws.seeding import generator
from common.learning.compute import torch_device
from common.learning.stacked import SiteTraining, train_stacked
from common.learning.task import Classification
from common.learning.training import Gradients, dp_sgd, train
from common.models import build
from common.samples.inputs import Samples
from common.settings.fedavg import FedAvgSettings
from synth.distribution_matching import Matching, distil
from synth.private_release import Gaussian

CLASSES, SITES, BATCH = 10, 32, 64
SHAPE, GRAY = (3, 32, 32), (1, 28, 28)

Work = Callable[[], object]


def rows(pairs: int) -> Iterator[Row]:
    """Measure each piece of work against its plainer form, and count what both ask of the device."""
    device = torch_device("auto")
    named = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    print(f"{named}, torch {torch.__version__}, CUDA {torch.version.cuda or 'none'}", flush=True)
    for name, reference, ours in _works(device):
        yield compare(
            name,
            partial(_done, reference, device),
            partial(_done, ours, device),
            pairs=pairs,
            claim=Claim(),
        )
        counts = _counts(reference, device), _counts(ours, device)
        for what, one, other in zip(("kernels", "copies", "waits"), *counts, strict=True):
            ratio = other / one if one else 1.0
            yield Row(f"  {what}", one, other, (ratio,), Claim(), "")


def _works(device: torch.device) -> Iterator[tuple[str, Work, Work]]:
    """Yield (what, plainer form, ours) of work on data in the device's memory."""
    task, settings = Classification(CLASSES), FedAvgSettings(epochs=1, batch=BATCH)
    convnet = build("convnet", SHAPE, CLASSES, generator=generator(0, "benchmark")).to(device)
    images = _samples(SHAPE, 2 * BATCH, 0, device)

    def trained(model: nn.Module, samples: Samples, k: int, precision: str = "float32") -> object:
        draws = generator(0, "batches", k, device=device)
        return train(model, samples, settings, task, draws, precision=precision)

    yield (
        "two steps of a ConvNet, bfloat16 for float32",
        partial(trained, convnet, images, 0),
        partial(trained, convnet, images, 0, "bfloat16"),
    )
    noised = dp_sgd(Gaussian(1.0, 1.0, KeyStream().normal), float(BATCH))
    private = partial(train, convnet, images, settings, task, gradients=Gradients(noised))
    yield (
        "two steps of a ConvNet, DP-SGD for plain",
        partial(trained, convnet, images, 0),
        lambda: private(generator(0, "batches", device=device)),
    )
    mlp = build("mlp", GRAY, CLASSES, generator=generator(0, "benchmark"), width=200).to(device)
    own = [_samples(GRAY, BATCH, k, device) for k in range(SITES)]
    yield (
        f"a step of {SITES} sites' MLPs, together for one by one",
        lambda: [trained(mlp, samples, k) for k, samples in enumerate(own)],
        lambda: train_stacked(
            mlp,
            [SiteTraining(s, generator(0, "batches", k, device=device)) for k, s in enumerate(own)],
            settings,
        ),
    )
    many = _samples(SHAPE, 256 * CLASSES, 1, device)
    start = torch.randn(CLASSES * 10, *SHAPE, device=device)
    labels = torch.arange(CLASSES, device=device).repeat_interleave(10)

    def matched(precision: torch.dtype) -> object:
        how = Matching(1, image_lr=1.0, image_momentum=0.5, rho=5.0, real_precision=precision)
        draws = generator(0, "step", device=device)
        return distil(convnet, many.inputs, many.labels, start, labels, how, 256, draws)

    yield (
        "a step of FedDM, bfloat16 for float32",
        partial(matched, torch.float32),
        partial(matched, torch.bfloat16),
    )


def _samples(shape: tuple[int, int, int], n: int, k: int, device: torch.device) -> Samples:
    draws = generator(0, "images", k)
    labels = torch.arange(n) % CLASSES
    return Samples.of(torch.randn(n, *shape, generator=draws), labels).to(device)


def _done(work: Work, device: torch.device, pair: int) -> None:
    """Do the work, and wait until the device has."""
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _counts(work: Work, device: torch.device) -> tuple[int, int, int]:
    """Return how many kernels, copies to or from the device, and waits for it the work asks for."""
    gpu = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * gpu]
    with profile(activities=activities) as seen:
        work()
    events = list(seen.events() or ())
    waits = sum(e.name == "aten::_local_scalar_dense" for e in events)
    if not gpu:
        lowest = [e for e in events if e.name.startswith("aten::") and not e.cpu_children]
        return len(lowest), sum(e.name == "aten::copy_" for e in events), waits
    there = [e for e in events if e.device_type == DeviceType.CUDA]
    copies = sum(e.name.startswith("Memcpy") for e in there)
    return len(there) - copies, copies, waits
