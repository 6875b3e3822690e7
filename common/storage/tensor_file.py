"""Tensors and a description of them in one safetensors file with a checksum over all of it. Never a pickle."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from common.errors import FederationError
from common.storage.files import write_atomically

#: the system's number of an error, as safetensors words it
_NUMBER = re.compile(r"\(os error (?P<number>\d+)\)")

#: a description alone, as earlier releases wrote it, and one behind the checksum: in a single text, since safetensors
#: writes several in an order that changes, and equal files are to be equal to the bit
_PLAIN, _CHECKED = "nectar", "nectar-sha256"


class TensorFileError(Exception):
    """A file that is not what was written, in half a sentence that names no path."""


def save(
    path: Path,
    tensors: Mapping[str, torch.Tensor],
    meta: Mapping[str, Any],
    *,
    flushed: bool = True,
) -> None:
    """Write ``tensors`` by name, and ``meta`` as JSON, whole or not at all; OSError, SafetensorError if it fails."""
    content = {name: _as_stored(t) for name, t in tensors.items()}
    text = json.dumps(meta)
    head = {_CHECKED: f"{_checksum(content, text)} {text}"}
    write_atomically(path, lambda to: save_file(content, to, head), flushed=flushed)


def _as_stored(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor whose bytes can be viewed: one without numbers may have strides of 0, which torch refuses."""
    tensor = tensor.detach().cpu().contiguous()
    return tensor if tensor.numel() else torch.empty(tensor.shape, dtype=tensor.dtype)


def load(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return the tensors by name, and their description; files of releases without checksums are taken as they are."""
    try:
        _require_file(path)
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
        _require_file(path)
        with safe_open(path, framework="pt") as file:
            head = dict(file.metadata() or {})
        meta = json.loads(head.get(_CHECKED, f" {head.get(_PLAIN, '{}')}").partition(" ")[2])
    except (SafetensorError, ValueError, OSError, RecursionError) as error:
        raise TensorFileError(str(error)) from None
    if not isinstance(meta, dict):
        raise TensorFileError("its description is not a table")
    return meta


def _require_file(path: Path) -> None:
    """OSError of a pipe, at which safetensors would wait for ever."""
    if path.exists() and not path.is_file():
        raise OSError("it is not a regular file")


def unreadable_reason(error: Exception) -> str:
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


# ---- tensor tree ---------------------------------------------------------------------------------
# Trees of tensors, numbers and texts as a flat file: what checkpoints hold besides weights. Never a pickle.

_SCALARS = (bool, int, float, str, type(None))


def split_tensors(tree: Any, where: str = "state") -> tuple[Any, dict[str, torch.Tensor]]:
    """Split ``tree`` into a JSON-able skeleton and named tensors.

    Tuples, lists and mappings with text keys may nest; leaves are tensors, NumPy arrays and scalars, Flower's
    ArrayRecord, and plain Python scalars.
    """
    tensors: dict[str, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> str:
        name = f"{len(tensors):06d}"
        tensors[name] = tensor
        return name

    def walk(node: Any, path: str) -> Any:
        if isinstance(node, _SCALARS):
            return {"v": node}
        if isinstance(node, torch.Tensor):
            return {"tensor": keep(node.detach().cpu().contiguous().clone())}
        if isinstance(node, np.ndarray | np.generic):
            if node.dtype.kind not in "fiub":
                raise _unknown(node, path)
            kept = keep(torch.from_numpy(np.array(node)))
            return {"numpy": kept, "scalar": isinstance(node, np.generic)}
        if isinstance(node, ArrayRecord):
            inner = {name: array.numpy() for name, array in node.items()}
            return {"arrays": {k: walk(v, f"{path}.{k}") for k, v in inner.items()}}
        if isinstance(node, list | tuple):
            kind = "list" if isinstance(node, list) else "tuple"
            return {kind: [walk(v, f"{path}.{i}") for i, v in enumerate(node)]}
        if isinstance(node, Mapping) and all(isinstance(k, str) for k in node):
            return {"dict": {k: walk(v, f"{path}.{k}") for k, v in node.items()}}
        raise _unknown(node, path)

    return walk(tree, where), tensors


def join_tensors(skeleton: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Rebuild the tree of ``pack``."""
    if "v" in skeleton:
        return skeleton["v"]
    if "tensor" in skeleton:
        return tensors[skeleton["tensor"]]
    if "numpy" in skeleton:
        array = tensors[skeleton["numpy"]].numpy()
        return array[()] if skeleton["scalar"] else array
    if "arrays" in skeleton:
        items = skeleton["arrays"].items()
        return ArrayRecord({k: Array(np.asarray(join_tensors(v, tensors))) for k, v in items})
    if "list" in skeleton:
        return [join_tensors(v, tensors) for v in skeleton["list"]]
    if "tuple" in skeleton:
        return tuple(join_tensors(v, tensors) for v in skeleton["tuple"])
    return {k: join_tensors(v, tensors) for k, v in skeleton["dict"].items()}


def _unknown(node: Any, path: str) -> FederationError:
    return FederationError(
        f"{path} is a {type(node).__name__}, which a checkpoint cannot hold: give the strategy a state_dict and a "
        "load_state_dict, or keep tensors, arrays and numbers only"
    )


# ---- tensors apart -------------------------------------------------------------------------------
# Large tensors that stay the same from one file to the next, each stored once beside the files, by its SHA-256.
#
# What is written apart is there before the file that names it, and goes when no file of the folder names it any more:
# a process that dies in between leaves something superfluous and never something missing.

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


def write(
    directory: Path,
    tensors: Mapping[str, torch.Tensor],
    apart: Mapping[str, str],
    *,
    flushed: bool = True,
) -> None:
    """Write those of ``tensors`` that ``apart`` names, unless they are there already."""
    for name, digest in apart.items():
        path = _path(directory, digest)
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            content = {_NAME: _as_stored(tensors[name])}  # its name is its checksum
            write_atomically(path, partial(save_file, content), flushed=flushed)


def read(directory: Path, meta: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return the tensors that a description has stored apart, by name; TensorFileError if one is missing or bad."""
    found = {}
    for name, digest in dict(meta.get(APART, {})).items():
        path = _path(directory, str(digest))
        if not path.is_file():
            raise TensorFileError(f"{FOLDER}/{path.name}, which belongs to it, is not there")
        try:
            with safe_open(path, framework="pt") as file:
                tensor = found[str(name)] = file.get_tensor(_NAME)
        except (SafetensorError, OSError) as error:
            raise TensorFileError(str(error)) from None
        if _digest(tensor) != digest:
            raise TensorFileError(f"{FOLDER}/{path.name} was changed since it was written")
    return found


def collect(directory: Path) -> None:
    """Delete what no file of ``directory`` names any more."""
    folder = directory / FOLDER
    if not folder.is_dir():
        return
    named: set[str] = set()
    for path in directory.glob("*.safetensors"):
        try:
            named |= set(meta_of(path).get(APART, {}).values())
        except TensorFileError:
            return  # what a damaged file names cannot be known
    for path in folder.glob("*.safetensors"):
        if path.stem not in named:
            path.unlink(missing_ok=True)


def known(path: Path, key: str) -> Collection[str]:
    """Return the values that a file's description has under ``key``; none where the file cannot be read."""
    try:
        found = meta_of(path).get(key, {}) if path.is_file() else {}
        return {str(value) for value in dict(found).values()}
    except (TensorFileError, TypeError, ValueError):
        return set()


def _path(directory: Path, digest: str) -> Path:
    return directory / FOLDER / f"{digest}.safetensors"
