"""Whether a site has enough images of a class to let real ones of it be what it sends begins with."""

from __future__ import annotations

from client_app.device import DeviceClient
from common.errors import FederationError
from common.settings.datasets import is_somebodys_own

#: images of a class that a site must have at the least, where the run sets no number
LEAST = 20


def refuse_small_classes(client: DeviceClient, sent: int) -> None:
    """Refuse to begin with real images of a class of which the site has few, where they may be somebody's own.

    The start of a small class is most of the class, its mean hardly moves, and so its images leave nearly as they
    are; means of a few of few images can be taken apart again. Of a public data set nobody's picture is given away.

    Parameters
    ----------
    sent : int
        What the site sends of a class, or how many images one of these is the mean of if that is more.

    Raises
    ------
    FederationError
        If it has fewer than ``data.smallest_class`` images of a class that it holds.
    """
    config = client.run.config
    counts = client.run.task.class_counts(client.samples.labels)
    if counts is None or not is_somebodys_own(config.dataset):
        return
    least = config.data.smallest_class or max(LEAST, 2 * sent)
    if any(0 < count < least for count in counts):
        raise FederationError(
            f"this site has a class of fewer than {least} images, which would leave nearly as they are where they "
            f"are the start ({config.section}.start): choose start=noise, or lower data.smallest_class if they may"
        )
