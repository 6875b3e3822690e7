"""DENSE's mathematics (Zhang et al., 2022): one model distilled from many, on images that a generator makes up.

The server has the devices' models and no data. An iteration trains a new generator of images that the ensemble takes
for given classes, that look to its batch norms like what they were trained on, and on which the student still decides
otherwise; it puts one batch of them into a pool, and trains the student on the pool to answer as the ensemble does.

Settings are those that the released code's README passes (its defaults switch the generator's three losses off). Two
of its traps are avoided: an ensemble of five models for any number, and a student that judges the generator's
images in training mode, which moves its batch norms' statistics.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from synth.descent import SGD, Adam, finite

BETAS = 0.5, 0.999
"""Of the generator's Adam."""

_LEVELS = 255
"""An image of the pool is kept in bytes, as the released code keeps its in PNG files."""


@dataclass(frozen=True)
class Plan:
    """How DENSE distils; the defaults are those of the released code's README.

    Attributes
    ----------
    steps, lr : int, float
        The generator's steps in an iteration, and its learning rate.
    batch : int
        Images of a step, and of those that an iteration adds to the pool.
    matching, statistics, adversarial : float
        The weights of L_CE, L_BN and L_div.
    padding, flip : int, bool
        How images are cropped and mirrored, as `crop_flip` takes it, ahead of both the ensemble and the student. The
        released code does not crop what the student learns from unless it is CIFAR.
    student_batch, student_lr, momentum : int, float, float
        Of the student's SGD.
    temperature : float
        T of the student's loss.
    """

    steps: int = 30
    lr: float = 1e-3
    batch: int = 256
    matching: float = 1.0
    statistics: float = 1.0
    adversarial: float = 1.0
    padding: int = 4
    flip: bool = True
    student_batch: int = 256
    student_lr: float = 0.005
    momentum: float = 0.9
    temperature: float = 20.0


def kl_to_ensemble(student: Tensor, ensemble: Tensor, temperature: float = 1.0) -> Tensor:
    """Return T^2 KL(softmax(ensemble / T) || softmax(student / T)) of each example, float [n].

    Parameters
    ----------
    student, ensemble : Tensor
        Logits, float [n, classes].
    temperature : float
        T; its square keeps the size of the gradients (Hinton et al., 2015).
    """
    ours = (student / temperature).log_softmax(1)
    target = (ensemble / temperature).log_softmax(1)
    errors = F.kl_div(ours, target, reduction="none", log_target=True).sum(1)
    return errors * temperature**2


def adversarial_loss(student: Tensor, ensemble: Tensor) -> Tensor:
    """Return L_div = -mean_i w_i KL(ensemble_i || student_i), w_i being 1 where the two decide otherwise, else 0.

    The mean is over the full batch, as in the paper and the released code: an image on which the two agree adds 0
    to it and counts. The direction is also theirs; the released function only names the student first.

    Parameters
    ----------
    student, ensemble : Tensor
        Logits, float [n, classes].
    """
    differ = student.argmax(1) != ensemble.argmax(1)
    return -(kl_to_ensemble(student, ensemble) * differ).mean()


def generator_loss(
    student: Tensor, ensemble: Tensor, statistics: Tensor, labels: Tensor, plan: Plan
) -> Tensor:
    """Return L_CE + L_BN + L_div, each with its weight in ``plan``.

    Parameters
    ----------
    student, ensemble : Tensor
        Logits of the generator's images, float [n, classes].
    statistics : Tensor
        L_BN, a scalar.
    labels : Tensor
        The classes that the images are to have, int64 [n].
    """
    return (
        plan.matching * F.cross_entropy(ensemble, labels)
        + plan.statistics * statistics
        + plan.adversarial * adversarial_loss(student, ensemble)
    )


@dataclass(frozen=True)
class Losses:
    """The losses of an iteration: the generator's on the batch that it kept, and the student's mean."""

    generator: float
    student: float


class Distillation:
    """Distils an ensemble into a student, an iteration at a time.

    The generator begins again in each iteration and is not kept. The pool is: an iteration adds batch C H W bytes, so
    that 200 of the paper's add up to 157 MB for 3x32x32 and to 40 MB for 1x28x28, of which a pass over them takes a
    copy. All draws of an iteration come from a separate generator. Layers of the student that draw by themselves,
    such as dropout, do so from the process-wide generator, which is its caller's to seed.

    Parameters
    ----------
    student : nn.Module
        Images [n, C, H, W] -> logits [n, classes]; is trained in place.
    ensemble : Ensemble
        Its teacher.
    classes : int
        How many there are; the images' classes are uniform over them.
    normalise : callable
        Images in [0, 1], float [n, C, H, W] -> what the models take; gradients pass through it.
    draws : callable
        Iteration, from 0 on -> the generator of its draws, on the models' device.

    Attributes
    ----------
    iteration : int
        Those that are done.
    pool, labels : list of Tensor
        The images of each iteration, uint8 [batch, C, H, W], 0 to 255, and the classes that they were to have, int64
        [batch].
    """

    def __init__(
        self,
        student: nn.Module,
        ensemble: Ensemble,
        generator: ImageGenerator,
        classes: int,
        normalise: Callable[[Tensor], Tensor],
        draws: Callable[[int], torch.Generator],
        *,
        plan: Plan = Plan(),
    ) -> None:
        self.iteration = 0
        self.pool: list[Tensor] = []
        self.labels: list[Tensor] = []
        self._student, self._ensemble, self._generator = student, ensemble, generator
        self._classes, self._normalise, self._draws, self._plan = classes, normalise, draws, plan
        self._sgd = SGD(student.parameters(), plan.student_lr, momentum=plan.momentum)

    def run_iteration(self) -> Losses:
        """Train a generator, pool its best batch, train the student once; FloatingPointError of a loss not finite."""
        draws = self._draws(self.iteration)
        images, labels, best = self._synthesise(draws)
        when = f"iteration {self.iteration + 1} of DENSE"
        made = finite(best, "the generator's loss", when)
        self.pool.append((images * _LEVELS).round().to(torch.uint8))
        self.labels.append(labels)
        learned = finite(self._train_student(draws), "the student's loss", when)
        self.iteration += 1
        return Losses(made, learned)

    def _synthesise(self, draws: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Return the batch of images, of those of all steps, whose loss was the lowest, its classes and that loss."""
        plan, model = self._plan, self._generator
        model.reset(draws)
        shape = (plan.batch, model.noise)
        z = torch.randn(shape, generator=draws, device=draws.device).requires_grad_()
        labels = torch.randint(self._classes, shape[:1], generator=draws, device=draws.device)
        moved = [*model.parameters(), z]
        adam = Adam(moved, plan.lr, betas=BETAS)
        model.train()
        self._student.eval()
        best = torch.full((), math.inf, device=draws.device)
        kept = torch.zeros((), device=draws.device)
        for _ in range(plan.steps):
            images = model(z)
            loss = self._judged(images, labels, draws)
            # On the device: to ask which is lower would wait for every step.
            kept = torch.where(loss < best, images.detach(), kept)
            best = torch.minimum(loss.detach(), best)
            for tensor, gradient in zip(moved, torch.autograd.grad(loss, moved), strict=True):
                tensor.grad = gradient
            adam.step()
        return kept, labels, best

    def _judged(self, images: Tensor, labels: Tensor, draws: torch.Generator) -> Tensor:
        """Return the generator's loss of its images."""
        x = self._seen(images, draws)
        ensemble, statistics = self._ensemble.judge(x)
        return generator_loss(self._student(x), ensemble, statistics, labels, self._plan)

    def _train_student(self, draws: torch.Generator) -> Tensor:
        """Train the student on the pool once, in a random order, and return its mean loss."""
        plan, pool = self._plan, torch.cat(self.pool)
        order = torch.randperm(len(pool), generator=draws, device=draws.device)
        total = torch.zeros((), device=draws.device)
        self._student.train()
        # Batches that differ by one at most: a single image is no batch for a batch norm.
        for at in torch.tensor_split(order, math.ceil(len(pool) / plan.student_batch)):
            x = self._seen(pool[at].float() / _LEVELS, draws)
            with torch.no_grad():
                target = self._ensemble(x)
            loss = kl_to_ensemble(self._student(x), target, plan.temperature).mean()
            self._sgd.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self._sgd.step()
            total += loss.detach() * len(at)
        return total / len(pool)

    def _seen(self, images: Tensor, draws: torch.Generator) -> Tensor:
        """Return images as the models see them: cropped, mirrored and normalised."""
        return self._normalise(crop_flip(images, draws, self._plan.padding, self._plan.flip))


# ---- ensemble ------------------------------------------------------------------------------------
# Many models that answer as one, and how far what they are given is from what they were trained on (DENSE).


class Ensemble:
    """D(x), the mean of any number of models' logits, all in evaluation mode.

    The models go one after the other, so they may differ in architecture; on a CPU ``torch.func.vmap`` over stacked
    weights is hardly ever faster, and takes two to four times as long for a ConvNet. A gradient needs the memory of all
    their passes at once.

    Parameters
    ----------
    models : sequence of nn.Module
        Images [n, C, H, W] -> logits [n, classes]. They are set to evaluation mode, and their parameters ask for no
        gradients any more: a model to be trained cannot be one of them.

    Raises
    ------
    ValueError
        There is no model.
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        if not models:
            raise ValueError("an ensemble needs a model")
        self._models = [model.eval().requires_grad_(False) for model in models]
        self._norms = [
            module
            for model in models
            for module in model.modules()
            if isinstance(module, _BatchNorm) and module.running_mean is not None
        ]

    def __call__(self, x: Tensor) -> Tensor:
        """Return the logits, float [n, classes]."""
        return torch.stack([model(x) for model in self._models]).mean(0)

    def judge(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits, and L_BN from the same passes.

        L_BN is the sum over the batch norms of all models of ||mu - running mean|| + ||sigma^2 - running variance||,
        mu and sigma^2 being those of each channel of what enters there, over the batch (and the places of a map).
        Models without batch norm have none: it is 0 for them, and says nothing.
        """
        with _entering(self._norms) as distances:
            logits = self(x)
        return logits, torch.stack(distances).sum() if distances else logits.new_zeros(())


@contextmanager
def _entering(norms: Sequence[_BatchNorm]) -> Iterator[list[Tensor]]:
    """Collect each norm's distance between the statistics of what enters and its running ones, pass by pass."""
    distances: list[Tensor] = []

    def note(norm: nn.Module, given: tuple[Tensor, ...]) -> None:
        assert isinstance(norm, _BatchNorm)
        distances.append(statistics_distance(given[0], norm))

    handles = [norm.register_forward_pre_hook(note) for norm in norms]
    try:
        yield distances
    finally:
        for handle in handles:
            handle.remove()


def statistics_distance(x: Tensor, norm: _BatchNorm) -> Tensor:
    """Return ||mu - running mean|| + ||sigma^2 - running variance|| of what enters a batch norm, [n, channels, ...]."""
    variance, mean = torch.var_mean(x.transpose(0, 1).flatten(1), 1, correction=0)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    gaps = mean - norm.running_mean, variance - norm.running_var
    return torch.stack([torch.linalg.vector_norm(gap) for gap in gaps]).sum()


# ---- dense generator -----------------------------------------------------------------------------
# DENSE's generator of images (Zhang et al., 2022), and the crops and mirror images that its assessors see.

NOISE, WIDTH = 256, 64

_SLOPE, _DEVIATION = 0.2, 0.02
"""The released code's, of LeakyReLU below 0 and of initial weights."""


class ImageGenerator(nn.Module):
    """G(z): a linear layer to maps of a quarter of the image's sides, then three convolutions and two doublings.

    Batch norm comes before the first doubling and after the two 3x3 convolutions that follow a doubling; a third one
    gives the channels, and a sigmoid values in [0, 1]: images before they are normalised. G is only ever in training,
    so its batch norms keep no statistics. For 3x32x32 and the released code's sizes it has 2,328,899 parameters.

    Parameters
    ----------
    shape : tuple of int
        An image's (channels, height, width), both sides divided by 4.
    noise : int
        The dimensions of z.
    width : int
        Channels of the last hidden maps; those before have twice as many.

    Raises
    ------
    ValueError
        The images' sides are not divided by 4.
    """

    def __init__(self, shape: tuple[int, int, int], noise: int = NOISE, width: int = WIDTH) -> None:
        super().__init__()
        channels, height, breadth = shape
        if height % 4 or breadth % 4 or min(shape) < 1:
            raise ValueError(
                f"DENSE's generator doubles maps twice and needs images whose sides 4 divides, not {height}x{breadth}"
            )
        wide, rows, columns = 2 * width, height // 4, breadth // 4
        self.noise = noise
        self.layers = nn.Sequential(
            nn.Linear(noise, wide * rows * columns),
            nn.Unflatten(1, (wide, rows, columns)),
            _norm(wide),
            *_doubled(wide, wide),
            *_doubled(wide, width),
            nn.Conv2d(width, channels, 3, padding=1),
            nn.Sigmoid(),
        )

    def forward(self, z: Tensor) -> Tensor:
        """Return images in [0, 1], float [n, C, H, W], for z [n, noise]."""
        images: Tensor = self.layers(z)
        return images

    @torch.no_grad()
    def reset(self, generator: torch.Generator) -> None:
        """Draw the weights again: N(0, 0.02^2), those of the batch norms N(1, 0.02^2); every bias is 0."""
        for layer in self.layers:
            if isinstance(layer, nn.Linear | nn.Conv2d | nn.BatchNorm2d):
                mean = float(isinstance(layer, nn.BatchNorm2d))
                layer.weight.normal_(mean, _DEVIATION, generator=generator)
                if layer.bias is not None:
                    layer.bias.zero_()


def _norm(channels: int) -> nn.Module:
    return nn.BatchNorm2d(channels, track_running_stats=False)


def _doubled(given: int, wide: int) -> list[nn.Module]:
    """Return the layers that double the sides: nearest neighbours, a convolution, batch norm and LeakyReLU."""
    return [
        nn.Upsample(scale_factor=2),
        nn.Conv2d(given, wide, 3, padding=1, bias=False),
        _norm(wide),
        nn.LeakyReLU(_SLOPE, inplace=True),
    ]


def start(
    shape: tuple[int, int, int],
    generator: torch.Generator,
    noise: int = NOISE,
    width: int = WIDTH,
) -> ImageGenerator:
    """Return G on the generator's device, with weights from it."""
    with torch.device("meta"):
        model = ImageGenerator(shape, noise, width)
    allocate(model, generator.device)
    model.reset(generator)
    return model


def crop_flip(
    images: Tensor, generator: torch.Generator, padding: int = 4, flip: bool = True
) -> Tensor:
    """Return a random crop of each image, at its own size from the image padded with zeros; half of them mirrored.

    Parameters
    ----------
    images : Tensor
        Float [n, C, H, W]. Gradients reach them.
    generator : torch.Generator
        The source of every draw, of each image its own, on the images' device.
    padding : int
        The zeros on each side; 0 for no crop.
    flip : bool
        Whether images are mirrored left to right, with probability 1/2 each.
    """
    n, (height, width), device = len(images), images.shape[-2:], images.device
    corners = torch.randint(2 * padding + 1, (2, n, 1), generator=generator, device=device)
    mirrored = torch.randint(2, (n, 1), generator=generator, device=device).bool() & flip
    columns = torch.arange(width, device=device)
    rows = corners[0] + torch.arange(height, device=device)
    columns = corners[1] + torch.where(mirrored, width - 1 - columns, columns)
    image = torch.arange(n, device=device)[:, None, None]
    padded = F.pad(images, (padding,) * 4)
    # Indices next to the slice of the channels put these last.
    return padded[image, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


# ---- initial -------------------------------------------------------------------------------------
# Networks that begin with draws from a generator alone: torch's own start draws from the process-wide one.


@torch.no_grad()
def allocate(model: nn.Module, device: torch.device) -> None:
    """Give a network on "meta" memory on ``device``, whose values are still to be written."""
    # As Module.to_empty, whose empty_like is slow to import for a tensor on "meta".
    empty = {
        name: torch.empty(value.shape, dtype=value.dtype, device=device)
        for name, value in model.state_dict().items()
    }
    model.load_state_dict(empty, assign=True)


@torch.no_grad()
def fill(model: nn.Module, generator: torch.Generator) -> None:
    """Give a network on "meta" memory on the generator's device, and torch's usual initial weights from it.

    Convolutions and linear layers are uniform in +-1/sqrt(fan in), embeddings standard normal; norms change nothing.
    Fan in is as torch counts it: of a transposed convolution, by its output channels.
    """
    allocate(model, generator.device)
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d | nn.ConvTranspose2d):
            bound = 1 / math.sqrt(module.weight[0].numel())
            for parameter in module.parameters():
                parameter.uniform_(-bound, bound, generator=generator)
        elif isinstance(module, nn.Embedding):
            module.weight.normal_(generator=generator)
        elif isinstance(module, nn.BatchNorm1d | nn.GroupNorm):
            module.reset_parameters()
