"""Large tensors that stay the same from one file to the next, each stored once beside the files, by its SHA-256.

What is written apart is there before the file that names it, and goes when no file of the folder names it any more: a
process that dies in between leaves something superfluous and never something missing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch

from common.storage import tensor_file
from common.storage.tensor_file import TensorFileError

LARGE = 1 << 20
"""Bytes from which on a tensor may be stored apart."""

FOLDER = "tensors"

#: the key under which a file's description names what lies apart: by the tensor's name, its SHA-256
APART = "apart"

_NAME = "tensor"


def names_of_large(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Return the SHA-256 of the type, shape and bytes of each tensor of a megabyte or more, by name."""
    return {
        name: _digest(tensor)
        for name, tensor in tensors.items()
        if tensor.numel() * tensor.element_size() >= LARGE
    }


def _digest(tensor: torch.Tensor) -> str:
    stored = tensor.detach().cpu().contiguous()
    digest = hashlib.sha256(f"{stored.dtype} {list(stored.shape)} ".encode())
    digest.update(stored.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def write(directory: Path, tensors: Mapping[str, torch.Tensor], apart: Mapping[str, str]) -> None:
    """Write those of ``tensors`` that ``apart`` names, unless they lie there already.

    Parameters
    ----------
    directory : Path
        That of the files; the folder of the large ones is below it.
    tensors : mapping of str to Tensor
        All tensors of a file.
    apart : mapping of str to str
        The SHA-256 of those that are stored apart, by name.

    Raises
    ------
    OSError, SafetensorError
        If one cannot be written.
    """
    for name, digest in apart.items():
        path = _path(directory, digest)
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            tensor_file.save(path, {_NAME: tensors[name]}, {})


def read(directory: Path, meta: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return the tensors that a description has stored apart, by name; TensorFileError if one is missing or bad."""
    found = {}
    for name, digest in dict(meta.get(APART, {})).items():
        path = _path(directory, str(digest))
        if not path.is_file():
            raise TensorFileError(f"{FOLDER}/{path.name}, which belongs to it, is not there")
        found[str(name)] = tensor_file.load(path)[0][_NAME]
    return found


def collect(directory: Path) -> None:
    """Delete what no file of ``directory`` names any more."""
    folder = directory / FOLDER
    if not folder.is_dir():
        return
    named: set[str] = set()
    for path in directory.glob("*.safetensors"):
        try:
            named |= set(tensor_file.meta_of(path).get(APART, {}).values())
        except TensorFileError:
            return  # what a damaged file names cannot be known
    for path in folder.glob("*.safetensors"):
        if path.stem not in named:
            path.unlink(missing_ok=True)


def known(path: Path, key: str) -> Collection[str]:
    """Return the values that a file's description has under ``key``; none where the file cannot be read."""
    try:
        found = tensor_file.meta_of(path).get(key, {}) if path.is_file() else {}
        return {str(value) for value in dict(found).values()}
    except (TensorFileError, TypeError, ValueError):
        return set()


def _path(directory: Path, digest: str) -> Path:
    return directory / FOLDER / f"{digest}.safetensors"
