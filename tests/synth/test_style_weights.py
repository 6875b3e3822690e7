"""A generator's weights as text: there and back, every kind of damage, and the digits that come with the app."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import struct
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch
from style_training import encoded, start
from torch import Tensor

from common.data.loading import load
from synth.generators import style as style_weights
from synth.generators.style import Form, StyleNetwork, decoded, digits_prior

FORM = Form((1, 8, 8), 3, width=4, depth=1, latent=2)
PRIOR = "digits_prior.json"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def network() -> StyleNetwork:
    return start(FORM, torch.Generator().manual_seed(1))


def record() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(encoded(network(), "a test"))
    return found


def refusal(changed: object) -> str:
    """Return the sentence that refuses a record, its SHA-256 being right."""
    content = json.dumps(changed).encode()
    with pytest.raises(ValueError, match="generator") as caught:
        decoded(content, sha256(content))
    return str(caught.value)


def test_weights_come_back_as_float16_has_them() -> None:
    content = encoded(network(), "a test")
    found = decoded(content, sha256(content))
    assert found.form == FORM
    for (name, a), b in zip(network().named_parameters(), found.parameters(), strict=True):
        assert b.dtype == torch.float32
        assert not b.requires_grad
        assert torch.equal(a.half().float(), b), name


def test_the_text_is_plain_json_of_little_endian_halves() -> None:
    raw = base64.b64decode(record()["weights"])
    first = next(iter(network().state_dict().values())).flatten()[:3]
    assert [*struct.unpack("<3e", raw[:6])] == first.half().tolist()
    assert len(raw) == 2 * sum(p.numel() for p in network().parameters())
    assert record()["about"] == "a test"


@pytest.mark.parametrize("at", [0, 200, -5])
def test_one_wrong_bit_is_found(at: int) -> None:
    content = bytearray(encoded(network(), "a test"))
    right = sha256(content)
    content[at] ^= 1
    with pytest.raises(ValueError, match=f"damaged or others: .* does not begin with {right[:16]}"):
        decoded(bytes(content), right)


def test_what_is_no_record_is_refused() -> None:
    for content in (b"", b"{", b"\xff", b"[]", b"{}", b'{"form": {}, "weights": ""}'):
        with pytest.raises(ValueError, match="these are not a generator's weights"):
            decoded(content, sha256(content))
    assert "these are not a generator's weights" in refusal({**record(), "weights": "no base64!"})
    assert "at least 1" in refusal({**record(), "form": {**record()["form"], "width": 0}})


def test_weights_of_another_form_are_refused() -> None:
    """A form of gigabytes too, before it takes any."""
    held = len(base64.b64decode(record()["weights"]))
    for width in (5, 10**6):
        sentence = refusal({**record(), "form": {**record()["form"], "width": width}})
        assert sentence.startswith(f"the generator's weights are {held} bytes where ")
    assert "bytes where" in refusal({**record(), "weights": record()["weights"][:-4]})


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_weight_that_is_no_number_is_refused(value: float) -> None:
    raw = base64.b64decode(record()["weights"])
    broken = struct.pack("<e", value) + raw[2:]
    changed = {**record(), "weights": base64.b64encode(broken).decode()}
    assert refusal(changed) == "a weight of the generator is not finite"


def test_a_weight_too_large_for_float16_is_not_kept() -> None:
    model = network()
    model.constant.data[0, 0, 0] = 70_000
    with pytest.raises(ValueError, match="not finite in float16"):
        encoded(model, "a test")


# --- what comes with the app ---


def test_the_digits_come_in_less_than_300_kilobytes() -> None:
    prior = digits_prior()
    assert prior.form.shape == (1, 8, 8)
    assert prior.form.classes == 10
    assert len(files("synth.generators").joinpath(PRIOR).read_bytes()) <= 300_000


def test_another_file_of_digits_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / PRIOR).write_bytes(encoded(network(), "another"))
    monkeypatch.setattr(style_weights, "files", lambda package: tmp_path)
    with pytest.raises(ValueError, match="damaged or others"):
        digits_prior()


def prior_images() -> Tensor:
    """Return 50 images of every class, float [10, 50, 64]."""
    prior = digits_prior()
    labels = torch.arange(10).repeat_interleave(50)
    z = torch.randn(len(labels), prior.form.latent, generator=torch.Generator().manual_seed(0))
    return prior(z, labels).view(10, 50, 64)


def test_the_mean_of_each_class_recognises_real_digits(tmp_path: Path) -> None:
    """Which mean image correlates best: with MNIST's own means that is right for 0.56 of them, by chance for 0.1."""
    means = prior_images().mean(1)
    test = load("digits", tmp_path).test
    x = torch.from_numpy(test.images.copy()).float().flatten(1)
    found = torch.corrcoef(torch.cat((means, x)))[10:, :10].argmax(1)
    assert float((found == torch.from_numpy(test.labels.copy())).float().mean()) > 0.4


def test_the_digits_of_a_class_differ() -> None:
    """Pixels of MNIST's classes have a deviation of 0.5 about their means; one image for all codes would have 0."""
    assert float(prior_images().std(1).mean(1).min()) > 0.15
