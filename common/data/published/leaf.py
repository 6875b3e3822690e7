"""Data sets of LEAF (Caldas et al. 2018), FEMNIST and Reddit, whose samples have natural owners."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import DataError
from common.samples.dataset import PAD, UNK, Images, Labels, Split

Paths = Sequence[Path]


def owners_of(users: Sequence[str], sizes: Sequence[int]) -> Labels:
    """Return the numbers of the owners of samples, int64 [sum of sizes], of runs of so many that are each a user's.

    Users that have samples are 0, 1, ... in the order of their ids as text; a user may come more than once.
    """
    held = [user for user, size in zip(users, sizes, strict=True) if size]
    _, numbers = np.unique(held, return_inverse=True)
    return np.repeat(numbers.astype(np.int64), [size for size in sizes if size])


# ---- leaf femnist --------------------------------------------------------------------------------
# FEMNIST: handwritten characters by writer, from LEAF's JSON shards.

_SIDE, _PIXELS, _CLASSES = 28, 784, 62
_BYTE = 255
_NEAR = 1e-6  # of a byte's step: what is left of it in a float's decimals


def read_femnist(train: Paths, test: Paths) -> tuple[Split, Split]:
    """Return FEMNIST's splits; the training images' owners are their writers.

    LEAF writes a pixel as a float in [0, 1], 1 being white paper. Images are [n, 1, 28, 28] in
    units of 1/255: uint8 where every pixel of the split is a byte, else float32. A label is a
    place in digits, capitals, small letters.
    """
    images, labels, names, sizes = _arrays(train)
    return Split(images, labels, owners_of(names, sizes)), Split(*_arrays(test)[:2])


def _arrays(paths: Paths) -> tuple[Images, Labels, list[str], list[int]]:
    """Return a part's images and labels, and which runs of them are whose."""
    users = (user for path in paths for user in read_users(path) if user.x)
    nothing = np.empty((0, 1, _SIDE, _SIDE), dtype=np.uint8), np.empty(0, dtype=np.int64)
    # One image that is no bytes makes all of them floats, in the same units.
    return _joined(users, lambda user: (_images(user), _labels(user)), nothing)


def _joined(
    users: Iterable[User], read: Callable[[User], tuple[Any, Any]], nothing: tuple[Any, Any]
) -> tuple[Any, Any, list[str], list[int]]:
    """Return users' inputs and labels, as ``read`` has them, each as one array; their names, and how many each has."""
    parts, names = [nothing], []
    for user in users:
        parts.append(read(user))
        names.append(user.name)
    inputs, labels = map(np.concatenate, zip(*parts, strict=True))
    return inputs, labels, names, [len(part) for _, part in parts[1:]]


def _images(user: User) -> Images:
    pixels = _numbers(user.x)
    if pixels is None or pixels.shape != (len(user.x), _PIXELS):
        raise DataError(f"{user.place}: an image is not {_PIXELS} numbers; {REMEDY}")
    inside = (pixels >= 0) & (pixels <= 1)  # NaN is neither
    if not inside.all():
        at = tuple(np.argwhere(~inside)[0].tolist())
        raise DataError(
            f"{user.place}: pixel {at[1]} of image {at[0]} is {pixels[at]:g}, which is not in [0, 1]; {REMEDY}"
        )
    scaled = pixels * _BYTE
    nearest = np.rint(scaled)
    bytes_only = np.abs(scaled - nearest).max() <= _NEAR
    chosen = nearest.astype(np.uint8) if bytes_only else scaled.astype(np.float32)
    return chosen.reshape(-1, 1, _SIDE, _SIDE)


def _labels(user: User) -> Labels:
    labels = _numbers(user.y)
    if labels is None or labels.dtype.kind != "i" or labels.shape != (len(user.y),):
        raise DataError(f"{user.place}: a label is not an integer; {REMEDY}")
    wrong = (labels < 0) | (labels >= _CLASSES)
    if wrong.any():
        raise DataError(
            f"{user.place}: the label {labels[wrong][0]} is not in 0 to {_CLASSES - 1}; {REMEDY}"
        )
    return labels.astype(np.int64)


def _numbers(values: object) -> NDArray[np.number[Any]] | None:
    """Return a list of numbers, or of lists of as many of them, as an array; None for any other."""
    try:
        array = np.asarray(values)
    except (ValueError, OverflowError):  # rows of different lengths
        return None
    return array if array.dtype.kind in "if" else None


# ---- leaf json -----------------------------------------------------------------------------------
# LEAF's JSON files, read with every fault named: a shard's users, and objects of any kind.

REMEDY = "copy it again or make it with LEAF's own scripts (preprocess.sh of its data set)"


@dataclass(frozen=True, eq=False)
class User:
    """One user's samples in one shard."""

    name: str
    place: str
    x: list[Any]
    y: list[Any]


def read_users(path: Path) -> Iterator[User]:
    """Yield the users of a shard in its own order.

    It is a JSON object ``{"users": [id], "num_samples": [n], "user_data": {id: {"x": [...], "y": [...]}}}``; any
    else it has is ignored.
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
        wanted = {dict: "an object", list: "a list", int: "an integer"}[kind]
        raise DataError(f"{place}: {key!r} is not {wanted}; {REMEDY}")
    return value


# ---- leaf reddit ---------------------------------------------------------------------------------
# Reddit: users' comments for predicting the next token, from LEAF's JSON shards.

Tokens = NDArray[np.int32]

WHOLE, FREQUENT = 9_999, 2_000
"""Tokens of the full vocabulary, and of the part of it that reddit2k uses."""


def read_reddit(
    train: Paths, test: Paths, vocabularies: Paths, most: int = WHOLE
) -> tuple[Split, Split]:
    """Return Reddit's splits of sequences; the training sequences' owners are their users.

    LEAF cuts a comment into sequences of ten tokens and pads the last; a sequence's targets are
    its tokens' successors. Inputs are int32 [n, 10], targets int64 [n, 10]: 0 for padding and for
    every target that LEAF does not count, 1 for a token that is not among the ``most`` most
    frequent. A sequence without a counted target is dropped, such as a comment's last one where it
    begins with the closing token: LEAF marks the padding behind that as counted, but no prediction
    of padding is ever right. LEAF's validation part is left aside: Nectar cuts its own off the
    training part (``data.validation``).
    """
    vocabulary = read_vocabulary(vocabularies[0], most)
    inputs, targets, names, sizes = _tokens(train, vocabulary)
    tested = _tokens(test, vocabulary)
    return Split(inputs, targets, owners_of(names, sizes)), Split(*tested[:2])


def _tokens(
    paths: Paths, vocabulary: Mapping[str, int]
) -> tuple[Tokens, NDArray[np.int64], list[str], list[int]]:
    """Return a part's sequences and targets, and which runs of them are whose."""
    users, nothing = chain.from_iterable(map(read_users, paths)), np.empty((0, TOKENS), np.int32)
    read = partial(_sequences, vocabulary=vocabulary)
    inputs, targets, names, sizes = _joined(users, read, (nothing, nothing))
    return inputs, targets.astype(np.int64), names, sizes


def _sequences(user: User, vocabulary: Mapping[str, int]) -> tuple[Tokens, Tokens]:
    """Return a user's sequences and their targets, int32 [n, 10] both."""
    texts: list[Any] = []
    following: list[Any] = []
    counted: list[Any] = []
    for comment, about in zip(user.x, user.y, strict=True):
        if not isinstance(about, dict):
            raise DataError(f"{user.place}: an entry of y is not an object; {REMEDY}")
        tokens = entry(about, "target_tokens", list, user.place)
        marks = entry(about, "count_tokens", list, user.place)
        if not isinstance(comment, list) or not len(comment) == len(tokens) == len(marks):
            raise DataError(
                f"{user.place}: a comment differs from its targets or their marks in the number of sequences; {REMEDY}"
            )
        texts += comment
        following += tokens
        counted += marks
    inputs = _ids(texts, vocabulary, user)
    marks_of = _flat(counted, int, user)
    if not set(marks_of) <= {0, 1}:
        raise DataError(f"{user.place}: a mark in count_tokens is neither 0 nor 1; {REMEDY}")
    counts = np.array(marks_of, dtype=np.int32).reshape(-1, TOKENS)
    targets = np.where(counts == 1, _ids(following, vocabulary, user), np.int32(PAD))
    kept = (targets != PAD).any(axis=1)
    return inputs[kept], targets[kept]


def _ids(sequences: list[Any], vocabulary: Mapping[str, int], user: User) -> Tokens:
    tokens = _flat(sequences, str, user)
    ids = [vocabulary.get(token, UNK) for token in tokens]
    return np.array(ids, dtype=np.int32).reshape(-1, TOKENS)


def _flat(sequences: list[Any], kind: type, user: User) -> list[Any]:
    """Return the items of sequences in a row, once each has ten of the right kind."""
    complete = all(isinstance(s, list) and len(s) == TOKENS for s in sequences)
    flat = list(chain.from_iterable(sequences)) if complete else []
    if not complete or not all(type(item) is kind for item in flat):
        wanted = "tokens" if kind is str else "marks"
        raise DataError(f"{user.place}: a sequence is not {TOKENS} {wanted}; {REMEDY}")
    return flat


# ---- leaf vocabulary -----------------------------------------------------------------------------
# Reddit's vocabulary as LEAF's scripts make it: the tokens' ids, the most frequent first.

TOKENS = 10
"""Tokens of a sequence (LEAF's ``--seq-len``)."""


def read_vocabulary(path: Path, most: int) -> dict[str, int]:
    """Return the id of each of the ``most`` most frequent tokens; any other token is ``UNK``.

    LEAF numbers tokens by falling frequency, behind its two symbols for padding and for what is
    unknown, so a smaller vocabulary is the beginning of a larger one.

    It is a JSON object ``{"vocab": {token: id}, "size": n, "unk_symbol": 1, "pad_symbol": 0}``, perhaps of fewer.
    """
    content = read_object(path)
    ids = entry(content, "vocab", dict, path)
    symbols = {"pad_symbol": PAD, "unk_symbol": UNK}
    for name, wanted in symbols.items():
        if (found := entry(content, name, int, path)) != wanted:
            raise DataError(f"{path} has {name}={found}, where LEAF's has {wanted}; {REMEDY}")
    if not all(type(number) is int for number in ids.values()) or (
        sorted(ids.values()) != list(range(len(ids)))
    ):
        raise DataError(
            f"{path} is damaged: its {len(ids):,} tokens are not numbered 0 to {len(ids) - 1:,}; {REMEDY}"
        )
    return {token: number for token, number in ids.items() if number < most}
