"""Compressed payloads: the same values in fewer bytes, and no stream that expands beyond what was asked for."""

from __future__ import annotations

import bz2
import json
import zlib
from typing import Any

import numpy as np
import pytest
import torch
from federation import numbers, run
from hypothesis import given
from hypothesis import strategies as st
from small import Small
from tampering import Arrays

from common.errors import PayloadError
from common.wire.compression import COMPRESSIONS, Compression, arrivals, compress
from common.wire.synthetic_images import SyntheticImages, SyntheticImagesSpec
from common.wire.weights import Weights, WeightsSpec

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


def test_a_buffer_without_dimensions_and_whole_numbers_come_back() -> None:
    """A batch norm counts its batches in a scalar; long runs of zeros compress, single values travel as they are."""
    sent = Weights({"n": torch.tensor(7), "mask": torch.zeros(300, dtype=torch.int64)})
    spec = WeightsSpec(("n", "mask"), ((), (300,)), (torch.int64, torch.int64))
    arrays = sent.encode("zlib")
    assert header(arrays)["arrays"] == [None, ["int64", [300]]]
    assert sum(a.nbytes for a in arrays[1:]) < 100
    got = Weights.decode(arrays, spec)
    assert all(torch.equal(got.tensors[k], v) for k, v in sent.tensors.items())


@pytest.mark.extended
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


@pytest.mark.extended
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
