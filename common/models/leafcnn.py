"""The CNN that LEAF trains on FEMNIST (Caldas et al., 2018, the benchmark's published code)."""

from __future__ import annotations

from torch import Tensor, nn

from common.models.classifier import Classifier


class LeafCNN(Classifier):
    """Two padded 5x5 convolutions, 2,048 hidden units and one linear layer.

    The convolutions have 32 and 64 channels and keep the image's size; ReLU and a 2x2 max pool
    follow each. It has 6,603,710 parameters for FEMNIST's 28x28 images and 62 classes. The
    embedding is the 2,048 hidden units' output.

    Parameters
    ----------
    shape
        An image's (channels, height, width), both sides at least 4.

    Raises
    ------
    ValueError
        The images are too small.
    """

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__(shape)
        channels, height, width = shape
        if min(height, width) < 4:
            raise ValueError(
                f'model "leafcnn" needs images of at least 4x4, not {height}x{width}: '
                'choose model.name "mlp" for these'
            )
        self.features = nn.Sequential(
            nn.Conv2d(channels, 32, 5, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * (height // 4) * (width // 4), 2048),
            nn.ReLU(inplace=True),
        )
        self.head = nn.Linear(2048, classes)

    def embed(self, x: Tensor) -> Tensor:
        """Return the 2,048 hidden units' output, of shape [n, 2048]."""
        hidden: Tensor = self.features(x)
        return hidden
