"""``dataset=package.module:callable``: what a function of the user's returns."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from common.code.imports import load
from common.data.own.items import arrays_of, each, is_item_set
from common.errors import DataError, NectarError


def read_function(path: str, data_dir: Path, size: int) -> Mapping[str, Any]:
    """Call the function and return images and labels by name.

    Parameters
    ----------
    path : str
        ``package.module:callable``. One that needs an argument is given the data directory. It returns a mapping as
        :func:`common.data.own.arrays.contents_of` takes it, or data sets as torch has them: (train, test), or one.
    size : int
        As in :func:`common.data.own.items.arrays_of`.

    Raises
    ------
    DataError
        If it raises, or returns something else.
    ConfigError
        If it cannot be imported.
    """
    function = load(path)
    if not callable(function):
        raise DataError(f"dataset={path} is a {type(function).__name__}: name a function")
    arguments = [data_dir] if _takes_directory(function, path) else []
    try:
        found = function(*arguments)
    except NectarError:
        raise
    except Exception as error:  # a user's own function may raise anything
        reason = str(error).splitlines()[0] if str(error) else "without a reason"
        raise DataError(f"dataset={path} raised {type(error).__name__}: {reason}") from error
    if isinstance(found, Mapping):
        return found
    splits = found if isinstance(found, tuple) else (found,)
    if len(splits) not in (1, 2) or not all(map(is_item_set, splits)):
        raise DataError(
            f"dataset={path} returned a {type(found).__name__}: return a dict with train_images, train_labels and, if "
            "there are, test_images and test_labels; or two data sets of torch's, (train, test)"
        )
    return of_item_sets(dict(zip(("train", "test"), splits, strict=False)), size, path)


def of_item_sets(splits: Mapping[str, Any], size: int, what: str) -> dict[str, Any]:
    """Return data sets of torch's, by the name of the split, as images and labels by name; their classes too."""
    named: dict[str, Any] = {}
    for part, items in splits.items():
        named[f"{part}_images"], named[f"{part}_labels"] = arrays_of(
            each(items), len(items), size, f"{what} ({part})"
        )
    classes = getattr(splits["train"], "classes", None)
    if classes is not None:
        named["classes"] = [str(name) for name in classes]
    return named


def _takes_directory(function: Callable[..., Any], path: str) -> bool:
    """Whether the function needs an argument."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # one written in C may not tell
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [p for p in parameters if p.default is p.empty and p.kind not in variadic]
    if len(needed) > 1 or any(p.kind not in positional for p in needed):
        names = ", ".join(p.name for p in needed)
        raise DataError(
            f"dataset={path} needs the arguments {names}: it is called without any, or with the data directory"
        )
    return bool(needed)
