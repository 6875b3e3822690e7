"""LEAF's JSON files, read with every fault named: a shard's users, and objects of any kind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import DataError

REMEDY = "copy it again or make it with LEAF's own scripts (preprocess.sh of its data set)"


@dataclass(frozen=True, eq=False)
class User:
    """What one shard holds of one user.

    Attributes
    ----------
    name
        LEAF's id of the writer or user.
    place
        file and user, to begin a complaint with.
    x
        the samples, as JSON has them.
    y
        as many targets.
    """

    name: str
    place: str
    x: list[Any]
    y: list[Any]


def read_users(path: Path) -> Iterator[User]:
    """Yield the users of a shard in its own order.

    Parameters
    ----------
    path
        a JSON object ``{"users": [id], "num_samples": [n], "user_data": {id: {"x": [...],
        "y": [...]}}}``; whatever else it has is ignored.

    Raises
    ------
    DataError
        the file cannot be read or is damaged; file and user are named.
    """
    shard = read_object(path)
    names = entry(shard, "users", list, path)
    sizes = entry(shard, "num_samples", list, path)
    data = entry(shard, "user_data", dict, path)
    if len(names) != len(sizes):
        raise DataError(
            f"{path} is damaged: it names {len(names)} users and {len(sizes)} numbers of samples; {REMEDY}"
        )
    for name, size in zip(names, sizes, strict=True):
        place = f"{path}, user {name!r}"
        if not isinstance(name, str):
            raise DataError(f"{place}: a user's id must be text; {REMEDY}")
        held = entry(data, name, dict, path)
        x, y = entry(held, "x", list, place), entry(held, "y", list, place)
        if not len(x) == len(y) == size:
            raise DataError(
                f"{place}: there are {len(x)} samples in x and {len(y)} in y where num_samples says {size}; {REMEDY}"
            )
        yield User(name, place, x, y)


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; DataError if it cannot be read, or is not one."""
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); {REMEDY}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is truncated or damaged ({error}); {REMEDY}") from error
    if not isinstance(content, dict):
        raise DataError(f"{path} is not a JSON object; {REMEDY}")
    return content


def entry(content: dict[str, Any], key: str, kind: type, place: object) -> Any:
    """Return ``content[key]``; DataError if it is missing or of another kind."""
    if key not in content:
        raise DataError(f"{place} has no {key!r}; {REMEDY}")
    value = content[key]
    if not isinstance(value, kind) or isinstance(value, bool):
        wanted = {dict: "an object", list: "a list", int: "a whole number"}[kind]
        raise DataError(f"{place}: {key!r} is not {wanted}; {REMEDY}")
    return value
