"""Tensors and a description of them in one safetensors file with a checksum over all of it. Never a pickle.

Large tensors that stay the same from one file to the next may be stored once next to the files, by their SHA-256.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
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

#: the description's key; preceded by the checksum, in one text: safetensors writes several in an order that
#: changes, and equal files are to be equal to the bit
_DESCRIPTION = "nectar-sha256"

LARGE = 1 << 20
"""Bytes from which on a tensor may be stored separately."""

FOLDER = "tensors"

#: the key under which a description names what is stored separately: by the tensor's name, its SHA-256
_APART = "apart"

#: what a tensor is called in a separate file
_NAME = "tensor"


class TensorFileError(Exception):
    """A file that is not what was written, in half a sentence that names no path."""


def save(
    path: Path,
    tensors: Mapping[str, torch.Tensor],
    meta: Mapping[str, Any],
    *,
    separate: Mapping[str, str] | None = None,
    flushed: bool = True,
) -> None:
    """Write ``tensors`` by name, and ``meta`` as JSON, completely or not at all; OSError, SafetensorError if it fails.

    Those that ``separate`` names with their SHA-256, from `names_of_large`, are stored once for all files of
    the folder. They are there before the file that names them: a process that dies in between leaves something
    superfluous, for `collect`, and never something missing.
    """
    separate = separate or {}
    for name, digest in separate.items():
        if not (own := _beside(path, digest)).is_file():
            own.parent.mkdir(parents=True, exist_ok=True)
            content = {_NAME: _as_stored(tensors[name])}  # its name is its checksum
            write_atomically(own, partial(save_file, content), flushed=flushed)
    content = {name: _as_stored(t) for name, t in tensors.items() if name not in separate}
    text = json.dumps({**meta, _APART: separate} if separate else meta)
    head = {_DESCRIPTION: f"{_checksum(content, text)} {text}"}
    write_atomically(path, lambda to: save_file(content, to, head), flushed=flushed)


def load(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return the tensors by name, with those stored separately, and their description; else TensorFileError."""
    tensors, head = _read(path)
    checksum, _, text = head.partition(" ")
    if checksum != _checksum(tensors, text):
        raise TensorFileError("its checksum differs, so it was changed since it was written")
    meta = _description(head)
    for name, digest in dict(meta.get(_APART, {})).items():
        own = _beside(path, str(digest))
        if not own.is_file():
            raise TensorFileError(f"{FOLDER}/{own.name}, a part of it, is missing")
        held = _read(own)[0]
        if held.keys() != {_NAME} or _digest(held[_NAME]) != digest:
            raise TensorFileError(f"{FOLDER}/{own.name} was changed since it was written")
        tensors[str(name)] = held[_NAME]
    return tensors, meta


def meta_of(path: Path) -> dict[str, Any]:
    """Return a file's description without its tensors, so without the checksum; TensorFileError if unreadable."""
    return _description(_read(path, tensors=False)[1])


def names_of_large(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Return the SHA-256 of the type, shape and bytes of each tensor of a megabyte or more, by name."""
    return {name: _digest(t) for name, t in tensors.items() if t.nbytes >= LARGE}


def collect(directory: Path) -> None:
    """Delete what is stored separately and no file of ``directory`` names any more."""
    kept = list((directory / FOLDER).glob("*.safetensors"))
    named: set[str] = set()
    for path in directory.glob("*.safetensors") if kept else ():
        try:
            named |= set(meta_of(path).get(_APART, {}).values())
        except TensorFileError:
            return  # what a damaged file names cannot be known
    for path in kept:
        if path.stem not in named:
            path.unlink(missing_ok=True)


def _beside(path: Path, digest: str) -> Path:
    return path.parent / FOLDER / f"{digest}.safetensors"


def _read(path: Path, *, tensors: bool = True) -> tuple[dict[str, torch.Tensor], str]:
    """Read a file with safetensors: its tensors, if ``tensors``, and the text at its head."""
    try:
        if path.exists() and not path.is_file():  # at a pipe it would wait for ever
            raise OSError("it is not a regular file")
        with safe_open(path, framework="pt") as file:
            head = dict(file.metadata() or {}).get(_DESCRIPTION, "")
            return {name: file.get_tensor(name) for name in file.keys() if tensors}, head  # noqa: SIM118
    except (SafetensorError, ValueError, OSError) as error:
        raise TensorFileError(str(error)) from None


def _description(head: str) -> dict[str, Any]:
    try:
        meta = json.loads(head.partition(" ")[2])
    except (ValueError, RecursionError) as error:
        raise TensorFileError(str(error)) from None
    if not isinstance(meta, dict):
        raise TensorFileError("its description is not a table")
    return meta


def _as_stored(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor whose bytes can be viewed: one without numbers may have strides of 0, which torch refuses."""
    tensor = tensor.detach().cpu().contiguous()
    return tensor if tensor.numel() else torch.empty(tensor.shape, dtype=tensor.dtype)


def _checksum(tensors: Mapping[str, torch.Tensor], text: str) -> str:
    """Return the SHA-256 over the description and every tensor's name, dtype, shape and bytes."""
    digest = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"\n{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(_bytes(tensor))
    return digest.hexdigest()


def _digest(tensor: torch.Tensor) -> str:
    digest = hashlib.sha256(f"{tensor.dtype} {list(tensor.shape)} ".encode())
    digest.update(_bytes(_as_stored(tensor)))
    return digest.hexdigest()


def _bytes(tensor: torch.Tensor) -> memoryview:
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def unreadable_reason(error: Exception) -> str:
    """Return in the system's words why a file could not be written, also where safetensors wrote it."""
    number = error.errno if isinstance(error, OSError) else None
    found = _NUMBER.search(str(error))
    if number is None and found is not None:
        number = int(found["number"])
    return str(error) if number is None else os.strerror(number)


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
    """Rebuild the tree of ``split_tensors``."""
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
