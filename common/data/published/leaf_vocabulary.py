"""Reddit's vocabulary as LEAF's scripts make it: the tokens' ids, the most frequent first."""

from __future__ import annotations

from pathlib import Path

from common.data.published.leaf_json import REMEDY, entry, read_object
from common.errors import DataError
from common.samples.dataset import PAD, UNK

VOCABULARY = "leaf/reddit/vocab/reddit_vocab.json"
"""Where it lies below the data directory."""

TOKENS = 10
"""Tokens of a sequence (LEAF's ``--seq-len``)."""

WHOLE, FREQUENT = 9_999, 2_000
"""Tokens of the whole vocabulary, and of its beginning that reddit2k knows."""


def read_vocabulary(path: Path, most: int) -> dict[str, int]:
    """Return the id of each of the ``most`` most frequent tokens; any other token is ``UNK``.

    LEAF numbers tokens by falling frequency, behind its two symbols for padding and for what is
    unknown, so a smaller vocabulary is the beginning of a larger one.

    Parameters
    ----------
    path
        a JSON object ``{"vocab": {token: id}, "size": n, "unk_symbol": 1, "pad_symbol": 0}``.
    most
        how many ids there are to be, 0 to ``most - 1``; a vocabulary may have fewer.

    Raises
    ------
    DataError
        the file is missing, a pickle, damaged, or numbers its symbols otherwise.
    """
    _refuse_a_pickle(path)
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


def _refuse_a_pickle(path: Path) -> None:
    pickled = path.with_suffix(".pck")
    if pickled.is_file() and not path.is_file():
        raise DataError(
            f"{pickled} is a pickle, which may run code and is never opened here: write the same dictionary as JSON to "
            f"{path}"
        )
