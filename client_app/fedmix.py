"""FedMix on the device (Yoon et al., 2021, Algorithm 2): mixup with means of other sites' images, to first order."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from client_app.device import DeviceClient, phase
from client_app.local_training import trained_weights
from client_app.state import Tensors
from common.learning.task import Task
from common.learning.training import Local
from common.settings.fedavg import FedMixSettings
from common.specs.averaging import INTRODUCE, MEANS, TRAIN, WEIGHTS, sent_spec
from common.specs.images import sent_images
from common.wire.bundle import Bundle
from common.wire.images import SyntheticImages
from common.wire.weights import Weights


class FedMixClient(DeviceClient):
    """Keeps the means that it was sent, and draws another of them for each image of each step."""

    @phase(INTRODUCE, takes=sent_spec)
    def introduce(self, given: Bundle) -> Bundle:
        """Return w_k, and the means of the site's own images if it has enough for one."""
        trained, means = self.train(given), self._means()
        return trained if means is None else Bundle({**trained.parts, MEANS: means})

    @phase(TRAIN, takes=sent_spec)
    def train(self, given: Bundle) -> Bundle:
        """Return w_k, trained from the weights on the site's images and the means that it has."""
        w, settings = given.part(WEIGHTS, Weights), self.settings(FedMixSettings)
        if MEANS in given.parts:
            sent = given.part(MEANS, SyntheticImages)
            kept: Tensors = {"images": sent.images, "labels": sent.labels}
            self.remember(kept)
        else:
            kept = self.recall() or {}
        local = self._mixing(kept, settings.mix) if kept and settings.mix else Local()
        return Bundle({WEIGHTS: trained_weights(self, w, local)[0]})

    def _mixing(self, kept: Tensors, share: float) -> Local:
        device = self.run.device
        images, labels = kept["images"].to(device), kept["labels"].to(device)
        draws = self.generator("mixture")

        def objective(model: nn.Module, x: Tensor, targets: Tensor, positions: Tensor) -> Tensor:
            drawn = torch.randint(len(images), (len(x),), generator=draws, device=device)
            return mixed(self.run.task, model, x, targets, images[drawn], labels[drawn], share)

        return Local(objective=objective)

    def _means(self) -> SyntheticImages | None:
        """Return the means of ``mean_of`` images each, in a random order; what is left over gives none."""
        settings = self.settings(FedMixSettings)
        size, classes = settings.mean_of, len(self.run.info.classes)
        count = min(settings.means, len(self.samples) // size)
        if not count:
            return None
        order = torch.randperm(
            len(self.samples), generator=self.generator("means", 0), device=self.run.device
        )
        chosen = order[: count * size]
        images = _in_groups(self.samples.inputs(chosen), size).mean(1)
        # Of real images nothing is cut off; among them may be some that another method distilled.
        largest = self.run.info.largest
        images = images.clamp(-largest, largest)
        labels = nn.functional.one_hot(self.samples.labels[chosen], classes).float()
        means = _in_groups(labels, size).mean(1)
        return sent_images(self.run, images, means)


def _in_groups(rows: Tensor, size: int) -> Tensor:
    return rows.reshape(-1, size, *rows.shape[1:])


def mixed(
    task: Task,
    model: nn.Module,
    x: Tensor,
    targets: Tensor,
    mean_x: Tensor,
    mean_y: Tensor,
    share: float,
) -> Tensor:
    """Return the mean of (1-l) L(f(x'), y) + l L(f(x'), ybar) + l <dL(f(x'), y)/dx', xbar> at x' = (1-l) x (Eq. 4).

    It is mixup's loss with xbar at share l, to first order in the step from x' to x' + l xbar.

    Parameters
    ----------
    task : Task
        Gives the mean loss L.
    model : nn.Module
        f.
    x, targets : Tensor
        A batch, float [n, C, H, W] and int64 [n].
    mean_x, mean_y : Tensor
        A mean for each example, float [n, C, H, W] and float [n, classes].
    share : float
        l, from 0 to 1.
    """
    near = ((1 - share) * x).requires_grad_()
    outputs = model(near)
    own = task.loss(outputs, targets)
    (slope,) = torch.autograd.grad(own, near, create_graph=True)
    along = (slope * mean_x).sum()
    return (1 - share) * own + share * task.loss(outputs, mean_y) + share * along
