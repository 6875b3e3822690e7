"""How a site makes the images that others get, or its own learning does: a class for each of ``fedssyn.source``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from client_app.device import DeviceClient
from client_app.synthesis import Synthesis
from common.errors import FederationError
from common.learning.run import Run
from common.samples.inputs import Samples
from common.specs.fedssyn import (
    DONE,
    SIZE,
    Images,
    asked_spec,
    given_away,
    images_of,
    settings_of,
)
from common.wire.codec import Payload, Spec
from common.wire.levels import LEVELS
from common.wire.tensors import Tensors


class Source(Protocol):
    """A source at a site."""

    def phase_named(
        self, name: str
    ) -> tuple[Callable[[Any], Payload | None], Callable[[Run], Spec]]:
        """Return what makes a payload with the images, None while there are none, and what says which it takes."""
        ...

    def kept(self) -> Samples:
        """Return the site's own images that it goes on learning from."""
        ...


class Drawn:
    """Images of a generator that the site trains: a diffusion model, or a beta-VAE."""

    def __init__(self, client: DeviceClient) -> None:
        self._client = client

    def phase_named(
        self, name: str
    ) -> tuple[Callable[[Any], Payload | None], Callable[[Run], Spec]]:
        """Return what draws as many images as are asked for."""
        return self._draw, asked_spec

    def kept(self) -> Samples:
        """Return all."""
        return self._client.samples

    def _draw(self, asked: Tensors) -> Images | None:
        settings, size = settings_of(self._client.run), int(asked[SIZE])
        if settings.size and size != settings.size:
            raise FederationError(
                f"the server asks for {size} images where fedssyn.size={settings.size}"
            )
        synthesis = Synthesis(self._client, settings, settings.rho, size, settings.source)
        images = synthesis.images()
        if images is None:
            self._client.tell(**{DONE: synthesis.done})
        return images


class Distilled:
    """Images that another method's client makes, by its own settings."""

    def __init__(self, client: DeviceClient) -> None:
        self._client = client
        self._method = settings_of(client.run).distilled_by
        self._maker = client.client_of(self._method, client.samples)

    def phase_named(
        self, name: str
    ) -> tuple[Callable[[Any], Payload | None], Callable[[Run], Spec]]:
        """Return that client's phase, which stands behind a slash."""
        work, takes = self._maker.phase_named(name.partition("/")[2])
        return work, lambda run: takes(run.of(self._method))

    def kept(self) -> Samples:
        """Return all."""
        return self._client.samples


class Given:
    """Real images, of which the site keeps no copy to learn from: a study of shuffling."""

    def __init__(self, client: DeviceClient) -> None:
        self._client = client

    def phase_named(
        self, name: str
    ) -> tuple[Callable[[Any], Payload | None], Callable[[Run], Spec]]:
        """Return what gives away a share of the site's images."""
        return self._give, asked_spec

    def kept(self) -> Samples:
        """Return those that were not given away."""
        return self._client.samples.at(self._division()[1])

    def _give(self, asked: Tensors) -> Images:
        client = self._client
        info, device, positions = client.run.info, client.run.device, self._division()[0]
        mean, std = (torch.tensor(v, device=device)[:, None, None] for v in (info.mean, info.std))
        shown = (client.samples.inputs(positions) * std + mean).clamp(0, 1) * LEVELS
        labels = client.samples.labels[positions]
        return images_of(client.run, shown.round().to(torch.uint8).cpu(), labels.cpu())

    def _division(self) -> tuple[Tensor, Tensor]:
        """Return the positions of the images that are given away, p n_k of them, and of those that are kept."""
        client = self._client
        n, draws = len(client.samples), client.generator("given-away", 0)
        order = torch.randperm(n, generator=draws, device=client.run.device)
        cut = given_away(settings_of(client.run), n)
        return order[:cut], order[cut:]


SOURCES: Mapping[str, Callable[[DeviceClient], Source]] = {
    "diffusion": Drawn,
    "vae": Drawn,
    "distilled": Distilled,
    "real": Given,
}
"""The sources by the names of `fedssyn.source`."""
