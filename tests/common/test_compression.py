"""Compressed payloads: the same values in fewer bytes, and no stream that expands beyond what was asked for."""

from __future__ import annotations

import bz2
import json
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from damaging import Arrays, with_header
from federation import numbers, run
from hypothesis import given
from hypothesis import strategies as st
from small import Small

from common.errors import PayloadError
from common.models import build
from common.wire.compression import COMPRESSIONS, Compression, arrivals, compress
from common.wire.synthetic_images import SyntheticImages, SyntheticImagesSpec
from common.wire.weights import Weights, WeightsSpec

MODEL = build("convnet", (1, 8, 8), 10, depth=1, width=16)
SPEC = WeightsSpec.of(MODEL)
IMAGES = SyntheticImagesSpec(shape=(3, 8, 8), classes=7, ipc=20)


def images(codec: str = "float32", n: int = 60) -> SyntheticImages:
    rng = torch.Generator().manual_seed(1)
    labels = torch.arange(n) % 7
    return SyntheticImages(torch.randn(n, 3, 8, 8, generator=rng), labels, codec)


def header(arrays: Arrays) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(arrays[0].tobytes())
    return content


def as_bytes(content: bytes) -> np.ndarray[Any, Any]:
    return np.frombuffer(content, np.uint8)


@pytest.mark.parametrize("codec", ["float32", "float16", "uint8"])
def test_compressed_images_decode_to_the_bits_of_uncompressed_ones(codec: str) -> None:
    plain, small = images(codec).encode(), images(codec).encode("zlib")
    assert sum(a.nbytes for a in small) < sum(a.nbytes for a in plain)
    expected = SyntheticImages.decode(plain, IMAGES)
    got = SyntheticImages.decode(small, IMAGES)
    assert torch.equal(got.images, expected.images)
    assert torch.equal(got.labels, expected.labels)


@pytest.mark.parametrize("codec", ["float32", "float16"])
def test_compressed_weights_decode_to_the_bits_of_uncompressed_ones(codec: str) -> None:
    plain = Weights.decode(Weights.of(MODEL, codec).encode(), SPEC)
    small = Weights.decode(Weights.of(MODEL, codec).encode("zlib"), SPEC)
    assert list(small.tensors) == list(plain.tensors)
    assert all(torch.equal(small.tensors[k], v) for k, v in plain.tensors.items())
    assert small.codec == codec


def test_a_buffer_without_dimensions_and_whole_numbers_come_back() -> None:
    """A batch norm counts its batches in a scalar; long runs of zeros compress, single values travel as they are."""
    sent = Weights({"n": torch.tensor(7), "mask": torch.zeros(300, dtype=torch.int64)})
    spec = WeightsSpec(("n", "mask"), ((), (300,)), (torch.int64, torch.int64))
    arrays = sent.encode("zlib")
    assert header(arrays)["arrays"] == [None, ["int64", [300]]]
    assert sum(a.nbytes for a in arrays[1:]) < 100
    got = Weights.decode(arrays, spec)
    assert all(torch.equal(got.tensors[k], v) for k, v in sent.tensors.items())


@given(st.binary(max_size=200), st.sampled_from(["uint8", "float16", "float32", "int64"]))
def test_any_bytes_come_back(content: bytes, dtype: str) -> None:
    raw = content * 20
    array = np.frombuffer(raw[: len(raw) // 8 * 8], dtype)
    entries, sent = compress([array], "zlib")
    (got,) = arrivals("test", json.loads(json.dumps(entries)), sent, "zlib")
    assert got.values().tobytes() == array.tobytes()
    assert (got.values().dtype, got.values().shape) == (array.dtype, array.shape)


def test_uncompressed_payloads_are_encoded_as_ever() -> None:
    """Receivers of earlier runs read them: a header without a word of compression, then the arrays as they are."""
    sent = images()
    arrays = sent.encode()
    assert header(arrays) == {"codec": "float32", "kind": "synthetic-images", "version": 1}
    assert np.array_equal(arrays[1], sent.images.numpy())
    assert arrays[1].dtype == np.float32
    assert len(arrays) == 3


def test_what_does_not_get_smaller_travels_as_it_is() -> None:
    noise = torch.randint(0, 256, (7, 3, 8, 8), generator=torch.Generator().manual_seed(0)).float()
    sent = SyntheticImages(noise, torch.arange(7), "uint8")
    assert [a.tobytes() for a in sent.encode("zlib")] == [a.tobytes() for a in sent.encode()]


BOMB = zlib.compress(bytes(200_000_000), 9)


def test_a_bomb_is_not_expanded() -> None:
    arrays = images().encode("zlib")
    arrays[1] = as_bytes(BOMB)
    tracemalloc.start()
    with pytest.raises(PayloadError, match="hold more than the 46080 bytes of float32"):
        SyntheticImages.decode(arrays, IMAGES)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < len(BOMB) * 4 + 1_000_000


def test_a_bomb_that_declares_its_size_is_refused_before_it_is_looked_at() -> None:
    arrays = images().encode("zlib")
    arrays[1] = as_bytes(BOMB)
    entries = header(arrays)["arrays"]
    bomb = with_header(arrays, arrays=[["float32", [200_000_000 // 768, 3, 8, 8]], entries[1]])
    with pytest.raises(PayloadError, match="where 1 to 140 are allowed"):
        SyntheticImages.decode(bomb, IMAGES)
    labels = with_header(arrays, arrays=[entries[0], ["uint8", [200_000_000]]])
    labels[1] = images().encode("zlib")[1]
    with pytest.raises(PayloadError, match=r"integers of shape \(60,\)"):
        SyntheticImages.decode(labels, IMAGES)


ENTRY = ["float32", [60, 3, 8, 8]]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda a: [a[0], a[1][:-1], a[2]], "hold less than the 46080 bytes"),
        (lambda a: [a[0], a[1][:100], a[2]], "hold less than"),
        (lambda a: [a[0], a[1][:0], a[2]], "hold less than"),
        (lambda a: [a[0], np.append(a[1], a[1][:5]), a[2]], "hold more than"),
        (lambda a: [a[0], as_bytes(b"no stream"), a[2]], "are damaged where float32 of shape"),
        (lambda a: [a[0], np.roll(a[1], 40), a[2]], "are damaged"),
        (lambda a: [a[0], as_bytes(zlib.compress(bytes(46079))), a[2]], "hold less than"),
        (lambda a: [a[0], as_bytes(zlib.compress(bytes(46081))), a[2]], "hold more than"),
        (lambda a: [a[0], a[1].astype(np.int32), a[2]], "where compressed bytes, uint8 of"),
        (lambda a: [a[0], a[1][None], a[2]], "where compressed bytes, uint8 of"),
        (lambda a: a[:2], "describes 2 arrays in its header where 1 came"),
        (lambda a: with_header(a, compression="gzip"), "compression 'gzip', allowed are zlib"),
        (lambda a: with_header(a, compression=None), "allowed are zlib"),
        (lambda a: with_header(a, arrays=None), "describes no arrays in its header where 2 came"),
        (lambda a: with_header(a, arrays=[1, 2]), "describes an array as 1 where a dtype and"),
        (lambda a: with_header(a, arrays=[["float64", ENTRY[1]], None]), "is float64 of shape"),
        (lambda a: with_header(a, arrays=[["float32", [60, 3, 4, 16]], None]), "of shape"),
        (lambda a: with_header(a, arrays=[["float32", [10**30, 3, 8, 8]], None]), "1 to 140"),
        (lambda a: with_header(a, arrays=[["float32", [30, 3, 8, 8]], None]), "hold more than"),
        (lambda a: with_header(a, arrays=[["float32", [90, 3, 8, 8]], None]), "hold less than"),
        (lambda a: with_header(a, arrays=[["float32", [-60, -3, 8, 8]], None]), "an array as"),
        (lambda a: with_header(a, arrays=[["float32", [True, 3, 8, 8]], None]), "an array as"),
        (lambda a: with_header(a, arrays=[["float32", [60.0, 3, 8, 8]], None]), "an array as"),
        (lambda a: with_header(a, arrays=[["object", ENTRY[1]], None]), "an array as"),
        (lambda a: with_header(a, arrays=[["float32"], None]), "an array as"),
        (lambda a: with_header(a, arrays=[["f4", ENTRY[1]], None]), "an array as"),
        (lambda a: with_header(a, arrays=[[{}, []], None]), "an array as"),
        (lambda a: with_header(a, arrays=[None, None]), "is uint8 of shape"),
        (
            lambda a: [a[0], as_bytes(zlib.compress(b"\xff" * 46080)), a[2]],
            "11520 of 11520 values that are not finite",
        ),
    ],
)
def test_damaged_compression_is_refused_by_name(
    damage: Callable[[Arrays], Arrays], said: str
) -> None:
    with pytest.raises(PayloadError, match=said):
        SyntheticImages.decode(damage(images().encode("zlib")), IMAGES)


def test_another_compression_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its streams too are expanded no further than what is expected, and must end there."""
    row = Compression(bz2.compress, bz2.BZ2Decompressor, OSError)
    monkeypatch.setitem(COMPRESSIONS, "bz2", row)
    arrays = images().encode("bz2")
    assert header(arrays)["compression"] == "bz2"
    assert torch.equal(SyntheticImages.decode(arrays, IMAGES).images, images().images)
    for spoilt, said in (
        (bz2.compress(bytes(46081)), "hold more than"),
        (bz2.compress(bytes(46079)), "hold less than"),
        (arrays[1].tobytes()[:-9], "hold less than"),
        (zlib.compress(bytes(46080)), "are damaged"),
    ):
        with pytest.raises(PayloadError, match=said):
            SyntheticImages.decode([arrays[0], as_bytes(spoilt), arrays[2]], IMAGES)


@pytest.mark.parametrize("method", ["feddm", "fedavg", "flwr.serverapp.strategy:FedAdam"])
@pytest.mark.parametrize("codec", ["float32", "uint8"])
def test_a_compressed_run_has_the_same_numbers_and_fewer_bytes(
    small: Small, method: str, codec: str
) -> None:
    """Also where sites evaluate, whose instructions carry weights too; a byte a pixel of noise may not shrink."""
    words = f"wire.images={codec} evaluation.on=both data.site_holdout=0.2"
    plain = numbers(run(small(method=method, set=words)))
    packed = numbers(run(small(method=method, set=f"{words} wire.compression=zlib")))
    for before, after in zip(plain, packed, strict=True):
        sizes = before.pop("bytes"), after.pop("bytes")
        assert before == after
        for way in ("up", "down"):
            for site in sizes[0][way]:
                more = int(codec == "uint8" and way == "up")
                assert sizes[1][way][site] < sizes[0][way][site] + more, (way, site)
