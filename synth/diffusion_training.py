"""The training of a diffusion model, which can be stopped at any step and gone on with to the bit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from synth.descent import Adam, finite
from synth.diffusion import Schedule, denoising_loss, denoising_losses, sample
from synth.private_release import Gaussian, clipped_sum, noisy_mean
from synth.row_draws import RowDraws, integers
from synth.unet import UNet

CLIP = 1.0
"""The largest norm of a step's gradient."""


@dataclass(frozen=True)
class Plan:
    """How a diffusion model is trained; the defaults are those of Fedssyn and its released code.

    Attributes
    ----------
    batch : int
        Images of a step; the last of an epoch may have fewer.
    decay : float
        That of the weights' moving average, from 0, which follows the weights, to less than 1.
    precision : torch.dtype
        torch.float32, or torch.bfloat16 for the forward pass and its gradients under autocast; the weights,
        the optimizer and the average stay in float32. It is the faster one where the machine multiplies
        matrices in bfloat16, such as a CPU with AMX; float32 is the safe one everywhere.
    sampler, sampling_steps : str, int
        How images are drawn, as `synth.diffusion.sample` takes them.
    """

    batch: int = 256
    lr: float = 1e-4
    decay: float = 0.9995
    precision: torch.dtype = torch.float32
    sampler: str = "ancestral"
    sampling_steps: int | None = None


class DiffusionTraining:
    """A U-Net, its optimizer, the average of its weights, which generates better images, and how far it has come.

    The average is exponential, a <- d_k a + (1 - d_k) w at the k-th step, and its decay warms up,
    d_k = min(decay, k / (k + 9)) from k = 1: with 0.9995 alone the initial weights would make up a fifth of it after
    3,000 steps. So it reaches back over about a tenth of the training, until that is 18,000 steps long.

    An epoch's every draw comes from the generator that ``generators`` gives for its number: first the
    images' order and one seed a step, from which that step's time steps, noise and dropout come. So
    no generator's state need be kept to go on from the middle of an epoch. A private training draws by
    ``private`` alone.

    Parameters
    ----------
    images : Tensor
        Float32 [N, C, H, W], in [-1, 1], on the model's device; there they stay.
    labels : Tensor
        Int64 [N].
    generators : callable
        epoch, from 0 -> a generator on the images' device, the same one on each call.
    plan : Plan
        How to train.
    private : PrivateDescent, optional
        Makes the training differentially private: batches are Poisson samples, gradients come from it, and nothing is
        dropped. The losses, which are private, are NaN.

    Raises
    ------
    ValueError
        There are no images for a training that is not private, or not as many labels.
    """

    def __init__(
        self,
        model: UNet,
        schedule: Schedule,
        images: Tensor,
        labels: Tensor,
        generators: Callable[[int], torch.Generator],
        plan: Plan,
        private: PrivateDescent | None = None,
    ) -> None:
        if (not len(images) and private is None) or len(images) != len(labels):
            raise ValueError(f"{len(images)} images do not go with {len(labels)} labels")
        if private is None:  # gradients of single examples have torch's memory layout
            # The same numbers except for rounding, and on a CPU faster.
            model.to(memory_format=torch.channels_last)
        self.model, self.epoch, self.step = model, 0, 0
        self._schedule = schedule.to(images.device)
        self._images, self._labels = images, labels
        self._generators, self._plan, self._private = generators, plan, private
        self._parameters = dict(model.named_parameters())
        self.average = {name: p.detach().clone() for name, p in self._parameters.items()}
        self._optimizer = Adam(self._parameters.values(), plan.lr, fused=True)
        self._loss = torch.zeros((), dtype=torch.float64, device=images.device)

    @property
    def steps(self) -> int:
        """Steps of the epoch that is next: under privacy all together have ceil(epochs / q), and they vary."""
        return self._before(self.epoch + 1) - self._before(self.epoch)

    def _before(self, epoch: int) -> int:
        """Return the steps of all epochs before one."""
        if self._private is not None:
            return steps_of(epoch, self._private.examples, self._plan.batch)
        return epoch * math.ceil(len(self._images) / self._plan.batch)

    def run(self, epochs: int, after_step: Callable[[], None] | None = None) -> Iterator[float]:
        """Train until ``epochs`` are complete; yield each epoch's mean loss over its images.

        Parameters
        ----------
        epochs : int
            In all, those before a `load` included.
        after_step : callable, optional
            Called after every step, such as one that keeps the `state`, or raises when the time is over.

        Raises
        ------
        FloatingPointError
            An epoch's loss is not a number any more.
        """
        while self.epoch < epochs:
            loss = self._finish_epoch(after_step or (lambda: None))
            if self._private is None:
                yield finite(loss, "the diffusion model's loss", f"epoch {self.epoch}")
            else:
                yield math.nan

    def draw(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        """Return an image of each of ``labels`` by the average, float [n, C, H, W] in [-1, 1]."""
        model, (channels, height, width) = deepcopy(self.model).eval(), self._images.shape[1:]
        model.load_state_dict(self.average)
        return sample(
            *(model, self._schedule, labels, (channels, height, width), generator),
            sampler=self._plan.sampler,
            steps=self._plan.sampling_steps,
        )

    def state(self) -> dict[str, Tensor]:
        """Return a copy of all that is needed to resume: tensors by name."""
        names = list(self._parameters)
        moments = [f"optimizer.{kind}.{n}" for kind in ("mean", "square", "steps") for n in names]
        return {
            **{f"model.{n}": p.detach().clone() for n, p in self._parameters.items()},
            **{f"average.{n}": value.clone() for n, value in self.average.items()},
            **dict(zip(moments, self._optimizer.state(), strict=True)),
            "position": torch.tensor([self.epoch, self.step]),
            "loss": self._loss.clone(),
        }

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Resume from a `state` of a training of the same model on the same images, plan and generators.

        On a CPU with the same number of threads the numbers are then those of an unbroken training, to the bit.

        Raises
        ------
        KeyError
            It is another model's.
        """
        for name, parameter in self._parameters.items():
            parameter.copy_(state[f"model.{name}"])
            self.average[name].copy_(state[f"average.{name}"])
        kinds = ("mean", "square", "steps")
        self._optimizer.load(
            [state[f"optimizer.{kind}.{n}"] for kind in kinds for n in self._parameters]
        )
        self.epoch, self.step = state["position"].tolist()
        self._loss.copy_(state["loss"])

    def _finish_epoch(self, after_step: Callable[[], None]) -> float:
        """Take the remaining steps of the epoch; return its mean loss."""
        take_step = self._steps_of_epoch()
        while self.step < self.steps:
            take_step()
            self.step += 1
            after_step()
        loss = float(self._loss) / max(1, len(self._images))
        self._loss.zero_()
        self.epoch, self.step = self.epoch + 1, 0
        return loss

    def _steps_of_epoch(self) -> Callable[[], None]:
        """Return a function that takes the epoch's next step."""
        if self._private is not None:
            return partial(self._take_private_step, self._private)
        device, generator = self._images.device, self._generators(self.epoch)
        order = torch.randperm(len(self._images), generator=generator, device=device)
        seeds = torch.randint(1 << 62, (self.steps,), generator=generator, device=device).tolist()
        draw, size = torch.Generator(device), self._plan.batch

        def take_step() -> None:
            first = self.step * size
            self._take_step(order[first : first + size], draw.manual_seed(seeds[self.step]))

        return take_step

    def _take_step(self, batch: Tensor, draw: torch.Generator) -> None:
        """Descend along the gradient of a batch, given by its indices, and move the average."""
        images, model = self._images[batch], partial(self.model, generator=draw)
        mixed = self._plan.precision == torch.bfloat16
        with torch.autocast(images.device.type, torch.bfloat16, enabled=mixed):
            loss = denoising_loss(model, self._schedule, images, self._labels[batch], draw)
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._parameters.values(), CLIP)
        self._descend()
        self._loss += loss.detach() * len(batch)

    def _take_private_step(self, private: PrivateDescent) -> None:
        """Descend along the noisy gradient of a Poisson sample."""
        n, step = private.examples, self._taken
        expected = min(self._plan.batch, n)
        batch = private.sample(step, expected / n)
        slopes = private.slopes(
            self.model,
            self._schedule,
            self._images[batch],
            self._labels[batch],
            step=step,
            expected=expected,
            rows=private.rows(step, batch),
            precision=self._plan.precision,
        )
        for name, parameter in self._parameters.items():
            parameter.grad = slopes[name]
        self._descend()

    @property
    def _taken(self) -> int:
        """The steps that are done, over all epochs."""
        return self._before(self.epoch) + self.step

    def _descend(self) -> None:
        k = self._taken + 1
        self._optimizer.step()
        weights: list[Tensor] = list(self._parameters.values())
        decay = min(self._plan.decay, k / (k + 9))
        with torch.no_grad():
            torch._foreach_lerp_(list(self.average.values()), weights, 1 - decay)


# ---- private diffusion ---------------------------------------------------------------------------
# DP-SGD for a diffusion model (Dockhorn et al., 2023): one gradient an example, of several of its noised versions.


@dataclass(frozen=True)
class PrivateDescent:
    """How the private steps of a diffusion model are taken.

    Attributes
    ----------
    multiplicity : int
        K, the pairs of time step and noise over which an example's own loss is averaged before its gradient is clipped:
        that lowers the gradient's variance, and costs no privacy.
    examples : int
        How many there are as far as anybody may know, by which steps, rate and divisor go.
    sample : callable
        (step, rate) -> positions of a Poisson sample, int64 [m]; steps count from 0 over all epochs.
    rows : callable
        (step, positions) -> the draws of these examples, each example's its own.
    gaussian : callable
        step -> the mechanism.
    """

    multiplicity: int
    examples: int
    sample: Callable[[int, float], Tensor]
    rows: Callable[[int, Tensor], RowDraws]
    gaussian: Callable[[int], Gaussian]

    def slopes(
        self,
        model: nn.Module,
        schedule: Schedule,
        images: Tensor,
        labels: Tensor,
        *,
        step: int,
        expected: float,
        rows: RowDraws,
        precision: torch.dtype = torch.float32,
    ) -> dict[str, Tensor]:
        """Return the noisy mean gradient of a sample by the parameters' names.

        Parameters
        ----------
        model : nn.Module
            eps(x_t, t, y); nothing is dropped in it.
        schedule : Schedule
            On the images' device.
        images, labels : Tensor
            The sample, float [m, C, H, W] in [-1, 1] and int64 [m]; m may be 0.
        step : int
            From 0 on.
        expected : float
            The divisor.
        rows : RowDraws
            The source of the images' time steps and of the noise in them.
        precision : torch.dtype
            torch.bfloat16 runs the forward pass under autocast. Clip, sum and noise are of the parameters' own type.
        """
        several, device = self.multiplicity, images.device
        t = integers(rows, schedule.steps, several) + 1
        eps = rows.normal(several, *images.shape[1:]).to(images.dtype)

        def loss(net: nn.Module, x: Tensor, y: Tensor, at: Tensor, noise: Tensor) -> Tensor:
            copies, classes = x.expand_as(noise[0]), y.expand_as(at[0])
            with torch.autocast(device.type, torch.bfloat16, enabled=precision == torch.bfloat16):
                return denoising_losses(net, schedule, copies, classes, at[0], noise[0]).mean()

        gaussian = self.gaussian(step)
        sums = clipped_sum(model, loss, (images, labels, t, eps), gaussian)
        return noisy_mean(sums, gaussian, expected)


def steps_of(epochs: int, examples: int, batch: int) -> int:
    """Return in how many steps as many examples are drawn, in the mean, as ``epochs`` passes have: ceil(epochs / q)."""
    return math.ceil(epochs * examples / min(batch, examples))
