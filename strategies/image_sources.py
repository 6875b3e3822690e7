"""How images are requested of sites, and which are accepted: a class for each of ``fedssyn.source``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import cast

import torch

from common.errors import ConfigError
from common.sites import Site
from common.specs.fedssyn import (
    IMAGES,
    SIZE,
    SYNTHESIZE,
    Images,
    given_away,
    made_spec,
    pixels_spec,
    settings_of,
)
from common.specs.generation import require_buildable
from common.wire.bundle import Bundle
from common.wire.tensors import Tensors
from common.wire.weights import Weights
from strategies.base import Instruction, State, Strategy
from strategies.exchange.replies import Upload
from strategies.exchange.rules import Rule
from strategies.surrogate import SurrogateServer

_REACHES, _STAYS = "shares of every site", "the run's checkpoints"
_SIZE = "size"


class ImageSource(ABC):
    """A source at the server: by default so many images of a byte a value from each site."""

    def __init__(self, around: Strategy) -> None:
        self._around, self._settings = around, settings_of(around.run)

    @abstractmethod
    def asked_of(self, site: Site) -> int:
        """Return how many images a site is to send, or the most that it may send."""

    def requests(
        self, server_round: int, weights: Weights, sites: Sequence[Site]
    ) -> Mapping[str, Instruction]:
        """Return each site's instruction to send images, which come as the part IMAGES of a bundle."""
        return {site.name: self._request(self.asked_of(site)) for site in sites}

    def _request(self, size: int) -> Instruction:
        form = made_spec(pixels_spec(self._around.run, size))
        return Instruction(SYNTHESIZE, Tensors({SIZE: torch.tensor(size)}), form)

    def validation_rules(self) -> Mapping[str, Rule]:
        """Return the rules by which they are accepted, by part."""
        return {IMAGES: Rule("bytes, as many as were requested", _REACHES, _STAYS)}

    def images_of(self, server_round: int, weights: Weights, upload: Upload) -> Images:
        """Return a validated upload's images; PayloadError if they cannot be used although well-formed."""
        return cast(Images, _alone(upload).payload)

    def given_of(self, examples: int) -> int:
        """Return how many of so many examples a site no longer learns from: none."""
        return 0

    def state_dict(self) -> State:
        """Return the state for a checkpoint: none."""
        return {}

    def load_state_dict(self, state: State) -> None:  # noqa: B027 - most have no past
        """Restore the state."""


class GeneratedSource(ImageSource):
    """As many images as the run's settings say of every site, drawn from the site's own generator."""

    def __init__(self, around: Strategy) -> None:
        super().__init__(around)
        run = around.run
        require_buildable(
            self._settings.source, self._settings, run.image_shape, len(run.info.classes)
        )
        self._size = 0

    def asked_of(self, site: Site) -> int:
        """Return n_tilde, the same for every site and every round: N / K where it is not set."""
        if not self._size:
            sites = self._around.sites
            examples = sum(each.examples for each in sites)
            self._size = self._settings.size or max(1, examples // len(sites))
        return self._size

    def state_dict(self) -> State:
        """Return n_tilde."""
        return {_SIZE: self._size}

    def load_state_dict(self, state: State) -> None:
        """Restore the state."""
        self._size = int(state[_SIZE])


class RealSource(ImageSource):
    """Real images, p n_k of each site, which it no longer learns from."""

    def asked_of(self, site: Site) -> int:
        """Return p n_k, regardless of ``size``, which is for generators."""
        return self.given_of(site.examples)

    def given_of(self, examples: int) -> int:
        """Return p n_k."""
        return given_away(self._settings, examples)


class DistilledSource(ImageSource):
    """Images made as another method's sites do in a round; ConfigError if they send none, each with a class."""

    def __init__(self, around: Strategy) -> None:
        super().__init__(around)
        maker = around.strategy_of(self._settings.distilled_by)
        if not isinstance(maker, SurrogateServer):
            raise ConfigError(
                f"fedssyn.distilled_by={self._settings.distilled_by} names a method whose sites send no images to "
                "learn from: choose feddm, fedaf or real"
            )
        self._maker = maker

    def requests(
        self, server_round: int, weights: Weights, sites: Sequence[Site]
    ) -> Mapping[str, Instruction]:
        """Give that method's instructions, under a phase of Fedssyn's."""
        plan = self._maker.instructions(server_round, weights, sites)
        return {
            site: Instruction(f"{SYNTHESIZE}/{what.phase}", what.payload, made_spec(what.expects))
            for site, what in plan.items()
        }

    def validation_rules(self) -> Mapping[str, Rule]:
        """Believe what that method does."""
        return {
            f"{IMAGES}/{part}".rstrip("/"): replace(
                rule.applied_to(_alone), used_by=_REACHES, stored_in=_STAYS
            )
            for part, rule in self._maker.validation_rules().items()
        }

    def images_of(self, server_round: int, weights: Weights, upload: Upload) -> Images:
        """Return the images that the method reads from its reply."""
        return self._maker.images_of(self._maker.prepare(server_round, weights, _alone(upload)))

    def asked_of(self, site: Site) -> int:
        """Return ipc of every class."""
        return self._maker.settings.ipc * len(self._maker.run.info.classes)


def _alone(upload: Upload) -> Upload:
    """Return the upload as the method has it that makes the images: without the bundle around them."""
    return replace(upload, payload=upload.payload_as(Bundle).parts[IMAGES])


SOURCES: Mapping[str, Callable[[Strategy], ImageSource]] = {
    "diffusion": GeneratedSource,
    "vae": GeneratedSource,
    "distilled": DistilledSource,
    "real": RealSource,
}
"""The sources by the names of `fedssyn.source`."""
