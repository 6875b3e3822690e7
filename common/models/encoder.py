"""FedDPMS' networks (tables 3 and 4): a classifier of latent codes in [0, 1]^l, and the mirror that decodes them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from common.models.classifier import Classifier
from common.models.pooling import MaxPool2d


def _sides(shape: tuple[int, ...], name: str) -> tuple[int, int]:
    """Return a quarter of an image's height and width; ValueError if two poolings do not divide the images evenly."""
    _, height, width = shape
    if height % 4 or width % 4:
        raise ValueError(
            f'model "{name}" halves an image twice and needs sides that 4 divides, not {height}x{width}: '
            'choose model.name "convnet" for these'
        )
    return height // 4, width // 4


class Encoder(Classifier):
    """Two blocks of 3x3 convolutions and a pool, the latent code mu, and one linear layer that classifies it.

    The blocks have ``width`` and twice as many channels; ReLU follows each convolution, a 2x2 max pool
    each block. The code is a linear layer under a sigmoid, so it is in [0, 1]^l. It is the embedding.
    Depth 1, width 16 and l = 32 are the paper's network for Fashion-MNIST (55,338 parameters);
    depth 2, width 32 and l = 128 that for CIFAR-10 (591,274). 4 divides an image's sides; a block has
    ``depth`` convolutions, and l is ``embedding``, or 0 for ``width``.
    """

    def __init__(
        self, shape: tuple[int, int, int], classes: int, depth: int, width: int, embedding: int
    ) -> None:
        super().__init__(shape)
        rows, columns = _sides(shape, "encoder")
        layers: list[nn.Module] = []
        channels = shape[0]
        for wide in (width, 2 * width):
            for _ in range(depth):
                layers += [nn.Conv2d(channels, wide, 3, padding=1), nn.ReLU(inplace=True)]
                channels = wide
            layers.append(MaxPool2d())
        self.depth, self.width, self.latent = depth, width, embedding or width
        self.features = nn.Sequential(*layers, nn.Flatten())
        self.mu = nn.Linear(channels * rows * columns, self.latent)
        self.head = nn.Linear(self.latent, classes)

    def embed(self, x: Tensor) -> Tensor:
        """Return the codes mu of shape [n, l], each number from 0 to 1."""
        return torch.sigmoid(self.mu(self.features(x)))


class VAEEncoder(Encoder):
    """The same with a second linear layer, the logarithm of each code's variance: what a VAE trains.

    It classifies as ``Encoder``, and begins with the same weights; ``spread`` serves ``encode`` alone.
    105,546 parameters for Fashion-MNIST, 1,115,690 for CIFAR-10. The arguments are those of ``Encoder``.
    """

    def __init__(
        self, shape: tuple[int, int, int], classes: int, depth: int, width: int, embedding: int
    ) -> None:
        super().__init__(shape, classes, depth, width, embedding)
        self.spread = nn.Linear(self.mu.in_features, self.latent)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mu and log sigma_z^2, both of shape [n, l]."""
        features = self.features(x)
        return torch.sigmoid(self.mu(features)), self.spread(features)

    def mirror(self) -> Decoder:
        """Return a decoder of its codes."""
        return Decoder(self.continuous_shape, self.depth, self.width, self.latent)


class Decoder(nn.Module):
    """Images of latent codes: the encoder's mirror, with transposed convolutions of which two double the size.

    A linear layer with ReLU gives the encoder's last feature maps; ReLU follows every transposed
    convolution but the last, whose output is an image in the classifier's normalised space. ``shape``, ``depth``
    and ``width`` are the encoder's, and ``latent`` is l.
    """

    def __init__(self, shape: tuple[int, ...], depth: int, width: int, latent: int) -> None:
        super().__init__()
        rows, columns = _sides(shape, "vae")
        last = 2 * width
        self.expand = nn.Sequential(
            nn.Linear(latent, last * rows * columns),
            nn.ReLU(inplace=True),
            nn.Unflatten(1, (last, rows, columns)),
        )
        # As table 4 has it: 32 -> 16 -> 1 with one convolution a block, 64 -> 64 -> 64 -> 32 -> 3 with two.
        hidden = [last] * depth + [width] * (depth - 1) if depth > 1 else [width]
        layers: list[nn.Module] = []
        for i, (given, wide) in enumerate(zip([last, *hidden], [*hidden, shape[0]], strict=True)):
            doubles = i % depth == depth - 1
            stride = 2 if doubles else 1
            layers.append(
                nn.ConvTranspose2d(given, wide, 3, stride, padding=1, output_padding=stride - 1)
            )
            layers.append(nn.ReLU(inplace=True))
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, z: Tensor) -> Tensor:
        """Return images of shape [n, C, H, W] for the codes ``z`` [n, l]."""
        images: Tensor = self.layers(self.expand(z))
        return images


class VAE(nn.Module):
    """An encoder that classifies, and a decoder: what FedDPMS trains in its preliminary rounds."""

    def __init__(self, encoder: VAEEncoder, decoder: Decoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
