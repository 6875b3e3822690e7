"""A small generator for FedDGM, trained on a public set: by default that of 8x8 digits which comes with the app.

    python examples/train_prior.py [--data DIR] [--output DIR]
    python examples/train_prior.py --dataset fashionmnist [--data DIR] [--output DIR]

The first writes digits_prior.json, which belongs into synth/generators, of MNIST made small; the second
fashionmnist_prior.json, for a function that `feddgm.generator` names (docs/feddgm.md). Each comes with a picture of ten
images of each class. It prints the file's SHA-256, which `synth.generators.style.decoded` asks for, and the share of
real test images (of the digits, scikit-learn's) that a classifier recognises which has seen generated ones alone.
Another processor's rounding gives other weights, as good.
"""

from __future__ import annotations

import argparse
import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from PIL import Image
from style_training import Plan, encoded, train_prior
from torch import Tensor

from common.data.loading import load
from common.data.published.catalogue import describe
from common.draws.seeding import generator
from common.errors import NectarError
from common.models import Classifier, build
from common.samples.dataset import Split
from common.storage.files import write_atomically
from synth.descent import Adam
from synth.generators.style import Form, StyleNetwork

DIGITS = "digits"
SIDE, CLASSES, LEVELS = 8, 10, 16
#: the side of the box that contains a digit of MNIST
BOX = 20
#: the classifier's; and how many real images it is tried on, and rows and columns the picture has, at most
GENERATED, STEPS, BATCH, LR = 10_000, 600, 128, 2e-3
TRIED, SHOWN = 2_000, 10

Labelled = tuple[Tensor, Tensor]
"""Images in [-1, 1], float [n, C, H, W], and their labels, int64 [n]."""


@dataclass(frozen=True)
class Material:
    """What a generator learns from, in words too, and real images of the same kind to try it on."""

    about: str
    learned: Labelled
    tried: Labelled
    classes: int


def framed(images: Tensor) -> Tensor:
    """Return each image [n, H, W] cut to a box of 20x20 with its ink in the middle: float [n, 1, 20, 20].

    MNIST centres a digit by its mass and leaves a margin; scikit-learn's digits fill their eight rows.
    """
    wide = F.pad(images.float(), (BOX, BOX, BOX, BOX))
    rows, columns = (
        (_middle(images.amax(dim) > 0) + BOX - BOX // 2)[:, None] + torch.arange(BOX)
        for dim in (2, 1)
    )
    each = torch.arange(len(images))[:, None, None]
    return wide[each, rows[:, :, None], columns[:, None, :]][:, None]


def _middle(inked: Tensor) -> Tensor:
    """Return the middle between the first and the last true value of each row: int64 [n]."""
    first = inked.float().argmax(1)
    last = inked.shape[1] - 1 - inked.flip(1).float().argmax(1)
    return (first + last + 1) // 2


def as_digits(split: Split) -> Labelled:
    """Return a split of MNIST in the form of scikit-learn's digits, 8x8, scaled to [-1, 1], with the labels."""
    pieces = []
    for raw in torch.from_numpy(split.images[:, 0].copy()).split(5000):
        # 20 pixels are no multiple of 8: each is counted as four, and 5x5 of those averaged.
        pooled = F.avg_pool2d(F.interpolate(framed(raw), scale_factor=2.0), 2 * BOX // SIDE)
        pieces.append((pooled / 255 * LEVELS).round() / (LEVELS / 2) - 1)
    return torch.cat(pieces), torch.from_numpy(split.labels.copy())


def as_they_are(split: Split, scale: float, most: int = 0) -> Labelled:
    """Return a split's first ``most`` images, or all for 0, their raw values 0 to ``scale`` in [-1, 1]."""
    end = most or len(split)
    images = torch.from_numpy(split.images[:end].copy()).float() / (scale / 2) - 1
    return images, torch.from_numpy(split.labels[:end].copy())


def material(name: str, data: Path) -> Material:
    """Return what is learned from a public set, of ``digits`` MNIST in their form; NectarError if it cannot be had."""
    if name == DIGITS:
        mnist, digits = load("mnist", data), load(DIGITS, data)
        parts = [as_they_are(split, LEVELS) for split in (digits.train, digits.test)]
        images, labels = (torch.cat(pair) for pair in zip(*parts, strict=True))
        return Material(
            "8x8 digits, trained on MNIST", as_digits(mnist.train), (images, labels), CLASSES
        )
    info = describe(name)
    if not info.has_images:
        raise NectarError(f"--dataset {name} holds {info.unit}: a generator learns from images")
    found = load(name, data)
    tried = as_they_are(found.test, info.scale, TRIED)
    about = f"{'x'.join(map(str, info.shape))} images, trained on {name}"
    return Material(about, as_they_are(found.train, info.scale), tried, len(info.classes))


@torch.no_grad()
def generated(network: StyleNetwork, each: int, seed: int, classes: int) -> Labelled:
    """Return ``each`` images of each of the first ``classes``, cut to [-1, 1], and their labels."""
    labels = torch.arange(classes).repeat(each)
    z = torch.randn(len(labels), network.form.latent, generator=generator(seed, "codes"))
    parts = zip(z.split(BATCH), labels.split(BATCH), strict=True)
    return torch.cat([network(*part).clamp(-1, 1) for part in parts]), labels


def classifier(images: Tensor, labels: Tensor, form: Form) -> Classifier:
    """Return the network of the digits' runs, trained on the images."""
    draws = generator(0, "classifier")
    model = build("convnet", form.shape, form.classes, depth=2, width=32, generator=draws)
    adam = Adam(model.parameters(), LR)
    for step in range(STEPS):
        at = torch.randint(len(images), (BATCH,), generator=draws)
        adam.zero_grad()
        F.cross_entropy(model(images[at]), labels[at]).backward()  # type: ignore[no-untyped-call]
        adam.lr = LR * (1 - step / STEPS)
        adam.step()
    return model.eval()


@torch.no_grad()
def recognised(model: Classifier, images: Tensor, labels: Tensor) -> float:
    """Return the share of images that the classifier recognises."""
    found = torch.cat([model(part).argmax(1) for part in images.split(BATCH)])
    return float((found == labels).float().mean())


def draw(network: StyleNetwork, path: Path) -> None:
    """Write ten images of each class, a row a class, at the most ten classes."""
    rows, (channels, height, width) = min(SHOWN, network.form.classes), network.form.shape
    images, _ = generated(network, SHOWN, 1, rows)
    grid = images.view(SHOWN, rows, channels, height, width).permute(1, 3, 0, 4, 2)
    pixels = ((grid.reshape(rows * height, SHOWN * width, channels) + 1) * 127.5).byte().numpy()
    picture = Image.fromarray(pixels[:, :, 0] if channels == 1 else pixels)
    larger = max(1, 800 // picture.width)
    size = (picture.width * larger, picture.height * larger)
    write_atomically(
        path, lambda to: picture.resize(size, Image.Resampling.NEAREST).save(to, "PNG")
    )


def main(arguments: list[str] | None = None) -> None:
    """Train, write and judge the generator."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--dataset", default=DIGITS, help="a public set of images")
    parser.add_argument(
        "--data", type=Path, default=Path("data"), metavar="DIR", help="the data set's folder"
    )
    parser.add_argument("--output", type=Path, default=Path(), metavar="DIR")
    parser.add_argument("--steps", type=int, default=Plan.steps, help="of the training")
    given = parser.parse_args(arguments)
    try:
        known = material(given.dataset, given.data)
    except NectarError as error:
        parser.error(str(error))
    images, labels = known.learned
    _, *shape = images.shape
    form = Form((shape[0], shape[1], shape[2]), known.classes)
    draws = torch.Generator().manual_seed(0)
    network = train_prior(images, labels, form, draws, Plan(steps=given.steps))
    content = encoded(
        network, f"A style-based generator of {known.about} by examples/train_prior.py"
    )
    given.output.mkdir(parents=True, exist_ok=True)
    target = given.output / f"{given.dataset}_prior.json"
    write_atomically(target, lambda to: to.write_bytes(content))
    draw(network, target.with_suffix(".png"))
    print(f"SHA-256 {hashlib.sha256(content).hexdigest()}, {len(content):,} bytes")
    seen = generated(network, GENERATED // form.classes, 2, form.classes)
    share = recognised(classifier(*seen, form), *known.tried)
    print(f"recognised: {share:.3f} of {len(known.tried[0])} real images")


if __name__ == "__main__":
    main()
