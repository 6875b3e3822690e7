"""A tiny Reddit in LEAF's format, and run configs for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from small import Small

TOKENS = 10
WORDS = ("<PAD>", "<UNK>", "<BOS>", "<EOS>", "the", "bee", "finds", "a", "flower", "and", "flies")
SENTENCE = ["<BOS>", "the", "bee", "finds", "a", "flower", "and", "flies", "the", "bee", "finds"]
#: sequences of each user in the training part; the number makes clients tell apart
SIZES = {"ada": 6, "bo": 10, "cy": 20, "di": 4}


def sequence(start: int, words: int) -> tuple[list[str], list[str], list[int]]:
    """Return ten tokens of the sentence from ``start`` on, what follows each, and whether that counts."""
    row = [SENTENCE[(start + i) % len(SENTENCE)] for i in range(words + 1)]
    padding = ["<PAD>"] * (TOKENS - words)
    return row[:-1] + padding, row[1:] + padding, [1] * words + [0] * len(padding)


def shard(sizes: dict[str, int]) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for user, size in sizes.items():
        made = [sequence(len(user) + i, 4 + i % 7) for i in range(size)]
        x, y, marks = ([part] for part in zip(*made, strict=True))
        targets = [
            {"target_tokens": list(t), "count_tokens": list(c)}
            for t, c in zip(y, marks, strict=True)
        ]
        data[user] = {"x": [list(x[0])], "y": targets}
    return {"users": list(sizes), "num_samples": [1] * len(sizes), "user_data": data}


@pytest.fixture
def tiny_reddit(tmp_path: Path) -> Path:
    """Return a data directory with a tiny Reddit in LEAF's format."""
    folder = tmp_path / "data" / "leaf" / "reddit"
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    about = {"vocab": vocabulary, "size": len(WORDS), "unk_symbol": 1, "pad_symbol": 0}
    held = {"flower": 7, "bee": 3}
    for place, content in (
        ("train/reddit_0_train.json", shard(SIZES)),
        ("test/reddit_0_test.json", shard(held)),
        ("vocab/reddit_vocab.json", about),
    ):
        (folder / place).parent.mkdir(parents=True)
        (folder / place).write_text(json.dumps(content), encoding="utf-8")
    return tmp_path / "data"


@pytest.fixture
def reddit_config(tmp_path: Path, tiny_reddit: Path) -> Small:
    """Return a maker of run configs for the tiny Reddit."""

    def make(extra: str = "", method: str = "fedavg") -> dict[str, Any]:
        return {
            "output-dir": str(tmp_path / "runs"),
            "data-dir": str(tiny_reddit),
            "dataset": "reddit2k",
            "method": method,
            "rounds": 2,
            "set": "federation.sites=4 federation.participation=1 model.width=8 data.validation=0.25 "
            f"fedavg.epochs=4 fedavg.batch=5 fedavg.lr=5 {extra}",
        }

    return make
