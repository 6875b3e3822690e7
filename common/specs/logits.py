"""What server and sites agree on to exchange logits: FedMD's answers to public images, and FedAF's means."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from common.learning.run import Run
from common.models import Classifier
from common.samples.inputs import Samples, samples_of_bytes
from common.settings.fedavg import FedMDSettings
from common.wire.bundle import BundleSpec
from common.wire.form import Spec, TensorSpec
from common.wire.tensors import Tensors, TensorsSpec, latent_means_spec
from synth.logit_distillation import LIMIT, centred, consensus

PHASE = "answer"

#: parts of an instruction: the images, once, and the mean of all answers to them, from the second round
IMAGES, ANSWER = "images", "answer"

#: the only tensor of a reply, and of the answer
LOGITS, SHARES = "logits", "shares"

_TAIL = 12
"""Standard deviations of noise that a number may be away: beyond it is less than 1e-32."""


def public_samples(run: Run, images: Tensor, targets: Tensor) -> Samples:
    """Return images, uint8 [n, C, H, W], with what they are to be answered by, on the run's device."""
    return samples_of_bytes(run.info, images, targets).to(run.device)


@torch.no_grad()
def answers(run: Run, model: Classifier, images: Tensor) -> Tensor:
    """Return a model's centred logits on images, uint8 [n, C, H, W]: float32 [n, classes], on the CPU."""
    model.eval()
    samples = public_samples(run, images, torch.zeros(len(images), dtype=torch.int64))
    each = torch.split(torch.arange(len(images), device=run.device), run.config.evaluation.batch)
    return centred(torch.cat([model(samples.inputs(part)).float() for part in each]).cpu())


def answer_of_all(run: Run, each: Sequence[Tensor]) -> Tensor:
    """Return the answer of all to the images, float32 [n, classes], of each model's centred logits [n, classes]."""
    distil, how = run.config.distil, run.config.distil.aggregation
    if how == "auto":
        how = "mean" if run.config.privacy.active else "entropy"
    return consensus(torch.stack([*each]), how, distil.temperature)


def logits(values: Tensor, codec: str) -> Tensors:
    """Return the payload of logits."""
    return Tensors({LOGITS: values}, LOGITS, codec)


def logits_spec(run: Run, images: int) -> TensorsSpec:
    """Return the form of a site's reply: no honest one is beyond the limit of `centred`, or the clip and its noise."""
    privacy, settings = run.config.privacy, run.settings(FedMDSettings)
    most = LIMIT
    if privacy.active and settings.mechanism == "logits":
        most = privacy.clip * (1 + 2 * privacy.noise_multiplier * _TAIL)
    form = TensorSpec((images, len(run.info.classes)), -most, most)
    return TensorsSpec({LOGITS: form}, LOGITS)


def sent_spec(run: Run) -> BundleSpec:
    """Return the form of what a site is sent."""
    count = run.config.distil.count
    images = TensorSpec((count, *run.info.shape), 0, 255, torch.uint8, varies=True)
    shares = TensorSpec((count, len(run.info.classes)), 0, 1, varies=True)
    parts = {IMAGES: TensorsSpec({IMAGES: images}), ANSWER: TensorsSpec({SHARES: shares})}
    return BundleSpec(parts, optional=frozenset(parts))


#: parts of an instruction: the weights, and from the second round V
WEIGHTS, OTHERS = "weights", "others"

#: parts of a reply: S_k, V_k and R_k
IMAGES, LOGITS, SHARES = "images", "logits", "shares"


def mean_logits_spec(run: Run) -> TensorsSpec:
    """Return the form of one vector a class, as long as there are classes, of what logits are cut to at a site."""
    classes = len(run.info.classes)
    return latent_means_spec(classes, classes, each=1, kinds=classes, limit=LIMIT)


def fedaf_sent_spec(run: Run) -> BundleSpec:
    """Return the form of what a site is sent."""
    return BundleSpec(
        {WEIGHTS: run.spec, OTHERS: mean_logits_spec(run)}, optional=frozenset({OTHERS})
    )


def fedaf_reply_spec(run: Run, images: Spec) -> BundleSpec:
    """Return the form of what a site sends, its images as ``images`` says."""
    each = mean_logits_spec(run)
    return BundleSpec({IMAGES: images, LOGITS: each, SHARES: each})
