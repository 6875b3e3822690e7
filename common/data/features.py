"""Images as what a frozen public network makes of them: one row an image, worked out once on each machine."""

from __future__ import annotations

import copy
import logging
import math
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.code.imports import is_import_path
from common.code.imports import load as load_path
from common.config.resolved import Config
from common.data.store import Contents, digest_of, shared_store
from common.draws.seeding import process_wide
from common.errors import ConfigError, DataError
from common.learning.compute import torch_device
from common.learning.start import TORCHVISION, WeightsFile, checksum, loaded, published
from common.models import Classifier, user_model
from common.models.building import drawn, outline
from common.samples.dataset import Dataset, DatasetInfo, Split
from common.samples.inputs import Samples, samples
from common.storage.limits import ANYWHERE, Bounds

log = logging.getLogger("flwr")

_SCHEMA = 1  # another number has every store worked out again
_BATCH = 64  # images at a time: a site's memory is not the run's to choose


@dataclass(frozen=True, eq=False)
class Extractor:
    """The network that ``features.*`` names, for images as ``info`` describes them.

    An image's row is phi = sqrt(d) h / |h| of its embedding h [d]; zeros stay zeros. Its mean square is 1 and no value
    is beyond sqrt(d), for any network: nothing is computed over a site's images to bring rows to a common size.
    The network is in evaluation mode: a row depends on its image alone.
    """

    config: Config
    info: DatasetInfo
    bounds: Bounds = ANYWHERE

    @cached_property
    def described(self) -> DatasetInfo:
        """The rows' description, a table's; of Nectar's networks nothing is built for it, and no weights are read."""
        if not self.info.has_images:
            raise ConfigError(
                f"features.name={self.config.features.name} takes images, and {self.info.name} holds none: leave it out"
            )
        with torch.inference_mode():
            network = self._outline.eval()
            device = next(network.parameters()).device
            d = network.embed(torch.zeros(1, *self._shape, device=device)).shape[1]
        end = (math.sqrt(d),) * d
        return replace(
            self.info,
            shape=(d, 1, 1),
            mean=(0.0,) * d,
            std=(1.0,) * d,
            scale=1.0,
            arrays="table",
            low=tuple(-each for each in end),
            high=end,
        )

    @property
    def parameters(self) -> int:
        """The numbers in the network's state; one of Nectar's is not built for that. ConfigError as of `described`."""
        return sum(tensor.numel() for tensor in self._outline.state_dict().values())

    def of(self, dataset: Dataset, roots: list[Path]) -> Dataset:
        """Return a data set's rows from the store below one of ``roots``, worked out where none has it."""
        try:
            weights = checksum(self._asked)
            stated = [dataset.checksum, self.config.features.model_dump(), weights]
            digest = digest_of([_SCHEMA, *stated])
            mode = dataset.store.stat().st_mode & 0o777 if dataset.store else 0o777
            stored = shared_store(
                f"features-{digest[:16]}", roots, digest, lambda: self._contents(dataset), mode
            )
        except ConfigError as error:
            # the file's path and content appear only in this machine's log
            raise DataError(
                str(error),
                reported=f"features.start={self.config.features.start} cannot be used here: this site's log says why",
            ) from error
        parts = (stored.train, stored.test, stored.checksum)
        return Dataset(self.described, *parts, dataset.skipped, stored.folder)

    @property
    def _asked(self) -> WeightsFile:
        f = self.config.features
        return WeightsFile(
            "features", f.name, f.start, f.sha256, f.norm, self.config.data_dir, self.bounds
        )

    @cached_property
    def _preset(self) -> Any:
        """How torchvision's weights take images: resized, cropped, normalised; None of other weights."""
        return published(self._asked).transforms() if self._published else None

    @property
    def _published(self) -> bool:
        return self.config.features.start.startswith(TORCHVISION)

    @property
    def _shape(self) -> tuple[int, ...]:
        return (3, *2 * self._preset.crop_size) if self._published else self.info.shape

    @cached_property
    def _outline(self) -> Classifier:
        """The network's names and shapes, on "meta" where it is one of Nectar's."""
        f, shape, classes = self.config.features, self._shape, len(self.info.classes)
        try:
            if not is_import_path(f.name):
                given = {"depth": f.depth, "width": f.width, "norm": f.norm, "embedding": 0}
                return outline(f.name, shape, classes, **given)
            with process_wide(0, "features"):
                made = user_model.make(load_path(f.name), f.name, shape, classes)
                return user_model.adopt(made, f.name, shape, classes)
        except ValueError as error:
            raise ConfigError(
                f"features.name={f.name} does not fit {self.info.name}: {error}"
            ) from error

    def _built(self) -> Classifier:
        if is_import_path(self.config.features.name):
            return self._outline.eval()
        return drawn(copy.deepcopy(self._outline), torch.Generator().manual_seed(0)).eval()

    def _contents(self, dataset: Dataset) -> Contents:
        network = self._built()
        network.load_state_dict(loaded(network, self._asked, announce=False))
        network.to(torch_device(self.config.compute.device))
        count = len(dataset.train) + len(dataset.test)
        log.info("features: %d images through %s, once", count, self.config.features.name)
        train, test = (
            replace(split, images=self._rows(network, split))
            for split in (dataset.train, dataset.test)
        )
        return Contents(train, test)

    @torch.inference_mode()
    def _rows(self, network: Classifier, split: Split) -> NDArray[np.float32]:
        """Return a split's rows, float32 [n, d, 1, 1]."""
        d = self.described.shape[0]
        rows = np.empty((len(split), d, 1, 1), dtype=np.float32)
        device = torch_device(self.config.compute.device)
        for first in range(0, len(split), _BATCH):
            part = np.arange(first, min(first + _BATCH, len(split)))
            h = network.embed(self._inputs(samples(split, self.info, part)).to(device)).double()
            phi = math.sqrt(d) * h / h.norm(dim=1, keepdim=True).clamp_min(1e-12)
            if not bool(phi.isfinite().all()):
                raise DataError(
                    f"features.name={self.config.features.name} gives embeddings that are not finite"
                )
            rows[part] = phi.float().cpu().numpy()[:, :, None, None]
        return rows

    def _inputs(self, images: Samples) -> Tensor:
        if not self._published:
            return images.inputs(slice(None))
        x = images.raw.float() / self.info.scale
        prepared: Tensor = self._preset(x.expand(-1, 3, -1, -1))
        return prepared
