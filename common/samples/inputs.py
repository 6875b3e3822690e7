"""A site's samples on its device: kept raw, images normalised a batch at a time; rows and series at once."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.samples.dataset import DatasetInfo, Images, Split


@dataclass(frozen=True, eq=False)
class Samples:
    """Images or text with labels; ``inputs`` gives what a model takes.

    Raw bytes stay bytes (a quarter of the memory of floats, on a GPU too); the normalisation
    ``x = raw * factor + offset`` runs on the device for the requested images.

    Attributes
    ----------
    raw
        [n, C, H, W], uint8 or float32; text: tokens, int64 [n, T].
    labels
        int64 [n], for text [n, T]; on the same device.
    factor
        float32 [C, 1, 1], or None if ``raw`` is what a model takes already.
    offset
        likewise.
    """

    raw: Tensor
    labels: Tensor
    factor: Tensor | None = None
    offset: Tensor | None = None

    def __post_init__(self) -> None:
        """Refuse tensors that cannot belong together; ValueError if images and labels differ in number."""
        if self.labels.shape[:1] != self.raw.shape[:1]:
            raise ValueError(f"{self.raw.shape[0]} images with labels {tuple(self.labels.shape)}")

    @classmethod
    def of(cls, images: Tensor, labels: Tensor) -> Samples:
        """Wrap images that are normalised already, such as synthetic ones: float32 [n, C, H, W]."""
        return cls(images, labels)

    def __len__(self) -> int:
        return self.labels.shape[0]  # a tensor's len() takes five times as long

    def inputs(self, idx: Tensor | slice) -> Tensor:
        """Return the images at ``idx``, float32, normalised, on the device; of text the tokens, int64.

        Text, and images wrapped by ``of``, come back as they are, for a slice as a view: do not
        write to the result.
        """
        raw = self.raw[idx] if isinstance(idx, slice) else _rows(self.raw, idx)
        if self.factor is None or self.offset is None:
            return raw
        return torch.addcmul(self.offset, raw.to(torch.float32), self.factor)

    def at(self, positions: Tensor) -> Samples:
        """Return the samples at ``positions``, int64 [m]."""
        return replace(self, raw=self.raw[positions], labels=self.labels[positions])

    def joined(self, others: Samples) -> Samples:
        """Return these samples and then ``others``, on one device.

        Bytes stay bytes where both are normalised alike; else both become what a model takes.
        """
        labels = torch.cat([self.labels, others.labels])
        if self.raw.dtype == others.raw.dtype and _alike(self, others):
            return replace(self, raw=torch.cat([self.raw, others.raw]), labels=labels)
        everything = slice(None)
        return Samples.of(torch.cat([self.inputs(everything), others.inputs(everything)]), labels)

    def to(self, device: torch.device | str) -> Samples:
        """Return the same samples on ``device``."""
        moved = {
            name: tensor.to(device)
            for name, tensor in vars(self).items()
            if isinstance(tensor, Tensor)
        }
        return replace(self, **moved)


def in_unit(info: DatasetInfo, inputs: Tensor) -> Tensor:
    """Return images [..., C, H, W], as a model takes them, in units of ``info.scale``: x std + mean."""
    mean, std = _constants(info, inputs.device)
    return inputs * std + mean


def from_unit(info: DatasetInfo, units: Tensor) -> Tensor:
    """Return images [..., C, H, W] in units of ``info.scale`` as a model takes them: (u - mean) / std."""
    mean, std = _constants(info, units.device)
    return (units - mean) / std


def samples_of_bytes(info: DatasetInfo, values: Tensor, labels: Tensor) -> Samples:
    """Return images of uint8 [n, C, H, W], 0 to 255 of the unit, with their targets."""
    mean, std = _constants(info, values.device)
    return Samples(values, labels, 1 / (255 * std), -mean / std)


def _constants(info: DatasetInfo, device: torch.device) -> tuple[Tensor, Tensor]:
    mean, std = (torch.tensor(v, device=device)[:, None, None] for v in (info.mean, info.std))
    return mean, std


def normalised(raw: Images, info: DatasetInfo) -> NDArray[np.float32]:
    """Return rows or series [n, C, 1, T] as a model takes them, worked out in float64: raw values have any scale."""
    values = raw.astype(np.float64)
    low, high, mean, std = (
        np.array(each, dtype=np.float64)[:, None, None]
        for each in (*info.ends, info.mean, info.std)
    )
    if info.low:
        values = values.clip(low, high)
    return ((values - mean) / std).astype(np.float32)


def _rows(tensor: Tensor, idx: Tensor) -> Tensor:
    """Return ``tensor[idx]``, sooner where ``idx`` are positions one after the other."""
    idx = idx.to(tensor.device)
    if idx.dtype == torch.int64 and idx.ndim == 1:
        return tensor.index_select(0, idx)
    return tensor[idx]


def _alike(one: Samples, other: Samples) -> bool:
    """Return whether the same bytes mean the same in both."""
    pairs = ((one.factor, other.factor), (one.offset, other.offset))
    return all(a is b or (a is not None and b is not None and torch.equal(a, b)) for a, b in pairs)


def samples(split: Split, info: DatasetInfo, indices: NDArray[np.int64] | None = None) -> Samples:
    """Copy a split's samples at ``indices`` (None: all) into raw tensors."""
    chosen = slice(None) if indices is None else indices
    labels = torch.from_numpy(np.array(split.labels[chosen]))
    if not info.has_values:
        return Samples(torch.from_numpy(split.images[chosen].astype(np.int64)), labels)
    if not info.has_images:
        return Samples.of(torch.from_numpy(normalised(split.images[chosen], info)), labels)
    factor = 1 / (info.scale * np.asarray(info.std))
    offset = -np.asarray(info.mean) / np.asarray(info.std)
    raw = np.array(split.images[chosen])
    if raw.dtype == np.uint16:  # which torch can store but hardly use
        raw = raw.astype(np.float32)
    return Samples(
        torch.from_numpy(raw),
        labels,
        torch.tensor(factor, dtype=torch.float32)[:, None, None],
        torch.tensor(offset, dtype=torch.float32)[:, None, None],
    )
