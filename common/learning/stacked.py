"""Local training of many sites at once: their models are one stacked model, [sites, ...], moved by one step for all.

Each site draws its batches from its own generator, in the order of a run alone. Its numbers differ from
those of one by one by rounding: sums over a batch are taken in another order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.utils.rnn import pad_sequence

from common.learning.task import Classification, Task
from common.learning.training import Local, Trained, batches, pulls
from common.samples.inputs import Samples
from common.settings.fedavg import TrainingSettings


@dataclass(frozen=True)
class SiteTraining:
    """A site whose model is trained: its examples, the generator of its batches, and terms of its steps."""

    samples: Samples
    generator: torch.Generator
    local: Local


@dataclass(frozen=True)
class _Batches:
    """The batches of all sites, those of the most steps first, and how many of the steps are each site's.

    ``rows``, int64 [sites, steps, batch], are positions in all sites' examples, one site behind the other, 0 where
    there is no example; ``real``, bool of that shape, says whether a position is one of a batch, which may be smaller.
    """

    rows: Tensor
    real: Tensor
    steps: list[int]


def cannot_stack(model: nn.Module, settings: TrainingSettings, task: Task) -> str:
    """Return why sites' models are not trained as one, in a few words; empty if they are."""
    if not isinstance(task, Classification):
        return "texts are trained one site at a time"
    if any(isinstance(module, _NormBase | nn.Dropout | nn.RNNBase) for module in model.modules()):
        return "the model has a layer with its own state or draws (batch norm, dropout, recurrence)"
    if any(True for _ in model.buffers()):
        return "the model has more than parameters"
    if settings.local_optimizer != "sgd" or settings.clip_norm or settings.gradient_noise:
        return "only plain SGD is taken for many sites at once"
    if settings.augment != "none":
        return "augmentation is drawn one site at a time"
    return ""


def train_stacked(
    model: nn.Module,
    sites: Sequence[SiteTraining],
    settings: TrainingSettings,
    *,
    server_round: int = 1,
) -> list[tuple[dict[str, Tensor], Trained]]:
    """Return each site's parameters after ``settings.epochs`` passes from those of ``model``, and how that went.

    The sites' samples are normalised alike; their terms name the same tensors, and have one ``mu`` and ``carried_on``.
    The model, which must pass `cannot_stack`, is not changed; what is returned are views of the stacked
    tensors.
    """
    counts = [settings.epochs * -(-len(site.samples) // settings.batch) for site in sites]
    order = sorted(range(len(sites)), key=lambda k: -counts[k])
    drawn = _drawn([sites[k] for k in order], settings)
    samples = sites[0].samples
    raw = torch.cat([sites[k].samples.raw for k in order])
    labels = torch.cat([sites[k].samples.labels for k in order])
    initial = dict(model.named_parameters())
    stacked = {n: p.detach().expand(len(order), *p.shape).clone() for n, p in initial.items()}
    buffers = {n: torch.zeros_like(t) for n, t in stacked.items()} if settings.momentum else {}
    real = drawn.real.to(next(iter(stacked.values())).dtype)
    sizes = real.sum(2)
    losses = torch.zeros_like(sizes)
    lr, amount = settings.lr_in(server_round), 0.0
    terms = [sites[k].local for k in order]
    mu, carried_on = terms[0].mu, terms[0].carried_on
    slopes = _in_one([one.slope for one in terms], initial)
    drifts = _in_one([one.drift for one in terms], initial)

    def loss(parameters: Mapping[str, Tensor], x: Tensor, y: Tensor, shares: Tensor) -> Tensor:
        outputs = functional_call(model, dict(parameters), (x,))
        return (nn.functional.cross_entropy(outputs, y, reduction="none") * shares).sum()

    for step in range(drawn.steps[0]):
        left = sum(steps > step for steps in drawn.steps)
        rows = drawn.rows[:left, step]
        x = Samples(raw, labels, samples.factor, samples.offset).inputs(rows.flatten())
        at = {n: t[:left].detach().requires_grad_() for n, t in stacked.items()}
        shares = real[:left, step] / sizes[:left, step, None]
        each = vmap(loss)(at, x.reshape(*rows.shape, *x.shape[1:]), labels[rows], shares)
        gradients = torch.autograd.grad(each.sum(), list(at.values()))
        losses[:left, step] = each.detach()
        current, own = [t.detach() for t in at.values()], [slopes[n][:left] for n in at if slopes]
        pulled = pulls(current, list(initial.values()), own, mu) if mu or slopes else []
        moved = [buffers[n][:left] for n in at] if buffers else []
        _move(current, gradients, pulled, moved, lr, settings)
        if drifts:
            amount = 1.0 + carried_on * amount
            corrected = [at[n].detach() for n in drifts]
            torch._foreach_add_(corrected, [d[:left] for d in drifts.values()], alpha=-lr * amount)
    return _by_site(order, stacked, losses, sizes, drawn.steps, settings.epochs, lr)


def _in_one(
    by_site: Sequence[Mapping[str, Tensor]], like: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return the sites' tensors by name, stacked, on the devices of ``like``."""
    return {n: torch.stack([own[n] for own in by_site]).to(like[n].device) for n in by_site[0]}


@torch.no_grad()
def _move(
    parameters: list[Tensor],
    gradients: Iterable[Tensor],
    pulls: list[Tensor],
    buffers: list[Tensor],
    lr: float,
    settings: TrainingSettings,
) -> None:
    """Take a step of SGD in place, as ``torch.optim.SGD`` has it; a zero momentum is not initialised yet."""
    found = list(gradients)
    if pulls:
        torch._foreach_add_(found, pulls)
    if settings.weight_decay:
        torch._foreach_add_(found, parameters, alpha=settings.weight_decay)
    if buffers:
        torch._foreach_mul_(buffers, settings.momentum)
        torch._foreach_add_(buffers, found)
        found = buffers
    torch._foreach_add_(parameters, found, alpha=-lr)


def _drawn(sites: Sequence[SiteTraining], settings: TrainingSettings) -> _Batches:
    """Draw all batches of all sites, each from its own generator."""
    by_site, start = list[Tensor](), 0
    for site in sites:
        n, device = len(site.samples), site.samples.labels.device
        drawn = [
            nn.functional.pad(batch + start, (0, settings.batch - len(batch)), value=-1)
            for _ in range(settings.epochs)
            for batch in batches(n, settings.batch, site.generator, device)
        ]
        by_site.append(torch.stack(drawn))
        start += n
    rows = pad_sequence(by_site, batch_first=True, padding_value=-1)
    rows = rows[:, :, : int((rows >= 0).sum(2).max())]
    return _Batches(rows.clamp_min(0), rows >= 0, [len(drawn) for drawn in by_site])


def _by_site(
    order: Sequence[int],
    stacked: Mapping[str, Tensor],
    losses: Tensor,
    sizes: Tensor,
    steps: Sequence[int],
    epochs: int,
    lr: float,
) -> list[tuple[dict[str, Tensor], Trained]]:
    """Return the sites' own parts of what was trained, in the order in which they came."""
    own = {name: tensor.unbind() for name, tensor in stacked.items()}
    found: list[tuple[dict[str, Tensor], Trained] | None] = [None] * len(order)
    last = torch.tensor([count // epochs for count in steps], device=losses.device)
    places = torch.arange(losses.shape[1], device=losses.device)
    ends = torch.tensor(steps, device=losses.device)[:, None]
    counted = sizes * ((places < ends) & (places >= ends - last[:, None]))
    means = ((losses * counted).sum(1) / counted.sum(1)).tolist()
    for at, k in enumerate(order):
        named = {name: each[at] for name, each in own.items()}
        found[k] = named, Trained(steps[at], means[at], lr)
    return [each for each in found if each is not None]
