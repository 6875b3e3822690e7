"""The one local loop: minibatch steps of a model on samples, and its evaluation.

A method fills the loop's places, which ``Local`` lists; how gradients come about is the ``rule``'s: DP-SGD's takes
Poisson samples for batches, and clips gradients example by example. The loop itself knows no method.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import islice

import torch
from torch import Tensor, nn

from common.draws.seeding import draws_of_torch_alone, process_wide
from common.draws.seeding import generator as seeded
from common.learning.augmentation import augmented
from common.learning.compute import autocast, counted, is_large
from common.learning.task import Evaluation, Task
from common.models import couples_samples
from common.samples.inputs import Samples
from common.settings.fedavg import TrainingSettings
from synth.descent import SGD, Adam
from synth.linear_gradients import clipped_sum, finely
from synth.private_release import Gaussian, noisy_mean
from synth.row_draws import Layers, RowDraws

Objective = Callable[..., Tensor]
"""(model, inputs, targets, positions of the batch in the samples, *what was drawn for it) -> the mean loss, a scalar.

It makes its own forward pass. A rule of single examples calls it with batches of one, many at once under
``torch.func.vmap``: it must keep no count of its calls, and have what it draws of a generator drawn before.
"""

GradientRule = Callable[..., Tensor]
"""(model, objective, inputs, targets, positions, *what was drawn) -> the mean loss, NaN where it is not to be known.

The gradient is left in the parameters' ``grad``. Where `train` has ``rows``, the batch's come as the keyword ``rows``.
"""


@dataclass(frozen=True)
class Local:
    """The places of local training that a method fills; by default, FedAvg's.

    Attributes
    ----------
    objective : Objective, optional
        What is minimised over examples, by default the task's mean loss. A private rule clips this.
    draw : callable, optional
        (model, targets of a batch, rows) -> what the objective needs of random numbers for it, drawn ahead of each
        step: tensors [n, ...] with a row for each example. In a private run they must come of ``rows``, in which each
        example's are its own; otherwise that is None.
    penalty : callable, optional
        What is minimised in addition, of the parameters alone: model -> a scalar. Never clipped.
    rate : callable, optional
        Steps taken before -> what the learning rate is multiplied by in this one (a schedule within a round).
    augment : callable, optional
        (inputs of a batch, rows) -> what is trained on, instead of what ``settings.augment`` says.
    after_step : callable, optional
        Called with the model after each step, such as a projection.
    mu : float
        The strength of a pull (FedProx, FedDyn): mu (w - centre) is added to each gradient, and never clipped.
    centre : dict of str to Tensor, optional
        What it pulls to, by the parameters' names; None: where training begins.
    slope : dict of str to Tensor
        Taken off each gradient (FedDyn's g_k), of all parameters or none.
    drift : dict of str to Tensor
        Taken off after each step, times the learning rate (SCAFFOLD's and FedPVR's c - c_k).
    carried_on : float
        rho of the 1 + rho + rho^2 ... times that the drift is taken off.
    """

    objective: Objective | None = None
    draw: Callable[[nn.Module, Tensor, RowDraws | None], tuple[Tensor, ...]] | None = None
    penalty: Callable[[nn.Module], Tensor] | None = None
    rate: Callable[[int], float] | None = None
    augment: Callable[[Tensor, RowDraws | None], Tensor] | None = None
    after_step: Callable[[nn.Module], None] | None = None
    mu: float = 0.0
    centre: Mapping[str, Tensor] | None = None
    slope: Mapping[str, Tensor] = field(default_factory=dict)
    drift: Mapping[str, Tensor] = field(default_factory=dict)
    carried_on: float = 0.0

    @property
    def by_terms_alone(self) -> bool:
        """Whether nothing but ``mu``, ``slope``, ``drift`` and ``carried_on`` is filled."""
        places = self.objective, self.draw, self.penalty, self.rate, self.augment, self.after_step
        return self.centre is None and not any(places)


@torch.no_grad()
def pulls(
    parameters: list[Tensor], centre: list[Tensor], slopes: list[Tensor], mu: float
) -> list[Tensor]:
    """Return mu (w - centre) - slope of each parameter, of which there may be no slopes."""
    found = list(torch._foreach_sub(parameters, centre))
    torch._foreach_mul_(found, mu)
    if slopes:
        torch._foreach_sub_(found, slopes)
    return found


class _Terms:
    """What a method's steps add to the loss's gradient."""

    def __init__(self, model: nn.Module, local: Local, lr: float) -> None:
        self._mu, self._carried_on, self._lr, self._amount = local.mu, local.carried_on, lr, 0.0
        self.pulled = bool(local.mu or local.slope)
        named = dict(model.named_parameters()) if self.pulled or local.drift else {}
        trained = {n: p for n, p in named.items() if p.requires_grad} if self.pulled else {}
        centre = trained if local.centre is None else local.centre
        self._moved: list[Tensor] = list(trained.values())
        self._centre = [centre[n].detach().clone() for n in trained]
        self._slopes = [local.slope[n].to(p.device) for n, p in trained.items() if local.slope]
        self._corrected: list[Tensor] = [named[n] for n in local.drift]
        self._drifts = [d.to(named[n].device) for n, d in local.drift.items()]

    def pull(self) -> None:
        """Add the pull to the gradients, less the slopes."""
        found = pulls(self._moved, self._centre, self._slopes, self._mu)
        for parameter, own in zip(self._moved, found, strict=True):
            parameter.grad = own if parameter.grad is None else parameter.grad.add_(own)

    @torch.no_grad()
    def correct(self) -> None:
        """Take the drift off, after a step."""
        self._amount = 1.0 + self._carried_on * self._amount
        if self._drifts:
            torch._foreach_add_(self._corrected, self._drifts, alpha=-self._lr * self._amount)


@dataclass(frozen=True)
class Trained:
    """What a call of ``train`` did: steps taken, their learning rate, and the mean loss over the last epoch.

    The loss is NaN where the rule keeps it to itself.
    """

    steps: int
    loss: float
    lr: float


def plain_gradient(
    model: nn.Module,
    objective: Objective,
    x: Tensor,
    targets: Tensor,
    positions: Tensor,
    *drawn: Tensor,
) -> Tensor:
    """Leave the gradient of the batch's mean loss in ``grad``."""
    loss = objective(model, x, targets, positions, *drawn)
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()


@dataclass(frozen=True)
class Gradients:
    """How gradients are computed; by default, of the mean loss of each batch."""

    rule: GradientRule = plain_gradient
    sampled: Iterable[Tensor] | None = None
    rows: Callable[[int, Tensor], RowDraws] | None = None


def batches(
    n: int,
    size: int,
    generator: torch.Generator,
    device: torch.device,
    drawn: int | None = None,
    *,
    even: bool = False,
) -> Iterator[Tensor]:
    """Yield the positions 0..n-1, or ``drawn`` of them, in a random order, ``size`` at a time.

    The rest is a smaller last batch; with ``even`` there are as many batches, which differ by one at most.
    """
    order = torch.randperm(n, generator=generator, device=generator.device).to(device)
    if n <= size and (drawn is None or drawn >= n):
        yield order
    elif even:
        taken = order[:drawn]
        yield from torch.tensor_split(taken, -(-len(taken) // size))
    else:
        yield from torch.split(order[:drawn], size)


def _passes(
    n: int,
    size: int,
    generator: torch.Generator,
    device: torch.device,
    drawn: int,
    steps: int,
    even: bool,
) -> Iterator[Iterator[Tensor]]:
    """Yield the batches of each pass until so many steps are taken; the last pass may be cut short."""
    while steps > 0:
        yield islice(batches(n, size, generator, device, drawn, even=even), steps)
        steps -= -(-drawn // size)


def train(
    model: nn.Module,
    samples: Samples,
    settings: TrainingSettings,
    task: Task,
    generator: torch.Generator,
    *,
    local: Local = Local(),
    gradients: Gradients = Gradients(),
    server_round: int = 1,
    precision: str = "float32",
    steps: int = 0,
    examples: int = 0,
    even: bool = False,
    before_step: Callable[[], None] | None = None,
    head_alone: bool = False,
) -> Trained:
    """Train ``model`` in place on ``samples`` for ``settings.epochs`` passes, or for ``steps`` steps if given.

    A pass is over ``examples`` of them, drawn again each time and without replacement; 0: over all. Its batches are of
    ``settings.batch`` and a rest, or, with ``even``, as many that differ by one at most. ``generator`` orders the
    batches, and its seed decides what augmentation and layers such as dropout draw, unless ``gradients`` has others.
    ``before_step`` runs ahead of every batch, such as one that raises when the time is over. The loss that is returned
    is the objective's mean over the last pass, or over what of it was run. ``server_round`` counts from 1, for the
    decay of the learning rate. With ``head_alone`` layers are as in evaluation: fixed layers keep their statistics.
    """
    device, rule, rows = samples.labels.device, gradients.rule, gradients.rows
    lr = settings.lr_in(server_round)
    minimised = _in_precision(local.objective or plain(task), device, precision)
    augment = local.augment or augmented(settings, generator)
    modules = list(model.modules())  # each walk over a model takes as long as a small layer
    parameters = _parameters_of(modules)
    optimiser = _optimiser(parameters, settings, lr)
    if head_alone:
        model.eval()
    elif not all(map(_trains, modules)):
        model.train()
    examples = min(examples or len(samples), len(samples))
    last = steps or settings.epochs * -(-examples // settings.batch)
    ahead = counted(last, before_step)
    passes = _passes(len(samples), settings.batch, generator, device, examples, last, even)
    done = 0
    losses: list[tuple[Tensor, int]] = []
    terms = _Terms(model, local, lr)
    code = *modules, *filter(callable, vars(local).values()), task, rule, before_step
    ours = draws_of_torch_alone(*code)
    noisy = settings.gradient_noise > 0
    noise = seeded(generator.initial_seed(), "gradient-noise", device=device) if noisy else None
    # A parameter may take its step in the backward pass only where nothing else needs the complete gradient first, and
    # all code between is known: a large model then never has gradients as large as itself.
    extra = local.penalty is not None or terms.pulled
    needs_all = rule is not plain_gradient or settings.clip_norm > 0 or noisy or extra
    large = is_large(sum(parameter.nbytes for parameter in parameters))
    early = ours and not needs_all and local.objective is None and large
    moving = _moved_by_each_gradient(parameters, optimiser) if early else nullcontext()
    with process_wide(generator.initial_seed(), "layers", torch_alone=ours), moving:
        for a_pass in passes if gradients.sampled is None else iter([gradients.sampled]):
            losses.clear()
            for positions in a_pass:
                ahead()
                optimiser.zero_grad()
                if local.rate is not None:
                    optimiser.lr = lr * local.rate(done)
                batch = _without_lone(model, positions)
                own = None if rows is None else rows(done, batch)
                x = augment(samples.inputs(batch), own)
                targets = samples.labels.index_select(0, batch)
                drawn = () if local.draw is None else local.draw(model, targets, own)
                alone = {} if own is None else {"rows": own}
                loss = rule(model, minimised, x, targets, batch, *drawn, **alone)
                if settings.clip_norm:
                    nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
                if local.penalty is not None:
                    local.penalty(model).backward()  # type: ignore[no-untyped-call]
                if terms.pulled:
                    terms.pull()
                if noise is not None:
                    _add_noise(parameters, settings.gradient_noise, noise)
                optimiser.step()
                terms.correct()
                if local.after_step is not None:
                    local.after_step(model)
                done += 1
                losses.append((loss, len(positions)))
    optimiser.zero_grad()  # as large as the model, which is about to be copied
    return Trained(done, _mean(losses), lr)


def _add_noise(
    parameters: Iterable[nn.Parameter], deviation: float, generator: torch.Generator
) -> None:
    for each in parameters:
        if each.grad is not None:
            drawn = torch.randn(each.shape, generator=generator, device=each.device)
            each.grad.add_(drawn.to(each.dtype), alpha=deviation)


def _trains(module: nn.Module) -> bool:
    """Return whether a module is in training mode, and ``train()`` does nothing else to it."""
    own = "train" in vars(module) or type(module).train is not nn.Module.train
    return module.training and not own


def _mean(losses: list[tuple[Tensor, int]]) -> float:
    """Return the mean over examples of batches' losses, each with its size; 0 of none."""
    if not losses:
        return 0.0
    total = losses[0][0].float() * losses[0][1]  # a loss in bfloat16 would be summed up in it
    for loss, size in losses[1:]:
        total += loss * size
    return total.item() / max(1, sum(size for _, size in losses))


def mean_gradient(
    model: nn.Module, samples: Samples, task: Task, batch: int, precision: str = "float32"
) -> None:
    """Leave in ``grad`` the gradient of the task's mean loss over all of ``samples``, ``batch`` at a time."""
    minimised = _in_precision(plain(task), samples.labels.device, precision)
    model.zero_grad()
    every = torch.arange(len(samples), device=samples.labels.device)
    for positions in torch.split(every, batch):
        loss = minimised(model, samples.inputs(positions), samples.labels[positions], positions)
        (loss * (len(positions) / len(samples))).backward()  # type: ignore[no-untyped-call]


def _parameters_of(modules: Iterable[nn.Module]) -> list[nn.Parameter]:
    """Return what ``parameters()`` gives of a model with these modules, in its order: one that layers share once."""
    found = (p for module in modules for p in module._parameters.values() if p is not None)
    return list(dict.fromkeys(found))


@contextmanager
def _moved_by_each_gradient(
    parameters: Iterable[nn.Parameter], optimiser: SGD | Adam
) -> Iterator[None]:
    """Have each parameter take its step in the backward pass, as soon as its gradient is there, which is then let go.

    The numbers are those of one step for all, and there are never gradients as large as the model. The gradient is
    there when nothing in the backward pass needs the parameter any more; of code that takes it another way, such as
    detached, that is unknown: so this is for models of Nectar's and their task's loss alone.
    """

    def move(parameter: Tensor) -> None:
        optimiser.step()  # of the one that has a gradient
        parameter.grad = None

    hooks = [
        p.register_post_accumulate_grad_hook(move)  # type: ignore[no-untyped-call]
        for p in parameters
        if p.requires_grad
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _optimiser(parameters: list[nn.Parameter], settings: TrainingSettings, lr: float) -> SGD | Adam:
    if settings.local_optimizer == "adam":
        return Adam(parameters, lr, weight_decay=settings.weight_decay)
    momentum, weight_decay = settings.momentum, settings.weight_decay
    return SGD(parameters, lr, momentum=momentum, weight_decay=weight_decay)


def _in_precision(objective: Objective, device: torch.device, precision: str) -> Objective:
    """Return ``objective`` with its forward pass in ``precision``; the backward pass stays outside, as torch asks."""
    if precision == "float32":
        return objective

    def cast(model: nn.Module, *batch: Tensor) -> Tensor:
        with autocast(device, precision):
            return objective(model, *batch)

    return cast


def _without_lone(model: nn.Module, positions: Tensor) -> Tensor:
    """Return a batch's positions, a single one twice where samples couple.

    Its mean loss and what batch norm makes of it are the same then, and torch takes no batch of one value a channel.
    """
    return positions.repeat(2) if len(positions) == 1 and couples_samples(model) else positions


def plain(task: Task) -> Objective:
    """Return the objective of FedAvg: the task's mean loss."""

    def objective(model: nn.Module, x: Tensor, targets: Tensor, positions: Tensor) -> Tensor:
        return task.loss(model(x), targets)

    return objective


def weighted(task: Task, weights: Tensor) -> Objective:
    """Return the task's loss with example i counting ``weights[i]`` times."""

    def objective(model: nn.Module, x: Tensor, targets: Tensor, positions: Tensor) -> Tensor:
        return task.loss(model(x), targets, weights[positions])

    return objective


@torch.no_grad()
def evaluate(
    model: nn.Module,
    samples: Samples,
    task: Task,
    batch: int,
    precision: str = "float32",
    kept: list[Tensor] | None = None,
) -> Evaluation:
    """Judge ``model`` on all of ``samples``, ``batch`` at a time, in evaluation mode; ``kept`` gets its outputs."""
    model.eval()
    tally = task.tally()
    device = samples.labels.device
    for start in range(0, len(samples), batch):
        part = slice(start, start + batch)
        with autocast(device, precision):
            outputs = model(samples.inputs(part))
        tally.add(outputs, samples.labels[part])
        if kept is not None:
            kept.append(outputs)
    return tally.result()


def dp_sgd(gaussian: Gaussian, expected: float) -> GradientRule:
    """Return what leaves a batch's noisy mean gradient in ``grad``; the mean loss, which is private, is NaN.

    ``gaussian`` has clip and noise, other noise for each step; ``expected`` is the divisor.
    """
    layers = Layers()

    def noisy_gradient(
        model: nn.Module, objective: Objective, *batch: Tensor, rows: RowDraws | None = None
    ) -> Tensor:
        device = batch[0].device

        def drawing(at: slice) -> AbstractContextManager[None]:
            return nullcontext() if rows is None else layers.drawing(rows.part(at), device)

        mechanism = finely(gaussian, model, expected)
        sums = clipped_sum(model, objective, batch, mechanism, drawing=drawing)
        slopes = noisy_mean(sums, mechanism, expected)
        for name, parameter in model.named_parameters():
            slope = slopes.get(name)
            parameter.grad = None if slope is None else slope.to(parameter.dtype)
        return torch.full((), math.nan, device=device)

    return noisy_gradient
