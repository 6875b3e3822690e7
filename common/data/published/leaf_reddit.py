"""Reddit: users' comments for predicting the next token, from LEAF's JSON shards."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.data.published.leaf import Paths, owners_of
from common.data.published.leaf_json import REMEDY, User, entry, read_users
from common.data.published.leaf_vocabulary import TOKENS, WHOLE, read_vocabulary
from common.errors import DataError
from common.samples.dataset import PAD, UNK, Split

Tokens = NDArray[np.int32]


def read_reddit(train: Paths, test: Paths, extra: Paths, most: int = WHOLE) -> tuple[Split, Split]:
    """Return Reddit's splits of sequences; the training sequences' owners are their users.

    LEAF cuts a comment into sequences of ten tokens and pads the last; a sequence's targets are
    its tokens' successors. Inputs are int32 [n, 10], targets int64 [n, 10]: 0 for padding and for
    every target that LEAF does not count, 1 for a token that is not among the ``most`` most
    frequent. A sequence without a counted target is dropped, such as a comment's last one where it
    begins with the closing token: LEAF marks the padding behind that as counted, but no prediction
    of padding is ever right. LEAF's validation part is left aside: Nectar cuts its own off the
    training part (``data.validation``).

    Parameters
    ----------
    train
        the training shards, in their order.
    test
        the test shards.
    extra
        the vocabulary's path.
    most
        how many tokens there are.

    Raises
    ------
    DataError
        a shard or the vocabulary is damaged; file and user are named.
    """
    vocabulary = read_vocabulary(extra[0], most)
    inputs, targets, names, sizes = _arrays(train, vocabulary)
    tested = _arrays(test, vocabulary)
    return Split(inputs, targets, owners_of(names, sizes)), Split(*tested[:2])


def _arrays(
    paths: Paths, vocabulary: Mapping[str, int]
) -> tuple[Tokens, NDArray[np.int64], list[str], list[int]]:
    """Return a part's sequences and targets, and which runs of them are whose."""
    nothing = np.empty((0, TOKENS), dtype=np.int32)
    inputs, targets, names = [nothing], [nothing], []
    for path in paths:
        for user in read_users(path):
            x, y = _sequences(user, vocabulary)
            inputs.append(x)
            targets.append(y)
            names.append(user.name)
    sizes = [len(part) for part in inputs[1:]]
    return np.concatenate(inputs), np.concatenate(targets).astype(np.int64), names, sizes


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
    whole = all(isinstance(s, list) and len(s) == TOKENS for s in sequences)
    flat = list(chain.from_iterable(sequences)) if whole else []
    if not whole or not all(type(item) is kind for item in flat):
        wanted = "tokens" if kind is str else "marks"
        raise DataError(f"{user.place}: a sequence is not {TOKENS} {wanted}; {REMEDY}")
    return flat
