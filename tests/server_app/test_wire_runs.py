"""Whole runs under the wire's settings: numbers by hand, what is refused, what a resumed run gives."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federation import TamperedGrid, last, run, same_end
from flwr.app import Message
from small import Small
from spoilt_pictures import SPOILT
from tampering import with_arrays
from torch.testing import assert_close

from client_app import outbound as travelling
from common.config.loading import load
from common.division import Division
from common.wire.weights import Weights
from nectar.engines.local_grid import LocalGrid
from strategies.exchange import replies

pytestmark = pytest.mark.promise(
    "What comes over the wire",
    "No byte of a site's picture reaches another site: it is decoded and encoded again",
)

# ---- pictures -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["text", "bomb of sides", "exif", "progressive", "animated gif"])
def test_a_site_that_sends_a_spoilt_picture_is_left_out_and_the_round_goes_on(
    small: Small, name: str
) -> None:
    spoil, reason = SPOILT[name]

    def spoilt(arrays: list[np.ndarray]) -> list[np.ndarray]:
        return [arrays[0], np.frombuffer(spoil(arrays[1].tobytes()), np.uint8), *arrays[2:]]

    config = small(method="real", rounds=1, set="wire.images=jpeg:80")
    line = run(config, TamperedGrid, tampers={1: with_arrays(spoilt)}).metrics()[1]
    assert list(line["accepted"]) == ["partition-0", "partition-2"]
    assert list(line["rejected"]) == ["partition-1"]
    assert re.search(reason, line["rejected"]["partition-1"])


def test_what_goes_on_to_other_sites_is_a_file_of_the_servers_own(
    small: Small,
) -> None:
    """FedMix's means come as three files, and go out as one that holds none of them."""
    came: list[bytes] = []
    went: list[bytes] = []

    class Watching(LocalGrid):
        def _call(self, message: Message) -> Message:
            went.extend(_files(message))
            reply = super()._call(message)
            came.extend(_files(reply))
            return reply

    words = "fedmix.mean_of=5 wire.images=jpeg:60"
    run(small(method="fedmix", rounds=2, set=words), Watching)
    assert len(came) == 3
    assert len(went) == 3
    assert not set(came) & set(went)


def _files(message: Message) -> list[bytes]:
    if message.has_error() or "arrays" not in message.content:
        return []
    arrays = message.content["arrays"].to_numpy_ndarrays()  # type: ignore[union-attr]
    found = (a.tobytes() for a in arrays if a.dtype == np.uint8 and a.ndim == 1)
    return [data for data in found if data.startswith(b"\xff\xd8")]


# ---- updates ------------------------------------------------------------------------------------------


def by_hand(started: dict[str, torch.Tensor], ended: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Return, in float64, the model that a byte a parameter makes of one: all of this network is parameters."""
    made = {}
    for name, start in started.items():
        change = ended[name].double() - start.double()
        scale = np.float64(np.float32(float(change.abs().max()) / 127))
        levels = np.rint(change.numpy() / scale) if scale else np.zeros(change.shape)
        made[name] = start.double() + torch.from_numpy(levels * scale)
    return made


def test_two_rounds_of_fedavg_are_those_by_hand(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sites' own models are caught before they are coded, coded by NumPy in float64, and averaged.

    A round is worked out from what its sites began with: from one that is a last bit off, a change half-way between
    two levels would be coded as the other.
    """
    caught: list[tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]] = []
    plain = travelling.Int8Update.of

    def kept(weights: Weights) -> dict[str, torch.Tensor]:
        return {n: t.clone() for n, t in weights.read_only.items()}

    def catch(new: Weights, base: Weights, *rest: Any) -> Any:
        caught.append((kept(base), kept(new)))
        return plain(new, base, *rest)

    monkeypatch.setattr(travelling.Int8Update, "of", catch)
    config = small(method="fedavg", rounds=2, set="wire.weights=int8 fedavg.weighting=uniform")
    record = run(config)
    initial = Weights.of(Division(load(config)).run.build_model()).tensors
    for name, tensor in initial.items():
        assert torch.equal(caught[0][0][name], tensor)
    for first, reached in ((0, caught[3][0]), (3, last(record).weights)):
        models = [by_hand(*each) for each in caught[first : first + 3]]
        for name, tensor in reached.items():
            expected = torch.stack([m[name] for m in models]).mean(0).float()
            # float32 keeps 6e-8 of 1, and a level is some 1e-3 apart from the next
            assert_close(torch.as_tensor(tensor), expected, rtol=0, atol=1e-6)
    assert [line["rejected"] for line in record.metrics()[1:]] == [{}, {}]


def test_a_memory_of_errors_is_the_sites_and_changes_what_is_learned(small: Small) -> None:
    words = "wire.weights=int8 wire.error_feedback="
    ends = [run(small(method="fedavg", rounds=2, set=f"{words}{w}")) for w in ("on", "off")]
    assert not same_end(*ends)
    versions = [sorted(Path(r.directory, "state").rglob("*.safetensors")) for r in ends]
    assert versions[0]
    assert not versions[1]


def test_a_site_that_sends_its_model_whole_is_rejected(small: Small) -> None:
    def whole(arrays: list[np.ndarray]) -> list[np.ndarray]:
        head = arrays[0].tobytes().replace(b"int8-update", b"weights")
        return [np.frombuffer(head, np.uint8), *(a.astype(np.float32) for a in arrays[2:])]

    config = small(method="fedavg", rounds=1, set="wire.weights=int8")
    line = run(config, TamperedGrid, tampers={1: with_arrays(whole)}).metrics()[1]
    assert "where a 'int8-update' was expected" in line["rejected"]["partition-1"]
    assert len(line["accepted"]) == 2


def test_what_is_read_of_a_reply_is_a_model(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    """No method meets an update: what the server's inbox gives is weights, whatever travelled."""
    read, kinds = replies.read_upload, set()

    def noted(*args: Any) -> Any:
        upload = read(*args)
        kinds.add(type(upload.payload))
        return upload

    monkeypatch.setattr("strategies.exchange.screening.read_upload", noted)
    run(small(method="fedavg", rounds=1, set="wire.weights=int8"))
    assert kinds == {Weights}
