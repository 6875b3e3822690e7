"""LEAF's data sets: what is read of hand-written shards, what is refused, and the files themselves."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data_files import forget_loaded, write_json, write_shard, write_vocabulary

from common.config.loading import load as load_config
from common.data.loading import load
from common.data.published.leaf import owners_of
from common.data.published.sources import SOURCES
from common.division import Division
from common.errors import DataError
from common.samples.dataset import Dataset
from common.samples.inputs import samples
from nectar import cli
from nectar.arguments import parse_arguments
from nectar.dataset.account import partitioned

pytestmark = pytest.mark.usefixtures("fresh_cache")


FEMNIST = "leaf/femnist/train/all_data_0.json"
REDDIT = "leaf/reddit/train/reddit_0_train.json"
Edit = Callable[[Any], None]


def image(**pixels: float) -> list[float]:
    """Return white paper with some pixels of other values, ``p<index>=value``."""
    values = [1.0] * 784
    for name, value in pixels.items():
        values[int(name[1:])] = value
    return values


def write_femnist(data_dir: Path, first: float = 51 / 255) -> None:
    folder = data_dir / "leaf/femnist"
    # The second shard is read first if files are not sorted by name.
    write_shard(folder / "train/all_data_1.json", {"a": ([image(p783=0.0)], [61])})
    write_shard(
        folder / "train/all_data_0.json",
        {"c": ([image(p0=first), image(p29=102 / 255)], [0, 10]), "nobody": ([], [])},
    )
    write_shard(folder / "test/all_data_0.json", {"a": ([image()], [36])})


def write_reddit(data_dir: Path) -> None:
    """One comment of two sequences and one of one, by two users; ids a 2, b 3, <BOS> 4, <EOS> 5."""
    write_vocabulary(data_dir, ["a", "b", "<BOS>", "<EOS>"])
    long = (
        [["<BOS>", *"ababababa"], ["odd", "<EOS>", *["<PAD>"] * 8]],
        {
            "target_tokens": [[*"ababababa", "odd"], ["<EOS>", *["<PAD>"] * 9]],
            "count_tokens": [[1] * 9 + [1], [1, 1, *[0] * 8]],
        },
    )
    short = (
        [["<EOS>", *["<PAD>"] * 9], ["b", "a", *["<PAD>"] * 8]],
        {
            "target_tokens": [["<PAD>"] * 10, ["a", "b", *["<PAD>"] * 8]],
            "count_tokens": [[1, *[0] * 9], [1, 0, *[0] * 8]],
        },
    )
    folder = data_dir / "leaf/reddit"
    users = {"9": ([long[0]], [long[1]]), "10": ([short[0]], [short[1]])}
    write_shard(folder / "train/reddit_0_train.json", users)
    write_shard(folder / "test/reddit_0_test.json", {"9": ([short[0]], [short[1]])})


def edited(path: Path, edit: Edit) -> None:
    content = json.loads(path.read_text())
    edit(content)
    write_json(path, content)


def test_femnist_is_read_in_the_order_of_its_files_with_its_writers(tmp_path: Path) -> None:
    write_femnist(tmp_path)
    data = load("femnist", tmp_path)
    expected = np.full((3, 1, 28, 28), 255)
    expected[0, 0, 0, 0], expected[1, 0, 1, 1], expected[2, 0, 27, 27] = 51, 102, 0
    assert data.train.images.dtype == np.uint8
    np.testing.assert_array_equal(data.train.images, expected)
    assert data.train.labels.tolist() == [0, 10, 61]
    assert [data.info.classes[label] for label in data.train.labels] == ["0", "A", "z"]
    assert data.train.owners is not None
    assert data.train.owners.tolist() == [1, 1, 0], "sorted by id; who has nothing gets no number"
    assert data.test.owners is None
    assert [data.info.classes[label] for label in data.test.labels] == ["a"]
    x = samples(data.train, data.info).inputs(slice(0, 1))
    assert float(x[0, 0, 0, 0]) == pytest.approx((0.2 - 0.9637) / 0.1592, rel=1e-5)


def test_pixels_that_are_no_bytes_stay_floats_in_the_same_units(tmp_path: Path) -> None:
    write_femnist(tmp_path, first=0.123456)
    data = load("femnist", tmp_path)
    assert data.train.images.dtype == np.float32
    assert data.train.images[0, 0, 0, 0] == pytest.approx(0.123456 * 255, rel=1e-6)
    assert data.train.images[1, 0, 1, 1] == 102
    x = samples(data.train, data.info).inputs(slice(None))
    assert float(x[0, 0, 0, 0]) == pytest.approx((0.123456 - 0.9637) / 0.1592, rel=1e-5)


def test_reddit_is_read_by_its_vocabulary(tmp_path: Path) -> None:
    write_reddit(tmp_path)
    data = load("reddit", tmp_path)
    # The sequence that is only <EOS> and padding has no target that counts.
    assert data.train.images.tolist() == [
        [4, 2, 3, 2, 3, 2, 3, 2, 3, 2],
        [1, 5, 0, 0, 0, 0, 0, 0, 0, 0],
        [3, 2, 0, 0, 0, 0, 0, 0, 0, 0],
    ]
    assert data.train.labels.dtype == np.int64
    assert data.train.labels.tolist() == [
        [2, 3, 2, 3, 2, 3, 2, 3, 2, 1],
        [5, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        [2, 0, 0, 0, 0, 0, 0, 0, 0, 0],  # b is there and not counted
    ]
    assert data.train.owners is not None
    assert data.train.owners.tolist() == [1, 1, 0], "ids are text: 10 comes before 9"
    assert len(data.test) == 1
    held = samples(data.train, data.info, np.array([1, 2]))
    assert held.inputs(slice(None)).dtype == held.labels.dtype == torch.int64
    assert held.inputs(torch.tensor([1])).tolist() == [[3, 2, 0, 0, 0, 0, 0, 0, 0, 0]]
    assert held.labels.shape == (2, 10)


def test_reddit2k_knows_the_beginning_of_the_vocabulary(tmp_path: Path) -> None:
    write_reddit(tmp_path)
    write_vocabulary(tmp_path, ["a", *(f"w{i}" for i in range(1996)), "<BOS>", "b", "<EOS>"])
    data = load("reddit2k", tmp_path)
    assert data.train.images[0].tolist() == [1999, 2, 1, 2, 1, 2, 1, 2, 1, 2]
    assert load("reddit", tmp_path).train.images[0].tolist()[:3] == [1999, 2, 2000]


def test_the_checksum_goes_by_content_and_the_store_by_the_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_femnist(tmp_path)
    checksum = load("femnist", tmp_path).checksum
    shard = tmp_path / FEMNIST
    shutil.copy(shard, shard.with_name("all_data_00.json"))  # the same files by other names
    shard.unlink()
    forget_loaded(monkeypatch)
    assert load("femnist", tmp_path).checksum == checksum
    edited(
        shard.with_name("all_data_00.json"), lambda c: c.update(users=["d", "nobody"], **renamed(c))
    )
    forget_loaded(monkeypatch)
    changed = load("femnist", tmp_path)
    assert changed.checksum == checksum, "d comes after a as c did"
    edited(shard.with_name("all_data_00.json"), lambda c: c["user_data"]["d"]["y"].reverse())
    forget_loaded(monkeypatch)
    assert load("femnist", tmp_path).checksum != checksum


def renamed(content: Any) -> dict[str, Any]:
    data = content["user_data"]
    return {"user_data": {"d": data["c"], "nobody": data["nobody"]}}


def test_owners_by_hand() -> None:
    assert owners_of(["b", "a", "c", "b"], [2, 1, 0, 1]).tolist() == [1, 1, 0, 1]
    assert owners_of(["b"], [0]).tolist() == []


def put(*keys: str | int, to: object) -> Edit:
    def edit(content: Any) -> None:
        for key in keys[:-1]:
            content = content[key]
        content[keys[-1]] = to

    return edit


def drop(*keys: str) -> Edit:
    def edit(content: Any) -> None:
        for key in keys[:-1]:
            content = content[key]
        del content[keys[-1]]

    return edit


C = ("user_data", "c")
NINE = ("user_data", "9")


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (drop("users"), "all_data_0.json has no 'users'"),
        (drop("user_data"), "all_data_0.json has no 'user_data'"),
        (put("user_data", to=[]), "'user_data' is not an object"),
        (drop(*C), "has no 'c'"),
        (drop(*C, "y"), "user 'c' has no 'y'"),
        (put(*C, "x", to=1), "user 'c': 'x' is not a list"),
        (put("users", 0, to=3), "user 3: a user's id must be text"),
        (put("num_samples", to=[2]), "names 2 users and 1 numbers of samples"),
        (put("num_samples", 0, to=5), "2 samples in x and 2 in y where num_samples says 5"),
        (put(*C, "y", to=[0]), "user 'c': there are 2 samples in x and 1 in y"),
        (put(*C, "x", 1, to=[1.0] * 783), "user 'c': an image is not 784 numbers"),
        (put(*C, "x", 1, 9, to="0.5"), "user 'c': an image is not 784 numbers"),
        (put(*C, "x", 1, 9, to=None), "user 'c': an image is not 784 numbers"),
        (put(*C, "x", 1, 9, to=10**400), "user 'c': an image is not 784 numbers"),
        (put(*C, "x", 1, 9, to=1.5), r"pixel 9 of image 1 is 1\.5, which is not in \[0, 1\]"),
        (put(*C, "x", 0, 783, to=-1), r"pixel 783 of image 0 is -1"),
        (put(*C, "x", 1, 9, to=float("nan")), "pixel 9 of image 1 is nan"),
        (put(*C, "y", 1, to=62), "user 'c': the label 62 is not in 0 to 61"),
        (put(*C, "y", 1, to=-1), "the label -1 is not in 0 to 61"),
        (put(*C, "y", 1, to=3.0), "user 'c': a label is not an integer"),
        (put(*C, "y", 1, to="3"), "a label is not an integer"),
        (put(*C, "y", to=[True, False]), "a label is not an integer"),
    ],
)
def test_a_damaged_shard_of_femnist_is_refused_by_name(
    tmp_path: Path, edit: Edit, sentence: str
) -> None:
    write_femnist(tmp_path)
    edited(tmp_path / FEMNIST, edit)
    refused("femnist", tmp_path, sentence)


@pytest.mark.parametrize("content", [b"", b'{"users": ["c"', b"\xff\xfe\x00", b"[" * 200_000])
def test_a_truncated_shard_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    write_femnist(tmp_path)
    (tmp_path / FEMNIST).write_bytes(content)
    refused("femnist", tmp_path, "all_data_0.json is truncated or damaged")


def test_a_shard_that_is_no_object_is_refused(tmp_path: Path) -> None:
    write_femnist(tmp_path)
    (tmp_path / FEMNIST).write_text("[1]")
    refused("femnist", tmp_path, "all_data_0.json is not a JSON object")


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (put(*NINE, "y", to=[[]]), "user '9': an entry of y is not an object"),
        (drop(*NINE, "y", 0, "count_tokens"), "user '9' has no 'count_tokens'"),
        (put(*NINE, "y", 0, "target_tokens", to=[]), "differs from its targets or their marks"),
        (put(*NINE, "x", 0, to="text"), "differs from its targets or their marks"),
        (put(*NINE, "x", 0, 0, to=["a"] * 9), "user '9': a sequence is not 10 tokens"),
        (put(*NINE, "x", 0, 0, to="ababababab"), "a sequence is not 10 tokens"),
        (put(*NINE, "x", 0, 0, 3, to=7), "a sequence is not 10 tokens"),
        (put(*NINE, "x", 0, 0, 3, to=["a"]), "a sequence is not 10 tokens"),
        (put(*NINE, "y", 0, "count_tokens", 0, to=[1]), "a sequence is not 10 marks"),
        (put(*NINE, "y", 0, "count_tokens", 0, 0, to=2), "count_tokens is neither 0 nor 1"),
        (put(*NINE, "y", 0, "target_tokens", 0, 0, to=None), "a sequence is not 10 tokens"),
    ],
)
def test_a_damaged_shard_of_reddit_is_refused_by_name(
    tmp_path: Path, edit: Edit, sentence: str
) -> None:
    write_reddit(tmp_path)
    edited(tmp_path / REDDIT, edit)
    refused("reddit", tmp_path, sentence, "reddit_0_train.json")


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (drop("vocab"), "has no 'vocab'"),
        (put("vocab", to=["a"]), "'vocab' is not an object"),
        (put("pad_symbol", to=1), "pad_symbol=1, where LEAF's has 0"),
        (put("unk_symbol", to="1"), "'unk_symbol' is not an integer"),
        (put("vocab", "a", to=3), "its 6 tokens are not numbered 0 to 5"),
        (put("vocab", "a", to="2"), "its 6 tokens are not numbered 0 to 5"),
        (put("vocab", "a", to=-1), "its 6 tokens are not numbered 0 to 5"),
    ],
)
def test_a_damaged_vocabulary_is_refused(tmp_path: Path, edit: Edit, sentence: str) -> None:
    write_reddit(tmp_path)
    edited(tmp_path / "leaf/reddit/vocab/reddit_vocab.json", edit)
    refused("reddit", tmp_path, sentence, "reddit_vocab.json")


def test_leafs_pickled_vocabulary_is_never_opened(tmp_path: Path) -> None:
    write_reddit(tmp_path)
    vocabulary = tmp_path / "leaf/reddit/vocab/reddit_vocab.json"
    vocabulary.with_suffix(".pck").write_bytes(pickle.dumps(json.loads(vocabulary.read_text())))
    vocabulary.unlink()
    refused(
        "reddit2k", tmp_path, "is a pickle, which may run code", "write that dictionary as JSON"
    )


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("femnist", "leaf/femnist/train/*.json"),
        ("femnist", "leaf/femnist/test/*.json"),
        ("reddit", "leaf/reddit/train/*.json"),
        ("reddit2k", "leaf/reddit/vocab/reddit_vocab.json"),
    ],
)
def test_missing_files_are_said_to_lie_where(tmp_path: Path, name: str, path: str) -> None:
    write_femnist(tmp_path)
    write_reddit(tmp_path)
    for file in tmp_path.glob(path):
        file.unlink()
    with pytest.raises(DataError) as error:
        load(name, tmp_path)
    assert f"{path} is missing and is never downloaded" in str(error.value)
    assert "LEAF" in str(error.value)
    assert "NECTAR_DATA" in str(error.value)
    assert [file.path for file in SOURCES[name].missing(tmp_path)] == [path]


def refused(name: str, data_dir: Path, *sentences: str) -> None:
    for sentence in sentences:
        with pytest.raises(DataError, match=sentence) as error:
            load(name, data_dir)
        assert len(str(error.value).splitlines()) == 1
    assert not (data_dir / "nectar-store" / name).exists()


def test_the_data_command_counts_sequences(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_reddit(tmp_path)
    words = ["data", "dataset=reddit2k", f"data-dir={tmp_path}", "federation.sites=2"]
    words += ["data.validation=0"]
    assert cli.main([*words, "--draw", str(tmp_path / "c.png")]) == 0
    lines = [" ".join(line.split()) for line in capfd.readouterr().out.splitlines()]
    assert "sequences 10 tokens, each with the one that follows it as its target" in lines
    assert "training 3 sequences of 2 owners (partition.kind=natural)" in lines
    assert lines[-5:-1] == ["site sequences", "partition-0 1", "partition-1 2", "all 3"]
    assert (tmp_path / "c.png").is_file()
    holdings = partitioned(Division(load_config(parse_arguments(words[1:]))))
    assert (holdings.classes, holdings.what) == (("sequences",), "sequences")
    assert holdings.counts.tolist() == [[1], [2]]
    assert cli.main([*words, "--samples", str(tmp_path / "s.png")]) == 2
    assert "--samples draws images, and reddit2k is text" in capfd.readouterr().err


def _real(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Dataset:
    """Load LEAF's own files, through a store of the test's own."""
    data_dir = Path(os.environ.get("NECTAR_DATA") or "/nowhere")
    if missing := SOURCES[name].missing(data_dir):
        reason = f"NECTAR_DATA has no {missing[0].path}"
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    (tmp_path / "leaf").symlink_to((data_dir / "leaf").resolve())
    return load(name, tmp_path)


@pytest.mark.long
@pytest.mark.extended
def test_femnists_own_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    data = _real("femnist", monkeypatch, tmp_path)
    assert (len(data.train), len(data.test)) == (41_202, 4_730)
    assert data.train.images.dtype == data.test.images.dtype == np.uint8
    assert data.train.owners is not None
    assert np.unique(data.train.owners).tolist() == list(range(300))
    assert set(data.train.labels) == set(range(62))
    scaled = data.train.images / 255.0
    # The constants in common use are of other samples of writers.
    assert scaled.mean() == pytest.approx(data.info.mean[0], abs=0.005)
    assert scaled.std() == pytest.approx(data.info.std[0], abs=0.01)


@pytest.mark.extended
def test_reddits_own_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    data = _real("reddit", monkeypatch, tmp_path)
    folder = tmp_path / "leaf/reddit"
    shards = [json.loads(path.read_bytes()) for path in sorted(folder.glob("*/reddit_0_*.json"))]
    comments = sum(len(held["x"]) for shard in shards for held in shard["user_data"].values())
    assert (len(shards), comments) == (3, 14_708)
    assert {len(shard["users"]) for shard in shards} == {694}
    assert data.train.owners is not None
    assert np.unique(data.train.owners).tolist() == list(range(694))
    assert (len(data.train), len(data.test)) == (51_896, 18_463)
    # LEAF marks one padding a comment as counted, the one behind its end.
    tested = list(shards[0]["user_data"].values())  # by name: test, train, val
    marks = sum(sum(map(sum, y["count_tokens"])) for held in tested for y in held["y"])
    places = (data.test.labels != 0).sum()
    assert places == marks - sum(len(held["x"]) for held in tested)
    # LEAF divides its hits by the tokens that are not padding; how far its figure is below Nectar's.
    tokens = sum(
        token != "<PAD>" for held in tested for text in held["x"] for row in text for token in row
    )
    assert places / tokens == pytest.approx(0.982, abs=0.0005)


@pytest.mark.long
@pytest.mark.extended
def test_reddits_ids_fall_with_frequency_so_reddit2k_has_the_most_frequent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = _real("reddit", monkeypatch, tmp_path)
    counts = np.bincount(whole.train.images.ravel(), minlength=9_999)
    assert counts[2] > 20_000
    assert (np.diff(counts[2:]) <= 0).all()
    small = load("reddit2k", tmp_path)
    for known, cut in (
        (whole.train.labels, small.train.labels),
        (whole.test.images, small.test.images),
    ):
        np.testing.assert_array_equal(cut, np.where(known < 2_000, known, 1))
