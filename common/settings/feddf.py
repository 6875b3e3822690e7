"""FedDF's settings (Lin et al., 2020)."""

from typing import ClassVar

from common.settings.fedavg import FedAvgSettings


class FedDFSettings(FedAvgSettings):
    """Sites train as under FedAvg; the server distils all their models into the average, on images without labels.

    The images are ``distil``'s. The server trains by ``image_training``; the paper takes Adam and stops by validation.
    """

    distils: ClassVar[bool] = True
    trains_alone: ClassVar[bool] = True

    @property
    def trains_on_images(self) -> bool:
        """It does, on public ones."""
        return True
