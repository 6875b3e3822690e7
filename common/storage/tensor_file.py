"""Tensors and a description of them in one safetensors file with a checksum over all of it. Never a pickle."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from common.storage.files import write_atomically

#: the system's number of an error, as safetensors words it
_NUMBER = re.compile(r"\(os error (?P<number>\d+)\)")

#: a description alone, as earlier releases wrote it, and one behind the checksum: in a single text, since safetensors
#: writes several in an order that changes, and equal files are to be equal to the bit
_PLAIN, _CHECKED = "nectar", "nectar-sha256"


class TensorFileError(Exception):
    """A file that is not what was written, in half a sentence that names no path."""


def save(path: Path, tensors: Mapping[str, torch.Tensor], meta: Mapping[str, Any]) -> None:
    """Write ``tensors`` by name, and ``meta`` as JSON, whole or not at all; OSError, SafetensorError if it fails."""
    content = {name: _as_stored(t) for name, t in tensors.items()}
    text = json.dumps(meta)
    head = {_CHECKED: f"{_checksum(content, text)} {text}"}
    write_atomically(path, lambda to: save_file(content, to, head))


def _as_stored(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor whose bytes can be viewed: one without numbers may have strides of 0, which torch refuses."""
    tensor = tensor.detach().cpu().contiguous()
    return tensor if tensor.numel() else torch.empty(tensor.shape, dtype=tensor.dtype)


def load(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return the tensors by name, and their description; files of releases without checksums are taken as they are.

    Raises
    ------
    TensorFileError
        If it cannot be read, is no such file, or a byte of it has changed since it was written.
    """
    try:
        with safe_open(path, framework="pt") as file:
            head = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        checksum, _, text = head.get(_CHECKED, f" {head.get(_PLAIN, '{}')}").partition(" ")
        meta = json.loads(text)
    except (SafetensorError, ValueError, OSError, RecursionError) as error:
        raise TensorFileError(str(error)) from None
    if not isinstance(meta, dict):
        raise TensorFileError("its description is not a table")
    # Of a damaged head no key can be relied on: without a checksum is only what never had one.
    if head.keys() - {_PLAIN} and checksum != _checksum(tensors, text):
        raise TensorFileError("its checksum differs, so it was changed since it was written")
    return tensors, meta


def meta_of(path: Path) -> dict[str, Any]:
    """Return a file's description without its tensors, so without the checksum; TensorFileError if unreadable."""
    try:
        with safe_open(path, framework="pt") as file:
            head = dict(file.metadata() or {})
        meta = json.loads(head.get(_CHECKED, f" {head.get(_PLAIN, '{}')}").partition(" ")[2])
    except (SafetensorError, ValueError, OSError, RecursionError) as error:
        raise TensorFileError(str(error)) from None
    if not isinstance(meta, dict):
        raise TensorFileError("its description is not a table")
    return meta


def reason_of(error: Exception) -> str:
    """Return in the system's words why a file could not be written, also where safetensors wrote it."""
    number = error.errno if isinstance(error, OSError) else None
    found = _NUMBER.search(str(error))
    if number is None and found is not None:
        number = int(found["number"])
    return str(error) if number is None else os.strerror(number)


def _checksum(tensors: Mapping[str, torch.Tensor], text: str) -> str:
    """Return the SHA-256 over the description and every tensor's name, dtype, shape and bytes."""
    digest = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"\n{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
