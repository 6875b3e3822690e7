"""The generator of 8x8 digits that comes with the app, trained on MNIST once more.

    python examples/train_prior.py [--data DIR] [--output DIR]

It writes digits_prior.json, which belongs into synth/generators, and digits_prior.png, ten images of every class; it
prints the SHA-256 that synth/generators/style_weights.py states, and the share of scikit-learn's digits that a
classifier recognises which has seen generated digits alone. Another processor's rounding gives other weights, as good.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

import torch
import torch.nn.functional as F
from PIL import Image
from style_training import Plan, train_prior
from torch import Tensor

from common.data import Split, load
from common.models import Classifier, build
from common.seeding import generator
from synth.descent import Adam
from synth.generators.style import Form, StyleNetwork
from synth.generators.style_weights import encoded

ABOUT = "A style-based generator of 8x8 digits, trained on MNIST by examples/train_prior.py"
SIDE, CLASSES, LEVELS = 8, 10, 16
#: a digit of MNIST lies in a box of this side
BOX = 20
#: the classifier's
GENERATED, STEPS, BATCH, LR = 10_000, 600, 128, 2e-3


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


def as_digits(split: Split) -> tuple[Tensor, Tensor]:
    """Return a split of MNIST as scikit-learn's digits are, 8x8 of 0 to 16, here in [-1, 1]; and the labels."""
    pieces = []
    for raw in torch.from_numpy(split.images[:, 0].copy()).split(5000):
        # 20 pixels are no multiple of 8: each is counted as four, and 5x5 of those averaged.
        pooled = F.avg_pool2d(F.interpolate(framed(raw), scale_factor=2.0), 2 * BOX // SIDE)
        pieces.append((pooled / 255 * LEVELS).round() / (LEVELS / 2) - 1)
    return torch.cat(pieces), torch.from_numpy(split.labels.copy())


def generated(network: StyleNetwork, each: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return ``each`` images of every class, cut to [-1, 1], and their labels."""
    labels = torch.arange(CLASSES).repeat(each)
    z = torch.randn(len(labels), network.form.latent, generator=generator(seed, "codes"))
    return network(z, labels).clamp(-1, 1), labels


def classifier(images: Tensor, labels: Tensor) -> Classifier:
    """Return the network of the digits' runs, trained on the images."""
    draws = generator(0, "classifier")
    model = build("convnet", (1, SIDE, SIDE), CLASSES, depth=2, width=32, generator=draws)
    adam = Adam(model.parameters(), LR)
    for step in range(STEPS):
        at = torch.randint(len(images), (BATCH,), generator=draws)
        adam.zero_grad()
        F.cross_entropy(model(images[at]), labels[at]).backward()  # type: ignore[no-untyped-call]
        adam.lr = LR * (1 - step / STEPS)
        adam.step()
    return model.eval()


@torch.no_grad()
def recognised(model: Classifier, data: Path) -> float:
    """Return the share of all of scikit-learn's 1,797 digits that the classifier recognises."""
    digits = load("digits", data)
    right = 0
    for split in (digits.train, digits.test):
        x = torch.from_numpy(split.images.copy()).float() / (LEVELS / 2) - 1
        right += int((model(x).argmax(1) == torch.from_numpy(split.labels.copy())).sum())
    return right / (len(digits.train) + len(digits.test))


def draw(network: StyleNetwork, path: Path) -> None:
    """Write ten images of every class, a row each."""
    images, _ = generated(network, 10, 1)
    grid = images.view(10, CLASSES, SIDE, SIDE).permute(1, 2, 0, 3).reshape(CLASSES * SIDE, -1)
    pixels = ((grid + 1) * 127.5).byte().numpy()
    Image.fromarray(pixels).resize((800, 800), Image.Resampling.NEAREST).save(path)


def main(arguments: list[str] | None = None) -> None:
    """Train, write and judge the generator."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--data", type=Path, default=Path("data"), metavar="DIR", help="where MNIST lies"
    )
    parser.add_argument("--output", type=Path, default=Path(), metavar="DIR")
    parser.add_argument("--steps", type=int, default=Plan.steps, help="of the training")
    given = parser.parse_args(arguments)
    images, labels = as_digits(load("mnist", given.data).train)
    form, draws = Form((1, SIDE, SIDE), CLASSES), torch.Generator().manual_seed(0)
    network = train_prior(images, labels, form, draws, Plan(steps=given.steps))
    content = encoded(network, ABOUT)
    given.output.mkdir(parents=True, exist_ok=True)
    (given.output / "digits_prior.json").write_bytes(content)
    draw(network, given.output / "digits_prior.png")
    print(f"SHA-256 {hashlib.sha256(content).hexdigest()}, {len(content):,} bytes")
    seen = generated(network, GENERATED // CLASSES, 2)
    print(f"recognised: {recognised(classifier(*seen), given.data):.3f} of the digits")


if __name__ == "__main__":
    main()
