"""A network that the server trains on its own labelled examples, with a teacher that sites' sums gave it.

Knowledge distillation (Hinton et al., 2015) on views of few examples, as Beyer et al. (2022) have it: teacher and
network see the same view, and every other batch of views is mixtures of two. Nothing more is requested of the sites.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common.draws.seeding import generator
from common.learning.augmentation import augmented
from common.learning.run import Run
from common.learning.training import plain
from common.samples.inputs import Samples
from common.settings.fedavg import TrainingSettings
from common.wire.weights import Weights
from strategies.surrogate import learned_from

VIEWS, MOST_BYTES = 48, 2**28
"""Views of an example, and the bytes that all of them may take."""

SHARPNESS, LABELS = 10.0, 0.5
"""What scores are multiplied by before the softmax, since least squares keep them within 0 to 1; a label's share."""

_AT_ONCE = 250


def taught(run: Run, server_round: int, teacher: nn.Module, own: Samples) -> Weights:
    """Return the weights of the run's network, trained from its start as ``image_training`` says on views of ``own``.

    A view's target is half its label's, half the softmax of ten times the teacher's scores of this view.
    ``image_training.augment=flip_crop`` makes the views; without it they are the examples and mixtures of two.

    Parameters
    ----------
    teacher
        Inputs [n, ...] -> scores [n, classes], on the run's device.
    own
        The server's labelled examples.
    """
    settings = run.config.image_training
    seen = _views(run, server_round, teacher, own)
    config = replace(run.config, image_training=settings.model_copy(update={"augment": "none"}))
    start = Weights.of(run.build_model())  # and not from what another total taught it
    return learned_from(Run(config, run.info), server_round, start, seen, plain(run.task))


@torch.no_grad()
def _views(run: Run, server_round: int, teacher: nn.Module, own: Samples) -> Samples:
    """Return views of the examples with soft labels, float32 [m, classes]; at least one an example."""
    draws = generator(run.config.seed, "views", server_round, device=run.device)
    cropped = run.config.image_training.augment == "flip_crop"
    augment = augmented(TrainingSettings(augment="flip_crop" if cropped else "none"), draws)
    classes, size = len(run.info.classes), own.inputs(slice(0, 1)).nbytes
    each = max(1, min(VIEWS, MOST_BYTES // (size * len(own))))
    images, labels = list[Tensor](), list[Tensor]()
    every = torch.arange(len(own), device=run.device).repeat(each)
    for positions in torch.split(every, _AT_ONCE):
        x = augment(own.inputs(positions), None)
        y = F.one_hot(own.labels[positions], classes).float()
        if len(images) % 2:
            other = torch.randperm(len(x), generator=draws, device=run.device)
            share = torch.rand(len(x), generator=draws, device=run.device)
            x = torch.lerp(x[other], x, share.view(-1, *[1] * (x.ndim - 1)))
            y = torch.lerp(y[other], y, share[:, None])
        soft = F.softmax(SHARPNESS * teacher(x), 1)
        images.append(x)
        labels.append(LABELS * y + (1 - LABELS) * soft)
    return Samples.of(torch.cat(images), torch.cat(labels))
