"""Trees of tensors, numbers and texts as a flat file: what checkpoints hold besides weights. Never a pickle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord

from common.errors import FederationError

_SCALARS = (bool, int, float, str, type(None))


def pack(tree: Any, where: str = "state") -> tuple[Any, dict[str, torch.Tensor]]:
    """Split ``tree`` into a JSON-able skeleton and named tensors.

    Tuples, lists and mappings with text keys may nest; leaves are tensors, NumPy arrays and scalars, Flower's
    ArrayRecord, and plain Python scalars.

    Raises
    ------
    FederationError
        For any other type, with the path to it.
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


def unpack(skeleton: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
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
        return ArrayRecord({k: Array(np.asarray(unpack(v, tensors))) for k, v in items})
    if "list" in skeleton:
        return [unpack(v, tensors) for v in skeleton["list"]]
    if "tuple" in skeleton:
        return tuple(unpack(v, tensors) for v in skeleton["tuple"])
    return {k: unpack(v, tensors) for k, v in skeleton["dict"].items()}


def _unknown(node: Any, path: str) -> FederationError:
    return FederationError(
        f"{path} is a {type(node).__name__}, which a checkpoint cannot hold: give the strategy a state_dict and a "
        "load_state_dict, or keep tensors, arrays and numbers only"
    )
