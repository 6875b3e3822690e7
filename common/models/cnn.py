"""The two-convolution CNN of the federated averaging literature."""

from __future__ import annotations

from torch import Tensor, nn

from common.models.classifier import Classifier

_SMALLEST = 16
"""Two 5x5 convolutions without padding and two 2x2 pools leave nothing of a smaller image."""


class CNN(Classifier):
    """Two 5x5 convolutions, 512 hidden units and one linear layer.

    The convolutions have 32 and 64 channels and no padding; ReLU and a 2x2 max pool follow each. It
    has 878,538 parameters for 32x32 colour images and ten classes. The embedding is the 512 hidden
    units' output.

    Parameters
    ----------
    shape
        An image's (channels, height, width), both sides at least 16.

    Raises
    ------
    ValueError
        The images are too small.
    """

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__(shape)
        channels, height, width = shape
        if min(height, width) < _SMALLEST:
            raise ValueError(
                f'model "cnn" needs images of at least {_SMALLEST}x{_SMALLEST}, '
                f'not {height}x{width}: choose model.name "convnet" for these'
            )
        rows, columns = (((side - 4) // 2 - 4) // 2 for side in (height, width))
        self.features = nn.Sequential(
            nn.Conv2d(channels, 32, 5),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * rows * columns, 512),
            nn.ReLU(inplace=True),
        )
        self.head = nn.Linear(512, classes)

    def embed(self, x: Tensor) -> Tensor:
        """Return the 512 hidden units' output, of shape [n, 512]."""
        hidden: Tensor = self.features(x)
        return hidden
