"""DENSE's generator of images (Zhang et al., 2022), and how these are cropped and mirrored for who judges them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from synth.initial import allocate

NOISE, WIDTH = 256, 64

_SLOPE, _DEVIATION = 0.2, 0.02
"""The released code's, of LeakyReLU below 0 and of initial weights."""


class ImageGenerator(nn.Module):
    """G(z): a linear layer to maps of a quarter of the image's sides, then three convolutions and two doublings.

    Batch norm stands before the first doubling and after the two 3x3 convolutions that follow a doubling; a third one
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
        """Draw the weights anew: N(0, 0.02^2), those of the batch norms N(1, 0.02^2); every bias is 0."""
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
    """Return a random crop of each image, of its own size from itself with zeros around it; half of them mirrored.

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
    # Indices beside the slice of the channels put these last.
    return padded[image, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
