"""FedGEN's mathematics (Zhu, Hong and Zhou, 2021): a generator of what enters the classifier, learned from its heads.

The server has no data. It asks what latents the devices' heads take for a class, and trains G(eps, y) to draw them; the
devices then also learn from these latents. Settings and weights are those of the released code, with
one repair: there the weight of a device and the cross-entropy of an example are multiplied as a column by a row, so
that each example is weighted by the mean over the batch. As in the paper, the weight is that of its own class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from synth.descent import Adam, finite, load_state, state_of
from synth.ensemble_distillation import fill

HIDDEN, NOISE = 256, 32
LEARNING_RATE, WEIGHT_DECAY, DECAY, STEPS, BATCH, ETA = 3e-4, 1e-2, 0.98, 50, 128, 1.0

Heads = Callable[[Tensor], Tensor]
"""Latents float [n, d] -> the logits of all K devices' heads, float [n, K, C]."""


class FeatureGenerator(nn.Module):
    """G(eps, y): [eps, one-hot y] -> linear, batch norm, ReLU -> linear, with eps ~ U(0, 1)^noise.

    With the released code's sizes for MNIST, 10 classes, a latent of 32, 256 hidden units and noise of 32, it has
    19,744 parameters.

    Parameters
    ----------
    classes : int
        C.
    latent : int
        d, the size of what enters the classifier.
    noise : int
        The dimensions of eps.
    """

    def __init__(self, classes: int, latent: int, hidden: int = HIDDEN, noise: int = NOISE) -> None:
        super().__init__()
        self.classes, self.noise = classes, noise
        self.layers = nn.Sequential(
            nn.Linear(noise + classes, hidden),
            nn.BatchNorm1d(hidden),
            nn.ReLU(),
            nn.Linear(hidden, latent),
        )

    def forward(self, eps: Tensor, labels: Tensor) -> Tensor:
        """Return the latents, float [n, d], for noise [n, noise] and classes int64 [n]."""
        one_hot = F.one_hot(labels, self.classes).to(eps.dtype)
        latents: Tensor = self.layers(torch.cat((eps, one_hot), 1))
        return latents

    def draw_noise(self, count: int, generator: torch.Generator) -> Tensor:
        """Return eps ~ U(0, 1), float32 [count, noise], on the generator's device."""
        return torch.rand(count, self.noise, generator=generator, device=generator.device)


def start(
    generator: torch.Generator, classes: int, latent: int, hidden: int = HIDDEN, noise: int = NOISE
) -> FeatureGenerator:
    """Return G on the generator's device with torch's usual initial weights, drawn from it."""
    with torch.device("meta"):
        model = FeatureGenerator(classes, latent, hidden, noise)
    fill(model, generator)
    return model


@torch.no_grad()
def latents_of(model: FeatureGenerator, labels: Tensor, eps: Tensor) -> Tensor:
    """Return G(eps, y) for each of ``labels`` int64 [n] and noise [n, noise], float [n, d], for a site to learn from.

    G is in evaluation mode meanwhile: its batch norm takes the running statistics, so that a latent does not depend on
    the others of its batch. No gradient reaches G.
    """
    training = model.training
    model.eval()
    latents: Tensor = model(eps, labels)
    model.train(training)
    return latents


def linear_heads(weights: Tensor, biases: Tensor) -> Heads:
    """Return K linear heads as one function, which takes one matrix product.

    Parameters
    ----------
    weights, biases : Tensor
        Float [K, C, d] and [K, C].
    """
    devices, classes = biases.shape
    matrix, offsets = weights.flatten(0, 1), biases.flatten()
    return lambda latents: F.linear(latents, matrix, offsets).view(-1, devices, classes)


def class_shares(counts: Tensor) -> Tensor:
    """Return a_{k,y} = n_{k,y} / sum_k n_{k,y}; of a class that no device has, 0.

    Parameters
    ----------
    counts : Tensor
        n_{k,y}, the examples of each device's classes, [K, C].

    Returns
    -------
    Tensor
        Float [K, C].
    """
    totals = counts.sum(0)
    return counts / totals.where(totals > 0, 1)


def teacher_loss(logits: Tensor, labels: Tensor, shares: Tensor) -> Tensor:
    """Return sum_k mean_i a_{k,y_i} CE(head_k(G(eps_i, y_i)), y_i).

    Parameters
    ----------
    logits : Tensor
        Of all heads, float [n, K, C].
    labels : Tensor
        y_i, int64 [n].
    shares : Tensor
        a_{k,y}, float [K, C].
    """
    devices = logits.shape[1]
    targets = labels[:, None].expand(-1, devices)
    errors = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
    return (shares[:, labels].T * errors).sum(1).mean()


def diversity_loss(eps: Tensor, latents: Tensor) -> Tensor:
    """Return exp(-mean_ij d2(eps_i, eps_j) d1(G_i, G_j)), which falls from 1 as unlike noise gives unlike latents.

    d2 is the squared and d1 the absolute difference, averaged over coordinates; the mean is over all n^2 pairs, those
    of an example and itself among them.

    Parameters
    ----------
    eps, latents : Tensor
        Float [n, noise] and [n, d].
    """
    # exact differences: by matrix products the distance of equal vectors would not be zero
    distances = torch.cdist(eps, eps, compute_mode="donot_use_mm_for_euclid_dist")
    noise = distances.square() / eps.shape[1]
    latent = torch.cdist(latents, latents, p=1.0) / latents.shape[1]
    return torch.exp(-(noise * latent).mean())


def device_weight(r: int, first: float = 10.0, decay: float = DECAY, least: float = 1e-4) -> float:
    """Return a_r = b_r = max(first decay^r, least), the weight of a device's two terms.

    The released code counts rounds from 0 and has no latents in round 0, so that r = 1 is the first that matters; and
    it drops both terms after 20 local epochs, which is its caller's to do.
    """
    return max(first * decay**r, least)


def device_loss(
    logits: Tensor,
    matched: Tensor,
    drawn: Tensor,
    drawn_labels: Tensor,
    *,
    alpha: float,
    beta: float,
    ratio: float,
) -> Tensor:
    """Return b_r KL(stop(softmax head(G(y))) || p(x)) + ratio a_r CE(head(G(y')), y'), added to the task's CE(x, y).

    Parameters
    ----------
    logits : Tensor
        The device's own of its batch x, float [n, C]; p(x) is their softmax.
    matched : Tensor
        head(G(y)) for the labels of x, float [n, C]. No gradient passes through them.
    drawn : Tensor
        head(G(y')), float [B_g, C].
    drawn_labels : Tensor
        y', int64 [B_g], uniform over the classes there are.
    alpha, beta : float
        a_r and b_r.
    ratio : float
        B_g / B.
    """
    target = matched.detach().log_softmax(1)
    ours = logits.log_softmax(1)
    divergence = F.kl_div(ours, target, reduction="batchmean", log_target=True)
    return beta * divergence + ratio * alpha * F.cross_entropy(drawn, drawn_labels)


class GeneratorTraining:
    """Trains G on the server, round by round; what it keeps between two of them, ``state`` returns.

    As in the released code Adam is one over all rounds, its moments included, while its rate falls from round to
    round; its weight decay is an L2 penalty.

    Parameters
    ----------
    model : FeatureGenerator
        Is trained in place, with the batch norm in training mode.
    decay : float
        What the learning rate is multiplied by after each round.

    Attributes
    ----------
    round : int
        The rounds that are done.
    """

    def __init__(
        self,
        model: FeatureGenerator,
        *,
        lr: float = LEARNING_RATE,
        weight_decay: float = WEIGHT_DECAY,
        decay: float = DECAY,
    ) -> None:
        self.round = 0
        self._model, self._lr, self._decay = model, lr, decay
        self._adam = Adam(model.parameters(), lr, weight_decay=weight_decay)

    def train_round(
        self,
        heads: Heads,
        counts: Tensor,
        generator: torch.Generator,
        *,
        steps: int = STEPS,
        batch: int = BATCH,
        eta: float = ETA,
    ) -> float:
        """Train G against a round's heads and return the mean of the loss.

        Labels are uniform over the classes that some device has.

        Parameters
        ----------
        heads : callable
            The devices' new heads, before they are averaged; `linear_heads`, or others together.
        counts : Tensor
            n_{k,y} of these devices, [K, C], on the model's device.
        generator : torch.Generator
            The source of the round's labels and noise.
        steps : int
            Batches; the released code's 50 "epochs" are one batch each.
        batch : int
            n, the latents of a step.
        eta : float
            The weight of the diversity.

        Raises
        ------
        ValueError
            No device has an example.
        FloatingPointError
            The loss left the finite numbers.
        """
        present = counts.sum(0).nonzero().flatten()
        if not len(present):
            raise ValueError("no device has an example: there is no class to draw latents of")
        shares = class_shares(counts)
        self._adam.lr = self._lr * self._decay**self.round
        self._model.train()
        total = torch.zeros((), device=counts.device)
        for _ in range(steps):
            drawn = torch.randint(
                len(present), (batch,), generator=generator, device=generator.device
            )
            labels = present[drawn]
            eps = self._model.draw_noise(batch, generator)
            total += self._step(heads, shares, labels, eps, eta)
        self.round += 1
        return finite(float(total) / max(1, steps), "the feature generator", f"round {self.round}")

    def _step(
        self, heads: Heads, shares: Tensor, labels: Tensor, eps: Tensor, eta: float
    ) -> Tensor:
        """Take a step along a batch and return its loss."""
        latents = self._model(eps, labels)
        loss = teacher_loss(heads(latents), labels, shares) + eta * diversity_loss(eps, latents)
        parameters = list(self._model.parameters())
        gradients = torch.autograd.grad(loss, parameters)  # the heads' own are not computed
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        self._adam.step()
        return loss.detach()

    def state(self) -> dict[str, Tensor]:
        """Return a copy of G's weights and statistics, of what Adam keeps, and the rounds that are done, by name."""
        return state_of(self._model, self._adam, round=self.round)

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Restore what ``state`` returned, into a model of the same form."""
        load_state(state, self._model, self._adam)
        self.round = int(state["round"])
